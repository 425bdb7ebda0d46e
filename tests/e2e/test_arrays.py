"""Arrays by what their tasks do: each runs once, with its index, and no more at once than asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from instance import CONFIG, Instance, wait_for

ROOMY = CONFIG.replace("cores = 9", "cores = 50").replace('"18G"', '"50G"')
SMALL = ("-c", "0.1", "-m", "64M")
#: Every task leaves a line in a file of its own whenever it runs.
MARK = "echo x >> ran-$DRF_ARRAY_INDEX; "


def array(instance: Instance, indices: str, script: str, *options: str) -> int:
    return instance.submit(*SMALL, "--array", indices, *options, "--", "sh", "-c", script)


def shown(instance: Instance, array_id: int) -> dict[str, Any]:
    return dict(json.loads(instance.drf("show", "--json", array_id).stdout))


def runs(instance: Instance, indices: range) -> list[int]:
    """How often each task has run."""
    files = [instance.work / f"ran-{index}" for index in indices]
    return [len(path.read_text().split()) if path.exists() else 0 for path in files]


def test_each_task_runs_once_with_its_index_and_writes_to_its_own_file(
    instance: Instance,
) -> None:
    told = "$DRF_ARRAY_INDEX $DRF_ARRAY_COUNT $DRF_ARRAY_MIN $DRF_ARRAY_MAX $DRF_ARRAY_ID"
    array_id = array(instance, "1,4-8:2", f"echo {told} $DRF_JOB_ID")
    assert instance.drf("wait", array_id).stdout == (
        f"array {array_id} COMPLETED: 4 of 4 tasks completed\n"
    )
    for at, index in enumerate((1, 4, 6, 8)):
        output = (instance.work / f"drf-{array_id}_{index}.out").read_text()
        assert output == f"{index} 4 1 8 {array_id} {array_id + 1 + at}\n"
        assert instance.drf("log", f"{array_id}_{index}").stdout == output
    assert instance.cgroups() == []


def test_tasks_have_the_range_of_their_array_and_so_has_one_that_is_tried_again(
    instance: Instance,
) -> None:
    words = ("-c", "0.1..2", "-m", "64M", "--array", "0-1", "--", "sh", "-c")
    array_id = instance.submit(*words, "exit $DRF_ARRAY_INDEX")
    instance.drf("wait", array_id, check=False)
    again = instance.drf("retry", "-q", f"{array_id}_1").stdout.strip()
    instance.drf("wait", again, check=False)
    past = json.loads(instance.drf("history", "--json").stdout)["jobs"]
    assert [job["demand"]["cores_max"] for job in past] == [2.0, 2.0, 2.0]
    rows = [line.split() for line in instance.drf("history").stdout.splitlines()]
    assert sum(any(word.endswith("/0.1..2") for word in row) for row in rows) == 3


def test_no_more_run_at_once_than_were_asked_for(instance: Instance) -> None:
    """Both lines of a task go to one file, which the kernel appends to in one piece. The first ones
    wait for each other, however slowly they are started."""
    together = "while ! [ -e gate ]; do sleep 0.05; done"
    array_id = array(instance, "0-9%3", f"echo + >> log; {together}; sleep 0.2; echo - >> log")
    log = instance.work / "log"
    wait_for("three to run", lambda: log.exists() and log.read_text().count("+") >= 3)
    (instance.work / "gate").touch()
    instance.drf("wait", array_id)
    level = most = 0
    for sign in log.read_text().split():
        level += 1 if sign == "+" else -1
        most = max(most, level)
    assert (level, most) == (0, 3)


def test_the_exit_code_is_that_of_the_first_bad_task_by_index(instance: Instance) -> None:
    script = "test $DRF_ARRAY_INDEX -lt 4 || sleep 0; exit $((DRF_ARRAY_INDEX / 4 * 3))"
    done = instance.drf(
        "submit", "-w", *SMALL, "--array", "0-5", "--", "sh", "-c", script, check=False
    )
    assert done.returncode == 3
    view = shown(instance, 1)
    assert view["counts"] == {"COMPLETED": 4, "FAILED": 2}
    assert view["indices"] == {"FAILED": "4-5"}


def test_a_cancellation_ends_all_tasks_that_wait_and_stops_those_that_run(
    instance: Instance,
) -> None:
    array_id = array(instance, "0-999%2", MARK + "sleep 1000")
    wait_for("two to run", lambda: runs(instance, range(2)) == [1, 1])
    assert instance.drf("cancel", array_id).stdout == f"cancelled job {array_id}\n"
    done = instance.drf("wait", array_id, check=False)
    assert done.returncode == 128 + 15
    assert shown(instance, array_id)["counts"] == {"CANCELLED": 1000}
    assert runs(instance, range(1000)) == [1, 1, *[0] * 998]
    assert instance.drf("wait", f"{array_id}_999", check=False).returncode == 125
    assert instance.cgroups() == []


def test_what_is_held_of_an_array_does_not_start_before_its_release(instance: Instance) -> None:
    array_id = array(instance, "0-3", MARK, "--hold")
    instance.drf("release", f"{array_id}_2")
    instance.drf("wait", f"{array_id}_2")
    assert runs(instance, range(4)) == [0, 0, 1, 0]
    instance.drf("release", array_id)
    instance.drf("wait", array_id)
    assert runs(instance, range(4)) == [1, 1, 1, 1]


def test_an_array_waits_for_all_tasks_of_another(instance: Instance) -> None:
    first = array(instance, "0-4%2", "sleep 0.1; echo 1 >> order")
    second = array(instance, "0-1", "echo 2 >> order", "--after", str(first))
    instance.drf("wait", second)
    assert (instance.work / "order").read_text().split() == ["1"] * 5 + ["2"] * 2


def test_a_hundred_thousand_tasks_are_there_again_soon_after_a_kill(
    make_instance: Callable[..., Instance],
) -> None:
    instance = make_instance().start()
    instance.drf("drain")
    array_id = array(instance, "0-99999", "true")
    begun = time.monotonic()
    instance.kill()
    instance.start()
    # Generous: as single jobs they take longer than this on a slow machine.
    assert time.monotonic() - begun < 60
    assert shown(instance, array_id)["counts"] == {"PENDING": 100_000}
    instance.drf("cancel", array_id)


def test_killed_again_and_again_each_task_runs_once_and_none_is_forgotten(
    make_instance: Callable[..., Instance],
) -> None:
    """SIGKILL to the controller or the launcher at moments that nobody chose."""
    instance = make_instance(ROOMY).start()
    indices = range(40)
    array_id = array(instance, "0-39%4", MARK + "sleep 0.15; exit $((DRF_ARRAY_INDEX % 2 * 3))")
    for number in range(8):
        time.sleep(0.05 + 0.04 * number)
        if number % 3 == 2:
            instance.kill_launcher()
        else:
            instance.kill()
            instance.start()
    instance.drf("wait", array_id, check=False)
    assert runs(instance, indices) == [1] * 40
    view = shown(instance, array_id)
    assert view["counts"] == {"COMPLETED": 20, "FAILED": 20}
    assert view["indices"] == {"FAILED": "1-39:2"}
    assert instance.cgroups() == []


@pytest.mark.parametrize(
    "point",
    [
        "journal.before-commit",
        "journal.after-commit",
        "engine.before-effect",
        "engine.after-effect",
        "server.before-reply",
        "launch.after-fork",
        "remove.after-unlink",
    ],
)
def test_dying_at(make_instance: Callable[..., Instance], point: str) -> None:
    """Whoever reaches the point dies there, and is started again."""
    instance = make_instance(ROOMY).start()
    armed = instance.arm(point, "self")
    said: list[int] = []
    asking = threading.Thread(
        target=lambda: said.append(array(instance, "0-5%2", MARK + "sleep 0.1; exit 3"))
    )
    asking.start()
    while asking.is_alive():
        instance.restart_if_dead()
        asking.join(0.05)
    (array_id,) = said

    def is_over() -> bool:
        instance.restart_if_dead()
        done = instance.drf("status", "--json", check=False)
        return done.returncode == 0 and not json.loads(done.stdout)["jobs"]

    wait_for("the end of the array", is_over, show=instance.log.read_text)
    assert not armed.exists(), "the point was never reached"
    assert runs(instance, range(6)) == [1] * 6
    assert shown(instance, array_id)["counts"] == {"FAILED": 6}
    assert [job["array_id"] for job in instance.status("--all")] == [array_id] * 6

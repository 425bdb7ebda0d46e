"""How many processes jobs may have, and how much the launcher takes upon itself."""

from __future__ import annotations

import resource
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drfd.launcher.confinement import cgroup_files
from drfd.launcher.confinement.bounds import (
    LauncherBounds,
    ProcessBounds,
    kernel_limit,
    launcher_bounds,
    process_bounds,
)
from drfd.launcher.confinement.cgroup_files import ancestors
from drfd.launcher.protocol import LaunchOrder
from launcher.rig import MakeLauncher, order

MIB = 1 << 20


@pytest.mark.parametrize(
    ("limit", "total", "per_user", "found"),
    [
        (32768, None, None, ProcessBounds(28672, 14336)),
        (4 << 20, None, None, ProcessBounds(3670016, 1835008)),
        (2000, None, None, ProcessBounds(1488, 744)),
        (100, None, None, ProcessBounds(50, 25)),
        (32768, 1000, None, ProcessBounds(1000, 500)),
        (32768, 1000, 900, ProcessBounds(1000, 900)),
        (32768, 1000, 5000, ProcessBounds(1000, 1000)),
        (32768, 10**9, 10**9, ProcessBounds(28672, 28672)),
        (1, None, None, ProcessBounds(1, 1)),
    ],
)
def test_jobs_leave_an_eighth_of_all_processes_to_the_system(
    limit: int, total: int | None, per_user: int | None, found: ProcessBounds
) -> None:
    """Eight jobs, each within its own limit, could use up all of the kernel's."""
    assert process_bounds(limit, total, per_user) == found


def test_the_launcher_takes_what_its_descriptors_and_processes_allow() -> None:
    assert launcher_bounds(1024, 32768) == LauncherBounds(running=320, notifiers=80, known=1280)
    assert launcher_bounds(1 << 20, 32768) == LauncherBounds(
        running=8192, notifiers=256, known=32768
    )
    assert launcher_bounds(1 << 20, 4 << 20) == LauncherBounds(
        running=20_000, notifiers=256, known=80_000
    )
    assert launcher_bounds(10, 10) == LauncherBounds(running=1, notifiers=1, known=4)


def test_the_limits_of_all_cgroups_around_count(tmp_path: Path) -> None:
    (tmp_path / "drfd").mkdir()
    assert ancestors(str(tmp_path), "drfd/system") == [str(tmp_path), str(tmp_path / "drfd")]
    whole = kernel_limit(ancestors(str(tmp_path), "drfd/system"))
    (tmp_path / "pids.max").write_text("max\n")
    (tmp_path / "drfd" / "pids.max").write_text("77\n")
    assert kernel_limit(ancestors(str(tmp_path), "drfd/system")) == 77 < whole
    cgroup_files.limit_processes(str(tmp_path / "drfd"), 12)
    assert (tmp_path / "drfd" / "pids.max").read_text() == "12"


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
def test_thousands_of_orders_start_no_more_than_the_launcher_can_take_care_of(
    make_launcher: MakeLauncher, work: Path
) -> None:
    """The root process forked for whatever it was told to start, until root had no more."""
    launcher = make_launcher()
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))"
    pid = launcher.start(prelude=few).pid
    controller = launcher.connect()
    before_bytes = resident_bytes(pid)
    most, count = launcher_bounds(100, 1 << 22).running, 3000

    def sleeper(number: int) -> LaunchOrder:
        return order("sleep", "1000", cwd=work, id=number, stdout="/dev/null", stderr="/dev/null")

    def flood() -> None:
        for number in range(1, count + 1):
            controller.launch(sleeper(number))

    found: dict[int, str] = {}
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(flood)
        while len(found) < count:
            report = controller._next()
            found.setdefault(report["id"], report["report"])
            if report["report"] == "shortage":
                assert report["text"] == (
                    f"as many jobs run as the launcher can take care of: {most}"
                )
                assert (report["whose"], report["resource"]) == ("machine", "launcher")
        done.result()
    assert Counter(found.values()) == {"up": most, "shortage": count - most}
    assert descriptors(pid) <= 100
    assert len(list(launcher.files.path.iterdir())) == most
    # Orders to tell somebody of jobs that there are not, and to end these, leave nothing either.
    with ThreadPoolExecutor(1) as pool:

        def more() -> None:
            for number in range(count + 1, 2 * count):
                controller.notify(sleeper(number))
                for command in ("kill", "freeze", "terminate"):
                    controller.ask(command, (number, 1))
            controller.send({"cmd": "list"})

        done = pool.submit(more)
        report = controller._next()
        while report["report"] != "listed":
            report = controller._next()
        done.result()
    assert len(report["known"]) == most
    assert resident_bytes(pid) - before_bytes < 64 * MIB
    for number, attempt in report["known"]:
        controller.ask("remove", (number, attempt))
    while launcher.files.path.exists() and list(launcher.files.path.iterdir()):
        controller._next()
    controller.launch(order("true", cwd=work, id=5 * count))
    report = controller._next()
    while (report["report"], report["id"]) != ("ended", 5 * count):
        assert report["report"] in ("removed", "ended", "up"), report
        report = controller._next()
    assert report["exit_code"] == 0

"""Two disks, of which one is a file: rates hold on the disk that they were declared for. Others may
keep the machine busy meanwhile, so measures are compared with each other.
"""

from pathlib import Path
from typing import Any

import pytest

from instance import CONFIG, Instance
from kernel import Kernel

pytestmark = pytest.mark.system
MIB = 1 << 20
EXTRA = """[[disk]]
name = "extra"
path = "{extra}"
read = "50M"
write = "50M"
"""


@pytest.fixture
def instance(make_instance, extra) -> Instance:
    """Its first disk is that of the usual configuration, and cores are given by quota."""
    text = CONFIG.replace('"test"', '"main"') + EXTRA.format(extra=extra)
    made = make_instance(text).start()
    if "blkio" not in Kernel().v1 and Kernel().v2 is None:
        pytest.skip("no controller of disks here")
    return made


#: Seconds in which 30 MiB cannot be written at 4 MiB in a second.
LEAST_S = 6.0


def seconds(instance: Instance, *words: str, where: Path, most_s: float) -> float:
    """The time to write 30 MiB there: others only lengthen it, so the shortest of three counts."""
    target = f"of={where / 'written'}"
    command = ["dd", "if=/dev/zero", target, "bs=1M", "count=30", "oflag=direct", "status=none"]
    took_s: list[float] = []
    while len(took_s) < 3 and (not took_s or took_s[-1] >= most_s):
        job = instance.ended(*words, "--", *command, cwd=where)
        assert job["state"] == "COMPLETED", job
        took_s.append(float(job["ended_at"] - job["started_at"]))
    assert min(took_s) < most_s, took_s
    return min(took_s)


def test_a_rate_holds_on_the_disk_that_it_names_only(instance, extra):
    slow = seconds(instance, "--io", "extra=4M", where=extra, most_s=20)
    assert slow > LEAST_S
    seconds(instance, "--io", "main=4M", where=extra, most_s=slow / 2)
    assert seconds(instance, "--io", "main=4M", where=instance.work, most_s=20) > LEAST_S


def test_a_rate_without_name_is_for_the_directorys_disk(instance, extra):
    assert seconds(instance, "--io", "4M", where=extra, most_s=20) > LEAST_S
    job_id = instance.submit("--io", "40M/20M", "--", "true", cwd=extra)
    demand: dict[str, Any] = instance.show(job_id)["demand"]
    assert (demand["read"], demand["write"]) == (40 * MIB, 20 * MIB)
    assert demand["disks"]["extra"] == {"read": 40 * MIB, "write": 20 * MIB}
    assert "io 40M/20M on disk extra\n" in instance.drf("show", job_id).stdout


def test_each_disk_is_given_out_by_itself_and_a_reload_may_take_one_away(instance, extra):
    holder = instance.running("--io", "extra=1M/40M", "--", "sleep", "600")["id"]
    waits = instance.submit("--io", "extra=1M/20M", "--", "true")
    other = instance.submit("--io", "main=1M/20M", "--", "true")
    assert instance.wait_end(other)["state"] == "COMPLETED"
    text = instance.show(waits)["reason"]["text"]
    assert text.startswith("needs 20M/s of disk writes on extra, 10M/s free")

    config = instance.config.read_text()
    instance.config.write_text(config.replace(EXTRA.format(extra=extra), ""))
    assert "jobs name the disk extra, which is not configured" in instance.drf("reload").stderr
    assert "since its configuration was changed" in instance.show(waits)["reason"]["text"]
    assert instance.show(holder)["state"] == "RUNNING"
    instance.kill()
    instance.start()
    assert "since its configuration was changed" in instance.show(waits)["reason"]["text"]
    assert instance.show(holder)["state"] == "RUNNING"
    instance.config.write_text(config)
    instance.drf("reload")
    instance.drf("cancel", holder)
    assert instance.wait_end(waits)["state"] == "COMPLETED"

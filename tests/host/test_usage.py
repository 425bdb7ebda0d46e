"""Readings of a job's use: from a directory of plain files, and from real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drfd.core.job import Usage
from drfd.core.limits import Sample
from drfd.host import usage
from drfd.host.usage import (
    peak_memory_v1,
    peak_memory_v2,
    sample_cgroup_v1,
    sample_cgroup_v2,
    sample_processes,
    usage_between,
)

MIB = 1 << 20
FILES = {
    "cpuacct/cpuacct.usage": "1500000000\n",
    "memory/memory.stat": "cache 4096\nrss 1\ntotal_cache 999\ntotal_rss 3000\ntotal_shmem 200\n",
    "memory/memory.max_usage_in_bytes": "7777\n",
    "blkio/blkio.throttle.io_service_bytes": (
        "8:0 Read 100\n8:0 Write 10\n8:0 Sync 110\n8:0 Async 0\n8:0 Total 110\n"
        "8:16 Read 1\n8:16 Write 2\n8:16 Total 3\nTotal 113\n"
    ),
}
CGROUP = "drfd/job-1.1"
NOTHING = Sample(mono_s=5.0, memory_bytes=None, read_bytes=None, written_bytes=None, cpu_s=None)


@pytest.fixture
def mounts(tmp_path: Path) -> dict[str, str]:
    """The cgroup of one attempt, below each controller, as plain files."""
    for name, text in FILES.items():
        controller, _, file = name.partition("/")
        path = tmp_path / controller / CGROUP / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {name: str(tmp_path / name) for name in ("cpuacct", "memory", "blkio")}


def test_a_sample_is_what_cannot_be_dropped_and_what_went_to_all_disks(
    mounts: dict[str, str],
) -> None:
    """Page cache is not counted: the kernel takes it back by itself."""
    assert sample_cgroup_v1(mounts, CGROUP, 5.0) == Sample(
        mono_s=5.0, memory_bytes=3200, read_bytes=101, written_bytes=12, cpu_s=1.5
    )
    assert peak_memory_v1(mounts, CGROUP) == 7777


def test_a_job_that_has_not_touched_a_disk_has_read_nothing(mounts: dict[str, str]) -> None:
    path = Path(mounts["blkio"], CGROUP, "blkio.throttle.io_service_bytes")
    path.write_text("Total 0\n")
    sample = sample_cgroup_v1(mounts, CGROUP, 5.0)
    assert (sample.read_bytes, sample.written_bytes) == (0, 0)


def test_a_cgroup_that_has_vanished_reads_as_none(mounts: dict[str, str]) -> None:
    assert sample_cgroup_v1(mounts, "drfd/job-2.1", 5.0) == NOTHING
    assert peak_memory_v1(mounts, "drfd/job-2.1") is None


def test_a_controller_that_is_not_mounted_reads_as_none() -> None:
    assert sample_cgroup_v1({}, CGROUP, 5.0) == NOTHING
    assert peak_memory_v1({}, CGROUP) is None


@pytest.mark.parametrize("gone", sorted(FILES))
def test_one_file_that_is_missing_hides_only_its_own_reading(
    mounts: dict[str, str], gone: str
) -> None:
    controller, _, file = gone.partition("/")
    whole = sample_cgroup_v1(mounts, CGROUP, 5.0)
    Path(mounts[controller], CGROUP, file).unlink()
    fields = {
        "cpuacct.usage": {"cpu_s": None},
        "memory.stat": {"memory_bytes": None},
        "memory.max_usage_in_bytes": {},
        "blkio.throttle.io_service_bytes": {"read_bytes": None, "written_bytes": None},
    }[file]
    expected = {name: getattr(whole, name) for name in Sample.__slots__} | fields
    assert sample_cgroup_v1(mounts, CGROUP, 5.0) == Sample(**expected)


# -- cgroup v2 ---------------------------------------------------------------------------------

UNIFIED = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
    "memory.stat": (
        "anon 1000\nfile 90000\nkernel 700\nkernel_stack 20\npagetables 300\nsec_pagetables 4\n"
        "percpu 5\nsock 6000\nvmalloc 6\nshmem 70\nslab_reclaimable 8000\nslab_unreclaimable 40\n"
    ),
    "memory.peak": "8888\n",
    "io.stat": (
        "8:0 rbytes=100 wbytes=10 rios=5 wios=1 dbytes=0 dios=0\n"
        "259:0 rbytes=1 wbytes=2 rios=1 wios=1 dbytes=0 dios=0\n"
        "7:0 \n"
    ),
}


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    """The one cgroup of an attempt, as plain files."""
    place = tmp_path / CGROUP
    place.mkdir(parents=True)
    for name, text in UNIFIED.items():
        (place / name).write_text(text)
    return tmp_path


def test_on_version_2_too_a_sample_is_what_cannot_be_dropped(unified: Path) -> None:
    """What the kernel holds for the job is in it; file cache and reclaimable slabs are not."""
    kept = 1000 + 70 + 20 + 300 + 4 + 5 + 6 + 40
    assert sample_cgroup_v2(str(unified), CGROUP, 5.0) == Sample(
        mono_s=5.0, memory_bytes=kept, read_bytes=101, written_bytes=12, cpu_s=2.5
    )
    assert peak_memory_v2(str(unified), CGROUP) == 8888


def test_an_older_kernel_has_fewer_kinds_of_memory_and_no_peak(unified: Path) -> None:
    (unified / CGROUP / "memory.stat").write_text("anon 1000\nshmem 1\n")
    (unified / CGROUP / "memory.peak").unlink()
    assert sample_cgroup_v2(str(unified), CGROUP, 5.0).memory_bytes == 1001
    assert peak_memory_v2(str(unified), CGROUP) is None


def test_bytes_that_pass_a_disk_made_of_others_are_counted_once(
    unified: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Logical volumes and the like have their I/O counted here and on the disk below."""
    (tmp_path / "sys/8:0/slaves/259:0").mkdir(parents=True)
    (tmp_path / "sys/259:0/slaves").mkdir(parents=True)
    monkeypatch.setattr(usage, "SYS_DEV_BLOCK", str(tmp_path / "sys"))
    sample = sample_cgroup_v2(str(unified), CGROUP, 5.0)
    assert (sample.read_bytes, sample.written_bytes) == (1, 2)


def test_a_cgroup_of_version_2_that_has_vanished_reads_as_none(unified: Path) -> None:
    assert sample_cgroup_v2(str(unified), "drfd/job-2.1", 5.0) == NOTHING
    assert peak_memory_v2(str(unified), "drfd/job-2.1") is None


@pytest.mark.parametrize("gone", ["cpu.stat", "memory.stat", "io.stat"])
def test_a_controller_that_is_not_given_hides_only_its_own_reading(
    unified: Path, gone: str
) -> None:
    whole = sample_cgroup_v2(str(unified), CGROUP, 5.0)
    (unified / CGROUP / gone).unlink()
    fields = {
        "cpu.stat": {"cpu_s": None},
        "memory.stat": {"memory_bytes": None},
        "io.stat": {"read_bytes": None, "written_bytes": None},
    }[gone]
    expected = {name: getattr(whole, name) for name in Sample.__slots__} | fields
    assert sample_cgroup_v2(str(unified), CGROUP, 5.0) == Sample(**expected)


# -- processes ---------------------------------------------------------------------------------

#: A runner whose child takes 64 MiB, computes for a while and writes to its output.
RUNNER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", '''
import time
block = bytearray(64 << 20)
until = time.process_time() + 0.2
while time.process_time() < until:
    pass
print("ready", flush=True)
time.sleep(60)
'''])
"""


@contextmanager
def runner() -> Iterator[int]:
    """The pid of a process whose child is ready to be measured."""
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            os.killpg(process.pid, 9)


def test_the_processes_below_a_runner_are_measured_and_the_runner_is_not() -> None:
    with runner() as pid:
        sample = sample_processes(pid, 5.0)
        ours = sample_processes(os.getpid(), 5.0)
    assert sample.mono_s == 5.0
    assert sample.memory_bytes is not None
    assert 64 * MIB <= sample.memory_bytes < 128 * MIB
    assert sample.cpu_s is not None
    assert 0.2 <= sample.cpu_s < 10
    assert sample.read_bytes is not None
    assert sample.written_bytes is not None
    # Seen from above, the runner is one of the job's processes.
    assert ours.memory_bytes is not None
    assert ours.memory_bytes > sample.memory_bytes


def test_a_runner_without_children_uses_nothing() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        sample = sample_processes(process.pid, 5.0)
        process.kill()
    assert sample == Sample(mono_s=5.0, memory_bytes=0, read_bytes=0, written_bytes=0, cpu_s=0.0)


def test_a_runner_that_has_vanished_uses_nothing_and_is_no_error() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert sample_processes(process.pid, 5.0).cpu_s == 0.0


# -- what people are shown ---------------------------------------------------------------------


def sample(mono_s: float, cpu_s: float | None, memory_bytes: int | None = 100) -> Sample:
    return Sample(
        mono_s=mono_s, memory_bytes=memory_bytes, read_bytes=7, written_bytes=8, cpu_s=cpu_s
    )


def test_cores_in_use_are_cpu_time_per_time_between_two_samples() -> None:
    assert usage_between(sample(10.0, 5.0), sample(12.0, 8.0), 150) == Usage(
        cores_milli=1500,
        memory_bytes=100,
        memory_peak_bytes=150,
        read_bytes=7,
        written_bytes=8,
        cpu_s=8.0,
    )


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(None, id="a first sample"),
        pytest.param(sample(12.0, 5.0), id="two samples of one moment"),
        pytest.param(sample(10.0, 9.0), id="a counter that went back"),
    ],
)
def test_there_is_no_rate_without_two_moments_and_progress(before: Sample | None) -> None:
    assert usage_between(before, sample(12.0, 8.0), 0).cores_milli == 0


def test_the_peak_is_never_below_what_is_used_now() -> None:
    assert usage_between(None, sample(12.0, 8.0, memory_bytes=500), 150).memory_peak_bytes == 500


def test_what_cannot_be_read_is_shown_as_nothing() -> None:
    assert usage_between(sample(10.0, 5.0), NOTHING, 150) == Usage(memory_peak_bytes=150)
    gone = Sample(mono_s=12.0, memory_bytes=None, read_bytes=None, written_bytes=None, cpu_s=None)
    assert usage_between(sample(10.0, 5.0), gone, 150) == Usage(memory_peak_bytes=150)


@pytest.mark.parametrize("text", ["", "garbage\n", "8:0\n", "some words here\n", "9" * 400, "-1\n"])
def test_files_in_no_known_form_read_as_unknown_and_are_no_error(tmp_path: Path, text: str) -> None:
    """Another kernel's may be; the daemon's measuring must not end with it."""
    names = ("memory.stat", "io.stat", "cpu.stat", "memory.peak", "cpuacct.usage")
    for name in (*names, "blkio.throttle.io_service_bytes", "memory.max_usage_in_bytes"):
        (tmp_path / name).write_text(text)
    mounts = dict.fromkeys(("memory", "cpuacct", "blkio"), str(tmp_path))
    for sample in (sample_cgroup_v1(mounts, ".", 1.0), sample_cgroup_v2(str(tmp_path), ".", 1.0)):
        assert sample.cpu_s is None
        assert sample.read_bytes in (None, 0)
    assert peak_memory_v1(mounts, ".") is None
    assert peak_memory_v2(str(tmp_path), ".") is None

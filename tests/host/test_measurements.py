"""Capacity, pressure and usage, from plain files and from real processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path

import psutil
import pytest

from drfd.core.decisions.outcome import Sample
from drfd.core.model.job import Usage
from drfd.host import measurements
from drfd.host.measurements import (
    cpu_times,
    default_reserve,
    disk_counters,
    niced_between,
    niced_processes,
    own_memory_limit,
    peak_memory,
    read_machine,
    read_machine_use,
    read_pressure,
    sample_cgroup,
    sample_processes,
    spare_arc,
    usage_between,
)

MIB = 1 << 20
CGROUP = "drfd/job-1.1"
NOTHING = Sample(mono_s=5.0, memory_bytes=None, read_bytes=None, written_bytes=None, cpu_s=None)
FILES = {
    "v1": {
        "cpuacct.usage": "1500000000\n",
        "memory.stat": "cache 4096\nrss 1\ntotal_cache 999\ntotal_rss 3000\ntotal_shmem 200\n",
        "memory.max_usage_in_bytes": "7777\n",
        "blkio.throttle.io_service_bytes": (
            "8:0 Read 100\n8:0 Write 10\n8:0 Sync 110\n8:0 Async 0\n8:0 Total 110\n"
            "8:16 Read 1\n8:16 Write 2\n8:16 Total 3\nTotal 113\n"
        ),
    },
    "v2": {
        "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
        "memory.stat": (
            "anon 1000\nfile 90000\nkernel 700\nkernel_stack 20\npagetables 300\n"
            "sec_pagetables 4\npercpu 5\nsock 6000\nvmalloc 6\nshmem 70\n"
            "slab_reclaimable 8000\nslab_unreclaimable 40\n"
        ),
        "memory.peak": "8888\n",
        "io.stat": (
            "8:0 rbytes=100 wbytes=10 rios=5 wios=1 dbytes=0 dios=0\n"
            "259:0 rbytes=1 wbytes=2 rios=1 wios=1 dbytes=0 dios=0\n"
            "7:0 \n"
        ),
    },
}
#: What is read of them: what the kernel holds for the job is memory that it uses, and neither file
#: cache nor reclaimable slabs, which the kernel takes back by itself.
READ = {
    "v1": Sample(mono_s=5.0, memory_bytes=3200, read_bytes=101, written_bytes=12, cpu_s=1.5),
    "v2": Sample(
        mono_s=5.0, memory_bytes=1000 + 70 + 20 + 300 + 4 + 5 + 6 + 40, read_bytes=101,
        written_bytes=12, cpu_s=2.5,
    ),
}  # fmt: skip


@pytest.fixture(params=["v1", "v2"])
def version(request) -> str:
    return str(request.param)


@pytest.fixture
def mounts(version, tmp_path) -> dict[str, str]:
    """The cgroup of one attempt, below each controller of version 1, as plain files."""
    for name, text in FILES[version].items():
        controller = name.split(".")[0] if version == "v1" else ""
        path = tmp_path / controller / CGROUP / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if version == "v2":
        return {measurements.UNIFIED: str(tmp_path)}
    return {name: str(tmp_path / name) for name in ("cpuacct", "memory", "blkio")}


def file(mounts: dict[str, str], name: str) -> Path:
    mount = mounts.get(measurements.UNIFIED) or mounts[name.split(".")[0]]
    return Path(mount, CGROUP, name)


def test_a_sample_is_what_cannot_be_dropped_and_what_went_to_all_disks(mounts, version):
    assert sample_cgroup(mounts, CGROUP, 5.0) == READ[version]
    assert peak_memory(mounts, CGROUP) == {"v1": 7777, "v2": 8888}[version]
    second = {"v1": "8:16", "v2": "259:0"}[version]
    assert disk_counters(mounts, CGROUP) == {"8:0": (100, 10), second: (1, 2)}


def test_what_has_vanished_or_is_not_mounted_reads_as_none(mounts):
    for there, cgroup in ((mounts, "drfd/job-2.1"), ({}, CGROUP)):
        assert sample_cgroup(there, cgroup, 5.0) == NOTHING
        assert peak_memory(there, cgroup) is None
    assert disk_counters(mounts, "drfd/job-2.1") is None


@pytest.mark.parametrize(
    ("version", "gone", "hidden"),
    [
        ("v1", "cpuacct.usage", ["cpu_s"]),
        ("v1", "memory.stat", ["memory_bytes"]),
        ("v1", "memory.max_usage_in_bytes", []),
        ("v1", "blkio.throttle.io_service_bytes", ["read_bytes", "written_bytes"]),
        ("v2", "cpu.stat", ["cpu_s"]),
        ("v2", "memory.stat", ["memory_bytes"]),
        ("v2", "io.stat", ["read_bytes", "written_bytes"]),
    ],
    indirect=["version"],
)
def test_a_file_that_is_missing_hides_only_its_own_reading(mounts, version, gone, hidden):
    file(mounts, gone).unlink()
    expected = {name: getattr(READ[version], name) for name in Sample.__slots__}
    assert sample_cgroup(mounts, CGROUP, 5.0) == Sample(**expected | dict.fromkeys(hidden))


@pytest.mark.parametrize("version", ["v2"], indirect=True)
def test_bytes_that_pass_a_disk_made_of_others_are_counted_once(mounts, monkeypatch, tmp_path):
    """Logical volumes and the like have their I/O counted here and on the disk below."""
    (tmp_path / "sys/8:0/slaves/259:0").mkdir(parents=True)
    (tmp_path / "sys/259:0/slaves").mkdir(parents=True)
    monkeypatch.setattr(measurements, "SYS_DEV_BLOCK", str(tmp_path / "sys"))
    assert disk_counters(mounts, CGROUP) == {"8:0": (100, 10), "259:0": (1, 2)}, "each has its own"
    sample = sample_cgroup(mounts, CGROUP, 5.0)
    assert (sample.read_bytes, sample.written_bytes) == (1, 2)


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


@pytest.mark.slow
def test_the_processes_below_a_runner_are_measured_and_the_runner_is_not():
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


def test_a_runner_that_has_no_children_or_has_vanished_uses_nothing():
    with subprocess.Popen(["sleep", "60"]) as process:
        sample = sample_processes(process.pid, 5.0)
        process.kill()
    assert sample == Sample(mono_s=5.0, memory_bytes=0, read_bytes=0, written_bytes=0, cpu_s=0.0)
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert sample_processes(process.pid, 5.0).cpu_s == 0.0


# -- what people are shown ---------------------------------------------------------------------


def sample(mono_s: float, cpu_s: float | None, memory_bytes: int | None = 100) -> Sample:
    return Sample(
        mono_s=mono_s, memory_bytes=memory_bytes, read_bytes=7, written_bytes=8, cpu_s=cpu_s
    )


def test_what_is_shown_is_cpu_time_per_time_and_a_peak_or_nothing():
    assert usage_between(sample(10.0, 5.0), sample(12.0, 8.0), 150) == Usage(
        cores_milli=1500,
        memory_bytes=100,
        memory_peak_bytes=150,
        read_bytes=7,
        written_bytes=8,
        cpu_s=8.0,
    )
    assert usage_between(None, sample(12.0, 8.0, memory_bytes=500), 150).memory_peak_bytes == 500
    assert usage_between(sample(10.0, 5.0), NOTHING, 150) == Usage(memory_peak_bytes=150)
    gone = Sample(mono_s=12.0, memory_bytes=None, read_bytes=None, written_bytes=None, cpu_s=None)
    assert usage_between(sample(10.0, 5.0), gone, 150) == Usage(memory_peak_bytes=150)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(None, id="a first sample"),
        pytest.param(sample(12.0, 5.0), id="two samples of one moment"),
        pytest.param(sample(10.0, 9.0), id="a counter that went back"),
    ],
)
def test_there_is_no_rate_without_two_moments_and_progress(before):
    assert usage_between(before, sample(12.0, 8.0), 0).cores_milli == 0


@pytest.mark.parametrize("text", ["", "garbage\n", "8:0\n", "some words here\n", "9" * 400, "-1\n"])
def test_files_in_no_known_form_read_as_unknown_and_are_no_error(tmp_path, text):
    """Another kernel's may be; the daemon's measuring must not end with it."""
    names = ("memory.stat", "io.stat", "cpu.stat", "memory.peak", "cpuacct.usage")
    for name in (*names, "blkio.throttle.io_service_bytes", "memory.max_usage_in_bytes"):
        (tmp_path / name).write_text(text)
    mounts = dict.fromkeys(("memory", "cpuacct", "blkio"), str(tmp_path))
    for sample in (
        sample_cgroup(mounts, ".", 1.0),
        sample_cgroup({measurements.UNIFIED: str(tmp_path)}, ".", 1.0),
    ):
        assert sample.cpu_s is None
        assert sample.read_bytes in (None, 0)
    assert peak_memory(mounts, ".") is None
    assert peak_memory({measurements.UNIFIED: str(tmp_path)}, ".") is None


LINE = "avg10={} avg60=0.50 avg300=0.10 total=123\n"


def test_each_resource_has_its_last_ten_seconds_as_far_as_the_kernel_says(tmp_path):
    assert read_pressure(tmp_path / "nowhere") is None
    # Before 5.13 there is no "full" of the processor (accounting/psi.rst).
    (tmp_path / "cpu").write_text(f"some {LINE.format('3.00')}")
    (tmp_path / "memory").write_text("some avg10=x\nfull\n")
    nothing = {"some": None, "full": None}
    assert read_pressure(tmp_path) == {
        "cpu": {"some": 3.0, "full": None},
        "memory": nothing,
        "io": nothing,
    }
    for number, name in enumerate(["cpu", "memory", "io"]):
        text = f"some {LINE.format(f'{number}.25')}full {LINE.format('0.00')}"
        (tmp_path / name).write_text(text)
    assert read_pressure(tmp_path) == {
        "cpu": {"some": 0.25, "full": 0.0},
        "memory": {"some": 1.25, "full": 0.0},
        "io": {"some": 2.25, "full": 0.0},
    }


UNLIMITED = 1 << 60
GIB = 1 << 30


def below(top: str, cgroup: Path) -> str:
    """A cgroup path that leads from the hierarchy's root to the test's directory."""
    if not Path(top).is_dir():
        pytest.skip(f"this machine has no {top} to lead away from")
    depth = len(Path(top).resolve().parts) - 1
    return "/.." * depth + str(cgroup)


def own_limit(root: Path, lines: str) -> int:
    """The limit where /proc/self/cgroup has these lines: V1 and V2 lead to the directory."""
    own = root / "proc-self-cgroup"
    for word, top in (("V1", "/sys/fs/cgroup/memory"), ("V2", "/sys/fs/cgroup")):
        if word in lines:
            lines = lines.replace(word, below(top, root))
    own.write_text(lines + "\n")
    return own_memory_limit(str(own))


@pytest.mark.parametrize(
    ("lines", "files", "limit"),
    [
        ("0::V2", {"memory.max": 3 * GIB}, 3 * GIB),
        ("0::V2", {"memory.max": "max"}, UNLIMITED),
        ("4:memory:V1\n0::/nowhere", {"memory.limit_in_bytes": 2 * GIB}, 2 * GIB),
        # With other controllers, and these alone.
        ("4:cpu,memory:V1", {"memory.limit_in_bytes": 2 * GIB}, 2 * GIB),
        ("2:cpu:V1", {"memory.limit_in_bytes": 2 * GIB}, UNLIMITED),
        # An administrator limits user-1001.slice; the session inside it says "max".
        ("0::V2/session", {"memory.max": 3 * GIB, "session/memory.max": "max"}, 3 * GIB),
        # The smaller one of two hierarchies.
        ("4:memory:V1\n0::V2", {"memory.limit_in_bytes": 2 * GIB, "memory.max": GIB}, GIB),
        ("0::V2/a:b", {"a:b/memory.max": GIB}, GIB),
        ("4:memory:/gone\n0::/gone", {}, UNLIMITED),
    ],
)
def test_the_limit_of_our_own_cgroup_and_of_those_above_it_counts(tmp_path, lines, files, limit):
    for name, value in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    assert own_limit(tmp_path, lines) == limit


def test_the_machine_gives_the_cores_that_we_may_use_and_no_more_memory_than_it_has():
    machine = read_machine()
    assert machine.cores_milli == 1000 * len(os.sched_getaffinity(0))
    assert 0 < machine.memory_bytes <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("memory_bytes", "reserve_bytes"),
    [(0, 0), (8 * GIB, GIB), (32 * GIB, 4 * GIB), (1024 * GIB, 4 * GIB)],
)
def test_the_reserve_is_an_eighth_and_4_gib_at_most(memory_bytes, reserve_bytes):
    assert default_reserve(memory_bytes) == reserve_bytes


# -- use ---------------------------------------------------------------------------------------

STAT = """\
cpu  999 999 999 999 999 999 999 999 999 999
cpu0 100 7000 20 100000 300 4 1 50 10 0
cpu1 1000 0 200 100000 300 40 10 50 10 0
cpu3 9 9 9 9 9 9 9 9 9 9
intr 1 2 3
ctxt 5
"""


def test_a_processor_is_busy_with_all_but_niced_processes_and_waiting():
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert [found / tick_s for found in cpu_times(STAT, {0})] == pytest.approx([125, 7000])
    both = [found / tick_s for found in cpu_times(STAT, {0, 1, 2})]
    assert both == pytest.approx([125 + 1250, 7000])


#: Its user names it, by bytes that are no text.
_NAMED = "open('/proc/self/comm', 'wb').write(b'\\xff) ')\n"


@pytest.mark.slow
def test_niced_processes_of_a_job_are_told_from_others_and_count_with_their_children(tmp_path):
    spin = "import time\nwhile time.process_time() < 0.2: pass\n"
    wait = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {spin!r}])\n"
    niced = subprocess.Popen(
        [sys.executable, "-c", f"import os; os.nice(3)\n{_NAMED}{wait}print(flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with niced:
        assert niced.stdout is not None
        niced.stdout.readline()
        job, gone = tmp_path / "drfd/1.1", 1 << 22
        job.mkdir(parents=True)
        (job / "cgroup.procs").write_text(f"{os.getpid()}\n{niced.pid}\n{gone + 1}\n")
        for mounts in ({"cpu": str(tmp_path)}, {"cgroup2": str(tmp_path)}):
            found = niced_processes(mounts, "drfd/1.1")
            # These tests may be niced, too.
            assert {*found} == {niced.pid, *([os.getpid()] if os.nice(0) > 0 else [])}
            assert 0.1 <= found[niced.pid] < 60
        niced.communicate(b"\n")
    assert niced.pid not in niced_processes({"cpu": str(tmp_path)}, "drfd/1.1")
    assert niced_processes({"cpu": str(tmp_path)}, "drfd/2.1") == {}


def test_a_niced_process_that_is_new_counts_as_a_whole_and_a_hidden_one_without_end():
    assert niced_between({1: 5.0, 2: 1.0}, {1: 5.5, 3: 2.0}) == 2.5
    assert niced_between({1: 5.0}, {1: 4.0}) == 0, "another process has the number"
    assert niced_between({1: inf}, {1: inf}) == inf
    assert niced_between({1: inf}, {1: 3.0}) == 0


@pytest.mark.slow
def test_memory_that_a_process_takes_is_in_use_and_page_cache_is_not(tmp_path):
    """Others use the machine too: half of it must be seen, and they may give some back."""
    size, seen = 768 << 20, list[int]()
    while len(seen) < 30 and not any(each > size // 2 for each in seen):
        # What ends meanwhile and gives back gigabytes does so for seconds.
        time.sleep(min(len(seen), 3))
        seen.append(seen_of(size, tmp_path / "cached"))
    assert seen[-1] > size // 2, seen


def seen_of(size: int, file: Path) -> int:
    """How much more memory is in use when we have taken so much, and have read a file besides."""
    before = read_machine_use()
    file.write_bytes(bytes(64 << 20))
    for _ in range(2):
        file.read_bytes()
    block = bytearray(size)
    # Touched, or it would be an empty promise.
    block[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * (size // os.sysconf("SC_PAGE_SIZE"))
    with_block = read_machine_use()
    assert with_block.mono_s > before.mono_s
    assert with_block.cpu_s >= before.cpu_s
    del block
    return with_block.memory_bytes - before.memory_bytes


def test_in_a_container_memory_is_used_up_when_the_containers_is(tmp_path):
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "memory.stat").write_text("anon 1000\nshmem 24\nfile 500000\n")
    assert own_limit(tmp_path, "0::V2") == GIB
    assert read_machine_use(str(tmp_path / "proc-self-cgroup")).memory_bytes == 1024


def test_the_cache_of_zfs_counts_as_page_cache_but_for_what_it_keeps():
    arcstats = """\
13 1 0x01 123 33456 5071283563 1234567890
name                            type data
hits                            4    3838
c_min                           4    1000
c_max                           4    900000
size                            4    51000
"""
    assert spare_arc(arcstats) == 50_000
    assert spare_arc(arcstats.replace("51000", "900")) == 0
    assert spare_arc("") == 0

"""AMD's and Intel's GPUs, in trees of files as the kernel's documents and drivers lay them out.

Documentation/gpu/drm-usage-stats.rst has the keys of fdinfo; those of each driver are in
drivers/gpu/drm/amd/amdgpu/amdgpu_fdinfo.c, drivers/gpu/drm/xe/xe_drm_client.c and
drivers/gpu/drm/i915/i915_drm_client.c.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drfd.launcher.gpu_meter import drm
from drfd.launcher.gpu_meter.drm import DrmGpus, is_present
from drfd.launcher.gpu_meter.reading import ProcessReading
from drfd.linux import syscalls

AMD, INTEL = "0000:03:00.0", "0000:04:00.0"
#: Not the pids of any processes.
JOB, OTHER = 999999001, 999999002


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir()

    def put(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def gpu(self, node: int, vendor: str, pci: str, **files: str) -> None:
        device = f"sys/class/drm/renderD{node}/device"
        self.put(f"{device}/vendor", f"{vendor}\n")
        self.put(f"{device}/uevent", f"DRIVER=any\nPCI_SLOT_NAME={pci}\n")
        for name, text in files.items():
            self.put(f"{device}/{name}", f"{text}\n")

    def amd(self) -> None:
        self.gpu(
            128, "0x1002", AMD, mem_info_vram_used="1000", mem_info_vram_total="8000",
            gpu_busy_percent="42", unique_id="0123456789abcdef",
        )  # fmt: skip

    def fdinfo(self, pid: int, fd: int, text: str) -> None:
        self.put(f"proc/{pid}/fdinfo/{fd}", text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def process(pid: int, memory: int | None, utilisation: int | None = None) -> ProcessReading:
    return {"pid": pid, "uid": None, "cgroups": [], "memory": memory, "utilisation": utilisation}


def amdgpu(client: int, vram_kib: int, compute_ns: int = 0) -> str:
    return (
        "pos:\t0\nflags:\t02100002\nmnt_id:\t26\nino:\t590\ndrm-driver:\tamdgpu\n"
        f"drm-client-id:\t{client}\ndrm-pdev:\t{AMD}\npasid:\t32771\n"
        f"drm-total-vram:\t{vram_kib} KiB\ndrm-shared-vram:\t0\n"
        f"drm-memory-vram:\t{vram_kib} KiB\ndrm-resident-vram:\t{vram_kib} KiB\n"
        "drm-memory-gtt: \t2048 KiB\ndrm-resident-gtt:\t2048 KiB\n"
        f"drm-engine-compute:\t{compute_ns} ns\ndrm-engine-gfx:\t0 ns\n"
    )


def test_amds_gpu_has_the_memory_and_the_utilisation_of_sysfs(machine: Machine) -> None:
    machine.amd()
    assert is_present(machine.root)
    assert DrmGpus(machine.root).read() == [
        {
            "pci": AMD, "uuid": "GPU-0123456789abcdef", "slice": None, "memory_used": 1000,
            "memory_total": 8000, "utilisation": 42, "is_lost": False, "processes": [],
        }
    ]  # fmt: skip


def test_other_cards_are_none_of_these(machine: Machine) -> None:
    machine.gpu(128, "0x10de", AMD)
    machine.gpu(129, "0x1a03", INTEL)
    # Part of the processor.
    machine.gpu(130, "0x8086", "0000:00:02.0")
    assert not is_present(machine.root)
    assert DrmGpus(machine.root).read() == []


def test_a_process_has_the_memory_of_all_its_clients_and_each_counts_once(
    machine: Machine,
) -> None:
    """A descriptor that was duplicated is the same client."""
    machine.amd()
    machine.fdinfo(JOB, 3, amdgpu(7, 100))
    machine.fdinfo(JOB, 4, amdgpu(7, 100))
    machine.fdinfo(JOB, 5, amdgpu(8, 1))
    machine.fdinfo(JOB, 6, "pos:\t0\nflags:\t02\n")
    machine.fdinfo(OTHER, 3, "pos:\t0\n")
    (gpu,) = DrmGpus(machine.root).read()
    assert gpu["processes"] == [process(JOB, 101 << 10)]


def test_a_client_that_several_processes_have_open_counts_once_for_the_first_of_them(
    machine: Machine,
) -> None:
    """As after a fork, which inherits descriptors. What each opened itself is its own."""
    machine.amd()
    workers = range(OTHER, OTHER + 10)
    machine.fdinfo(workers[1], 3, amdgpu(7, 100))
    gpus = DrmGpus(machine.root)
    assert gpus.read()[0]["processes"] == [process(workers[1], 100 << 10)]
    for pid in workers:
        machine.fdinfo(pid, 3, amdgpu(7, 100))
    machine.fdinfo(workers[5], 4, amdgpu(8, 1))
    seen = [gpus.read()[0]["processes"] for _ in range(5)]
    assert seen[-1] == [process(workers[1], 100 << 10, 0), process(workers[5], 1 << 10)]
    shutil.rmtree(machine.root / f"proc/{workers[1]}")
    assert gpus.read()[0]["processes"] == [
        process(workers[0], 100 << 10), process(workers[5], 1 << 10, 0)
    ]  # fmt: skip


@pytest.mark.parametrize("processes", [1, 40])
def test_a_flood_of_one_user_hides_no_use_by_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """Its own use counts as far as it was seen, so the sum for Intel's GPU is not known."""
    monkeypatch.setattr(drm, "_MOST_LOOKS", 50)
    machine.gpu(128, "0x8086", INTEL)
    flood = range(JOB - 100, JOB - 100 + processes)
    for pid in flood:
        # A directory of a process that forbids inspection is root's, and tells nothing.
        machine.put(f"proc/{pid}/status", "Name:\tflood\nUid:\t1001\t0\t0\t0\n")
        for fd in range(400 // processes):
            machine.fdinfo(pid, fd, xe(pid * 1000 + fd, 1, busy=0, total=1))
    machine.put(f"proc/{OTHER}/status", "Name:\tother\nUid:\t1002\t1002\t1002\t1002\n")
    machine.fdinfo(OTHER, 3, xe(1, 10, busy=0, total=1000))
    gpus = DrmGpus(machine.root)
    for _ in range(7):
        (gpu,) = gpus.read()
        assert gpu["memory_used"] is None
        by_pid = {each["pid"]: each["memory"] for each in gpu["processes"] or ()}
        assert by_pid.pop(OTHER) == 10 << 10
        assert 0 < sum(each or 0 for each in by_pid.values()) <= 50 << 10


def test_a_process_that_computes_has_the_memory_that_kfd_counts(machine: Machine) -> None:
    """`location_id` is the bus, the device and the function, as bits."""
    machine.amd()
    machine.put("sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n")
    machine.put("sys/class/kfd/kfd/topology/nodes/1/gpu_id", "4242\n")
    machine.put("sys/class/kfd/kfd/topology/nodes/1/properties", "location_id 768\ndomain 0\n")
    machine.put(f"sys/class/kfd/kfd/proc/{JOB}/vram_4242", "5000\n")
    machine.put(f"sys/class/kfd/kfd/proc/{OTHER}/vram_4242", "0\n")
    (gpu,) = DrmGpus(machine.root).read()
    assert gpu["processes"] == [process(JOB, 5000)]


def test_the_busiest_engine_since_the_last_reading_is_the_utilisation(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0]
    monkeypatch.setattr(drm.time, "monotonic_ns", lambda: now[0])
    machine.amd()
    machine.fdinfo(JOB, 3, amdgpu(7, 1, compute_ns=5_000_000))
    gpus = DrmGpus(machine.root)
    assert gpus.read()[0]["processes"] == [process(JOB, 1024, None)]
    now[0] = 100_000_000
    machine.fdinfo(JOB, 3, amdgpu(7, 1, compute_ns=30_000_000))
    assert gpus.read()[0]["processes"] == [process(JOB, 1024, 25)]


def xe(client: int, vram_kib: int, busy: int, total: int) -> str:
    return (
        f"drm-driver:\txe\ndrm-client-id:\t{client}\ndrm-pdev:\t{INTEL}\n"
        f"drm-total-vram0:\t{vram_kib} KiB\ndrm-resident-vram0:\t{vram_kib} KiB\n"
        "drm-total-system:\t9 MiB\ndrm-resident-system:\t9 MiB\n"
        f"drm-cycles-ccs:\t{busy}\ndrm-total-cycles-ccs:\t{total}\n"
    )


def test_of_intels_gpu_the_memory_in_use_is_what_processes_have(machine: Machine) -> None:
    """The kernel tells no total. Utilisation is in the GPU's own cycles."""
    machine.gpu(128, "0x8086", INTEL)
    machine.fdinfo(JOB, 3, xe(1, 10, busy=100, total=1000))
    machine.fdinfo(OTHER, 3, xe(2, 5, busy=0, total=1000))
    gpus = DrmGpus(machine.root)
    (gpu,) = gpus.read()
    assert (gpu["memory_used"], gpu["memory_total"], gpu["utilisation"]) == (15 << 10, None, None)
    machine.fdinfo(JOB, 3, xe(1, 10, busy=600, total=2000))
    (gpu,) = gpus.read()
    assert gpu["processes"] == [process(JOB, 10 << 10, 50), process(OTHER, 5 << 10, None)]


def test_a_process_that_opens_a_node_later_is_found_within_five_readings(
    machine: Machine,
) -> None:
    """Between, only those are looked at that had one: a search reads the files of everybody."""
    machine.amd()
    gpus = DrmGpus(machine.root)
    gpus.read()
    machine.fdinfo(JOB, 3, amdgpu(7, 1))
    seen = [gpus.read()[0]["processes"] for _ in range(6)]
    assert seen[:4] == [[]] * 4
    assert [[each["pid"] for each in some or ()] for some in seen[4:]] == [[JOB]] * 2


@pytest.mark.skipif(os.getuid() == 0, reason="root may read every file")
def test_where_files_of_some_processes_are_closed_nobody_is_said_to_use_it_alone(
    machine: Machine,
) -> None:
    machine.gpu(128, "0x8086", INTEL)
    machine.fdinfo(OTHER, 3, xe(1, 10, busy=1, total=2))
    (machine.root / f"proc/{OTHER}/fdinfo").chmod(0)
    (gpu,) = DrmGpus(machine.root).read()
    (machine.root / f"proc/{OTHER}/fdinfo").chmod(0o700)
    assert (gpu["processes"], gpu["memory_used"]) == (None, None)


@pytest.mark.skipif(os.getuid() != 0, reason="only root has something to give up")
def test_its_process_keeps_no_right_of_roots_but_to_look_at_processes() -> None:
    command = [sys.executable, "-I", "-m", "drfd.launcher.gpu_meter", "drm"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["why"] is None
        text = Path(f"/proc/{process.pid}/status").read_text()
        process.kill()
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert {*status["Uid"].split(), *status["Gid"].split()} == {"65534"}
    # A container may have taken it from root.
    looks = syscalls.capabilities().permitted & 1 << 19
    assert int(status["CapPrm"], 16) == int(status["CapEff"], 16) == looks
    assert (int(status["CapInh"], 16), status["NoNewPrivs"]) == (0, "1")

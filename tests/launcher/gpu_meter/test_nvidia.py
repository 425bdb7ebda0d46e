"""NVIDIA's GPUs, measured by the real process with the real nvidia-ml-py from a library that stands
for the driver's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.rig import WAIT_S, until
from nvml import Nvml, a_library, needs_nvml

pytestmark = needs_nvml

#: Error codes of nvml.h.
NOT_SUPPORTED, NO_PERMISSION, LOST, NO_FUNCTION, MISMATCH, UNKNOWN = 3, 4, 15, 13, 18, 999
_MEASURE = [sys.executable, "-I", "-m", "drfd.launcher.gpu_meter", "nvidia"]
_OURS = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
in_first_pids = pytest.mark.skipif(not _OURS, reason="pids here are not the driver's")


@pytest.fixture(scope="module")
def nvml() -> Iterator[Nvml]:
    with a_library() as library:
        yield library


Measure = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def measure(nvml: Nvml) -> Iterator[Measure]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        environ = {**os.environ, **nvml.environ}
        started.append(subprocess.Popen(_MEASURE, stdout=subprocess.PIPE, env=environ, cwd="/"))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def gpu(**changes: Any) -> dict[str, Any]:
    usual = {
        "name": None, "pci": "0000:01:00.0", "uuid": "GPU-a", "slice": None, "memory_used": 400,
        "memory_total": 1000, "utilisation": 35, "is_lost": False, "processes": [],
    }  # fmt: skip
    assert changes.keys() <= usual.keys()
    return usual | changes


def cgroups(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return sorted({each.split(":", 2)[2] for each in lines})


@in_first_pids
def test_each_gpu_tells_its_memory_and_the_processes_that_use_it(
    nvml: Nvml, measure: Measure
) -> None:
    """One that computes and draws counts once; of one that has done nothing the share is 0."""
    me = os.getpid()
    nvml.answer(
        "gpu 0000:01:00 GPU-a 1000 400 35 0",
        "gpu 0001:c1:00 GPU-b 2000 0 0 0",
        f"proc 0 C {me} 300 20",
        f"proc 0 G {me} 300 20",
        f"proc 1 C {me} -1 -1",
    )
    own = {"pid": me, "uid": os.getuid(), "cgroups": cgroups(me)}
    assert line(measure()) == {
        "gpus": [
            gpu(processes=[{**own, "memory": 300, "utilisation": 20}]),
            gpu(
                pci="0001:c1:00.0", uuid="GPU-b", memory_used=0, memory_total=2000, utilisation=0,
                processes=[{**own, "memory": None, "utilisation": 0}],
            ),
        ],
        "why": None,
    }  # fmt: skip


@in_first_pids
def test_a_process_that_is_gone_has_no_owner(nvml: Nvml, measure: Measure) -> None:
    nvml.answer("gpu 0000:01:00 GPU-a 1000 400 35 0", "proc 0 C 999999999 300 101")
    gone = {"pid": 999999999, "uid": None, "cgroups": [], "memory": 300, "utilisation": None}
    assert line(measure())["gpus"] == [gpu(processes=[gone])]


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_a_figure_that_the_driver_refuses_is_null(nvml: Nvml, measure: Measure, code: int) -> None:
    nvml.answer(
        "gpu 0000:01:00 GPU-a 1000 400 -1 0",
        *(f"lacks nvmlDeviceGet{name} {code}" for name in (
            "UUID", "MemoryInfo", "MemoryInfo_v2", "MigMode", "ProcessUtilization",
            "ComputeRunningProcesses_v2", "ComputeRunningProcesses_v3",
        )),
    )  # fmt: skip
    nothing = gpu(uuid=None, memory_used=None, memory_total=None, utilisation=None, processes=None)
    assert line(measure()) == {"gpus": [nothing], "why": None}


def test_an_older_driver_tells_by_its_older_functions(nvml: Nvml, measure: Measure) -> None:
    """Its memory in use includes what the driver keeps: a thousand bytes here."""
    names = ("MemoryInfo_v2", "ComputeRunningProcesses_v3", "GraphicsRunningProcesses_v3")
    nvml.answer(
        "gpu 0000:01:00 GPU-a 1000 400 35 0",
        *(f"lacks nvmlDeviceGet{name} {NO_FUNCTION}" for name in names),
    )
    assert line(measure())["gpus"] == [gpu(memory_used=1400, processes=[] if _OURS else None)]


@pytest.mark.slow
@pytest.mark.parametrize("code", [LOST, UNKNOWN])
def test_a_gpu_that_is_lost_keeps_its_name_and_leaves_the_others_measured(
    nvml: Nvml, measure: Measure, code: int
) -> None:
    second = "gpu 0000:02:00 GPU-b 1000 400 35 0"
    nvml.answer("gpu 0000:01:00 GPU-a 1000 400 35 0", second)
    process = measure()
    assert [each["is_lost"] for each in line(process)["gpus"]] == [False, False]
    nvml.answer(f"gpu 0000:01:00 GPU-a 1000 400 35 {code}", second)
    lost = gpu(memory_used=None, memory_total=None, utilisation=None, is_lost=True, processes=None)
    after = until("a reading without the GPU", lambda: _if_lost(line(process)))
    assert after[0] == lost
    assert (after[1]["uuid"], after[1]["memory_used"]) == ("GPU-b", 400)


def _if_lost(reading: dict[str, Any]) -> list[dict[str, Any]] | None:
    gpus: list[dict[str, Any]] = reading["gpus"]
    return gpus if gpus[0]["is_lost"] else None


def test_the_slices_of_a_divided_gpu_stand_in_its_place(nvml: Nvml, measure: Measure) -> None:
    nvml.answer(
        "gpu 0000:01:00 GPU-a 1000 400 35 0",
        "mig 0 MIG-x 3 0 500 200",
        "mig 0 MIG-y 4 1 250 0",
        f"proc 100 C {os.getpid()} 150 -1",
    )
    first, second = line(measure())["gpus"]
    slices = gpu(slice="3:0", uuid="MIG-x", memory_used=200, memory_total=500, utilisation=None)
    assert {**first, "processes": []} == slices
    assert second == gpu(
        slice="4:1", uuid="MIG-y", memory_used=0, memory_total=250, utilisation=None,
        processes=[] if _OURS else None,
    )  # fmt: skip
    if _OURS:
        assert [(each["pid"], each["memory"]) for each in first["processes"]] == [
            (os.getpid(), 150)
        ]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["start", "later"])
def test_a_driver_that_was_replaced_ends_the_process_which_says_so(
    nvml: Nvml, measure: Measure, where: str
) -> None:
    """The library that it has loaded is of no use any more; another process loads the new one."""
    nvml.answer("gpu 0000:01:00 GPU-a 1000 400 35 0", f"init {MISMATCH if where == 'start' else 0}")
    process = measure()
    if where == "later":
        line(process)
        nvml.answer(f"gpu 0000:01:00 GPU-a 1000 400 35 {MISMATCH}")
    assert process.stdout is not None
    last = json.loads(process.stdout.read().splitlines()[-1])
    assert last["gpus"] == []
    assert "version" in last["why"].lower() and "NVIDIA" in last["why"]
    assert process.wait(WAIT_S) == 0


def test_without_the_drivers_library_it_says_so(nvml: Nvml, tmp_path: Path) -> None:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(_MEASURE, capture_output=True, env=environ, cwd="/", timeout=WAIT_S)
    found = json.loads(done.stdout)
    if found["gpus"]:
        pytest.skip("this machine has the driver")
    assert "NVIDIA" in found["why"]
    assert done.returncode == 0


def test_it_runs_without_roots_rights_and_cannot_gain_them(nvml: Nvml, measure: Measure) -> None:
    nvml.answer("gpu 0000:01:00 GPU-a 1000 400 35 0")
    process = measure()
    line(process)
    text = Path(f"/proc/{process.pid}/status").read_text()
    status = dict(each.split(":\t", 1) for each in text.splitlines() if ":\t" in each)
    uid = os.getuid() or 65534
    assert status["Uid"].split() == [str(uid)] * 4
    assert 0 not in map(int, status["Gid"].split())
    assert {status[name] for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    if os.getuid() == 0:
        assert status["Groups"].strip() == ""

"""GPUs from the configuration and the driver to the jobs: which they are told of, what is measured
of their use, and what becomes of one that is lost.

Without cgroups: a process belongs to the job whose runner it descends from. A library stands for
NVIDIA's, and files for the machine's /proc and /sys.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_machines import CONTROLLER, Nvml, a_library, needs_nvml, unfold, without_gpus
from instance import (
    CONFIG,
    GATE,
    PLAIN,
    SMALL,
    Instance,
    OwnLauncher,
    parent_of,
    wait_for,
)

MIB, GIB = 1 << 20, 1 << 30
COUNTED = CONFIG + "[gres]\ngpu = [0, 1]\n"
#: A daemon with a launcher of its own takes root's jobs only where it is told so.
ROOTS = '[daemon]\nsystem_users = ["root"]\n' if os.getuid() == 0 else ""


# -- GPUs that are none: jobs print what they are told --------------------------------------------


def submit(instance: Instance, gate: Path, *words: object, **options: object) -> int:
    """It says what it was told, and waits until it may go."""
    script = 'echo "$DRF_GRES_GPU $CUDA_VISIBLE_DEVICES $HIP_VISIBLE_DEVICES"; '
    script += GATE.replace("gate", str(gate))
    return instance.submit(*SMALL, *words, "--", "sh", "-c", script, **options)


def told(instance: Instance, job_id: int) -> list[str]:
    instance.wait_state(job_id, "RUNNING")
    return str(wait_for("what it was told", lambda: instance.output(job_id))).split()


@without_gpus
def test_jobs_that_run_together_are_told_different_gpus_also_after_kill_9(lend):
    instance = lend(COUNTED)
    gates = [instance.work / f"gate-{number}" for number in range(4)]
    foreign = {"CUDA_VISIBLE_DEVICES": "9", "HIP_VISIBLE_DEVICES": "9", "ROCR_VISIBLE_DEVICES": "9"}
    first = submit(instance, gates[0], "--gres", "gpu", env=foreign)
    second = submit(instance, gates[1], "--gres", "gpu=1", env=foreign)
    assert told(instance, first) == ["0"] * 3
    assert told(instance, second) == ["1"] * 3
    third = submit(instance, gates[2], "--gres", "gpu", env=foreign)
    none = submit(instance, gates[3], env=foreign)
    # A blank for DRF_GRES_GPU, which it has not.
    assert told(instance, none) == ["-1"] * 2
    instance.strike("both")
    held = {job["id"]: job.get("gres_instances") for job in instance.status()}
    assert held == {first: {"gpu": ["0"]}, second: {"gpu": ["1"]}, third: {}, none: None}
    waiting = instance.show(third)
    assert waiting["state"] == "PENDING"
    assert waiting["reason"]["text"].startswith("needs 1 gpu, 0 free; job ")
    # The second ends first: what it had is what the third gets.
    gates[1].touch()
    assert instance.wait_end(second)["state"] == "COMPLETED"
    assert told(instance, third) == ["1"] * 3
    for gate in gates:
        gate.touch()
    for job_id in (first, third, none):
        assert instance.wait_end(job_id)["state"] == "COMPLETED"
    assert instance.show(first)["gres_instances"] == {"gpu": ["0"]}
    assert instance.cgroups() == []


@without_gpus
def test_a_reload_gives_out_what_is_new_and_leaves_running_jobs_what_they_have(lend):
    instance = lend(COUNTED)
    gate = instance.work / "gate"
    first = submit(instance, gate, "--gres", "gpu=2")
    assert told(instance, first) == ["0,1"] * 3
    waiting = submit(instance, gate, "--gres", "gpu")
    assert instance.show(waiting)["state"] == "PENDING"
    instance.config.write_text(COUNTED.replace("[0, 1]", "[1, 'GPU-5c']"))
    instance.drf("reload")
    assert told(instance, waiting) == ["GPU-5c"] * 3
    assert instance.show(first)["gres_instances"] == {"gpu": ["0", "1"]}
    refused = instance.drf("submit", "--gres", "gpu=3", "--", "true", check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    gate.touch()
    for job_id in (first, waiting):
        assert instance.wait_end(job_id)["state"] == "COMPLETED"


# -- a GPU that is lost -----------------------------------------------------------------------

FIRST, SECOND = (
    "GPU-c7b57be0-94ff-d352-a59b-d0ee00aeed43",
    "GPU-d6de6afc-bdfe-75c4-5273-0544439153fc",
)


LISTED = f"{CONFIG}[gres]\ngpu = ['{FIRST}', '{SECOND}']\n{ROOTS}"


class Machine:
    """The recorded desktop, with a daemon of its own."""

    def __init__(self, instance: Instance, root: Path) -> None:
        self.instance, self.root = instance, root
        instance.before = [sys.executable, "-I", "-c", CONTROLLER, str(root)]

    def submit(self, script: str = "true") -> int:
        words = (*SMALL, "--gres", "gpu", "--", "sh", "-c")
        return self.instance.submit(*words, f"echo $CUDA_VISIBLE_DEVICES; {script}")

    def lose_the_first(self) -> None:
        """It falls off the bus."""
        shutil.rmtree(self.root / "proc/driver/nvidia/gpus/0000:06:00.0")


@pytest.fixture
def machine(make_instance, tmp_path) -> Machine:
    root = unfold("two-nvidia-desktop", tmp_path)
    made = Machine(make_instance(LISTED), root)
    made.instance.start()
    return made


def test_a_job_is_not_given_another_gpu_in_place_of_one_that_is_lost(machine):
    instance = machine.instance
    gate = instance.work / "gate"
    first = machine.submit()
    assert instance.wait_end(first)["state"] == "COMPLETED"
    assert instance.output(first).split() == [FIRST]
    holders = [machine.submit(GATE.replace("gate", f"{gate}-{n}")) for n in range(2)]
    for holder, uuid in zip(holders, (FIRST, SECOND), strict=True):
        assert told(instance, holder) == [uuid]
    Path(f"{gate}-0").touch()
    assert instance.wait_end(holders[0])["state"] == "COMPLETED"
    # Now only the second job has a GPU.
    machine.lose_the_first()
    for _ in range(2):
        gone = instance.wait_end(machine.submit())
        assert gone["state"] == "LAUNCH_FAILED"
        why = " ".join(instance.drf("why", gone["id"]).stdout.split())
        assert f"GPU {FIRST}: there is no such GPU on this machine" in why
        instance.kill()
        instance.start()
    assert instance.show(holders[1])["state"] == "RUNNING"
    Path(f"{gate}-1").touch()
    assert instance.wait_end(holders[1])["state"] == "COMPLETED"


# -- what is measured of GPUs -----------------------------------------------------------------

#: Plays a machine on which NVIDIA's driver is loaded.
_LAUNCHER = """
from drfd.launcher.gpu_meter import supervision
from drfd.launcher.main import main
supervision.is_present = lambda: True
main()
"""
#: By device nodes, so that the configuration does not say which the driver means; and by UUIDs.
BY_NODE = f"{CONFIG}[gres.gpu]\ndevices = ['/dev/full', '/dev/no-gpu']\n{ROOTS}"
BY_UUID = f"{CONFIG}[gres.gpu]\ninstances = ['GPU-a', 'GPU-b']\n{ROOTS}"
SHARED = BY_UUID.replace("'GPU-b']", "'GPU-b']\nshare = true\nmemory = '24G'")
#: One of 900 MiB, of which so much is used.
GPU = f"gpu 0000:01:00 GPU-a {900 * MIB} {{used}} 90 0"
#: Two of 24 GiB, of which something else has 5.
BIG = [
    f"gpu 0000:0{number}:00 GPU-{name} {24 * GIB} {5 * GIB} 90 0"
    for number, name in ((1, "a"), (2, "b"))
]

measured = pytest.mark.skipif(
    os.readlink("/proc/self/ns/pid") != "pid:[4026531836]", reason="pids here are not the driver's"
)


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    with a_library() as library:
        yield library


@pytest.fixture
def meter(request, make_instance, nvml) -> Iterator[Instance]:
    """A daemon of this configuration whose launcher loads the library. What measures asks once how
    many GPUs there are, so the library answers before."""
    text, gpus = request.param
    nvml.answer(*gpus)
    made = make_instance(text)
    launcher = OwnLauncher(made, "-c", _LAUNCHER, config=PLAIN, env=nvml.environ)
    try:
        yield made.start()
    finally:
        launcher.end()


def with_config(text: str, *gpus: str) -> Callable[..., Any]:
    def mark(test: Callable[..., None]) -> Callable[..., None]:
        marked = needs_nvml(measured(test))
        return pytest.mark.parametrize("meter", [(text, gpus)], indirect=True, ids=[""])(marked)

    return mark


def start(instance: Instance, gres: str) -> tuple[int, int, Path]:
    """A running job with these GPUs, the pid of its process, and the file at which it ends."""
    name = len(list(instance.work.glob("pid*")))
    gate, pid_file = instance.work / f"gate{name}", instance.work / f"pid{name}"
    script = f"echo $$ > {pid_file}; {GATE.replace('gate', str(gate))}"
    job_id = instance.running(*SMALL, "--gres", gres, "--", "sh", "-c", script)["id"]
    pid = wait_for("its pid", lambda: pid_file.exists() and pid_file.read_text().strip())
    return job_id, int(pid), gate


def await_use(instance: Instance, job_id: int, used: int) -> dict[str, Any]:
    def usage() -> dict[str, Any] | None:
        found: dict[str, Any] = instance.show(job_id)["usage"]
        return found if found.get("gpu_memory") == used else None

    return dict(wait_for(f"{used} of job {job_id}", usage, show=instance.log.read_text))


def past(instance: Instance) -> dict[str, Any]:
    (found,) = json.loads(instance.drf("history", "--json").stdout)["jobs"]
    return dict(found)


@with_config(BY_NODE, GPU.format(used=700 * MIB))
def test_what_a_job_uses_of_a_gpu_is_shown_while_it_runs_and_kept_when_it_has_ended(meter, nvml):
    instance, total = meter, 900 * MIB
    job_id, pid, gate = start(instance, "gpu")
    mine, foreign = f"proc 0 C {pid} {500 * MIB} 80", f"proc 0 C {os.getpid()} {150 * MIB} 10"
    nvml.answer(GPU.format(used=700 * MIB), mine, foreign)
    usage = await_use(instance, job_id, 500 * MIB)
    assert (usage["gpu_memory_peak"], usage["gpu_utilisation"]) == (500 * MIB, 80)
    (gpu,) = instance._ask("status")["gpus"]
    assert (gpu["uuid"], gpu["memory_used"], gpu["memory_total"]) == ("GPU-a", 700 * MIB, total)
    assert (gpu["memory_jobs"], gpu["memory_outside"]) == (500 * MIB, 200 * MIB)
    assert (gpu["jobs"], gpu["outside_uids"]) == ([job_id], [os.getuid()])

    def points() -> list[tuple[int | None, int | None]]:
        shown = json.loads(instance.drf("show", job_id, "--json").stdout)
        curve: dict[str, Any] = shown.get("curve") or {}
        return list(zip(curve.get("gpu_memory", ()), curve.get("gpu_utilisation", ()), strict=True))

    busy = (500 * MIB, 80)
    wait_for("three points", lambda: points().count(busy) >= 3, show=points)
    # The driver takes the GPU from it, and then the process that measures is killed.
    nvml.answer(GPU.format(used=0))
    await_use(instance, job_id, 0)
    wait_for("an idle point", lambda: points()[-1] == (0, 0), show=points)
    os.kill(meter_pid(instance), signal.SIGKILL)
    nvml.answer(GPU.format(used=300 * MIB), f"proc 0 C {pid} {300 * MIB} 0")
    assert await_use(instance, job_id, 300 * MIB)["gpu_memory_peak"] == 500 * MIB
    gate.touch()
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
    assert busy in points() and (0, 0) in points()
    found = past(instance)
    assert found["used"]["gpu_memory_peak"] == 500 * MIB
    assert 0 < found["used"]["gpu_utilisation_mean"] <= 80
    (row,) = json.loads(instance.drf("report", "--by", "job", "--json").stdout)["rows"]
    mean = found["used"]["gpu_utilisation_mean"]
    assert row["gpu"]["used"] == row["gpu"]["declared"] * mean // 100 > 0


def meter_pid(instance: Instance) -> int:
    """The process of this instance's launcher that measures."""
    room = os.fsencode(instance.root / "launcher")
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if b"drfd.launcher.gpu_meter" in (entry / "cmdline").read_bytes():
                parent = Path(f"/proc/{parent_of(int(entry.name))}/cmdline").read_bytes()
                if room in parent.split(b"\0"):
                    return int(entry.name)
        except (OSError, IndexError):
            continue
    raise AssertionError("nothing measures")

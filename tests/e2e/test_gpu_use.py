"""The use of GPUs from the driver's library to the command line: a library that stands for NVIDIA's
says that a real job uses a GPU.

Without cgroups: a process belongs to the job whose runner it descends from.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drfd.journal.history import read_curves
from instance import CONFIG, Instance, is_alive, wait_for
from nvml import Nvml, a_library, needs_nvml

pytestmark = [
    needs_nvml,
    pytest.mark.skipif(
        os.readlink("/proc/self/ns/pid") != "pid:[4026531836]",
        reason="pids here are not the driver's",
    ),
]

#: Plays a machine on which NVIDIA's driver is loaded.
_LAUNCHER = """
from drfd.launcher.gpu_meter import supervision
from drfd.launcher.main import main
supervision._IS_PRESENT = {"nvidia": lambda: True}
main()
"""
NODES = "devices = ['/dev/gpu0', '/dev/gpu1']"
GPUS = f"{CONFIG}[gres.gpu]\n{NODES}\n"
if os.getuid() == 0:
    GPUS += '[daemon]\nsystem_users = ["root"]\n'
GPU = "gpu 0000:01:00 GPU-a {total} {used} 90 0"


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    with a_library() as library:
        yield library


@pytest.fixture
def instance(make_instance: Callable[..., Instance], nvml: Nvml) -> Iterator[Instance]:
    yield from _run(make_instance(GPUS), nvml)


def _run(made: Instance, nvml: Nvml) -> Iterator[Instance]:
    room = made.root / "launcher"
    made.state.mkdir(mode=0o700)
    room.mkdir(mode=0o711)
    me = str(os.getuid())
    command = [sys.executable, "-I", "-c", _LAUNCHER, "--state", str(room), "--no-cgroups"]
    command += ["--controller-uid", me, "--allow-uid", me]
    made.options, made.has_failpoints = ["--launcher", str(room)], False
    with made.log.open("ab") as log:
        launcher = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=log, env={**os.environ, **nvml.environ}
        )
    try:
        yield made.start()
    finally:
        made.destroy()
        launcher.terminate()
        launcher.wait()


def gpus(instance: Instance) -> list[dict[str, Any]]:
    reply = json.loads(instance.drf("status", "--json").stdout)
    found: list[dict[str, Any]] = reply.get("gpus", [])
    return found


def test_what_a_job_uses_of_a_gpu_is_shown_while_it_runs_and_kept_when_it_has_ended(
    instance: Instance, nvml: Nvml
) -> None:
    nvml.answer(GPU.format(total=1000, used=700))
    job_id, pid, gate = _sleeper(instance)
    mine, foreign = f"proc 0 C {pid} 500 80", f"proc 0 C {os.getpid()} 150 10"
    nvml.answer(GPU.format(total=1000, used=700), mine, foreign)

    def used() -> dict[str, Any] | None:
        usage: dict[str, Any] = instance.show(job_id)["usage"]
        return usage if usage.get("gpu_memory") else None

    usage = wait_for("its use of GPUs", used, show=instance.log.read_text)
    assert (usage["gpu_memory"], usage["gpu_memory_peak"]) == (500, 500)
    assert usage["gpu_utilisation"] == 80
    (gpu,) = gpus(instance)
    assert (gpu["uuid"], gpu["memory_used"], gpu["memory_total"]) == ("GPU-a", 700, 1000)
    assert (gpu["memory_jobs"], gpu["memory_outside"], gpu["utilisation"]) == (500, 200, 90)
    assert (gpu["jobs"], gpu["outside_uids"]) == ([job_id], [os.getuid()])
    # The driver takes the GPU from it, and then the process that measures is killed.
    nvml.answer(GPU.format(total=1000, used=0))
    wait_for("no use", lambda: instance.show(job_id)["usage"]["gpu_memory"] == 0)
    os.kill(_meter(instance), signal.SIGKILL)
    nvml.answer(GPU.format(total=1000, used=300), f"proc 0 C {pid} 300 0")
    wait_for("its use again", lambda: instance.show(job_id)["usage"]["gpu_memory"] == 300)
    assert instance.show(job_id)["usage"]["gpu_memory_peak"] == 500
    gate.touch()
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
    (past,) = json.loads(instance.drf("history", "--json").stdout)["jobs"]
    assert past["used"]["gpu_memory_peak"] == 500
    assert 0 < past["used"]["gpu_utilisation_mean"] <= 80
    assert (past["usage"]["gpu_memory"], past["usage"]["gpu_memory_peak"]) == (None, 500)
    (row,) = json.loads(instance.drf("report", "--by", "job", "--json").stdout)["rows"]
    busy = past["used"]["gpu_utilisation_mean"]
    assert row["gpu"]["used"] == row["gpu"]["declared"] * busy // 100 > 0
    assert (row["gpu"]["declared"], row["gpu"]["unknown"]) == (row["gres_ms"]["gpu"], 0)
    # The configuration does not say which of its GPUs is the driver's.
    assert (row["gpu_memory_peak_max"], row["gpu_memory_single_peak_max"]) == (500, None)
    _, names, _, values = instance.drf("report", "--by", "job").stdout.splitlines()[:4]
    assert names.split()[-5:-1] == ["GPU-H", "GPU%", "GPU", "MEM"]
    assert values.split()[-3:-1] == [f"{row['gpu']['efficiency']:.0%}", "500"]


MIB = 1 << 20


def test_the_curve_of_a_job_has_its_use_of_gpus_while_it_runs_and_afterwards(
    instance: Instance, nvml: Nvml
) -> None:
    total = 900 * MIB
    nvml.answer(GPU.format(total=total, used=0))
    job_id, pid, gate = _sleeper(instance)
    nvml.answer(GPU.format(total=total, used=700 * MIB), f"proc 0 C {pid} {500 * MIB} 80")

    def points() -> list[tuple[int | None, int | None]]:
        curve: dict[str, Any] = _shown(instance, job_id).get("curve", {})
        return list(zip(curve.get("gpu_memory", ()), curve.get("gpu_utilisation", ()), strict=True))

    busy = (500 * MIB, 80)
    wait_for("three points", lambda: points().count(busy) >= 3, show=points)
    nvml.answer(GPU.format(total=total, used=0))
    wait_for("an idle point", lambda: points()[-1] == (0, 0), show=points)
    page = instance.drf("show", str(job_id)).stdout.splitlines()
    assert any(line.split()[0] == "GPU" and "most 80% of 100%" in line for line in page)
    assert any(line.split()[:2] == ["GPU", "mem"] and "most 500M" in line for line in page)
    gate.touch()
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
    assert busy in points() and (0, 0) in points()
    (row,) = json.loads(instance.drf("report", "--by", "job", "--json").stdout)["rows"]
    assert 80 in row["curve"]["gpu_utilisation"]
    assert row["curve"]["demand"]["gres"] == {"gpu": 1}


def _sleeper(instance: Instance) -> tuple[int, int, Path]:
    """A running job with a GPU, the pid of its process, and the file at which it ends."""
    gate, pid_file = instance.work / "gate", instance.work / "pid"
    script = f"echo $$ > {pid_file}; while ! [ -e {gate} ]; do sleep 0.05; done"
    asks = ("-c", "0.1", "-m", "64M", "--gres", "gpu")
    job_id = instance.submit(*asks, "--", "sh", "-c", script)
    instance.wait_state(job_id, "RUNNING")
    pid = wait_for("its pid", lambda: pid_file.exists() and pid_file.read_text().strip())
    return job_id, int(pid), gate


def _shown(instance: Instance, job_id: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(instance.drf("show", str(job_id), "--json").stdout)
    return found


def _meter(instance: Instance) -> int:
    """The process of this instance's launcher that measures."""
    room = os.fsencode(instance.root / "launcher")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            parents = Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if b"drfd.launcher.gpu_meter" in command and room in parents:
            return int(entry.name)
    raise AssertionError("nothing measures")


def test_the_administrator_is_told_why_nothing_is_measured(instance: Instance, nvml: Nvml) -> None:
    nvml.answer("init 18")
    said = wait_for(
        "a reason",
        lambda: [line for line in instance.drf("doctor").stdout.splitlines() if "NVIDIA" in line],
        show=instance.log.read_text,
    )
    assert said[0].split(maxsplit=2)[:2] == ["gpu", "use"]
    assert "not measured: NVIDIA's library answers: " in said[0]
    assert gpus(instance) == []
    asks = ("--hold", "--gres", "gpu=1,memory=20G")
    note = "drf: the declared memory of a gpu is not watched: NVIDIA's library answers: "
    assert instance.drf("submit", *asks, "--", "true").stderr.startswith(note)


GIB = 1 << 30
BIG = [f"gpu 0000:0{number}:00 GPU-{name} {24 * GIB} {5 * GIB} 90 0" for number, name in
       ((1, "a"), (2, "b"))]  # fmt: skip


@pytest.fixture
def by_uuid(make_instance: Callable[..., Instance], nvml: Nvml) -> Iterator[Instance]:
    """A machine with two GPUs that the driver alone knows, and the configuration by their UUIDs."""
    yield from _run(make_instance(GPUS.replace(NODES, "instances = ['GPU-a', 'GPU-b']")), nvml)


def test_a_killed_daemon_has_not_forgotten_how_much_of_a_gpu_a_job_has_used(
    by_uuid: Instance, nvml: Nvml
) -> None:
    """A job that runs on, and one that ends while no daemon is there."""
    instance = by_uuid
    total = 900 * MIB
    nvml.answer(GPU.format(total=total, used=0))
    job_id, pid, gate = _sleeper(instance)
    busy = f"proc 0 C {pid} {500 * MIB} 80"
    nvml.answer(GPU.format(total=total, used=500 * MIB), busy)

    journal = instance.state / "controller" / "journal.sqlite"

    def is_saved() -> bool:
        curve = read_curves(journal, [job_id]).get(job_id)
        tally = None if curve is None else curve.gpu_tally
        return tally is not None and tally.memory_peak == 500 * MIB

    wait_for("the peak in the journal", is_saved, seconds=60, show=instance.log.read_text)
    # From now on it does nothing, of which the next daemon alone would tell.
    nvml.answer(GPU.format(total=total, used=0))
    instance.kill()
    instance.start()
    wait_for("no use", lambda: instance.show(job_id)["usage"]["gpu_memory"] == 0)
    usage = instance.show(job_id)["usage"]
    assert usage["gpu_memory_peak"] == 500 * MIB
    assert 0 < usage["gpu_utilisation_mean"] <= 80
    instance.kill()
    gate.touch()
    wait_for("its end", lambda: not is_alive(pid))
    instance.start()
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
    (past,) = json.loads(instance.drf("history", "--json").stdout)["jobs"]
    assert past["used"]["gpu_memory_peak"] == 500 * MIB
    assert 0 < past["used"]["gpu_utilisation_mean"] <= 80
    (row,) = json.loads(instance.drf("report", "--by", "job", "--json").stdout)["rows"]
    assert row["gpu_memory_single_peak_max"] == 500 * MIB
    assert 0 < row["gpu"]["used"] < row["gpu"]["declared"]


def _start(instance: Instance, gres: str, pids: dict[int, int]) -> int:
    """A running job that asks for these GPUs; its process is noted in `pids`."""
    path = instance.work / f"pid{len(pids)}"
    script = f"echo $$ > {path}; exec sleep 600"
    asks = ("-c", "0.1", "-m", "64M", "--gres", gres)
    job_id = instance.submit(*asks, "--", "sh", "-c", script)
    instance.wait_state(job_id, "RUNNING")
    pids[job_id] = int(wait_for("its pid", lambda: path.exists() and path.read_text().strip()))
    return job_id


def test_a_job_over_its_memory_on_one_gpu_ends_and_says_what_to_ask_for(
    by_uuid: Instance, nvml: Nvml
) -> None:
    """Others live on: one that uses less, one that used more in a single reading, and one that
    uses as much in all, on two GPUs."""
    nvml.answer(*BIG)
    pids: dict[int, int] = {}

    def start(gpus: int, memory: str) -> int:
        return _start(by_uuid, f"gpu={gpus},memory={memory}", pids)

    def answer(*use: tuple[int, int, float]) -> None:
        """Each: the place of a GPU, a job, and its gibibytes there."""
        nvml.answer(
            *BIG, *(f"proc {gpu} C {pids[job]} {round(has * GIB)} 5" for gpu, job, has in use)
        )

    def seen(job_id: int, gibibytes: float) -> None:
        wait_for(
            f"{gibibytes}G of {job_id}",
            lambda: by_uuid.show(job_id)["usage"]["gpu_memory"] == round(gibibytes * GIB),
            show=by_uuid.log.read_text,
        )

    both = start(2, "3G")
    answer((0, both, 2.5), (1, both, 2.5))
    seen(both, 5)
    shown = by_uuid.drf("show", str(both)).stdout.splitlines()
    assert "GPU memory 2.5G of 3G on GPU GPU-a; 2.5G of 3G on GPU GPU-b" in shown
    doctor = by_uuid.drf("doctor").stdout
    assert "gpu memory measured every 2 s, job stopped after 2 readings above\n" in doctor
    too_much = by_uuid.drf("submit", "--gres", "gpu,memory=25G", "--", "true", check=False)
    assert "the largest here has 24G" in too_much.stderr
    answer((0, both, 3.5), (1, both, 0.5))
    seen(both, 4)
    answer((0, both, 0.5), (1, both, 2.75))
    seen(both, 3.25)
    answer((0, both, 0.5), (1, both, 3.5))
    ended = by_uuid.wait_end(both)
    assert (ended["state"], ended["outcome"]["code"]) == ("LIMIT_EXCEEDED", "LIMIT_EXCEEDED")
    assert ended["outcome"]["text"] == (
        "used 3.5G of the memory of GPU GPU-b, and 3G were declared; it was stopped after 2 "
        "readings above that; ask for more next time: --gres gpu=2,memory=5376M (what CUDA needs "
        "for itself on a GPU, 0.3G to 0.5G, counts too)"
    )
    other = start(1, "4G")
    answer((0, other, 3.9))
    seen(other, 3.9)
    answer((0, other, 3.5))
    seen(other, 3.5)
    assert by_uuid.show(other)["state"] == "RUNNING"
    by_uuid.drf("cancel", str(other))
    why = by_uuid.drf("why", str(both)).stdout
    assert "next time: drf submit -c 0.1 -m 64M -t 1d --gres gpu=2,memory=5376M" in why


@pytest.fixture
def sharing(make_instance: Callable[..., Instance], nvml: Nvml) -> Iterator[Instance]:
    """A machine with two GPUs of which jobs may share each."""
    keys = "instances = ['GPU-a', 'GPU-b']\nshare = true\nmemory = '24G'"
    yield from _run(make_instance(GPUS.replace(NODES, keys)), nvml)


def test_jobs_share_a_gpu_by_the_memory_that_they_declare(sharing: Instance, nvml: Nvml) -> None:
    """Two on one GPU; a third waits for a part of one, and starts where another job has been
    stopped, which took more than its part."""
    nvml.answer(*BIG)
    pids: dict[int, int] = {}
    small, large = (_start(sharing, f"gpu=1,memory={size}", pids) for size in ("4G", "20G"))
    other = _start(sharing, "gpu=1,memory=14G", pids)

    def gpus_of(job_id: int) -> list[str]:
        found: list[str] = sharing.show(job_id)["gres_instances"]["gpu"]
        return found

    assert [gpus_of(each) for each in (small, large, other)] == [["GPU-a"], ["GPU-a"], ["GPU-b"]]
    shares = json.loads(sharing.drf("shares", "--json").stdout)
    assert shares["capacity"]["gres"] == {"memory:gpu": 48 * GIB}
    assert shares["free"]["gres"] == {"memory:gpu": 10 * GIB}
    asks = ("-c", "0.1", "-m", "64M", "--gres", "gpu=1,memory=16G")
    waiting = sharing.submit(*asks, "--", "sleep", "600")
    why = sharing.drf("why", str(waiting)).stdout
    assert "needs 16G of gpu memory, 10G free" in why
    assert f"job {large}, also of " in why
    refused = sharing.drf("submit", "--gres", "gpu=1,memory=25G", "--", "true", check=False)
    assert "25G" in refused.stderr
    assert "24G" in refused.stderr
    nvml.answer(*BIG, f"proc 0 C {pids[small]} {9 * GIB} 5", f"proc 0 C {pids[large]} {19 * GIB} 5")
    assert sharing.wait_end(small)["state"] == "LIMIT_EXCEEDED"
    assert sharing.show(large)["state"] == "RUNNING"
    assert sharing.show(waiting)["state"] == "PENDING"
    sharing.drf("cancel", str(large))
    sharing.wait_state(waiting, "RUNNING")
    assert gpus_of(waiting) == ["GPU-a"]
    lines = sharing.drf("doctor").stdout.splitlines()
    assert any("jobs share each GPU's 24G; measured every" in line for line in lines)
    assert "30G of gpu memory" in sharing.drf("shares").stdout
    assert "gpu mem" in sharing.drf("top", "--once").stdout
    assert "drf" in sharing.drf("simulate", "--history", "--policy", "drf").stdout


@pytest.fixture
def careful(make_instance: Callable[..., Instance], nvml: Nvml) -> Iterator[Instance]:
    """The same, where what processes outside drfd use is left to them."""
    config = GPUS.replace(NODES, "instances = ['GPU-a', 'GPU-b']")
    made = make_instance(f"{config}[scheduling]\nrespect_external_load = true\n")
    yield from _run(made, nvml)


def test_a_gpu_that_falls_off_the_bus_is_given_to_no_job_until_it_is_back(
    careful: Instance, nvml: Nvml
) -> None:
    """Else each job would be started there, and fail at once."""
    instance = careful
    nvml.answer(*BIG)
    wait_for("both", lambda: len(gpus(instance)) == 2)
    nvml.answer(BIG[0].removesuffix(" 0") + " 15", BIG[1])
    asks = ("-c", "0.1", "-m", "64M", "--gres", "gpu=2", "--", "true")

    def reason() -> str:
        """Of a job that is new: before the loss is known, it runs."""
        job_id = instance.submit(*asks)
        text = " ".join(instance.drf("why", job_id).stdout.split())
        instance.drf("cancel", job_id, check=False)
        return text

    text = "gpu GPU-a is lost: its driver does not reach it"
    wait_for("the loss", lambda: text in reason(), pause_s=1, show=reason)
    late = instance.submit(*asks)
    nvml.answer(*BIG)
    assert instance.wait_end(late)["state"] == "COMPLETED"

"""What GPUs are measured to do, by the real process with the real nvidia-ml-py and a library that
stands for the driver's; and the launcher and its process, which may do whatever a driver does."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from drfd.launcher.gpu_meter import MAX_LINE_BYTES, supervision
from drfd.launcher.gpu_meter.reading import (
    GpuReading,
    ProcessReading,
    encode,
    process_reading,
)
from drfd.launcher.gpu_meter.supervision import GpuMeter
from drfd.launcher.protocol import MeasureGpusOrder, Message
from drfd.launcher.system.background import BackgroundWork
from gpu_machines import Nvml, a_library, as_answers, needs_nvml, recorded, without_gpus
from launcher.rig import WAIT_S, LauncherProcess, lives, state_of, until

# -- NVIDIA's -----------------------------------------------------------------------------


#: Error codes of nvml.h.
NOT_SUPPORTED, NO_PERMISSION, LOST, NO_FUNCTION, MISMATCH, UNKNOWN = 3, 4, 15, 13, 18, 999
_OURS = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
in_first_pids = pytest.mark.skipif(not _OURS, reason="pids here are not the driver's")


def _measuring() -> list[str]:
    return [*supervision.PROGRAM, str(os.getpid())]


@pytest.fixture(scope="module")
def nvml() -> Iterator[Nvml]:
    with a_library() as library:
        yield library


@pytest.fixture
def measure(nvml):
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        environ = {**os.environ, **nvml.environ}
        started.append(subprocess.Popen(_measuring(), stdout=subprocess.PIPE, env=environ, cwd="/"))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def measured(**changes: Any) -> dict[str, Any]:
    usual = {
        "pci": "0000:01:00.0", "uuid": "GPU-a", "slice": None, "memory_used": 400,
        "memory_total": 1000, "utilisation": 35, "is_lost": False, "processes": [],
    }  # fmt: skip
    assert changes.keys() <= usual.keys()
    return usual | changes


def cgroups(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return sorted({each.split(":", 2)[2] for each in lines})


@needs_nvml
@in_first_pids
def test_each_gpu_tells_its_memory_and_who_uses_it(nvml, measure):
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
            measured(processes=[{**own, "memory": 300, "utilisation": 20}]),
            measured(
                pci="0001:c1:00.0", uuid="GPU-b", memory_used=0, memory_total=2000, utilisation=0,
                processes=[{**own, "memory": None, "utilisation": 0}],
            ),
        ],
        "why": None,
    }  # fmt: skip


def test_before_it_has_given_up_its_rights_it_has_loaded_little():
    code = "import sys, drfd.launcher.system.nobody\nprint(*sys.modules)"
    words = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True
    ).stdout
    assert {each for each in words.split() if each.startswith(("drfd.l", "pynvml"))} == {
        *("drfd.launcher", "drfd.launcher.system", "drfd.launcher.system.nobody"),
        *("drfd.linux", "drfd.linux.own_process", "drfd.linux.syscalls"),
    }


#: Prints what `recording` does, also where pids are not the driver's.
_RECORD = """
import sys
from drfd.launcher.gpu_meter import nvidia
from tests.devices import recording
nvidia.names_processes = lambda: True
recording.main("nvml", sys.argv[1])
"""


@needs_nvml
@pytest.mark.slow
@pytest.mark.parametrize("label", ["idle", "busy", "shared"])
def test_the_library_that_stands_in_answers_as_a_real_one_did(nvml, label):
    calls = recorded(label)
    nvml.answer(*as_answers(calls))
    done = subprocess.run(
        [sys.executable, "-c", _RECORD, label], env={**os.environ, **nvml.environ},
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[dict[str, Any]] = []
    reading: dict[str, Any] = {}
    for said in map(json.loads, done.stdout.splitlines()):
        if said.pop("uid") != os.getuid():
            continue
        if said["call"] == "read":
            reading = reading or said["answer"][0][0]
        elif said["call"] != "package" and said not in found:
            found.append(said)
    assert found == calls
    processes = {"idle": [], "busy": [(763, 37)], "shared": [(831, 20), (840, 1)]}[label]
    assert [(each["pid"], each["utilisation"]) for each in reading["processes"]] == processes
    assert reading["memory_total"] == 85017493504, "as CUDA says, without what the driver keeps"


@needs_nvml
@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_a_figure_that_the_driver_refuses_is_null(nvml, measure, code):
    nvml.answer(
        "gpu 0000:01:00 GPU-a 1000 400 -1 0",
        *(f"lacks nvmlDeviceGet{name} {code}" for name in (
            "UUID", "MemoryInfo", "MemoryInfo_v2", "MigMode", "ProcessUtilization",
            "ComputeRunningProcesses_v2", "ComputeRunningProcesses_v3",
        )),
    )  # fmt: skip
    nothing = measured(
        uuid=None, memory_used=None, memory_total=None, utilisation=None, processes=None
    )
    assert line(measure()) == {"gpus": [nothing], "why": None}


@needs_nvml
def test_an_older_driver_tells_by_its_older_functions(nvml, measure):
    """Its memory in use includes what the driver keeps."""
    names = ("MemoryInfo_v2", "ComputeRunningProcesses_v3", "GraphicsRunningProcesses_v3")
    nvml.answer(
        "gpu 0000:01:00 GPU-a 1000 400 35 0 50",
        *(f"lacks nvmlDeviceGet{name} {NO_FUNCTION}" for name in names),
    )
    assert line(measure())["gpus"] == [measured(memory_used=450, processes=[] if _OURS else None)]


@needs_nvml
@pytest.mark.slow
@pytest.mark.parametrize("code", [LOST, UNKNOWN])
def test_a_gpu_that_is_lost_keeps_its_name_and_leaves_the_others_measured(nvml, measure, code):
    second = "gpu 0000:02:00 GPU-b 1000 400 35 0"
    nvml.answer("gpu 0000:01:00 GPU-a 1000 400 35 0", second)
    process = measure()
    assert [each["is_lost"] for each in line(process)["gpus"]] == [False, False]
    nvml.answer(f"gpu 0000:01:00 GPU-a 1000 400 35 {code}", second)
    lost = measured(
        memory_used=None, memory_total=None, utilisation=None, is_lost=True, processes=None
    )
    after = until("a reading without the GPU", lambda: _if_lost(line(process)))
    assert after[0] == lost
    assert (after[1]["uuid"], after[1]["memory_used"]) == ("GPU-b", 400)


def _if_lost(reading: dict[str, Any]) -> list[dict[str, Any]] | None:
    gpus: list[dict[str, Any]] = reading["gpus"]
    return gpus if gpus[0]["is_lost"] else None


@needs_nvml
def test_the_slices_of_a_divided_gpu_stand_in_its_place(nvml, measure):
    nvml.answer(
        "gpu 0000:01:00 GPU-a 1000 400 35 0",
        "mig 0 MIG-x 3 0 500 200",
        "mig 0 MIG-y 4 1 250 0",
        f"proc 100 C {os.getpid()} 150 -1",
    )
    first, second = line(measure())["gpus"]
    slices = measured(
        slice="3:0", uuid="MIG-x", memory_used=200, memory_total=500, utilisation=None
    )
    assert {**first, "processes": []} == slices
    assert second == measured(
        slice="4:1", uuid="MIG-y", memory_used=0, memory_total=250, utilisation=None,
        processes=[] if _OURS else None,
    )  # fmt: skip
    if _OURS:
        assert [(each["pid"], each["memory"]) for each in first["processes"]] == [
            (os.getpid(), 150)
        ]


@needs_nvml
@pytest.mark.slow
@pytest.mark.parametrize("where", ["start", "later"])
def test_a_driver_that_was_replaced_ends_the_process_which_says_so(nvml, measure, where):
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


@without_gpus
@needs_nvml
def test_without_the_drivers_library_it_says_so(nvml, tmp_path):
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(_measuring(), capture_output=True, env=environ, cwd="/", timeout=WAIT_S)
    found = json.loads(done.stdout)
    assert "NVIDIA" in found["why"]
    assert done.returncode == 0


@needs_nvml
def test_it_runs_without_roots_rights_and_cannot_gain_them(nvml, measure):
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


@pytest.mark.skipif(os.getuid() != 0, reason="only root has something to give up")
def test_nvidias_package_is_not_loaded_by_root():
    with TemporaryDirectory(prefix="drfd-test-", dir="/var/tmp") as name:
        os.chmod(name, 0o755)
        Path(name, "pynvml.py").write_text("import os\nraise OSError(f'uid {os.getuid()}')\n")
        done = subprocess.run(
            [each for each in _measuring() if each != "-I"],
            env={**os.environ, "PYTHONPATH": name}, cwd="/", capture_output=True, timeout=60,
        )  # fmt: skip
    assert json.loads(done.stdout)["why"] == "OSError: uid 65534"


# -- the line of a process that measures --------------------------------------------------


def reading_of(**changes: Any) -> GpuReading:
    usual: GpuReading = {
        "pci": "0000:01:00.0", "uuid": "GPU-a", "slice": None, "memory_used": 1,
        "memory_total": 2, "utilisation": 3, "is_lost": False, "processes": [],
    }  # fmt: skip
    return {**usual, **changes}  # type: ignore[typeddict-item]


def used_by(uid: int, pids: range, cgroup: str, **changes: Any) -> list[ProcessReading]:
    usual = {"uid": uid, "cgroups": [cgroup], "memory": 1, "utilisation": 0}
    return [{"pid": pid, **usual, **changes} for pid in pids]  # type: ignore[typeddict-item]


@pytest.mark.slow
def test_a_flood_of_processes_of_one_user_leaves_out_no_other_user():
    """Processes are summed up by their jobs, and then the user with most of them has fewer."""
    flood = used_by(1001, range(1000, 9000), "/job-1-1") + used_by(1001, range(9000, 9999), "/b")
    others = used_by(1002, range(10_000, 10_050), "/job-2-1", memory=7, utilisation=3)
    (other,) = used_by(1002, range(10_000, 10_001), "/job-2-1", memory=350, utilisation=150)
    line = encode([reading_of(processes=flood + others), reading_of(processes=others)])
    assert len(line) <= MAX_LINE_BYTES
    first, second = json.loads(line)["gpus"]
    assert second == reading_of(processes=[other])
    assert [(each["cgroups"], each["memory"]) for each in first["processes"]] == [
        (["/job-1-1"], 8000), (["/b"], 999), (other["cgroups"], 350),
    ]  # fmt: skip
    for pid in range(9000):
        flood += used_by(1001, range(pid, pid + 1), f"/job-1-1/{pid}", memory=pid)
    line = encode([reading_of(processes=flood + others)])
    assert len(line) <= MAX_LINE_BYTES
    (only,) = json.loads(line)["gpus"]
    assert only["processes"][-1] == other
    assert [each["memory"] for each in only["processes"][:2]] == [8999, 8998]


def test_what_a_user_calls_a_process_or_a_cgroup_is_no_line_of_the_kernels(monkeypatch):
    """Python takes more characters for the end of a line than the kernel escapes."""
    path = "/user.slice/x\x0b0::/drfd.slice/drfd-jobs.service/job-5-1"
    texts = {
        "/proc/9/status": "Name:\tx\x0bUid:\t4242\nUid:\t1001\t1001\t1001\t1001",
        "/proc/9/cgroup": f"0::{path}",
    }
    for module in ("drfd.launcher.gpu_meter.reading", "drfd.linux.kernel_files"):
        monkeypatch.setattr(f"{module}.word_in", texts.__getitem__)
    found = process_reading(9, None, None)
    assert (found["uid"], found["cgroups"]) == (1001, [path])


# -- the launcher and the processes that measure ------------------------------------------


class Stage:
    """The launcher's loop with only the meter in it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pids = directory / "pids"
        self._pids.touch()
        self.selector = selectors.DefaultSelector()
        self.background = BackgroundWork(self.selector)
        self.reports: list[Message] = []
        self.longest_turn_s = 0.0
        monkeypatch.setattr(supervision, "is_present", lambda: True)
        self.meter = GpuMeter(self.background, self.selector, self.reports.append)
        self._patch = monkeypatch

    def begin(self, script: str) -> None:
        """Have a shell do this in place of the program."""
        command = ["sh", "-c", f"echo $$ >> {self._pids}; {script}"]
        self._patch.setattr(supervision, "PROGRAM", command)
        self.meter.turn(True)

    @property
    def pids(self) -> list[int]:
        return [int(word) for word in self._pids.read_text().split()]

    def run_until(self, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < deadline
            self.turn()

    def run_for(self, span_s: float) -> None:
        end_s = time.monotonic() + span_s
        while time.monotonic() < end_s:
            self.turn()

    def turn(self) -> None:
        chosen = self.selector.select(0.05)
        before_s = time.monotonic()
        for key, _ in chosen:
            if key.fd in self.selector.get_map():
                key.data()
        self.longest_turn_s = max(self.longest_turn_s, time.monotonic() - before_s)

    def end(self) -> None:
        self._patch.undo()
        self.meter.turn(False)
        for pid in list(self.background._live):
            os.kill(pid, signal.SIGKILL)
        self.run_until(lambda: not self.background._live)


@pytest.fixture
def stage(tmp_path, monkeypatch) -> Iterator[Stage]:
    made = Stage(tmp_path, monkeypatch)
    yield made
    made.end()


HANG = "exec sleep 600"


@pytest.mark.parametrize(
    "script",
    [
        f"head -c {MAX_LINE_BYTES + 2} /dev/zero | tr '\\0' x",
        f"exec >&-; {HANG}",
        "exit 1",
    ],
    ids=["endless", "closed", "dead"],
)
def test_a_process_of_no_use_is_killed_and_the_next_order_starts_another(stage, script):
    stage.begin(script)
    stage.run_until(lambda: stage.pids and not stage.background._live)
    stage.meter.turn(False)
    stage.meter.turn(True)
    stage.run_until(lambda: len(stage.pids) == 2)
    assert stage.reports == []


def test_the_last_line_of_a_process_that_ends_is_reported(stage):
    stage.begin("""echo '{"gpus":[],"why":"no driver"}'""")
    stage.run_until(lambda: stage.reports)
    assert stage.reports[0]["line"] == '{"gpus":[],"why":"no driver"}'


@pytest.mark.slow
def test_a_flood_of_lines_costs_one_report_a_second(stage):
    stage.begin("exec yes '{}'")
    began_s = time.monotonic()
    stage.run_until(lambda: stage.reports)
    stage.run_for(1.3)
    assert len(stage.reports) <= 1 + (time.monotonic() - began_s)
    assert len(stage.pids) == 1


def test_a_process_that_cannot_be_killed_is_replaced_when_it_has_ended(stage, monkeypatch):
    """A driver's call that does not return: the kill stays without effect until it does."""
    kills: list[int] = []
    monkeypatch.setattr(stage.background, "kill", kills.append)
    stage.begin(HANG)
    stage.run_until(lambda: stage.pids)
    stage.meter.turn(False)
    stage.meter.turn(True)
    assert kills == stage.pids == [*stage.background._live]
    os.kill(kills[0], signal.SIGKILL)
    stage.run_until(lambda: not stage.background._live)
    stage.meter.turn(True)
    stage.run_until(lambda: len(stage.pids) == 2)


@pytest.mark.slow
def test_when_it_is_turned_off_reports_and_process_end_at_once(stage):
    stage.begin("while :; do echo '{}'; sleep 0.01; done")
    stage.run_until(lambda: stage.reports)
    stage.meter.turn(False)
    count = len(stage.reports)
    stage.run_until(lambda: not lives(stage.pids[0]))
    stage.run_for(0.1)
    assert (len(stage.reports), len(stage.pids)) == (count, 1)
    stage.meter.turn(True)
    stage.run_until(lambda: len(stage.reports) > count)


# -- the launcher as a program ------------------------------------------------------------------

_PRESENT = "from drfd.launcher.gpu_meter import supervision as s; s.is_present = lambda: True\n"


@pytest.fixture
def answers(monkeypatch) -> Iterator[Nvml]:
    with a_library() as nvml:
        for name, value in nvml.environ.items():
            monkeypatch.setenv(name, value)
        yield nvml


@pytest.fixture
def launcher(make_launcher, tmp_path, answers) -> LauncherProcess:
    made = make_launcher(tmp_path / "state")
    made.start(prelude=_PRESENT)
    return made


@needs_nvml
@pytest.mark.slow
def test_a_launcher_measures_for_who_asks(launcher, answers):
    answers.answer("gpu 0000:01:00 GPU-a 1000 400 35 0")
    controller = launcher.connect()
    controller.send(MeasureGpusOrder(on=True))
    report = controller.take("gpus")
    gpus = json.loads(report["line"])["gpus"]
    assert [(each["uuid"], each["memory_used"]) for each in gpus] == [("GPU-a", 400)]


@needs_nvml
@pytest.mark.slow
def test_a_hanging_driver_does_not_delay_the_launcher_and_ends_with_it(launcher, answers):
    answers.answer("hang nvmlInitWithFlags")
    controller = launcher.connect()
    controller.send(MeasureGpusOrder(on=True))
    pid = until("a process that measures", lambda: _meter_of(controller.peer_pid))
    assert [each["report"] for each in controller.list()] == ["listed"]
    launcher.kill()
    until("its end", lambda: not lives(pid))


def _meter_of(launcher: int) -> int | None:
    """The process that measures, once it waits: the library's call does not return."""
    for word in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        try:
            command = Path(f"/proc/{word}/cmdline").read_bytes()
        except OSError:
            continue
        if b"drfd.launcher.gpu_meter" in command and state_of(int(word)) == "S":
            return int(word)
    return None

"""drfd on this machine's own GPUs of NVIDIA. Each test prints a line with what is expected and what
was seen, which pytest shows with `-s`. `real_gpu.sh` runs them where nothing is installed.

With DRFD_GPU_RESULTS, a directory, the daemon's log, what drf prints and the answers of NVML are
kept there.
"""

from __future__ import annotations

import functools
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from drfd.devices.gpus import Gpu, find_gpus
from drfd.devices.kernel_files import node_at
from drfd.devices.nvidia import Memory
from drfd.launcher.confinement.device_hiding import device_program
from drfd.launcher.gpu_meter.reading import names_processes
from drfd.linux import syscalls
from drfd.linux.device_nodes import show_node
from instance import BIN, Instance, add_account, delete_account, wait_for
from kernel import empty_cgroup

pytestmark = pytest.mark.gpu

MIB, GIB = 1 << 20, 1 << 30
#: What a context of CUDA takes of a GPU at most, besides what a program allocates.
CONTEXT = 1 * GIB
CONFIG = """
[capacity]
cores = 8
memory = "8G"
reserve_memory = 0
[enforcement]
grace = "1s"
"""
WHOLE = f'{CONFIG}[gres]\ngpu = "auto"\n'
SHARED = f'{CONFIG}[gres.gpu]\ninstances = "auto"\nshare = true\nmemory = "24G"\n'
CAREFUL = f"{WHOLE}[scheduling]\nrespect_external_load = true\n"
#: A job's own demand, which leaves room for others.
SMALL = ("-c", "1", "-m", "2G")
HERE = Path(__file__).parent
RESULTS = os.environ.get("DRFD_GPU_RESULTS")


# -- a line for each test ---------------------------------------------------------------------


class TooLong(Exception):
    pass


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TooLong in the block after so many seconds. There may be such a block around it."""

    def stop(*_: object) -> None:
        raise TooLong(f"no end within {seconds:.0f} s")

    began_s = time.monotonic()
    before = signal.signal(signal.SIGALRM, stop)
    outer_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if outer_s:
            left_s = outer_s - (time.monotonic() - began_s)
            signal.setitimer(signal.ITIMER_REAL, max(0.1, left_s))


def checked(
    expected: str, *, seconds: float = 40
) -> Callable[[Callable[..., str]], Callable[..., None]]:
    """Make a test of a function that returns what was seen, and fails otherwise."""

    def mark(function: Callable[..., str]) -> Callable[..., None]:
        @functools.wraps(function)
        def test(*args: Any, **kwargs: Any) -> None:
            try:
                with within(seconds):
                    tell("ok", expected, function(*args, **kwargs))
            except pytest.skip.Exception as why:
                tell("not possible here", expected, str(why))
                raise
            except BaseException as error:
                tell("FAILED", expected, f"{type(error).__name__}: {error}")
                raise

        return test

    return mark


def tell(verdict: str, expected: str, seen: str) -> None:
    name = os.environ["PYTEST_CURRENT_TEST"].partition("::test_")[2].removesuffix(" (call)")
    words = " ".join(seen.split())[:900]
    print(f"\n{verdict}: {name.replace('_', ' ')}\n    expected: {expected}\n    seen: {words}")


# -- the machine ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpus() -> tuple[Gpu, ...]:
    """Those that `gpu = "auto"` gives out."""
    if os.getuid() != 0:
        pytest.skip("not root")
    found = tuple(gpu for gpu in find_gpus() if gpu.vendor == "nvidia" and not gpu.fault)
    if not found:
        pytest.skip("no GPU of NVIDIA with its driver here: /proc/driver/nvidia/gpus names none")
    return found


def smi(*words: str) -> str:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("nvidia-smi is not here")
    words = ("nvidia-smi", *words)
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout


def smi_gpus() -> list[ElementTree.Element]:
    """What `nvidia-smi -q` says of each GPU."""
    return ElementTree.fromstring(smi("-q", "-x")).findall("gpu")


def smi_text(gpu: ElementTree.Element, path: str) -> str:
    return (gpu.findtext(path) or "").strip()


def smi_address(gpu: ElementTree.Element) -> str:
    """Its PCI address as sysfs writes it, with a domain of four digits."""
    return gpu.attrib["id"].lower()[-12:]


#: What nobody but an administrator changes.
_SETTINGS = re.compile("mig|persistence_mode|compute_mode|ecc|power_limit|applications_clocks")


def settings() -> dict[str, list[str]]:
    """The settings of all GPUs by name."""
    found: dict[str, list[str]] = {}
    for gpu in smi_gpus():
        for each in gpu.iter():
            if _SETTINGS.search(each.tag) and (each.text or "").strip():
                found.setdefault(each.tag, []).append(str(each.text).strip())
    return {name: some for name, some in found.items() if "error" not in name}


@pytest.fixture(scope="module")
def settings_before(gpus) -> dict[str, list[str]]:
    with suppress(Exception, pytest.skip.Exception):
        return settings()
    # The last test says why.
    return {}


@pytest.fixture(scope="module")
def owner(gpus) -> Iterator[pwd.struct_passwd]:
    """An ordinary user; root where there can be none, or none who can run this Python."""
    root = pwd.getpwuid(0)
    if shutil.which("useradd") is None:
        print("no useradd here: the jobs are root's")
        yield root
        return
    account = add_account(f"drfdgpu{os.getpid()}")
    try:
        command = [sys.executable, "-c", ""]
        can_run = subprocess.run(command, user=account.pw_uid, cwd="/", check=False)
        if can_run.returncode != 0:
            print(f"no other user can run {sys.executable}: the jobs are root's")
        yield root if can_run.returncode else account
    finally:
        with within(20):
            delete_account(account.pw_name)


# -- the daemon and its jobs ------------------------------------------------------------------


class Program:
    """cuda.py, as a job or outside drfd; `path` has what it prints."""

    def __init__(self, path: Path, gate: Path, job_id: int = 0) -> None:
        self.path, self.gate, self.id = path, gate, job_id
        #: Of one that is no job.
        self.process: subprocess.Popen[bytes] | None = None

    def said(self, name: str) -> dict[str, Any]:
        """The line with this value, once it is there."""
        return dict(
            wait_for(
                f"{name} of the program", lambda: self._line(name), seconds=25, show=self._text
            )
        )

    def _line(self, name: str) -> dict[str, Any] | None:
        # The last line may be a part of one.
        lines = [json.loads(line) for line in self._text().rpartition("\n")[0].splitlines()]
        return next((line for line in lines if name in line), None)

    def _text(self) -> str:
        return self.path.read_text() if self.path.exists() else ""

    def sees(self) -> tuple[list[str], str]:
        """The PCI addresses of the devices that it sees, and why it sees none."""
        said = self.said("devices")
        return [each["pci"][-12:] for each in said["devices"]], said["error"]

    def has_allocated(self) -> Program:
        said = self.said("allocated")
        assert said["allocated"], said["error"]
        return self

    @property
    def pid(self) -> int:
        return int(self.said("devices")["pid"])

    def end(self) -> None:
        self.gate.touch()
        if self.process is not None:
            self.process.wait()


class Daemon:
    """A daemon that gives out the machine's GPUs."""

    def __init__(self, config: str, owner: pwd.struct_passwd) -> None:
        self.instance, self.owner = Instance(config), owner
        self._numbers = count()
        if RESULTS:
            self.instance.log = Path(RESULTS, "daemon.log")
        # What was installed is tried, not what tests compile.
        self.instance.has_failpoints = False
        self.instance.start()

    def cuda(
        self, *asks: str, allocate: int = 0, busy: bool = False, is_told: bool = True,
        is_roots: bool = False,
    ) -> Program:  # fmt: skip
        """A job that runs cuda.py until its gate is there."""
        gate = self._gate()
        words = self._command(gate, allocate=allocate, busy=busy, is_told=is_told)
        job_id = self.submit(*SMALL, *asks, "--", *words, is_roots=is_roots)
        return Program(Path(self.instance.show(job_id)["stdout"]), gate, job_id)

    def outside(self, allocate: int) -> Program:
        """The same as root's process that no job is."""
        gate = self._gate()
        path = gate.with_suffix(".out")
        with path.open("w") as out:
            words = self._command(gate, allocate=allocate)
            program = Program(path, gate)
            program.process = subprocess.Popen(words, stdout=out, stderr=subprocess.DEVNULL)
        return program

    def _gate(self) -> Path:
        return self.instance.work / f"gate{next(self._numbers)}"

    def _command(
        self, gate: Path, *, allocate: int = 0, busy: bool = False, is_told: bool = True
    ) -> list[str]:
        program = self.instance.work / "cuda.py"
        shutil.copyfile(HERE / "cuda.py", program)
        program.chmod(0o644)
        words = [] if is_told else ["env", "-u", "CUDA_VISIBLE_DEVICES"]
        words += [sys.executable, "-I", str(program), "--until", str(gate)]
        words += ["--allocate", str(allocate)] if allocate else []
        return words + ["--busy"] * busy

    def submit(self, *words: str, is_roots: bool = False) -> int:
        if is_roots or self.owner.pw_uid == 0:
            return self.instance.submit(*words)
        home = self.instance.home_for(self.owner)
        env = {"HOME": str(home)}
        return self.instance.submit(*words, user=self.owner.pw_uid, cwd=home, env=env)

    def doctor(self) -> dict[str, Any]:
        return dict(json.loads(self.instance.drf("doctor", "--json").stdout))

    def controls(self) -> dict[str, str]:
        """What it says of GPUs."""
        found = self.doctor()["controls"]
        return {name: text for name, text in found.items() if name.startswith("gpu")}

    def require_hiding(self) -> str:
        """How GPUs are hidden from jobs; the test skips where they are not."""
        text = self.controls()["gpu"]
        if not text.startswith("enforced: "):
            pytest.skip(text)
        return text.removeprefix("enforced: ")

    def memory_of(self, job: Program, least: int) -> int:
        """What is measured of the job's memory on GPUs, once it is so much."""

        def found() -> int:
            used = self.instance.show(job.id)["usage"].get("gpu_memory") or 0
            return int(used) if used >= least else 0

        def seen() -> str:
            return f"{self.instance.show(job.id)['usage']}, {self.controls()}"

        return int(wait_for(f"{least} bytes of job {job.id}", found, seconds=20, show=seen))

    def status(self) -> list[dict[str, Any]]:
        """What `drf status --json` says of GPUs, once something was read of them."""
        return list(
            wait_for(
                "a reading of the GPUs",
                lambda: self.instance._ask("status").get("gpus"),
                seconds=20,
                show=self.controls,
            )
        )

    def top(self) -> str:
        size = {"COLUMNS": "120", "LINES": "40"}
        text = self.instance.drf("top", "--once", env=size).stdout
        keep("drf top --once", text)
        return text

    def why(self, job_id: int) -> str:
        return " / ".join(self.instance.drf("why", job_id).stdout.splitlines())

    def gpus_of(self, job: Program) -> list[str]:
        self.instance.wait_state(job.id, "RUNNING")
        return list(self.instance.show(job.id)["gres_instances"]["gpu"])

    def end(self) -> None:
        with within(30):
            self.instance.destroy()


class Daemons:
    """One daemon at a time: to another one, its jobs would be processes outside drfd."""

    def __init__(self, owner: pwd.struct_passwd) -> None:
        self._owner = owner
        self._now: Daemon | None = None

    def start(self, config: str) -> Daemon:
        if self._now is None or self._now.instance.configured != config:
            self.end()
            self._now = Daemon(config, self._owner)
        return self._now

    def clear(self) -> None:
        """End all jobs of a test; with the daemon, if that does not succeed."""
        with suppress(Exception), within(20):
            if self._now is None or self._now.instance.clear():
                return
        self.end()

    def end(self) -> None:
        daemon, self._now = self._now, None
        if daemon is not None:
            with suppress(Exception):
                daemon.end()


@pytest.fixture(scope="module")
def daemons(settings_before, owner) -> Iterator[Daemons]:
    made = Daemons(owner)
    yield made
    made.end()


@pytest.fixture
def start(daemons):
    """Starts a daemon with this configuration, or takes the one that has it."""
    yield daemons.start
    daemons.clear()


def require_processes(gpus: Sequence[Gpu]) -> None:
    if not names_processes():
        pytest.skip("the driver's process numbers mean nothing in this namespace of processes")
    if any(":" in gpu.name for gpu in gpus):
        pytest.skip("a GPU is divided by MIG")


def keep(command: str, text: str) -> None:
    """Keep what a command has printed."""
    if RESULTS:
        with Path(RESULTS, "shown.txt").open("a") as kept:
            kept.write(f"$ {command}\n{text}\n")


def size(amount: int) -> str:
    return f"{amount / GIB:.2f}G"


# -- which GPUs there are ---------------------------------------------------------------------


@checked("drfd gpus has address, model, UUID and node of each GPU as nvidia-smi -q has them")
def test_drfd_gpus_lists_what_nvidia_smi_lists(gpus) -> str:
    done = subprocess.run(
        [BIN / "drfd", "gpus", "--json"], capture_output=True, text=True, check=True
    )
    listed = [
        (gpu["pci"], gpu["model"], gpu["uuid"], next(n for n in gpu["nodes"] if " 195:" in n))
        for gpu in json.loads(done.stdout)["gpus"]
        if gpu["vendor"] == "nvidia" and ":" not in gpu["name"]
    ]
    wanted = [
        (
            smi_address(gpu), smi_text(gpu, "product_name"), smi_text(gpu, "uuid"),
            f"c 195:{smi_text(gpu, 'minor_number')}",
        )
        for gpu in smi_gpus()
        if smi_text(gpu, "mig_mode/current_mig") != "Enabled"
    ]  # fmt: skip
    assert listed == wanted
    return "; ".join(" ".join(each) for each in listed)


@checked("every node of each GPU is in /dev, and the next look finds the same GPUs")
def test_the_nodes_of_gpus_are_in_dev(gpus) -> str:
    # Those of MIG's capabilities are made when they are needed first.
    whole = [gpu for gpu in gpus if ":" not in gpu.name]
    paths = [path for path in Path("/dev").rglob("*") if path.is_char_device()]
    there = {node_at(path): str(path) for path in paths}
    found = {node: there.get(node) for gpu in whole for node in gpu.nodes}
    assert None not in found.values(), found
    memory: Memory = {}
    first, second = find_gpus(memory=memory), find_gpus(memory=memory)
    assert first == second
    assert [gpu.nodes for gpu in first if gpu.vendor == "nvidia"] == [gpu.nodes for gpu in gpus]
    return ", ".join(f"{show_node(node)} is {path}" for node, path in found.items())


@checked('gpu = "auto" gives out all GPUs, and slices in place of one that MIG divides')
def test_auto_gives_out_the_gpus_that_nvidia_smi_lists(gpus, start) -> str:
    given = start(WHOLE).doctor()["gres"]["gpu"]
    modes = [smi_text(gpu, "mig_mode/current_mig") for gpu in smi_gpus()]
    slices = [
        f"{number}:{smi_text(each, 'gpu_instance_id')}:{smi_text(each, 'compute_instance_id')}"
        for number, gpu in enumerate(smi_gpus())
        for each in gpu.findall("mig_devices/mig_device")
    ]
    whole = [str(number) for number, mode in enumerate(modes) if mode != "Enabled"]
    assert sorted(given) == sorted(whole + slices)
    return f"gpu = {given}; MIG: {modes}"


@checked("drf doctor says that the use of every GPU is measured, and what is hidden")
def test_doctor_says_what_holds(gpus, start) -> str:
    daemon = start(WHOLE)
    daemon.status()
    controls = daemon.controls()
    keep("drf doctor", daemon.instance.drf("doctor").stdout)
    assert controls["gpu use"].startswith(f"measured on {len(gpus)} GPU")
    return f"limits by {daemon.doctor()['enforcement']}; {controls}"


# -- what a job sees --------------------------------------------------------------------------

with_variables = pytest.mark.parametrize(
    "is_told", [True, False], ids=["as told", "without CUDA_VISIBLE_DEVICES"]
)
of_users = pytest.mark.parametrize("is_roots", [False, True], ids=["a user's", "root's"])


@with_variables
@of_users
@checked("one device, at the address of the job's GPU")
def test_a_job_with_a_gpu_sees_it_alone(gpus, start, is_told, is_roots) -> str:
    daemon = start(WHOLE)
    how = daemon.controls()["gpu"]
    if not is_told and len(gpus) > 1 and not how.startswith("enforced"):
        pytest.skip(how)
    job = daemon.cuda("--gres", "gpu=1", is_told=is_told, is_roots=is_roots)
    addresses, error = job.sees()
    (own,) = daemon.gpus_of(job)
    assert addresses == [gpu.pci for gpu in gpus if gpu.name == own], error
    return f"{addresses}; {how}"


@with_variables
@of_users
@checked("cuInit fails, or there is no device")
def test_a_job_without_a_gpu_sees_none(gpus, start, is_told, is_roots) -> str:
    daemon = start(WHOLE)
    how = daemon.controls()["gpu"] if is_told else daemon.require_hiding()
    addresses, error = daemon.cuda(is_told=is_told, is_roots=is_roots).sees()
    assert (addresses, bool(error)) == ([], True)
    assert "libcuda" not in error
    return f"{error}; {how}"


@checked("a BPF program on a cgroup of version 2 hides every GPU from CUDA in it, and not outside")
def test_a_device_program_hides_a_gpu_from_cuda(gpus) -> str:
    nodes = frozenset(node for gpu in gpus for node in gpu.nodes)
    words = [sys.executable, "-I", str(HERE / "cuda.py")]
    found = []
    with ExitStack() as stack:
        try:
            cgroup = stack.enter_context(empty_cgroup("gpu"))
        except OSError as error:
            pytest.skip(f"no cgroup can be made here: {error}")
        directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            program = syscalls.load_device_program(device_program(nodes))
            syscalls.attach_device_program(directory, program)
            os.close(program)
        finally:
            os.close(directory)
        enter = f'echo $$ > {cgroup}/cgroup.procs && exec "$@"'
        for command in (["sh", "-c", enter, "sh", *words], words):
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
            found.append(json.loads(done.stdout.splitlines()[0]))
    inside, outside = found
    assert (inside["devices"], bool(inside["error"])) == ([], True)
    assert len(outside["devices"]) == len({gpu.pci for gpu in gpus}), outside["error"]
    return f"inside: {inside['error']}; outside: {len(outside['devices'])} devices"


# -- what is measured -------------------------------------------------------------------------


@checked("3G and at most 1G for CUDA itself; the driver's list of processes says the same")
def test_the_memory_of_a_job_is_what_it_has_allocated(gpus, start) -> str:
    require_processes(gpus)
    daemon = start(WHOLE)
    job = daemon.cuda("--gres", "gpu=1,memory=6G", allocate=3 * GIB).has_allocated()
    used = daemon.memory_of(job, 3 * GIB)
    assert used <= 3 * GIB + CONTEXT
    said = smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    by_pid = dict(line.split(", ") for line in said.splitlines())
    assert abs(int(by_pid[str(job.pid)]) * MIB - used) < MIB
    (gpu,) = (each for each in daemon.status() if each["jobs"])
    assert (gpu["jobs"], gpu["memory_jobs"], gpu["outside_uids"]) == ([job.id], used, [])
    return (
        f"drfd {size(used)}, nvidia-smi {by_pid[str(job.pid)]} MiB; the GPU has "
        f"{size(gpu['memory_used'])} of {size(gpu['memory_total'])} in use, "
        f"{size(gpu['memory_outside'])} of it no job's"
    )


@checked("a job that keeps the GPU busy has 50% of it at least, and so has the GPU")
def test_the_utilisation_of_a_job_is_measured(gpus, start) -> str:
    require_processes(gpus)
    daemon = start(WHOLE)
    job = daemon.cuda("--gres", "gpu=1", allocate=GIB, busy=True).has_allocated()

    def busy() -> tuple[int, int] | None:
        own = daemon.instance.show(job.id)["usage"].get("gpu_utilisation") or 0
        most = max(gpu["utilisation"] or 0 for gpu in daemon.status())
        return (own, most) if min(own, most) >= 50 else None

    def seen() -> str:
        return f"{daemon.instance.show(job.id)['usage']}, {daemon.status()}"

    own, most = wait_for("a busy job", busy, seconds=20, pause_s=0.5, show=seen)
    record("busy")
    return f"{own}% by the job, {most}% of the GPU"


def record(label: str) -> None:
    """Keep what NVML answers now."""
    if RESULTS is None:
        return
    words = (sys.executable, "-m", "tests.devices.recording", "nvml", label)
    with Path(RESULTS, "nvml.jsonl").open("a") as kept:
        subprocess.run(words, stdout=kept, cwd=HERE.parents[1], check=False, timeout=30)


# -- memory that is declared ------------------------------------------------------------------


@checked("LIMIT_EXCEEDED, with what it used, what was declared, and what to ask for")
def test_a_job_over_its_memory_on_the_gpu_is_stopped(gpus, start) -> str:
    require_processes(gpus)
    daemon = start(WHOLE)
    job = daemon.cuda("--gres", "gpu=1,memory=4G", allocate=8 * GIB)
    began_s = time.monotonic()
    ended = daemon.instance.wait_end(job.id)
    took_s = time.monotonic() - began_s
    text = ended["outcome"]["text"]
    assert ended["state"] == "LIMIT_EXCEEDED", (text, daemon.instance.output(job.id))
    keep(f"drf why {job.id}", daemon.instance.drf("why", job.id).stdout)
    assert re.match(r"used [89]\S*[MG] of the memory of GPU \S+, and 4G were declared", text), text
    assert re.search(r"--gres gpu=1,memory=\d+", text), text
    return f"{text} ({took_s:.1f} s after its submission)"


@checked("two jobs with 10G each on one GPU of 24G, each with its own memory; a third one waits")
def test_jobs_share_a_gpu_by_the_memory_that_they_declare(gpus, start) -> str:
    require_processes(gpus)
    daemon = start(SHARED)
    if min(gpu["memory_total"] for gpu in daemon.status()) < 24 * GIB:
        pytest.skip("a GPU with less than 24G")
    asks = ("--gres", "gpu=1,memory=10G")
    first = daemon.cuda(*asks, allocate=2 * GIB).has_allocated()
    second = daemon.cuda(*asks, allocate=4 * GIB).has_allocated()
    own = [daemon.gpus_of(job) for job in (first, second)]
    assert own[0] == own[1]
    used = [daemon.memory_of(first, 2 * GIB), daemon.memory_of(second, 4 * GIB)]
    assert used[0] <= 2 * GIB + CONTEXT and used[1] <= 4 * GIB + CONTEXT
    record("shared")
    others = [each for each in gpus if each.name not in own[0]]
    fillers = [daemon.cuda("--gres", "gpu=1") for _ in others]
    for filler in fillers:
        daemon.gpus_of(filler)
    third = daemon.cuda(*asks)
    why = daemon.why(third.id)
    assert "needs 10G of gpu memory, 4G free" in why, why
    first.end()
    assert daemon.gpus_of(third) == own[0]
    return f"{size(used[0])} and {size(used[1])} on GPU {own[0][0]}; the third: {why}"


# -- what is outside drfd ---------------------------------------------------------------------


@checked("a new job waits, drf why names the user, and it starts when the process has ended",
         seconds=75)  # fmt: skip
def test_a_process_outside_drfd_keeps_new_jobs_from_its_gpu(gpus, start) -> str:
    require_processes(gpus)
    if len(gpus) > 1:
        pytest.skip("several GPUs: a job gets another one")
    daemon = start(CAREFUL)
    (total,) = (gpu["memory_total"] for gpu in daemon.status())
    other = daemon.outside(total // 8 + GIB).has_allocated()
    asks = (*SMALL, "--gres", "gpu=1", "--", "true")

    def blocked() -> tuple[int, str] | None:
        """A new job, which starts as long as the use is not known."""
        job_id = daemon.submit(*asks)
        why = daemon.why(job_id)
        if "outside drfd" in why:
            return job_id, why
        daemon.instance.drf("cancel", job_id, check=False)
        return None

    began_s = time.monotonic()
    try:
        job_id, why = wait_for("a job that waits", blocked, pause_s=1, show=daemon.status)
        blocked_s = time.monotonic() - began_s
        (gpu,) = daemon.status()
        top = daemon.top()
        keep(f"drf why {job_id}", daemon.instance.drf("why", job_id).stdout)
        assert gpu["outside_uids"] == [0], gpu
        assert "used by processes of root outside drfd" in why, why
    finally:
        other.end()
    began_s = time.monotonic()
    assert daemon.instance.wait_end(job_id)["state"] == "COMPLETED"
    free_s = time.monotonic() - began_s
    line = next((line for line in top.splitlines() if re.search(r"\bgpu \d", line)), "")
    return (
        f"{why} / {' '.join(line.split())} / blocked after {blocked_s:.0f} s, started {free_s:.0f} "
        "s after its end"
    )


# -- the daemon's death -----------------------------------------------------------------------


# -- afterwards -------------------------------------------------------------------------------


@checked("MIG and all other settings of the GPUs are as they were before")
def test_settings_are_untouched(gpus, settings_before) -> str:
    assert settings() == settings_before
    return ", ".join(f"{name} {'/'.join(some)}" for name, some in settings_before.items())

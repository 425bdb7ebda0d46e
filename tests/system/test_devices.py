"""Device nodes hidden from an attempt, by effect: what its processes can open, and what not.

The nodes are the test's own, made with the numbers of /dev/null, /dev/zero and /dev/full under
other names. The launcher is played by a process that makes a confinement as the launcher does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from drfd.core.model.job import Job as CoreJob
from drfd.daemon.monitoring.gpu_use import GpuUse
from drfd.daemon.monitoring.meter import GpuShare, Meter
from drfd.daemon.spawn import group_for
from drfd.launcher.gpu_meter.reading import encode, process_reading
from drfd.linux.service import has_systemd
from fakes import spec
from gpu_machines import CONTROLLER, LAUNCHER, unfold
from instance import CONFIG, Accounts, Instance, OwnLauncher, wait_for
from kernel import Kernel
from launcher.rig import WAIT_S

pytestmark = pytest.mark.system

#: What stands for a GPU of the attempt's own, one of somebody else's, and what all share.
MINE, HIDDEN, SHARED = "gpu0", "gpu1", "gpuctl"
MINORS = {MINE: 3, HIDDEN: 5, SHARED: 7}
NOBODY = 65534

#: Plays the launcher for attempt 1 of job 1, at the words of the test. The job itself tries to open
#: nodes at each line that it gets, and reports. Its pipes are the test's, so it outlives this.
_LAUNCHER = """
import errno, json, os, sys
from pathlib import Path
from drfd.devices.nodes import node_at
from drfd.launcher.attempt_files import Attempt
from drfd.launcher.confinement.detect import choose
from drfd.launcher.confinement.interface import Devices
from drfd.launcher.protocol import AttemptLimits

group, uid, requests, replies = sys.argv[1], *map(int, sys.argv[2:5])
KEY = (1, 1)
LIMITS = AttemptLimits(cores_milli=1000, memory_bytes=64 << 20, pids=16)

def code_of(call, *words):
    try:
        found = call(*words)
        if type(found) is int:
            os.close(found)
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]

def nest():
    # As a container inside of the job does, where the job's user may.
    for line in open("/proc/self/cgroup"):
        number, names, path = line.strip().split(":", 2)
        for mount in json.loads(sys.argv[5]).get(names, []):
            os.makedirs(f"{mount}{path}/container", exist_ok=True)
            with open(f"{mount}{path}/container/cgroup.procs", "w") as file:
                file.write("0")

def job():
    for line in os.fdopen(requests):
        word = line.strip()
        found = {}
        if word == "nest":
            nest()
        if word == "mknod":
            device = os.stat("gpu1").st_rdev
            found["mknod"] = code_of(os.mknod, "another", 0o666 | 0o020000, device)
        for name in ("gpu0", "gpu1", "gpuctl"):
            for access in (os.O_RDONLY, os.O_RDWR):
                found.setdefault(name, []).append(code_of(os.open, name, access))
        os.write(replies, (json.dumps(found) + "\\n").encode())

place = choose(group, None, Path("/proc/self/mountinfo").read_text())
for line in sys.stdin:
    word = line.strip()
    said = None
    if word == "hiding":
        said = place.hiding()
    elif word in ("hide", "hide nothing"):
        hidden = frozenset({node_at("gpu1")} if word == "hide" else ())
        place.create(KEY, LIMITS, Devices(hidden=hidden))
        pid = place.fork(KEY)
        if pid == 0:
            place.enter(KEY, LIMITS, uid)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            job()
            os._exit(0)
        os.close(requests)
        os.close(replies)
    elif word == "adopt":
        place.adopt(KEY, Attempt(created={}))
        said = place.leftovers()
    elif word == "try inside":
        # As drf exec begins a command.
        pid = place.fork(KEY)
        if pid == 0:
            place.enter(KEY, LIMITS, uid)
            print(json.dumps(code_of(os.open, "gpu1", os.O_RDONLY)), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        continue
    elif word == "freeze":
        said = place.freeze(KEY, None)
    elif word == "thaw":
        place.thaw(KEY, None)
    elif word == "remove":
        while not place.kill_pass(KEY, None):
            pass
        said = place.remove(KEY)
    elif word == "close":
        place.close()
    print(json.dumps(said), flush=True)
"""


@pytest.fixture
def nodes() -> Iterator[Path]:
    """A directory with nodes of our own, on a file system that admits them."""
    for home in (None, "/var/tmp", "/dev"):
        directory = Path(tempfile.mkdtemp(prefix="drfd-test-nodes-", dir=home))
        try:
            directory.chmod(0o755)
            for name, minor in MINORS.items():
                os.mknod(directory / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
                (directory / name).chmod(0o666)
            os.close(os.open(directory / MINE, os.O_RDONLY))
        except OSError:
            shutil.rmtree(directory)
            continue
        yield directory
        shutil.rmtree(directory)
        return
    pytest.skip("no file system here admits device nodes")


class Job:
    """The processes of one attempt, and the launcher that began it, or a later one."""

    def __init__(self, nodes: Path, group: str, uid: int) -> None:
        self._nodes, self._group, self._uid = nodes, group, uid
        self._requests_in, self._requests_out = os.pipe()
        self._replies_in, self._replies_out = os.pipe()
        self._replies = os.fdopen(self._replies_in)
        self._is_begun = False
        self.launch()

    def launch(self) -> None:
        """Start a launcher."""
        fds = (self._requests_in, self._replies_out) if not self._is_begun else ()
        numbers = [str(fd) for fd in fds] or ["-1", "-1"]
        self._launcher = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER, self._group, str(self._uid), *numbers, mounts()],
            cwd=self._nodes,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=fds,
        )

    def say(self, word: str) -> Any:
        """What the launcher says to that."""
        assert self._launcher.stdin is not None
        assert self._launcher.stdout is not None
        self._launcher.stdin.write(f"{word}\n")
        self._launcher.stdin.flush()
        said = json.loads(self._launcher.stdout.readline())
        if word in ("hide", "hide nothing"):
            self._is_begun = True
            os.close(self._requests_in)
            os.close(self._replies_out)
        return said

    def ask(self, word: str = "try") -> dict[str, Any]:
        """What the job's process can open, for reading and for both, after it has done that."""
        self.order(word)
        return self.answer()

    def order(self, word: str) -> None:
        os.write(self._requests_out, f"{word}\n".encode())

    def answer(self) -> dict[str, Any]:
        return dict(json.loads(self._replies.readline()))

    def kill_launcher(self) -> None:
        self._launcher.send_signal(signal.SIGKILL)
        self._launcher.wait(WAIT_S)
        self._close()

    def end(self) -> None:
        if self._launcher.poll() is not None:
            self.launch()
        with suppress(BrokenPipeError, json.JSONDecodeError):
            for word in ("remove", "close"):
                self.say(word)
        self._close()
        self._launcher.wait(WAIT_S)
        if not self._is_begun:
            os.close(self._requests_in)
            os.close(self._replies_out)
        os.close(self._requests_out)
        self._replies.close()
        kernel = Kernel()
        kernel.end_scope(self._group)
        for top in kernel.groups(self._group):
            with suppress(OSError):
                top.parent.rmdir()

    def _close(self) -> None:
        for stream in (self._launcher.stdin, self._launcher.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()


def mounts() -> str:
    """By the names in /proc/self/cgroup, where a job can make a cgroup in its own."""
    kernel = Kernel()
    return json.dumps({"": [kernel.v2]} if kernel.v2 else {"devices": [*kernel.devices]})


@pytest.fixture
def group() -> str:
    return f"drfd-test-{os.getpid()}/devices"


@pytest.fixture
def begin(nodes: Path, group: str) -> Iterator[Callable[[int], Job]]:
    """A launcher that hides devices, for a job of this user; the test skips where none can be."""
    begun: list[Job] = []

    def begin(uid: int) -> Job:
        begun.append(Job(nodes, group, uid))
        how, why = begun[-1].say("hiding")
        if how == "none":
            pytest.skip(why)
        return begun[-1]

    yield begin
    for job in begun:
        job.end()
    left = [path for top in Kernel().groups(group) if top.exists() for path in top.iterdir()]
    assert [path for path in left if path.name.startswith(("job-", "device-"))] == []


OPEN, REFUSED = ["ok", "ok"], ["EPERM", "EPERM"]
HIDES = {MINE: OPEN, HIDDEN: REFUSED, SHARED: OPEN}
users = pytest.mark.parametrize("uid", [NOBODY, 0], ids=["user", "root"])


@users
def test_a_job_can_open_all_but_what_is_hidden_from_it(
    begin: Callable[[int], Job], nodes: Path, uid: int
) -> None:
    job = begin(uid)
    job.say("hide")
    assert job.ask() == HIDES
    assert job.say("try inside") == "EPERM", "a command that is run inside the job"
    # Outside, nobody notices.
    os.close(os.open(nodes / HIDDEN, os.O_RDWR))


def test_a_job_from_which_nothing_is_hidden_can_open_everything(
    begin: Callable[[int], Job], group: str
) -> None:
    job = begin(NOBODY)
    job.say("hide nothing")
    assert job.ask() == dict.fromkeys(MINORS, OPEN)
    assert [top for top in Kernel().devices if Path(top, group, "job-1-1").exists()] == []


def test_a_node_of_the_same_number_cannot_be_made(begin: Callable[[int], Job], nodes: Path) -> None:
    job = begin(0)
    job.say("hide")
    assert job.ask("mknod") == {"mknod": "EPERM", **HIDES}
    assert not (nodes / "another").exists()


def test_what_a_job_makes_inside_its_cgroup_hides_the_same(begin: Callable[[int], Job]) -> None:
    job = begin(0)
    job.say("hide")
    assert job.ask("nest") == HIDES


@users
def test_devices_stay_hidden_after_kill_9_of_the_launcher_and_from_what_the_next_one_starts(
    begin: Callable[[int], Job], uid: int
) -> None:
    job = begin(uid)
    job.say("hide")
    job.kill_launcher()
    assert job.ask() == HIDES
    job.launch()
    assert job.say("adopt") == [[1, 1]]
    assert job.ask() == HIDES
    assert job.say("try inside") == "EPERM"


def test_devices_stay_hidden_over_suspension_and_resumption(begin: Callable[[int], Job]) -> None:
    job = begin(NOBODY)
    job.say("hide")
    for _ in range(1000):
        if job.say("freeze"):
            break
    job.order("try")
    job.say("thaw")
    assert job.answer() == HIDES
    assert job.ask() == HIDES


@pytest.mark.skipif(
    Kernel().v2 is None or not has_systemd(), reason="no systemd with cgroup v2 here"
)
def test_a_reload_of_systemd_changes_nothing_for_a_job_that_runs(
    begin: Callable[[int], Job],
) -> None:
    """It attaches the device programs of its units again, from which containers lose their GPUs."""
    job = begin(NOBODY)
    job.say("hide")
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    assert job.ask() == HIDES


# -- with all of drfd -------------------------------------------------------------------------

#: Tries each node that has a name in the arguments, and again when there is a file `gate`.
TRY = """
try_all() {
    for node in "$@"; do
        if (exec 3< "$node") 2> /dev/null; then can=ok; else can=no; fi
        echo "${node##*/} $can"
    done
}
try_all "$@"
while ! [ -e gate ]; do sleep 0.1; done
try_all "$@"
"""


FREE, *LISTED = MINORS


@pytest.fixture
def granting(lend: Callable[[str], Instance], nodes: Path) -> Instance:
    """A daemon that gives out two of the nodes. The other one is /dev/null, which all jobs need."""
    listed = json.dumps([str(nodes / name) for name in LISTED])
    instance = lend(f"{CONFIG}\n[gres.fpga]\ndevices = {listed}\n")
    how = json.loads(instance.drf("doctor", "--json").stdout)["controls"]["fpga"]
    if not how.startswith("enforced: "):
        pytest.skip(how)
    return instance


def check_reach(
    instance: Instance,
    paths: list[Path],
    jobs: list[tuple[tuple[str, ...], int, set[str]]],
    kill: Callable[[], None],
) -> None:
    """Run jobs with these options and users, and see that each can open the nodes of these names
    and no others: at first, inside it by its owner after `kill`, and after suspension."""
    work = instance.work
    os.chmod(work, 0o777)
    begun = []
    for number, (options, user, _) in enumerate(jobs):
        words = ("-m", "64M", *options, "-o", f"out{number}", "-e", "err")
        words += ("--", "sh", "-c", TRY, "sh", *map(str, paths))
        begun.append(instance.running(*words, user=user, env={"HOME": "/"})["id"])
    expected = [
        {path.name: "ok" if path.name in names else "no" for path in paths} for *_, names in jobs
    ]

    def found(number: int) -> list[dict[str, str]]:
        lines = [line.split() for line in (work / f"out{number}").read_text().splitlines()]
        return [dict(lines[at : at + len(paths)]) for at in range(0, len(lines), len(paths))]

    def is_whole(number: int) -> bool:
        return [*map(len, found(number))] == [len(paths)]

    for number, nodes_of in enumerate(expected):
        # It runs a moment before it writes.
        wait_for("the first try", partial(is_whole, number))
        assert found(number) == [nodes_of]
    kill()
    for job_id, (_, user, names) in zip(begun, jobs, strict=True):
        codes = {
            path.name: instance.drf(
                *("exec", job_id, "--", "sh", "-c", f"exec 3< {path}"),
                user=user,
                cwd="/",
                check=False,
                env={"HOME": "/"},
            ).returncode
            for path in paths
        }
        assert {name for name, code in codes.items() if code == 0} == names
    instance.drf("suspend", begun[0])
    instance.wait_state(begun[0], "SUSPENDED")
    (work / "gate").touch()
    instance.drf("resume", begun[0])
    for number, nodes_of in enumerate(expected):
        assert instance.wait_end(begun[number])["state"] == "COMPLETED"
        assert found(number) == [nodes_of] * 2
    assert instance.cgroups() == []


def test_each_job_reaches_the_devices_that_it_was_given_and_no_others_whatever_dies(
    granting: Instance, nodes: Path, users: Accounts
) -> None:
    uid, one = users[0].pw_uid, ("--gres", "fpga=1")
    jobs = [(one, uid, {FREE, LISTED[0]}), (one, 0, {FREE, LISTED[1]}), ((), uid, {FREE})]
    check_reach(granting, [nodes / name for name in MINORS], jobs, lambda: granting.strike("both"))


def test_a_job_does_not_start_on_a_device_that_has_gone(granting: Instance, nodes: Path) -> None:
    first, second = LISTED
    (nodes / second).unlink()
    words = ("-m", "64M", "-c", "1", "--gres", "fpga")
    script = f"exec 3< {nodes / first}; sleep 1000"
    holder = granting.running(*words, "--", "sh", "-c", script)["id"]
    gone = granting.ended(*words, "--", "true")
    assert gone["state"] == "LAUNCH_FAILED"
    why = " ".join(granting.drf("why", gone["id"]).stdout.split())
    assert f"fpga 1: {nodes / second}: No such file or directory" in why
    assert granting.show(holder)["state"] == "RUNNING"
    granting.kill_launcher()
    assert f"warning: fpga 1: {nodes / second}: " in granting.drf("doctor").stdout


@pytest.mark.anew
def test_devices_that_the_launcher_does_not_know_are_given_to_nobody(
    granting: Instance, nodes: Path
) -> None:
    """A reload alone brings none into effect, and jobs wait while the launcher knows others."""
    words = ("-m", "64M", "-c", "1")
    new = nodes / SHARED
    more = f"[gres.card]\ndevices = [{json.dumps(str(new))}]\n"
    less = CONFIG + f"[gres.fpga]\ndevices = [{json.dumps(str(nodes / HIDDEN))}]\n"
    granting.config.write_text(less + more)
    said = granting.drf("reload").stderr
    assert "gres.card.devices has changed: that takes a restart of drfd and its launcher" in said
    assert "gres.fpga.devices has changed" in said
    script = f"exec 3< {nodes / HIDDEN}"
    assert granting.ended(*words, "--", "sh", "-c", script)["state"] == "FAILED"
    assert granting.drf("submit", "--gres", "card", "--", "true", check=False).returncode != 0
    script += f"; exec 3< {new}"
    given = granting.ended(*words, "--gres", "fpga=2", "--", "sh", "-c", script)
    assert given["state"] == "COMPLETED"


# -- GPUs that are found ----------------------------------------------------------------------

#: Nodes of two GPUs, each its own and that for rendering, by the numbers of memory devices that no
#: program of the test needs: zero, random, full, urandom.
GPU_NODES = {"nvidia0": 5, "render0": 8, "nvidia1": 7, "render1": 9}


class GpuMachine:
    """A daemon with the recorded desktop's two GPUs, and a launcher of its own for them."""

    def __init__(self, instance: Instance, root: Path) -> None:
        self.instance, self.root = instance, root
        self.paths = [root / name for name in GPU_NODES]
        for path in self.paths:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, GPU_NODES[path.name]))
            path.chmod(0o666)
        unfold("two-nvidia-desktop", root)
        devices = root / "proc/devices"
        devices.write_text(devices.read_text().replace("195 nvidia-frontend", "1 nvidia"))
        for number, bus in enumerate(("06", "07")):
            facts = root / f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information"
            minor = GPU_NODES[f"nvidia{number}"]
            told = facts.read_text().replace(f"Minor: \t {number}", f"Minor: \t {minor}")
            facts.write_text(told)
            drm = root / f"sys/bus/pci/devices/0000:{bus}:00.0/drm"
            (drm / f"renderD{128 + number}/dev").write_text(f"1:{GPU_NODES[f'render{number}']}\n")
        instance.before = [sys.executable, "-I", "-c", CONTROLLER, str(root)]
        group = group_for(instance.state)
        self.launcher = OwnLauncher(instance, "-c", LAUNCHER, str(root), "--group", group)

    def kill(self) -> None:
        """SIGKILL to both daemons; others go on."""
        self.launcher.kill()
        self.instance.kill()
        self.launcher.start()
        self.instance.start()


@pytest.fixture
def with_gpus(nodes: Path) -> Iterator[GpuMachine]:
    config = CONFIG.replace("[enforcement]", "[gres]\ngpu = [0, 1]\n[enforcement]")
    machine = GpuMachine(Instance(f'{config}\n[daemon]\nsystem_users = ["root"]\n'), nodes)
    try:
        machine.instance.start()
        said = json.loads(machine.instance.drf("doctor", "--json").stdout)["controls"]["gpu"]
        if not said.startswith("enforced: "):
            pytest.skip(said)
        yield machine
    finally:
        machine.launcher.end()


def test_each_job_reaches_the_nodes_of_its_own_gpus_and_of_no_others_whatever_dies(
    with_gpus: GpuMachine, users: Accounts
) -> None:
    uid, one = users[0].pw_uid, ("--gres", "gpu=1")
    jobs = [(one, uid, {"nvidia0", "render0"}), (one, 0, {"nvidia1", "render1"})]
    jobs += [((), uid, set()), ((), 0, set())]
    check_reach(with_gpus.instance, with_gpus.paths, jobs, with_gpus.kill)


def test_a_gpu_in_use_stays_hidden_when_none_is_configured_any_more(
    with_gpus: GpuMachine, users: Accounts
) -> None:
    instance, first = with_gpus.instance, with_gpus.paths[0]
    holder = instance.running("-m", "64M", "--gres", "gpu", "--", "sleep", "1000")["id"]
    instance.config.write_text(instance.configured.replace("gpu = [0, 1]", ""))
    instance.drf("reload")
    tries = ("-m", "64M", "--", "sh", "-c", f"exec 3< {first}")
    assert instance.ended(*tries)["state"] == "FAILED"
    instance.drf("cancel", holder)
    instance.wait_end(holder)
    assert instance.ended(*tries)["state"] == "COMPLETED"


def test_a_process_of_a_job_and_its_children_are_found_by_the_jobs_cgroup(
    instance: Instance, users: Accounts
) -> None:
    """Which job a process on a GPU belongs to. The processes that a driver names, as what measures
    reads them."""
    instance.work.chmod(0o777)
    pids = instance.work / "pids"
    script = f"setsid sleep 600 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"
    uid = users[0].pw_uid
    asks = ("-c", "0.1", "-m", "64M")
    job_ids = [instance.running(*asks, "--", "sh", "-c", script, user=uid)["id"]]
    wait_for("its processes", pids.exists)
    job_ids.append(instance.running(*asks, "--", "sleep", "600", user=uid)["id"])
    shown: list[dict[str, Any]] = [instance.show(job_id) for job_id in job_ids]
    meter = Meter(time.monotonic)
    for job in shown:
        meter.watch((job["id"], job["attempt"]), 0, job["cgroup"])
    jobs = {
        job["id"]: CoreJob(id=job["id"], spec=spec(), attempt=job["attempt"], submitted_at=0.0)
        for job in shown
    }
    child, first = map(int, pids.read_text().split())
    processes = [process_reading(pid, 100, 10) for pid in (child, first, 1)]
    assert [each["uid"] for each in processes] == [uid, uid, 0]
    gpu = {
        "name": "0", "pci": "0000:01:00.0", "uuid": None, "slice": None, "memory_used": 900,
        "memory_total": 1000, "utilisation": 50, "is_lost": False, "processes": processes,
    }  # fmt: skip
    use = GpuUse(meter)
    use.take("any", json.dumps(json.loads(encode()) | {"gpus": [gpu]}), jobs)
    assert [meter.gpus(jobs[job_id]) for job_id in job_ids] == [GpuShare(200, 20), GpuShare(0, 0)]
    assert [each.pid for each in use.gpus()[0].outside] == [1]


# -- what a user may try ----------------------------------------------------------------------

#: Each way by which a user could come to a device without the right to open its node; those that
#: lead there are printed.
_WAYS = """
import ctypes, os, socket, stat, subprocess, sys
node = sys.argv[1]
number = os.stat(node).st_rdev
libc = ctypes.CDLL(None, use_errno=True)

def plain():
    return os.open(node, os.O_RDONLY)

def by_a_link():
    os.symlink(node, "link")
    return os.open("link", os.O_WRONLY)

def by_a_path_descriptor():
    return os.open(f"/proc/self/fd/{os.open(node, os.O_PATH)}", os.O_RDONLY)

def from_a_child_in_a_session_of_its_own():
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        os.setsid()
        try:
            socket.send_fds(theirs, [b"x"], [os.open(node, os.O_RDONLY)])
        except OSError:
            theirs.send(b"n")
        os._exit(0)
    return socket.recv_fds(ours, 1, 1)[1][0]

def by_a_namespace_in_which_we_are_root():
    return run("exec 3< " + node, "--mount")

def by_a_node_that_root_of_a_namespace_makes():
    words = f"{os.major(number)} {os.minor(number)}"
    return run(f"mknod made c {words} && exec 3< made", "--mount")

def by_a_file_system_of_devices():
    return run("mount -t devtmpfs none mnt && exec 3< mnt/full", "--mount")

def by_a_cgroup_namespace():
    return run("exec 3< " + node, "--cgroup")

def by_another_cgroup():
    for line in open("/proc/self/cgroup"):
        names = line.split(":")[1]
        for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/" + names):
            for file in ("tasks", "cgroup.procs"):
                try:
                    with open(f"{top}/{file}", "w") as place:
                        place.write("0")
                except OSError:
                    pass
    return plain()

def run(script, *options):
    words = ["unshare", "--user", "--map-root-user", *options, "sh", "-c", script]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)

os.mkdir("mnt")
for way in (plain, by_a_link, by_a_path_descriptor, from_a_child_in_a_session_of_its_own,
            by_a_namespace_in_which_we_are_root, by_a_node_that_root_of_a_namespace_makes,
            by_a_file_system_of_devices, by_a_cgroup_namespace, by_another_cgroup):
    try:
        way()
        print(way.__name__)
    except (OSError, IndexError, subprocess.CalledProcessError):
        continue
print("end")
"""


@pytest.mark.parametrize(("count", "ways"), [(0, []), (2, ["plain", "by_a_link"])])
def test_no_way_of_a_user_leads_to_a_hidden_device(
    granting: Instance, nodes: Path, users: Accounts, count: int, ways: list[str]
) -> None:
    """What is given to the job is reached by the same program, so that the ways are ways."""
    home = granting.home_for(users[0])
    asked = ("--gres", f"fpga={count}") if count else ()
    job_id = granting.submit(
        *("-m", "128M", *asked, "-o", "out", "-e", "err", "--"),
        *("/usr/bin/python3", "-c", _WAYS, nodes / SHARED),
        user=users[0].pw_uid,
        cwd=home,
        env={"HOME": "/"},
    )
    assert granting.wait_end(job_id)["state"] == "COMPLETED", (home / "err").read_text()
    found = (home / "out").read_text().split()
    assert found[: len(ways)] == ways
    assert found[-1] == "end"
    assert count or found == ["end"]

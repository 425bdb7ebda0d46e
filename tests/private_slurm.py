"""A private Slurm: munged, slurmctld and a slurmd for each node, all on this machine.

All its files are in one directory, its ports are free ones of the loopback device, and its
processes are ended by their ids: it touches no other Slurm here. It needs root, because slurmctld
and slurmd start jobs as their users.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from drfd.slurm.files import MORE_CONF, event_script, gate_script
from drfd.slurm.settings import CGROUP_CONF, EVENT, GATE_FILE, SLURM_CONF
from instance import Instance, patient

#: Programs that it consists of, and one of Slurm's commands → the packages that have them, as
#: Debian and Ubuntu call them.
_PACKAGES = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "sbatch": "slurm-wlm",
             "munged": "munge"}  # fmt: skip
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
#: Seconds that Slurm may take to start, and a command of its own to answer.
_START_S, _ANSWER_S = 120.0, 60.0
#: Seconds that the jobs have to end, and then each process.
_JOBS_S, _PROCESS_S = 20.0, 10.0
#: Seconds that processes of jobs have to end by themselves once Slurm has ended.
_LEAVE_S = 2.0
_LIVE_STATES = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING")
#: For jobs that Slurm neither limits nor measures, so that no cgroups are needed.
_WITHOUT_LIMITS = """\
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=5,batch_sched_delay=0,sched_min_interval=0
PriorityType=priority/basic
Epilog=/bin/true
EpilogMsgTime=0
MinJobAge=3600
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
JobRequeue=0
PrivateData=jobs
KillWait=2
SlurmdTimeout=10
JobSubmitPlugins=lua
JobCompType=jobcomp/script
JobCompLoc={event}
PrologSlurmctld={event}
AccountingStorageType=accounting_storage/none
PartitionName=drfd Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


@dataclass(frozen=True, slots=True)
class PrivateNode:
    """A node with cores and memory that this machine need not have."""

    name: str
    cores: int
    memory_mb: int


def files_without_limits(directory: Path, events: Path, starts: Path) -> dict[str, str]:
    """Return the files of a Slurm in `directory` that neither limits nor measures its jobs.

    `events` is the socket that gets a datagram at each start and end of a job, `starts` the
    directory in which the first start of each job is noted.
    """
    return {
        MORE_CONF: _WITHOUT_LIMITS.format(event=directory / EVENT),
        CGROUP_CONF: "CgroupPlugin=cgroup/v1\n",
        GATE_FILE: gate_script(),
        EVENT: event_script(events, starts),
    }


class PrivateSlurm:
    """Slurm, from its start until `stop`."""

    def __init__(self, directory: Path, nodes: Sequence[PrivateNode]) -> None:
        """`directory` is empty, and all users can enter it."""
        self.directory, self.nodes = directory, tuple(node.name for node in nodes)
        self.conf = directory / SLURM_CONF
        self.env = {"PATH": _PATH, "LC_ALL": "C", "SLURM_CONF": str(self.conf)}
        self._places = _places(directory, nodes)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, files: Mapping[str, str]) -> None:
        """Start it with these files beside slurm.conf, and wait until the nodes are idle.
        slurm.conf says where everything is, and includes `MORE_CONF`."""
        for name in ("state", "spool", "munge"):
            (self.directory / name).mkdir()
        munge = self.directory / "munge"
        # All users reach munged's socket in it.
        munge.chmod(0o711)
        key = munge / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        self.conf.write_text(self._places)
        for name, text in files.items():
            (self.directory / name).write_text(text)
            (self.directory / name).chmod(0o755 if text.startswith("#!") else 0o644)
        self._spawn(
            "munged",
            *("munged", "--foreground", "--force", f"--socket={munge}/socket"),
            *(f"--key-file={key}", f"--log-file={munge}/log", f"--pid-file={munge}/pid"),
            f"--seed-file={munge}/seed",
        )
        self._await("munged", (munge / "socket").exists)
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self._await("slurmctld", self.are_idle)

    def start_controller(self) -> None:
        self._spawn("slurmctld", "slurmctld", "-D")

    def start_node(self, node: str) -> None:
        self._spawn(node, "slurmd", "-D", "-N", node)

    def send(self, name: str, number: int) -> None:
        """Send a signal to munged, slurmctld or the slurmd of a node."""
        self._running[name].send_signal(number)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End one of these processes by a signal, and wait for its end, if it is there."""
        if name in self._running:
            self.send(name, number)
            self._running.pop(name).wait()

    def has_ended(self, name: str) -> bool:
        """Return whether one of these processes has ended by itself."""
        return name in self._running and self._running[name].poll() is not None

    def ask(self, *command: str) -> str:
        """Return what a command of Slurm's prints. Raises OSError or SubprocessError."""
        done = subprocess.run(
            command, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_ANSWER_S, check=True,
        )  # fmt: skip
        return done.stdout

    def states(self) -> list[str]:
        """Return the state of each node."""
        return self.ask("sinfo", "-h", "-N", "-o", "%t").split()

    def are_idle(self) -> bool:
        try:
            return self.states() == ["idle"] * len(self.nodes)
        except (OSError, subprocess.SubprocessError):
            return False

    def jobs(self) -> list[list[str]]:
        """Return the id, state and comment of each job that Slurm knows."""
        lines = self.ask("squeue", "-h", "-t", "all", "-o", "%i|%T|%k").splitlines()
        return [line.split("|", 2) for line in lines]

    def said(self, name: str) -> str:
        """Return what munged, slurmctld or the slurmd of a node has logged."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        """End all of it, its jobs first."""
        try:
            controller = self._running.get("slurmctld")
            if controller is not None and controller.poll() is None:
                # It may have been stopped.
                controller.send_signal(signal.SIGCONT)
                self._end_jobs()
        finally:
            # munged, which was started first, is ended last.
            for name in reversed([*self._running]):
                process = self._running.pop(name)
                process.terminate()
                try:
                    process.wait(_PROCESS_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            self._end_rest()

    def _end_jobs(self) -> None:
        deadline = time.monotonic() + _JOBS_S
        while time.monotonic() < deadline:
            with suppress(subprocess.SubprocessError, OSError):
                ids = [job for job, state, _ in self.jobs() if state in _LIVE_STATES]
                if not ids:
                    return
                self.ask("scancel", *ids)
            time.sleep(0.2)

    def _end_rest(self) -> None:
        """End the jobs' processes that are left, which wait for a slurmctld that is gone, and
        commands of Slurm's that do."""
        started = time.monotonic()
        while (rest := self._rest()) and (passed_s := time.monotonic() - started) < _PROCESS_S:
            for pid in rest if passed_s > _LEAVE_S else ():
                self._kill(pid)
            time.sleep(0.1)

    def _rest(self) -> list[int]:
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
        sockets = self._sockets()
        return [pid for pid in pids if self._is_of_it(pid, sockets)]

    def _is_of_it(self, pid: int, sockets: Set[str]) -> bool:
        """Return whether a process has the path of this slurm.conf in its environment, or one of
        these sockets: the process that watches a job overwrites its environment in newer versions
        of Slurm, and listens in the spool directory."""
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if os.fsencode(f"SLURM_CONF={self.conf}") in variables:
                return True
            fds = Path(f"/proc/{pid}/fd")
            return bool(sockets) and any(os.readlink(each) in sockets for each in fds.iterdir())
        except OSError:
            # The process is gone, or has closed a descriptor meanwhile.
            return False

    def _sockets(self) -> set[str]:
        """Return the sockets in the spool directories of the nodes, as links to descriptors name
        them."""
        spool = os.fsencode(f"{self.directory}/spool/")
        lines = Path("/proc/net/unix").read_bytes().splitlines()
        # The path comes last, and many sockets have none.
        found = (line.split(maxsplit=7) for line in lines)
        return {f"socket:[{each[6].decode()}]" for each in found if each[-1].startswith(spool)}

    def _kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            process = os.pidfd_open(pid)
            try:
                # The pid may have been reused before the pidfd was opened.
                if self._is_of_it(pid, self._sockets()):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)

    def _await(self, name: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_S
        while not is_so():
            ended = [each for each, process in self._running.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                words = self.said((ended or [name])[0]).strip().rpartition("\n")[2]
                raise AssertionError(f"a private Slurm does not start: {words or name}")
            time.sleep(0.05)

    def _spawn(self, name: str, *command: str) -> None:
        # slurmctld and slurmd log to their standard error alone, as slurm.conf names no files.
        with (self.directory / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                start_new_session=True,
            )  # fmt: skip


def _places(directory: Path, nodes: Sequence[PrivateNode]) -> str:
    host = socket.gethostname().partition(".")[0]
    controller_port, *ports = _free_ports(1 + len(nodes))
    lines = [
        # A name of its own: some directories of cgroups are called so.
        f"ClusterName={nodes[0].name}",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={controller_port}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny",
        f"AuthInfo=socket={directory}/munge/socket",
        f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/spool/%n",
        f"SlurmctldPidFile={directory}/slurmctld.pid",
        f"SlurmdPidFile={directory}/slurmd-%n.pid",
        "SlurmdParameters=config_overrides",
        "MailProg=/bin/true",
        *(
            f"NodeName={node.name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={node.cores} RealMemory={node.memory_mb}"
            for node, port in zip(nodes, ports, strict=True)
        ),
        f"Include {directory}/{MORE_CONF}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


# -- for tests of what starts jobs there, and for those of what drfd prints ---------------------


_CGROUPS = Path("/sys/fs/cgroup")
NODES = (PrivateNode("n1", 4, 4000), PrivateNode("n2", 4, 4000))
#: For a daemon with a machine of its own, and the two nodes.
CONFIG = """
[capacity]
cores = 2
memory = "2G"
reserve_memory = 0
[[disk]]
name = "test"
path = "/var/tmp"
read = "1G"
write = "1G"
[enforcement]
grace = "1s"
[nodes.head]
engine = "local"
[nodes.n1]
engine = "slurm"
cores = 4
memory = "3G"
read = "100M"
write = "100M"
features = ["big"]
[nodes.n2]
engine = "slurm"
cores = 4
memory = "3G"
features = ["big", "fast"]
"""


def missing() -> str:
    """Return why no cluster can be made here, or nothing if one can, or must."""
    if os.getuid() != 0:
        return "Slurm's daemons need root"
    if os.environ.get("DRFD_SLURM") == "required":
        return ""
    lacking = {package for name, package in _PACKAGES.items() if not shutil.which(name, path=_PATH)}
    return f"not installed: {', '.join(sorted(lacking))}" if lacking else ""


class Cluster(PrivateSlurm):
    """Slurm with two nodes, in a directory of its own that has one for outputs."""

    def __init__(self, *, cores: int = 4, memory_mb: int = 2000) -> None:
        directory = Path(tempfile.mkdtemp(prefix="drfd-slurm-"))
        directory.chmod(0o755)
        token = secrets.token_hex(3)
        names = (f"d{token}a", f"d{token}b")
        super().__init__(directory, [PrivateNode(name, cores, memory_mb) for name in names])

    def start(self, files: Mapping[str, str]) -> None:
        (self.directory / "out").mkdir()
        (self.directory / "out").chmod(0o777)
        super().start(files)

    def run(
        self, *command: str, uid: int = 0, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands, as root or as another user."""
        return subprocess.run(
            command,
            env=self.env,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=patient(120),
            user=uid,
            group=uid,
            extra_groups=[],
            cwd=self.directory / "out",
        )

    def destroy(self) -> None:
        self.stop()
        for node in self.nodes:
            for top in _CGROUPS.glob(f"*/slurm_{node}"):
                for folder, _, _ in os.walk(top, topdown=False):
                    os.rmdir(folder)
        shutil.rmtree(self.directory)


class PlainCluster(PrivateSlurm):
    """Slurm with the two nodes of `CONFIG`, without limits, from its start until `stop`."""

    def __init__(self, path: Path, events: Path, starts: Path) -> None:
        """`events`: the socket that gets datagrams; `starts`: the directory of notes."""
        path.chmod(0o755)
        super().__init__(path, NODES)
        self.files = files_without_limits(path, events, starts)

    def log(self) -> str:
        return self.said("slurmctld")[-3000:]


@contextmanager
def a_slurm_of(instance: Instance, config: str = CONFIG) -> Iterator[PlainCluster]:
    """The nodes of an instance, which is not started yet; both end with the block."""
    directory = instance.root / "cluster"
    directory.mkdir()
    where = f'[slurm]\nconfig = "{directory}/slurm.conf"\nuser = "root"\n'
    instance.config.write_text(config + where)
    state = instance.state / "slurm-launcher"
    cluster = PlainCluster(directory, state / "events.sock", state / "started")
    with ending(instance, cluster):
        cluster.start(cluster.files)
        yield cluster


@contextmanager
def ending(instance: Instance, cluster: PrivateSlurm) -> Iterator[None]:
    """The end of an instance and of the Slurm of its nodes, after the block."""
    try:
        yield
    finally:
        try:
            # While Slurm is there to end them.
            instance.drf("cancel", "--all", check=False)
            cluster.stop()
        finally:
            instance.destroy()

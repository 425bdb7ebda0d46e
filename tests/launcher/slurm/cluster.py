"""A Slurm cluster of this machine's own for tests: munged, slurmctld and two slurmd.

All its files are in one directory, its ports are free ones, and its processes are ended by pid.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from drfd.slurm.files import event_script, gate_script
from launcher.rig import WAIT_S, until

NODES = ("n1", "n2")
_CONF = """\
ClusterName=drfdtest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser=root
SlurmdUser=root
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd-%n.log
SlurmdParameters=config_overrides
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
KillWait=2
SlurmdTimeout=10
JobSubmitPlugins=lua
JobCompType=jobcomp/script
JobCompLoc={dir}/event.sh
PrologSlurmctld={dir}/event.sh
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1_port} CPUs=4 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2_port} CPUs=4 RealMemory=4000
PartitionName=drfd Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


class Cluster:
    """Slurm, from its start until `stop`."""

    def __init__(self, path: Path, events: Path, starts: Path) -> None:
        """`events`: the socket that gets a datagram at each start and end of a job; `starts`: the
        directory in which its first start is noted."""
        self.path = path
        self.conf = path / "slurm.conf"
        for name in ("state", "spool", "munge"):
            (path / name).mkdir()
        path.chmod(0o755)
        (path / "munge").chmod(0o700)
        ports = _free_ports(3)
        self.conf.write_text(
            _CONF.format(
                dir=path, host=socket.gethostname().split(".")[0],
                ctld_port=ports[0], n1_port=ports[1], n2_port=ports[2],
            )
        )  # fmt: skip
        (path / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (path / "job_submit.lua").write_text(gate_script())
        event = path / "event.sh"
        event.write_text(event_script(events, starts))
        event.chmod(0o755)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        key = self.path / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        munge = self.path / "munge"
        self._run(
            "munged", "--foreground", "--force", f"--socket={self.path}/munge.socket",
            f"--key-file={key}", f"--log-file={munge}/log", f"--pid-file={munge}/pid",
            f"--seed-file={munge}/seed",
        )  # fmt: skip
        until("munged's socket", (self.path / "munge.socket").exists)
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        until("idle nodes", self.are_idle, self.log)

    def start_controller(self) -> None:
        self._run("slurmctld", "-D", "-f", str(self.conf))

    def start_node(self, node: str) -> None:
        self._run("slurmd", "-D", "-f", str(self.conf), "-N", node, name=node)

    def kill(self, name: str) -> None:
        """kill -9 of slurmctld, or of the slurmd of a node, if it is there."""
        process = self._running.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    def has_ended(self, name: str) -> bool:
        """Return whether slurmctld, or the slurmd of a node, has ended by itself."""
        return name in self._running and self._running[name].poll() is not None

    def stop_controller(self) -> None:
        """Let slurmctld hang."""
        self._running["slurmctld"].send_signal(signal.SIGSTOP)

    def continue_controller(self) -> None:
        self._running["slurmctld"].send_signal(signal.SIGCONT)

    def ask(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=WAIT_S, check=True
        )
        return done.stdout

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "SLURM_CONF": str(self.conf)}

    def jobs(self) -> list[list[str]]:
        """The id, state and comment of each job that Slurm knows."""
        lines = self.ask("squeue", "-h", "-t", "all", "-o", "%i|%T|%k").splitlines()
        return [line.split("|", 2) for line in lines]

    def log(self) -> str:
        return (self.path / "slurmctld.log").read_text()[-3000:]

    def stop(self) -> None:
        """End all of it, its jobs first."""
        try:
            if "slurmctld" in self._running:
                self.continue_controller()
                self._end_jobs()
        finally:
            # munged, which was started first, is ended last.
            for process in reversed(self._running.values()):
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _end_jobs(self) -> None:
        live = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING")
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline:
            try:
                ids = [job for job, state, _ in self.jobs() if state in live]
                if not ids:
                    return
                self.ask("scancel", *ids)
            except (subprocess.SubprocessError, OSError):
                pass
            time.sleep(0.2)

    def are_idle(self) -> bool:
        try:
            return self.ask("sinfo", "-h", "-N", "-o", "%t").split() == ["idle", "idle"]
        except subprocess.CalledProcessError:
            return False

    def _run(self, *command: str, name: str | None = None) -> None:
        env = self.env | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        with (self.path / "output").open("ab") as log:
            self._running[name or command[0]] = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]

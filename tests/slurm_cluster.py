"""A cluster of Slurm's on this machine: slurmctld and two slurmd from the distribution's packages,
with a directory, ports, a munge key and names of nodes of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from instance import wait_for

#: Programs that the cluster needs → the package that has them.
_PACKAGES = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "munged": "munge"}
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_CGROUPS = Path("/sys/fs/cgroup")
_NODE_CORES, _NODE_MEMORY_MB = 4, 2000


def missing() -> str:
    """Return why no cluster can be made here, or nothing if one can, or must."""
    if os.getuid() != 0:
        return "Slurm's daemons need root"
    if os.environ.get("DRFD_SLURM") == "required":
        return ""
    lacking = {package for name, package in _PACKAGES.items() if not shutil.which(name, path=_PATH)}
    return f"not installed: {', '.join(sorted(lacking))}" if lacking else ""


class Cluster:
    """Slurm with a slurm.conf that says where it is and which nodes it has, and includes more."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="drfd-slurm-"))
        self.directory.chmod(0o755)
        token = secrets.token_hex(3)
        self.nodes = (f"d{token}a", f"d{token}b")
        self.env = {"SLURM_CONF": str(self.directory / "slurm.conf"), "PATH": _PATH}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, files: Mapping[str, str]) -> None:
        """Start it with these files beside slurm.conf, of which it includes `drfd.conf`."""
        for name in ("munge", "state", "spool", "out"):
            (self.directory / name).mkdir()
        (self.directory / "munge").chmod(0o711)
        (self.directory / "out").chmod(0o777)
        key = self.directory / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        (self.directory / "slurm.conf").write_text(self._places())
        for name, text in files.items():
            (self.directory / name).write_text(text)
            (self.directory / name).chmod(0o644 if "." in name else 0o755)
        munge = self.directory / "munge"
        self._spawn(
            "munged",
            *("munged", "--foreground", f"--socket={munge}/socket", f"--key-file={key}"),
            *(f"--log-file={munge}/log", f"--pid-file={munge}/pid", f"--seed-file={munge}/seed"),
        )
        wait_for("munged", (munge / "socket").exists)
        self.start_controller()
        for node in self.nodes:
            self._spawn(node, "slurmd", "-D", "-N", node)
        wait_for("idle nodes", lambda: self.states() == ["idle", "idle"], pause_s=0.2)

    def start_controller(self) -> None:
        self._spawn("slurmctld", "slurmctld", "-D")

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to slurmctld or the slurmd of a node, and wait until it has ended."""
        process = self._running.pop(name)
        process.send_signal(number)
        process.wait(60)

    def states(self) -> list[str]:
        return self.run("sinfo", "-h", "-N", "-o", "%t").stdout.split()

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
            timeout=30,
            user=uid,
            group=uid,
            extra_groups=[],
            cwd=self.directory / "out",
        )

    def said(self, name: str) -> str:
        """Return what slurmctld or the slurmd of a node has logged."""
        return (self.directory / f"{name}.log").read_text()

    def destroy(self) -> None:
        if "slurmctld" in self._running and self._running["slurmctld"].poll() is None:
            self.run("scancel", "--full", "--signal=KILL", "--state=RUNNING")
            self.run("scancel", "--state=PENDING,RUNNING,SUSPENDED")
            wait_for("the end of jobs", lambda: not self.run("squeue", "-h").stdout, pause_s=0.2)
        for name in [*self._running]:
            if name != "munged":
                self.kill(name, signal.SIGTERM)
        if self._running:
            self.kill("munged", signal.SIGTERM)
        self._remove_cgroups()
        shutil.rmtree(self.directory)

    def _remove_cgroups(self) -> None:
        for node in self.nodes:
            for top in _CGROUPS.glob(f"*/slurm_{node}"):
                for folder, _, _ in os.walk(top, topdown=False):
                    os.rmdir(folder)

    def _spawn(self, name: str, *command: str) -> None:
        # Not beside the daemon's own files: it may open its log again by name.
        with (self.directory / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )

    def _places(self) -> str:
        host = socket.gethostname().partition(".")[0]
        ports = _free_ports(1 + len(self.nodes))
        here = self.directory
        lines = [
            f"ClusterName={self.nodes[0]}",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny",
            f"AuthInfo=socket={here}/munge/socket",
            f"StateSaveLocation={here}/state",
            f"SlurmdSpoolDir={here}/spool/%n",
            f"SlurmctldPidFile={here}/slurmctld.pid",
            f"SlurmdPidFile={here}/slurmd-%n.pid",
            "SlurmdParameters=config_overrides",
            "MailProg=/bin/true",
            *(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
                f"CPUs={_NODE_CORES} RealMemory={_NODE_MEMORY_MB}"
                for node, port in zip(self.nodes, ports[1:], strict=True)
            ),
            f"Include {here}/drfd.conf",
        ]
        return "".join(f"{line}\n" for line in lines)


def _free_ports(count: int) -> Sequence[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()

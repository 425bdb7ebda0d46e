"""Private Slurms: one for tests of what starts jobs there, and one for those of the configuration
that drfd prints, whose nodes have unique names."""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from instance import Instance, patient
from private_slurm import (
    PrivateNode,
    PrivateSlurm,
    files_without_limits,
    lacking_packages,
)

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
    lacking = lacking_packages()
    return f"not installed: {', '.join(lacking)}" if lacking else ""


def processes_of(place: Path) -> list[str]:
    """The commands of processes that name a directory, also in their environment or files."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes()
            known = words + (entry / "environ").read_bytes()
            fds = [*(entry / "fd").iterdir()]
        except OSError:
            # Gone, or no process.
            continue
        for fd in fds:
            with suppress(OSError):
                known += os.fsencode(os.readlink(fd))
        if os.fsencode(place) in known:
            found.append(words.replace(b"\0", b" ").decode())
    return found


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

    def stop_controller(self) -> None:
        """Let slurmctld hang."""
        self.send("slurmctld", signal.SIGSTOP)

    def continue_controller(self) -> None:
        self.send("slurmctld", signal.SIGCONT)

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

"""A private Slurm with two nodes for tests of what starts jobs there."""

import signal
from pathlib import Path

from drfd_experiments.private_slurm import PrivateNode, PrivateSlurm, files_without_limits

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


def slurm_table(directory: Path) -> str:
    """The rest of its configuration: where this Slurm is."""
    return f'[slurm]\nconfig = "{directory}/slurm.conf"\nuser = "root"\n'


class Cluster(PrivateSlurm):
    """Slurm, from its start until `stop`."""

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

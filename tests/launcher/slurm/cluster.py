"""A private Slurm with two nodes for tests of what starts jobs there."""

from __future__ import annotations

import signal
from pathlib import Path

from drfd.slurm.private import PrivateNode, PrivateSlurm, files_without_limits

NODES = (PrivateNode("n1", 4, 4000), PrivateNode("n2", 4, 4000))


class Cluster(PrivateSlurm):
    """Slurm, from its start until `stop`."""

    def __init__(self, path: Path, events: Path, starts: Path) -> None:
        """`events`: the socket that gets a datagram at each start and end of a job; `starts`: the
        directory in which its first start is noted."""
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

"""Daemons in a mount namespace of their own, with file systems that nobody else sees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from instance import CONFIG, Instance

#: Mounts that others do not see need root; what is done to processes needs nothing.
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root may mount, in a namespace of its own")
ROOMY = CONFIG.replace("cores = 9", "cores = 50")


class Sheltered(Instance):
    """An instance whose daemons see other mounts than the rest of the machine."""

    def __init__(self, mounts: str, config: str = ROOMY) -> None:
        """`mounts`: a shell script that makes them; $STATE is the state directory."""
        super().__init__(config)
        self.state.mkdir(mode=0o755)
        script = f"set -e; mount --make-rprivate /; {mounts}\necho ready; exec sleep 100000"
        self.keeper = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script],
            env={**os.environ, "STATE": str(self.state)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.keeper.stdout is not None
        assert self.keeper.stdout.readline() == "ready\n"

    @property
    def inside(self) -> Path:
        """The root directory as the daemons see it."""
        return Path(f"/proc/{self.keeper.pid}/root")

    def launch(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *("nsenter", f"--mount=/proc/{self.keeper.pid}/ns/mnt", "--"),
                    *(sys.executable, "-I", "-m", "drfd.daemon", "serve", "--as-root"),
                    *("--config", str(self.config), "--state", str(self.state)),
                    *("--socket", str(self.socket)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def within(self, *words: str) -> None:
        assert self.can(*words), words

    def can(self, *words: str) -> bool:
        """Whether the command succeeds."""
        namespace = f"--mount=/proc/{self.keeper.pid}/ns/mnt"
        return subprocess.run(["nsenter", namespace, "--", *words], check=False).returncode == 0

    def destroy(self) -> None:
        try:
            super().destroy()
        finally:
            self.keeper.kill()
            self.keeper.communicate()


#: Makes one with these mounts.
MakeShelter = Callable[..., Sheltered]


@contextmanager
def made_shelters() -> Iterator[MakeShelter]:
    """A maker of instances that are gone afterwards."""
    made: list[Sheltered] = []

    def make(mounts: str, config: str = ROOMY) -> Sheltered:
        made.append(Sheltered(mounts, config))
        return made[-1]

    try:
        yield make
    finally:
        for instance in made:
            instance.destroy()

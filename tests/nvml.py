"""A stand-in for NVIDIA's driver: a library with NVML's entry points, and the file it answers from.

`nvml.c` says what the lines of the file are.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

#: The library needs a compiler, and drfd measures NVIDIA's GPUs with an extra.
needs_nvml = pytest.mark.skipif(
    shutil.which("cc") is None or importlib.util.find_spec("pynvml") is None,
    reason="no C compiler here, or no nvidia-ml-py",
)


class Nvml:
    """The stand-in in a directory that every user can read; `environ` makes a process load it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o755, exist_ok=True)
        library = directory / "libnvidia-ml.so.1"
        source = Path(__file__).with_name("nvml.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        self._answers = directory / "answers"
        self.environ = {"LD_LIBRARY_PATH": str(directory), "DRFD_TEST_NVML": str(self._answers)}
        self.answer()

    def answer(self, *lines: str) -> None:
        """Have it answer so from now on."""
        fresh = self._answers.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in lines))
        os.chmod(fresh, 0o644)
        fresh.rename(self._answers)


@contextmanager
def a_library() -> Iterator[Nvml]:
    """A stand-in that exists meanwhile, for processes of any user: not below pytest's directory,
    which another run of pytest by the same user closes to others."""
    with TemporaryDirectory(prefix="drfd-test-nvml-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        yield Nvml(place / "lib")

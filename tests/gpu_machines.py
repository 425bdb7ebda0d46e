"""Recorded machines with GPUs: their /proc and /sys as directories of the test's own."""

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

MACHINES = Path(__file__).parent / "data" / "gpus"
#: Plays a controller of a machine whose /proc and /sys are below the first argument, before its own
#: command line.
CONTROLLER = """
import sys
from pathlib import Path
from drfd.daemon import countable
from drfd.daemon.main import main
from drfd.daemon.launcher_link import device_table
from drfd.devices import gpus
machine = Path(sys.argv[1])
countable.find_gpus = lambda **how: gpus.find_gpus(machine, **how)
device_table.find_gpus = lambda **how: gpus.find_gpus(machine, **how)
main(sys.argv[sys.argv.index("serve") :])
"""


def names() -> list[str]:
    """Return the names of all machines."""
    return sorted(path.stem for path in MACHINES.glob("*.txt"))


def unfold(machine: str, root: Path) -> Path:
    """Make the files of a machine below `root` as data/gpus/README.md says; return `root`."""
    contents: dict[Path, list[str]] = {}
    lines: list[str] = []
    for line in (MACHINES / f"{machine}.txt").read_text().splitlines():
        if line.startswith("\t"):
            lines.append(line[1:])
        elif not line.startswith("#"):
            lines = _make(line, root, contents)
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{each}\n" for each in text))
    return root


def _make(line: str, root: Path, contents: dict[Path, list[str]]) -> list[str]:
    """Make what a line stands for, and return the list for lines that follow it."""
    name, is_link, target = line.partition(" -> ")
    name, is_short, text = name.partition(" = ")
    path = root / name
    if is_link:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    elif name.endswith("/"):
        path.mkdir(parents=True)
    else:
        contents[path] = [text] if is_short else []
        return contents[path]
    return []


def _is_for_all(path: str) -> bool:
    """Whether every user can read a file; Python's own modules are loaded before it matters."""
    places = [Path(path), *Path(path).parents]
    return all(each.stat().st_mode & (0o1 if each.is_dir() else 0o4) for each in places)


_PACKAGE = importlib.util.find_spec("pynvml")
#: The library needs a compiler, and drfd measures NVIDIA's GPUs with an extra, as nobody.
needs_nvml = pytest.mark.skipif(
    shutil.which("cc") is None
    or _PACKAGE is None
    or not (_PACKAGE.origin and _is_for_all(_PACKAGE.origin)),
    reason="no C compiler here, or no nvidia-ml-py that every user can read",
)


#: Numbers that stand for GPUs are those of the machine's own where it has some.
without_gpus = pytest.mark.skipif(
    Path("/proc/driver/nvidia/gpus").exists(),
    reason="this machine has GPUs of its own, for which there is tests/devices/real_gpu.sh",
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


def recorded(label: str) -> list[dict[str, Any]]:
    """The calls of NVML on the H100, and their answers, of the recording with this label."""
    lines = (MACHINES / "one-nvidia-h100.jsonl").read_text().splitlines()
    return [call for call in map(json.loads, lines) if call["label"] == label]


def as_answers(calls: list[dict[str, Any]]) -> list[str]:
    """The lines with which the stand-in answers these calls as the library did."""
    said: dict[str, Any] = {}
    for call in calls:
        said.setdefault(call["call"].removeprefix("nvmlDeviceGet"), call.get("answer"))
    memory, pci = said["MemoryInfo"], said["PciInfo"]["busIdLegacy"]
    found = [
        f"gpu {pci} {said['UUID']} {memory['total']} {memory['used']} "
        f"{said['UtilizationRates']['gpu']} 0 {memory['reserved']}"
    ]
    samples = {each["pid"]: each for each in said["ProcessUtilization"] or ()}
    for kind in ("Compute", "Graphics"):
        for each in said[f"{kind}RunningProcesses_v3"]:
            sample = samples[each["pid"]]
            process = f"{each['pid']} {each['usedGpuMemory']}"
            found.append(f"proc 0 {kind[0]} {process} {sample['smUtil']} {sample['timeStamp']}")
    return found


@contextmanager
def a_library() -> Iterator[Nvml]:
    """A stand-in for processes of any user: another run of pytest closes pytest's directory."""
    with TemporaryDirectory(prefix="drfd-test-nvml-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        yield Nvml(place / "lib")

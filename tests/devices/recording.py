"""What a machine with GPUs of NVIDIA says of them, as test data without serial numbers and UUIDs.

    python -m tests.devices.recording machine      /proc and /sys, in the form of tests/data/gpus
    python -m tests.devices.recording nvml [LABEL] each call of NVML that drfd makes, and its answer

Of the second kind there is a line of JSON for each call, made as root and as nobody, if root runs
this. A structure is an object with its fields, a handle is "handle", and an error its number.
"""

import ctypes
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from drfd.launcher.gpu_meter.nvidia import NvidiaGpus
from drfd.launcher.gpu_meter.reading import Unmeasured
from drfd.linux.own_process import NOBODY

#: What tells one GPU from all others of its kind.
_UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_LONG = 1 << 16
#: Of each PCI device whose vendor is NVIDIA; what discovery reads is among it.
_PCI_FILES = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class", "numa_node")
_NVIDIA = "0x10de"


def masked(text: str) -> str:
    return _UUID.sub("01234567-89ab-cdef-0123-456789abcdef", text)


# -- /proc and /sys ---------------------------------------------------------------------------


def machine() -> Iterator[str]:
    """Yield the lines of a file for tests/data/gpus."""
    yield from _file(Path("/proc/devices"))
    for path in sorted(Path("/proc/driver/nvidia").rglob("*")):
        yield from _any(path)
    for device in sorted(Path("/sys/bus/pci/devices").glob("*")):
        if _text(device / "vendor").strip() != _NVIDIA:
            continue
        for name in _PCI_FILES:
            yield from _file(device / name)
        for path in (device / "driver", *sorted(device.glob("drm/*/dev"))):
            yield from _any(path)


def _any(path: Path) -> Iterator[str]:
    if path.is_symlink():
        yield f"{_name(path)} -> {os.readlink(path)}"
    elif path.is_file():
        yield from _file(path)
    elif not any(path.iterdir()):
        yield f"{_name(path)}/"


def _file(path: Path) -> Iterator[str]:
    lines = masked(_text(path)).splitlines()
    if len(lines) == 1:
        yield f"{_name(path)} = {lines[0]}"
    else:
        yield _name(path)
        yield from (f"\t{line}" for line in lines)


def _name(path: Path) -> str:
    return str(path).lstrip("/")


def _text(path: Path) -> str:
    try:
        with path.open(errors="replace") as file:
            return file.read(_LONG)
    except OSError:
        return ""


# -- NVML -------------------------------------------------------------------------------------


class Recorded:
    """NVIDIA's package, whose calls are noted."""

    def __init__(self, package: Any, note: Callable[[dict[str, object]], None]) -> None:
        self._package, self._note = package, note

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._package, name)
        is_call = name.startswith("nvml") and callable(found)
        return self._noting(name, found) if is_call else found

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: object) -> Any:
            said: dict[str, object] = {"call": name, "arguments": [*map(_plain, arguments)]}
            try:
                answer = function(*arguments)
            except self._package.NVMLError as error:
                self._note({**said, "error": error.value, "text": str(error)})
                raise
            self._note({**said, "answer": _plain(answer)})
            return answer

        return call


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return masked(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, list | tuple | ctypes.Array):
        return [_plain(each) for each in value]
    # Friendly structures of the package are plain objects with the same fields.
    names = [each[0] for each in getattr(value, "_fields_", ())] or [
        *getattr(value, "__dict__", ())
    ]
    return {name: _plain(getattr(value, name)) for name in names} if names else "handle"


def nvml(label: str) -> None:
    """Print the calls of two readings, between which processes may have used the GPUs."""
    for uid in dict.fromkeys((os.getuid(), NOBODY)) if os.getuid() == 0 else (os.getuid(),):
        pid = os.fork()
        if pid == 0:
            try:
                _read_as(uid, label)
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.waitpid(pid, 0)


def _read_as(uid: int, label: str) -> None:
    if uid != os.getuid():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    def note(said: dict[str, object]) -> None:
        print(json.dumps({"label": label, "uid": uid, **said}))

    try:
        import pynvml

        note({"call": "package", "answer": version("nvidia-ml-py")})
        sys.modules["pynvml"] = Recorded(pynvml, note)
        gpus = NvidiaGpus()
        for _ in range(2):
            note({"call": "read", "answer": [json.loads(masked(json.dumps(gpus.read())))]})
    except (Unmeasured, ImportError, OSError) as error:
        note({"call": "read", "text": str(error)})


def main(what: str, label: str = "") -> None:
    if what == "machine":
        print(*machine(), sep="\n")
    else:
        nvml(label)


if __name__ == "__main__":
    main(*sys.argv[1:])

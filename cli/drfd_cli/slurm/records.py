"""Records of the steps of a user's jobs: one file for each attempt, in the user's state directory.
`srun` and the parent of a step (`starter/step.h`) write them, and Slurm's lists read them."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import drfd

if TYPE_CHECKING:
    from drfd_cli.slurm.fields import View

#: The program that is the parent of a step of one task.
_PARENT = Path(drfd.__file__).parent / "launcher/runner/starter/drfd-starter"
#: Bytes of a file: a job that has called srun ten thousand times records no more.
_MOST_BYTES = 1 << 22
#: Seconds for which records are kept, and of how many new files one looks for old ones, which takes
#: a while where there are many.
_KEPT_S, _TIDIES = 90 * 86400, 50

#: What lines hold, and how it is read: what a step asks for, when it began, or how it ended.
_READ: Mapping[str, Callable[[Any], Any]] = {
    "step": int, "name": str, "tasks": int, "cores": int, "at_s": float, "exit_code": int,
    "signal": int, "cpu_s": float, "peak_bytes": int, "read_bytes": int, "written_bytes": int,
}  # fmt: skip


class Record:
    """The record of a step; one that cannot be written is none."""

    def __init__(self, env: Mapping[str, str], *, name: str, tasks: int, cores: int) -> None:
        self._fd: int | None = None
        self._number = 0
        with suppress(OSError, KeyError):
            directory = _directory(env)
            path = directory / f"{env['DRF_JOB_ID']}.{env.get('DRF_ATTEMPT', '1')}"
            if not path.exists():
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                if os.getpid() % _TIDIES == 0:
                    _tidy(directory)
            fd = _opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            fcntl.flock(fd, fcntl.LOCK_EX)
            text = _read(fd)
            if len(text) < _MOST_BYTES:
                self._fd, self._number = fd, text.count(b'{"record":"asked"')
                text_of = name[:200].encode(errors="replace").decode()
                self._add("asked", at_s=time.time(), name=text_of, tasks=tasks, cores=cores)
            fcntl.flock(fd, fcntl.LOCK_UN)

    def parent(self, path: str) -> list[str]:
        """Return what runs the program of this path, and records it, with its words after it."""
        if self._fd is None or not os.access(_PARENT, os.X_OK):
            return []
        with suppress(OSError):
            if Path(f"/proc/{os.getppid()}/comm").read_text() == "drfd-runner\n":
                # This is the job's first process, with whose end the job ends.
                self.begin()
                return []
        os.set_inheritable(self._fd, True)
        return [str(_PARENT), "step", str(self._fd), str(self._number), path]

    def begin(self) -> None:
        self._add("began", at_s=time.time())

    def end(self, code: int) -> None:
        """Note the end of a step whose tasks were children of this process; `code` is below 0 for a
        signal."""
        from resource import RUSAGE_CHILDREN, getrusage

        used = getrusage(RUSAGE_CHILDREN)
        self._add(
            "ended", at_s=time.time(), exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None, cpu_s=used.ru_utime + used.ru_stime,
            peak_bytes=used.ru_maxrss << 10, read_bytes=used.ru_inblock << 9,
            written_bytes=used.ru_oublock << 9,
        )  # fmt: skip

    def _add(self, record: str, **fields: object) -> None:
        if self._fd is None:
            return
        line = {"record": record, "step": self._number, **fields}
        with suppress(OSError):
            os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _directory(env: Mapping[str, str]) -> Path:
    """Return where the records are: below the directory that jobs have as HOME, whatever the
    caller's is. Raises KeyError if there is no such user."""
    base = env.get("XDG_STATE_HOME") or f"{pwd.getpwuid(os.getuid()).pw_dir}/.local/state"
    # Machines may share a home directory, and have jobs of the same number.
    return Path(base, "drfd/steps", os.uname().nodename)


def _opened(path: Path, how: int) -> int:
    """Open a file of records. Raises OSError, also if it is not an own one."""
    fd = os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        os.close(fd)
        raise PermissionError(f"{path} is not an own file")
    return fd


def _read(fd: int) -> bytes:
    return os.pread(fd, _MOST_BYTES, 0)


def _tidy(directory: Path) -> None:
    """Remove the records of jobs that nobody knows any more."""
    for path in directory.iterdir():
        with suppress(OSError):
            if path.lstat().st_mtime < time.time() - _KEPT_S:
                path.unlink()


def steps_of(job: View) -> Iterator[View]:
    """Yield the steps that an own job has begun, as Slurm's lists show jobs."""
    if job["uid"] != os.getuid() or job["started_at"] is None:
        return
    try:
        fd = _opened(_directory(os.environ) / f"{job['id']}.{job['attempt']}", os.O_RDONLY)
    except (OSError, KeyError):
        return
    try:
        text = _read(fd)
    finally:
        os.close(fd)
    lines: dict[str, dict[int, View]] = {"asked": {}, "began": {}, "ended": {}}
    for each in text.splitlines():
        # A line may be cut short, where a disk was full.
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            told = json.loads(each)
            line = {key: _READ[key](told[key]) for key in _READ if told.get(key) is not None}
            lines[told["record"]][line["step"]] = line
    until_s = time.time() if job["ended_at"] is None else job["ended_at"]
    # A daemon whose state was removed since has had a job of this number.
    own = [
        number
        for number, asked in lines["asked"].items()
        if job["started_at"] - 1 <= asked.get("at_s", 0.0) <= until_s + 1
    ]
    for place, number in enumerate(own):
        with suppress(KeyError):
            begun = {**lines["asked"][number], **lines["began"][number], "step": place}
            yield _step(job, begun, lines["ended"].get(number), len(own))


def _step(job: View, begun: View, ended: View | None, number: int) -> View:
    """Return one of so many steps of the job. Raises KeyError."""
    cores = max(1, min(begun["cores"], -int(-job["demand"]["cores"] // 1)))
    step = {
        **job, "step": str(begun["step"]), "name": begun["name"],
        "tasks_of_step": begun["tasks"], "started_at": begun["at_s"],
        "demand": {**job["demand"], "cores": cores},
    }  # fmt: skip
    if ended is None:
        # What the whole job uses is no step's own, if there are several.
        return step | ({"used": {}} if number > 1 else {})
    code, signal = ended.get("exit_code"), ended.get("signal")
    state = "COMPLETED" if code == 0 else "FAILED"
    if signal is not None and job["state"] in ("CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"):
        state = job["state"]
    return step | {
        "state": state, "ended_at": ended["at_s"], "exit_code": code, "signal": signal,
        "suspended_at": None, "suspended_seconds": 0.0,
        "used": {
            "cpu_seconds": ended["cpu_s"], "memory_peak": ended["peak_bytes"],
            "read_bytes": ended.get("read_bytes"), "written_bytes": ended.get("written_bytes"),
        },
    }  # fmt: skip

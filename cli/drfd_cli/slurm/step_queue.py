"""Steps of one job that wait for each other: who holds what of the job's cores, memory and GPUs.

A file for each job lists the processes that hold something. What a process has held is free once
it has ended, however it ends; a process keeps what it holds when it executes another program.

A step that waits may be one of many, all within the job's memory. So this module, which needs
nothing but itself, also is the program that waits in place of the command line.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import stat
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The variable that marks the processes of a step: what they start waits for no other step.
WITHIN = "DRF_STEP"
#: Cores, and mebibytes of memory.
Amount = tuple[int, int]
#: Process id, start time in ticks since the boot, what it holds, and the names of its GPUs.
_Holder = tuple[int, int, Amount, list[str]]


class NoPlace(Exception):
    """There is no private directory for the lists."""


def private_directory(above: str = "/tmp") -> str:  # noqa: S108 -- made private, or refused
    """Return the directory of the lists, which is made. Anybody may take its name in /tmp, so that
    there is another place below the home directory. Raises NoPlace."""
    try:
        return _made_private(f"{above}/drf-steps-{os.getuid()}")
    except NoPlace:
        home = os.environ.get("HOME", "")
        if not home.startswith("/"):
            raise
        with suppress(NoPlace):
            # Machines may share it, and have jobs of the same number.
            return _made_private(f"{home}/.drf-steps-{os.uname().nodename}")
        raise


def _made_private(path: str) -> str:
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
    except OSError as error:
        raise NoPlace(f"{path}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise NoPlace(f"{path} belongs to somebody else")
    return path


#: The file of the lock that this process has from `stand_in_line`.
_held: int | None = None


def stand_in_line(words: list[str], env: Mapping[str, str]) -> None:
    """Wait until no other step of the job is about to enter, so that of many steps that begin at
    once one alone takes the memory of a whole command line. Steps that wait for no other do not."""
    global _held
    alone = ("--ov", "--jobid", "--help", "--version")
    if any(word.startswith(alone) for word in words) or "DRF_CORES" not in env:
        return
    name = name_of_job(env)
    if env.get(WITHIN) == name:
        return
    heed_no_warning()
    with suppress(NoPlace, OSError):
        _held = open_locked(f"{private_directory()}/{name}", wait=True)


def leave_line() -> None:
    """Let the next step enter."""
    global _held
    if _held is not None:
        os.close(_held)
        _held = None


def name_of_job(env: Mapping[str, str]) -> str:
    return f"{env.get('DRF_JOB_ID')}.{env.get('DRF_ATTEMPT', '1')}"


def enter(
    path: str, asks: Amount, has: Amount, *, wait: bool, gpus: int = 0, of_gpus: Sequence[str] = ()
) -> list[str] | None:
    """Note in the list `path` that this process holds what it asks for, of the `has` of the job,
    and so many of its GPUs, once that is free. Return the names of these, or None if something is
    not free at once and it does not `wait`."""
    global _held
    file, _held = _held, None
    if file is None:
        file = open_locked(path, wait=wait)
    if file is None:
        return None
    try:
        while True:
            holders = _read(file)
            taken = {name for each in holders for name in each[3]}
            names = [name for name in of_gpus if name not in taken][:gpus]
            if len(names) >= min(gpus, len(of_gpus)) and all(
                sum(each[2][axis] for each in holders) + asks[axis] <= max(has[axis], asks[axis])
                for axis in (0, 1)
            ):
                own = (os.getpid(), started_at(os.getpid()) or 0, asks, names)
                _write(file, [*holders, own])
                return names
            if not wait:
                return None
            _await_end(holders)
    finally:
        os.close(file)


def variables_of(names: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that show a step these GPUs alone, of those that the job is shown by
    `env`, which may name them otherwise; nothing for a step without."""
    if not names:
        return {}
    of_job = env.get("DRF_GRES_GPU", "").split(",")
    shown = {"SLURM_STEP_GPUS": ",".join(names)}
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        told = env.get(variable, "").split(",")
        called = dict(zip(of_job, told, strict=True)) if len(told) == len(of_job) else {}
        shown[variable] = ",".join(called.get(name, name) for name in names)
    return shown


def open_locked(path: str, *, wait: bool) -> int | None:
    """Open the list and lock it: whoever has the lock is the next to enter."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            _tidy(os.path.dirname(path), path)
        except FileExistsError:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(file)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(file)):
                return file
        # Another job's step has tidied it up.
        os.close(file)


def _tidy(directory: str, kept: str) -> None:
    """Remove the lists of other jobs in which nobody holds anything."""
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path != kept and not _read(file):
                    os.unlink(path)
            finally:
                os.close(file)


def _read(file: int) -> list[_Holder]:
    """Return the processes of the list that live."""
    holders = []
    for line in os.pread(file, 1 << 20, 0).decode("utf-8", "replace").splitlines():
        with suppress(ValueError):
            words = line.split(" ")
            pid, start, cores, memory = map(int, words[:4])
            if started_at(pid) == start:
                holders.append((pid, start, (cores, memory), words[4:]))
    return holders


def _write(file: int, holders: list[_Holder]) -> None:
    lines = [
        " ".join([*map(str, (pid, start, *held)), *gpus]) for pid, start, held, gpus in holders
    ]
    data = "".join(f"{line}\n" for line in lines).encode()
    os.pwrite(file, data, 0)
    os.ftruncate(file, len(data))


def started_at(pid: int) -> int | None:
    """Return when the process started, in ticks since the boot, or None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if words[0] in (b"Z", b"X") else int(words[19])


def _await_end(holders: list[_Holder]) -> None:
    """Wait until one of these processes has ended, and at most a second."""
    poll = select.poll()
    files = []
    try:
        for pid, *_ in holders:
            with suppress(OSError):
                files.append(os.pidfd_open(pid))
                poll.register(files[-1], select.POLLIN)
        poll.poll(1000)
    finally:
        for file in files:
            os.close(file)


def main(words: list[str]) -> None:
    """Wait as the words say, `PATH CORES MEMORY CORES-OF-JOB MEMORY-OF-JOB GPUS GPUS-OF-JOB
    COMMAND...`, and become the command."""
    heed_no_warning()
    path, numbers, command = words[0], [int(word) for word in words[1:6]], words[7:]
    asks, has = (numbers[0], numbers[1]), (numbers[2], numbers[3])
    names = list(filter(None, words[6].split(",")))
    try:
        gpus = enter(path, asks, has, wait=True, gpus=numbers[4], of_gpus=names)
        os.environ.update(variables_of(gpus or [], os.environ))
    except OSError as error:
        print(
            f"srun: the step waits no longer for others: {path}: {error.strerror}", file=sys.stderr
        )
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"srun: cannot run {command[0]}: {error.strerror}")


def heed_no_warning() -> None:
    """Leave the signals that warn a job of its time limit to its tasks. A program that is executed
    has them as ever."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)

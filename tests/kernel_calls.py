"""System calls that only tests make; a failure is an error, as in `drfd.linux.syscalls`."""

import ctypes
import fcntl
import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from drfd.linux import syscalls

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_SECUREBITS = 28
_KEYCTL_GET_KEYRING_ID, _SESSION_KEYRING = 0, -3
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 1 << 12, 1 << 14, 1 << 18, 1 << 19
#: With unshare(2): mounts of its own.
CLONE_NEWNS = 0x00020000


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def set_securebits(bits: int) -> None:
    _checked(_LIBC.prctl(_PR_SET_SECUREBITS, bits, 0, 0, 0))


def session_keyring() -> int:
    """The serial number of this process's session keyring; who has none gets the user's."""
    number = syscalls._NUMBERS["keyctl"][os.uname().machine]
    return _checked(_LIBC.syscall(number, _KEYCTL_GET_KEYRING_ID, _SESSION_KEYRING, 0))


def take_descriptor(pid: int, fd: int) -> int:
    """A copy of a descriptor of another process (pidfd_getfd(2))."""
    pidfd = os.pidfd_open(pid)
    try:
        return _checked(_LIBC.syscall(438, pidfd, fd, 0))
    finally:
        os.close(pidfd)


@contextmanager
def leased(file: Path, flags: int = os.O_RDWR) -> Iterator[Callable[[], bool]]:
    """Let whoever opens the file wait for the end of the block, but no longer than the kernel does,
    which is 45 s. Yield whether somebody waits."""
    lease = os.open(file, flags)
    try:
        # Else the signal that asks for the lease would end this process.
        fcntl.fcntl(lease, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield lambda: fcntl.fcntl(lease, fcntl.F_GETLEASE) != fcntl.F_WRLCK
    finally:
        os.close(lease)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount `source` at `target` (mount(2)). Empty arguments are passed as NULL."""
    given = (os.fsencode(text) if text else None for text in (source, target, kind))
    data = os.fsencode(options) if options else None
    _checked(_LIBC.mount(*given, ctypes.c_ulong(flags), data))


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter: an array of struct sock_filter (seccomp(2))."""
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a count of 16 bits, padding, a pointer.
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    _checked(_LIBC.prctl(22, 2, ctypes.create_string_buffer(described), 0, 0))

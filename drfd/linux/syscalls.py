"""System calls that Python's own library does not offer: the only module that uses ctypes.

Every function declares the types of what it passes and checks what comes back: a call that fails
raises OSError with the kernel's errno, and the name of the call as its file name. A call that has
no number in this table for the machine's architecture fails with ENOSYS, as it does on a kernel
that lacks it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from typing import NamedTuple

# -- prctl(2) ---------------------------------------------------------------------------------

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_PR_SET_NO_NEW_PRIVS = 38


# -- unshare(2) -------------------------------------------------------------------------------

#: A descriptor table of its own for this thread.
CLONE_FILES = 0x00000400

# -- shmctl(2), semctl(2), msgctl(2) ----------------------------------------------------------

_IPC_RMID = 0

# -- keyctl(2) --------------------------------------------------------------------------------

_KEYCTL_JOIN_SESSION_KEYRING = 1

# -- capget(2), capset(2) ---------------------------------------------------------------------

_CAPABILITY_VERSION_3 = 0x20080522

# -- bpf(2) -----------------------------------------------------------------------------------

_BPF_PROG_LOAD, _BPF_PROG_ATTACH, _BPF_OBJ_GET_INFO_BY_FD, _BPF_PROG_QUERY = 5, 8, 15, 16
_BPF_PROG_TYPE_CGROUP_DEVICE, _BPF_CGROUP_DEVICE = 15, 6
#: Flag of an attached program: those of cgroups further in are run, too, and each may refuse.
BPF_F_ALLOW_MULTI = 2
#: Bytes of `union bpf_attr` that are passed: more than any kernel knows, because newer kernels
#: write fields of a query behind those that are used here.
_BPF_ATTR_BYTES = 256
#: Programs that one cgroup can have for one purpose (BPF_CGROUP_MAX_PROGS in the kernel).
_BPF_MOST_PROGRAMS = 64

#: Call → its number, for each architecture that jobs can be started on (`starter.compiler`).
_NUMBERS: dict[str, dict[str, int]] = {
    "keyctl": {"x86_64": 250, "aarch64": 219},
    "bpf": {"x86_64": 321, "aarch64": 280},
    "capget": {"x86_64": 125, "aarch64": 90},
    "capset": {"x86_64": 126, "aarch64": 91},
}

_int, _long, _ulong = ctypes.c_int, ctypes.c_long, ctypes.c_ulong
_text, _pointer = ctypes.c_char_p, ctypes.c_void_p
_uint, _size = ctypes.c_uint, ctypes.c_size_t

_libc = ctypes.CDLL(None, use_errno=True)


class Capabilities(NamedTuple):
    """Sets of capabilities of a process, as bits numbered as in capabilities(7)."""

    effective: int
    permitted: int
    inheritable: int


def _declared(name: str, *arguments: type, result: type = _int) -> Callable[..., int]:
    """Return the C function `name` with its types. Each use of a name gets a function of its own,
    because `prctl` and `syscall` take other arguments for each purpose."""
    function = _libc[name]
    function.argtypes = arguments
    function.restype = result
    return function


def _numbered(name: str, *arguments: type) -> Callable[..., int]:
    """Return the system call `name`, for which the C library may have no function."""
    number = _NUMBERS[name][os.uname().machine]
    function = _declared("syscall", _long, *arguments, result=_long)
    return lambda *values: function(number, *values)


def _checked(result: int, name: str) -> int:
    """Return the result of a call. Raises OSError, with the call's name as file, if negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


_prctl = _declared("prctl", _int, _ulong, _ulong, _ulong, _ulong)
_unshare = _declared("unshare", _int)
_shmctl = _declared("shmctl", _int, _int, _pointer)
_semctl = _declared("semctl", _int, _int, _int)
_msgctl = _declared("msgctl", _int, _int, _pointer)
_keyctl_join = _numbered("keyctl", _int, _text)
_bpf = _numbered("bpf", _int, _pointer, _uint)
_capget = _numbered("capget", _pointer, _pointer)
_capset = _numbered("capset", _pointer, _pointer)


# -- processes --------------------------------------------------------------------------------


def set_parent_death_signal(number: int) -> None:
    """Make the kernel send this signal to this process when its parent ends, or none if 0."""
    _checked(_prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


# -- rights -----------------------------------------------------------------------------------


def set_dumpable(dumpable: bool) -> None:
    """Allow cores and tracing of this process, or forbid them; exec allows them again."""
    _checked(_prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def set_no_new_privileges() -> None:
    """Make set-user-id bits and file capabilities without effect, here and in all descendants."""
    _checked(_prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def capabilities() -> Capabilities:
    """Return the capabilities of this thread."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    data = ctypes.create_string_buffer(24)
    _checked(_capget(header, data), "capget")
    low = struct.unpack_from("=3I", data.raw, 0)
    high = struct.unpack_from("=3I", data.raw, 12)
    return Capabilities(*(one | other << 32 for one, other in zip(low, high, strict=True)))


def set_capabilities(wanted: Capabilities) -> None:
    """Give this thread these capabilities. Raises PermissionError if it would gain any."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    low = [bits & 0xFFFFFFFF for bits in wanted]
    high = [bits >> 32 for bits in wanted]
    data = ctypes.create_string_buffer(struct.pack("=6I", *low, *high))
    _checked(_capset(header, data), "capset")


# -- keyrings ---------------------------------------------------------------------------------


def join_session_keyring() -> int:
    """Join a new, empty, anonymous session keyring and return its serial number. It is charged to
    the real uid, which may have 200 keys if it is an ordinary one. Raises OSError EDQUOT if there
    are more, and ENOSYS if the kernel has no keyrings."""
    return _checked(_keyctl_join(_KEYCTL_JOIN_SESSION_KEYRING, None), "keyctl")


# -- namespaces -------------------------------------------------------------------------------


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` (CLONE_NEW…) name, for new ones."""
    _checked(_unshare(flags), "unshare")


# -- BPF programs on cgroups (bpf(2)) -----------------------------------------------------------


class AttachedPrograms(NamedTuple):
    """The programs on a cgroup itself, without those of its ancestors."""

    #: Flags with which they were attached.
    flags: int
    #: Their numbers, in the order in which they run.
    ids: tuple[int, ...]


def load_device_program(instructions: bytes) -> int:
    """Load a program that decides which devices a cgroup's processes may use, and return its
    descriptor, which is closed at exec. The kernel keeps the program while it is attached.

    `instructions` is an array of struct bpf_insn. Raises OSError: EPERM without CAP_BPF and
    CAP_NET_ADMIN.
    """
    code = ctypes.create_string_buffer(instructions, len(instructions))
    license_name = ctypes.create_string_buffer(b"MIT")
    attributes = struct.pack(
        "=IIQQ24x16s",
        _BPF_PROG_TYPE_CGROUP_DEVICE,
        len(instructions) // 8,
        ctypes.addressof(code),
        ctypes.addressof(license_name),
        b"drfd_devices",
    )
    return _bpf_call(_BPF_PROG_LOAD, attributes)[0]


def device_program_id(program_fd: int) -> int:
    """Return the number that the kernel has given to a loaded program. Raises OSError."""
    # struct bpf_prog_info begins with the type and the number.
    found = ctypes.create_string_buffer(8)
    attributes = struct.pack("=IIQ", program_fd, len(found), ctypes.addressof(found))
    _bpf_call(_BPF_OBJ_GET_INFO_BY_FD, attributes)
    return int(struct.unpack("=II", found.raw)[1])


def attach_device_program(cgroup_fd: int, program_fd: int) -> None:
    """Make a loaded program decide, besides those of the ancestors, about the devices of the cgroup
    of version 2 whose directory is open as `cgroup_fd`. It does so until the cgroup is gone.

    Raises OSError: EPERM without CAP_BPF and CAP_NET_ADMIN, and below a cgroup whose program admits
    no other.
    """
    values = (cgroup_fd, program_fd, _BPF_CGROUP_DEVICE, BPF_F_ALLOW_MULTI)
    _bpf_call(_BPF_PROG_ATTACH, struct.pack("=IIII", *values))


def device_programs(cgroup_fd: int) -> AttachedPrograms:
    """Return the programs that decide about devices on a cgroup of version 2. Raises OSError: EPERM
    without CAP_NET_ADMIN, EINVAL if the kernel has no such programs."""
    ids = (ctypes.c_uint32 * _BPF_MOST_PROGRAMS)()
    where = ctypes.addressof(ids)
    values = (cgroup_fd, _BPF_CGROUP_DEVICE, 0, 0, where, _BPF_MOST_PROGRAMS)
    _, found = _bpf_call(_BPF_PROG_QUERY, struct.pack("=IIIIQI", *values))
    flags, _, count = struct.unpack_from("=IQI", found, 12)
    return AttachedPrograms(flags, tuple(ids[:count]))


def _bpf_call(command: int, attributes: bytes) -> tuple[int, bytes]:
    """Return the result, and the attributes as the kernel has left them."""
    passed = ctypes.create_string_buffer(attributes, _BPF_ATTR_BYTES)
    result = _checked(_bpf(command, passed, _BPF_ATTR_BYTES), "bpf")
    return result, passed.raw


# -- the user directory (getpwuid_r(3), getgrgid_r(3)) -----------------------------------------

_getpwuid_r = _declared("getpwuid_r", _uint, _pointer, _pointer, _size, _pointer)
_getgrgid_r = _declared("getgrgid_r", _uint, _pointer, _pointer, _size, _pointer)
_getgrouplist = _declared("getgrouplist", _text, _uint, _pointer, _pointer)
#: Groups that an account may have on Linux (NGROUPS_MAX), and the account's own.
_MOST_GROUPS = (1 << 16) + 1
#: Bytes for `struct passwd` or `struct group`, more than any system needs, and for the longest
#: entry.
_STRUCT_BYTES, _ENTRY_BYTES = 256, 1 << 20


def has_account(uid: int) -> bool:
    """Return whether the user directory has an entry for the uid. Raises OSError if the directory
    cannot be asked, where `pwd.getpwuid` raises KeyError as it does for a uid without an entry."""
    return _has_entry(_getpwuid_r, "getpwuid_r", uid)


def has_group(gid: int) -> bool:
    """Return whether the user directory has a group with this gid. Raises OSError if the directory
    cannot be asked, where `os.getgrouplist` omits the group."""
    return _has_entry(_getgrgid_r, "getgrgid_r", gid)


def groups_of(name: bytes, gid: int) -> list[int]:
    """Return the groups of the account `name`, among them `gid`, as `os.getgrouplist` does, which
    takes names in UTF-8 only (getgrouplist(3))."""
    count = ctypes.c_int(1 << 6)
    while True:
        groups = (ctypes.c_uint * count.value)()
        is_whole = _getgrouplist(name, gid, groups, ctypes.byref(count)) >= 0
        if is_whole or len(groups) >= _MOST_GROUPS:
            return list(groups[: count.value])
        # The C library has set the count that it needs.
        count.value = min(max(count.value, 2 * len(groups)), _MOST_GROUPS)


def _has_entry(ask: Callable[..., int], name: str, number: int) -> bool:
    found = ctypes.c_void_p()
    entry = ctypes.create_string_buffer(_STRUCT_BYTES)
    size = 1 << 12
    while True:
        text = ctypes.create_string_buffer(size)
        error = ask(number, entry, text, size, ctypes.byref(found))
        if error != errno.ERANGE or size >= _ENTRY_BYTES:
            break
        size *= 4
    # The C library reports a missing entry by 0 without a result. ENOENT, which means the same on
    # other systems, comes here from a directory that is not running.
    if error != 0:
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return bool(found.value)


# -- files and System V IPC -------------------------------------------------------------------


def remove_shared_memory(identifier: int) -> None:
    """Remove a System V shared memory segment; it disappears when nothing has it attached."""
    _checked(_shmctl(identifier, _IPC_RMID, None), "shmctl")


def remove_semaphores(identifier: int) -> None:
    """Remove a set of System V semaphores."""
    _checked(_semctl(identifier, 0, _IPC_RMID), "semctl")


def remove_message_queue(identifier: int) -> None:
    _checked(_msgctl(identifier, _IPC_RMID, None), "msgctl")

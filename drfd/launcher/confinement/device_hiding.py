"""Device nodes that a job must not open: refused by the kernel on the job's own cgroup.

On version 2 a BPF program decides (`device_program`). It is attached with BPF_F_ALLOW_MULTI, with
which each program between the cgroup and the root may refuse: so it adds to what others have
attached, and what a container inside the job attaches adds to it. On version 1 the devices
controller decides. Both hold for root's processes and for mknod too, as long as the cgroup exists,
whatever becomes of the launcher. A descriptor that was open before stays usable.

Kernel documents: cgroup-v2.rst ("Device controller"), cgroup-v1/devices.rst.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

from drfd.launcher.attempt_files import Key, cgroup_name
from drfd.launcher.confinement.cgroup_files import ancestors, find_own, keys_of
from drfd.launcher.confinement.interface import LimitFailed
from drfd.launcher.confinement.processes import remove_all
from drfd.linux import syscalls
from drfd.linux.device_nodes import BLOCK, CHARACTER, DeviceNode, show_node
from drfd.linux.kernel_files import get_record, opened

# Sources of the program: struct bpf_cgroup_dev_ctx in include/uapi/linux/bpf.h; the instructions in
# Documentation/bpf/standardization/instruction-set.rst.
# Registers: the result, the context, and what is read from it.
_RESULT, _CONTEXT, _KIND, _MAJOR, _MINOR = 0, 1, 2, 4, 5
# Operations, each with all parts of its code: class, size or operation, source.
_LOAD_WORD, _AND_WORD, _JUMP_UNLESS_EQUAL, _MOVE, _EXIT = 0x61, 0x54, 0x55, 0xB7, 0x95
# Where the context has the access with the kind below it, the major and the minor number.
_ACCESS_AT, _MAJOR_AT, _MINOR_AT = 0, 4, 8
#: The lower half of the access word is the kind: BPF_DEVCG_DEV_BLOCK or BPF_DEVCG_DEV_CHAR.
_KIND_MASK = 0xFFFF
_KINDS = {BLOCK: 1, CHARACTER: 2}
_REFUSE, _ALLOW = 0, 1


def device_program(hidden: Collection[DeviceNode]) -> bytes:
    """Return the instructions of a program that refuses exactly these devices: an array of struct
    bpf_insn, the same for equal sets.

    It runs at each open of a device node and each mknod, is given the device's kind and numbers,
    and returns 0 to refuse. It refuses the listed devices, whatever the access, and allows all
    others: what a job needs of other devices is not known here."""
    return b"".join(_instructions(hidden))


def _instructions(hidden: Collection[DeviceNode]) -> Iterator[bytes]:
    yield _instruction(_LOAD_WORD, _KIND, source=_CONTEXT, offset=_ACCESS_AT)
    yield _instruction(_AND_WORD, _KIND, value=_KIND_MASK)
    yield _instruction(_LOAD_WORD, _MAJOR, source=_CONTEXT, offset=_MAJOR_AT)
    yield _instruction(_LOAD_WORD, _MINOR, source=_CONTEXT, offset=_MINOR_AT)
    for node in sorted(set(hidden)):
        # The first difference leads to the next device.
        yield _instruction(_JUMP_UNLESS_EQUAL, _KIND, offset=4, value=_KINDS[node.kind])
        yield _instruction(_JUMP_UNLESS_EQUAL, _MAJOR, offset=3, value=node.major)
        yield _instruction(_JUMP_UNLESS_EQUAL, _MINOR, offset=2, value=node.minor)
        yield _instruction(_MOVE, _RESULT, value=_REFUSE)
        yield _instruction(_EXIT)
    yield _instruction(_MOVE, _RESULT, value=_ALLOW)
    yield _instruction(_EXIT)


def _instruction(
    operation: int, target: int = 0, *, source: int = 0, offset: int = 0, value: int = 0
) -> bytes:
    # The two registers share a byte as bit fields, which compilers order as the machine does bytes.
    first, second = (target, source) if sys.byteorder == "little" else (source, target)
    return struct.pack("=BBhi", operation, first | second << 4, offset, value)


#: A device (/dev/full) that is hidden in a cgroup without processes, to see whether that can be
#: done, and the name of that cgroup, beside those of jobs.
_HARMLESS, _TRIAL = DeviceNode(CHARACTER, 1, 7), "device-trial"
#: Errors of a moment, which say nothing of the machine.
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)
_CONTROLLER = "devices"
#: What devices.list contains where all is allowed but what was denied, which it does not list.
_ALL_ALLOWED = "a *:* rwm"
_CANNOT = "devices cannot be hidden from jobs"


class HiddenByBpf:
    """The device programs on the cgroups of jobs, which are directories of `parent`."""

    def __init__(self, mount: str, group: str) -> None:
        self._parent = f"{mount}/{group}"
        self._outer = [*ancestors(mount, group), self._parent]

    def hiding(self) -> tuple[bool, str]:
        """Return what `Confinement.hiding` does."""
        how = "a BPF program on each job's cgroup refuses them"
        return _tried(how, f"{self._parent}/{_TRIAL}", self.hide)

    def hide(self, directory: str, hidden: frozenset[DeviceNode]) -> None:
        """Refuse these devices to all processes that will be in the cgroup at `directory`. Raises
        LimitFailed."""
        self._check_ancestors()
        program_fd, number = _load(hidden)
        # The cgroup keeps the program itself as long as it is attached.
        try:
            with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as cgroup_fd:
                syscalls.attach_device_program(cgroup_fd, program_fd)
                there = syscalls.device_programs(cgroup_fd)
        except OSError as error:
            raise LimitFailed(f"{directory}: {_explain(error)}") from error
        finally:
            os.close(program_fd)
        if there != (syscalls.BPF_F_ALLOW_MULTI, (number,)):
            raise LimitFailed(
                f"{directory}: the device program {number} was attached with the flags "
                f"{syscalls.BPF_F_ALLOW_MULTI}, and the kernel has {list(there.ids)} with "
                f"{there.flags}"
            )

    def _check_ancestors(self) -> None:
        """Raise LimitFailed where a program of ours would replace that of somebody else. Of the
        ancestors' programs without BPF_F_ALLOW_MULTI the kernel runs only the innermost, and only
        if no cgroup further in has one (compute_effective_progs in kernel/bpf/cgroup.c)."""
        for directory in reversed(self._outer):
            try:
                with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as cgroup_fd:
                    there = syscalls.device_programs(cgroup_fd)
            except OSError as error:
                raise LimitFailed(f"{directory}: {_explain(error)}") from error
            if there.ids and not there.flags & syscalls.BPF_F_ALLOW_MULTI:
                raise LimitFailed(
                    f"{directory} has a device program that was attached without "
                    "BPF_F_ALLOW_MULTI, and a program of drfd's would switch it off for jobs"
                )
            if there.ids:
                return


class HiddenByController:
    """The cgroups of jobs in the devices controller of version 1. There is one only for an attempt
    from which something is hidden; others stay in the launcher's."""

    def __init__(self, mountinfo: str, memberships: str, group: str, shared_with: str) -> None:
        """The cgroups are made in the launcher's own, because a cgroup elsewhere could allow what
        is refused there. `memberships` is the text of /proc/self/cgroup. `shared_with` is "" or,
        where the devices controller shares its hierarchy with others, its mount point: there each
        job has a cgroup anyway."""
        self.is_shared = shared_with != ""
        own = shared_with or find_own(mountinfo, memberships, _CONTROLLER)
        #: Directory of the cgroups of jobs, which is made for the first; None if there can be none.
        self.parent = None if own is None else f"{own}/{group}"
        #: The same, unless others make it.
        self._own = None if self.is_shared else self.parent

    def hiding(self) -> tuple[bool, str]:
        """Return what `Confinement.hiding` does."""
        how = "a cgroup of the devices controller refuses them to each job"
        try:
            return _tried(how, f"{self._made()}/{_TRIAL}", _deny)
        except (LimitFailed, OSError) as error:
            return False, str(error)
        finally:
            # Most machines need it for nothing else.
            self.close()

    def directories(self, key: Key) -> list[str]:
        """Return the attempt's directories, besides those of other controllers: none or one, which
        may be missing."""
        return [] if self._own is None else [f"{self._own}/{cgroup_name(key)}"]

    def entrance(self, key: Key) -> list[str]:
        """Return the directories among `directories` that there are."""
        return [each for each in self.directories(key) if os.path.isdir(each)]

    def hide(self, key: Key, place: str, hidden: Collection[DeviceNode]) -> None:
        """Make the attempt's cgroup and refuse these devices in it. `place` is where it is in a
        hierarchy of others. Raises LimitFailed, OSError."""
        directory = f"{self._made()}/{place}"
        for directory in self.directories(key):
            os.mkdir(directory, 0o700)
        _deny(directory, hidden)

    def leftovers(self) -> list[Key]:
        """Return the attempts that have a directory, but for those that share their hierarchy."""
        return [] if self._own is None else keys_of(self._own)

    def close(self) -> None:
        """Remove the directory of all jobs, unless it is in use."""
        if self._own is not None:
            with suppress(OSError):
                os.rmdir(self._own)

    def _made(self) -> str:
        """Return the directory of the cgroups of jobs, which is there then. Raises LimitFailed,
        OSError."""
        if self.parent is None:
            raise LimitFailed(f"{_CANNOT}: drfd sees no devices controller of cgroup v1")
        os.makedirs(self.parent, mode=0o700, exist_ok=True)
        return self.parent


def _tried(
    sentence: str, directory: str, hide: Callable[[str, frozenset[DeviceNode]], None]
) -> tuple[bool, str]:
    """Return what `Confinement.hiding` does, after a device was hidden in a new cgroup at
    `directory`. During a shortage that is what should hold."""
    said = f"device nodes that a job was not given are hidden: {sentence}"
    try:
        # A launcher that was killed may have left it.
        remove_all(directory)
        os.mkdir(directory)
        try:
            hide(directory, frozenset({_HARMLESS}))
        finally:
            remove_all(directory)
    except (LimitFailed, OSError) as error:
        why = _explain(error) if isinstance(error, OSError) else str(error)
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.errno in _SHORTAGES:
            return True, f"{said}; not tried yet: {why}"
        return False, f"{_CANNOT}: {why}"
    return True, said


def _load(hidden: frozenset[DeviceNode]) -> tuple[int, int]:
    try:
        program_fd = syscalls.load_device_program(device_program(hidden))
    except OSError as error:
        raise LimitFailed(f"a device program cannot be loaded: {_explain(error)}") from error
    try:
        return program_fd, syscalls.device_program_id(program_fd)
    except OSError as error:
        os.close(program_fd)
        raise LimitFailed(f"a device program cannot be used: {_explain(error)}") from error


def _deny(directory: str, hidden: Collection[DeviceNode]) -> None:
    """Refuse these devices in a cgroup of the devices controller. Raises LimitFailed, OSError."""
    with opened(f"{directory}/devices.deny", os.O_WRONLY) as file:
        for node in sorted(hidden):
            try:
                os.write(file, f"{show_node(node)} rwm".encode())
            except OSError as error:
                text = f"{directory}/devices.deny: {show_node(node)}: {error.strerror}"
                raise LimitFailed(text) from error
    # Below a cgroup that allows only some devices, a refusal takes back an equal permission and
    # leaves one with a wildcard (dev_exception_rm in security/device_cgroup.c).
    allowed = get_record(f"{directory}/devices.list").splitlines()
    if allowed == [_ALL_ALLOWED]:
        return
    for line in allowed:
        for node in hidden:
            if _covers(line, node):
                raise LimitFailed(
                    f"{directory}/devices.list still has {line!r}, which allows "
                    f"{show_node(node)}: the surrounding cgroup allows it with a wildcard"
                )


def _covers(line: str, node: DeviceNode) -> bool:
    """Return whether a line of devices.list, such as "c 226:* rw", allows anything with it."""
    kind, numbers, _ = line.split(" ", 2)
    major, minor = numbers.split(":")
    return (
        kind in ("a", node.kind)
        and major in ("*", str(node.major))
        and minor in ("*", str(node.minor))
    )


def _explain(error: OSError) -> str:
    if error.errno == errno.EPERM and error.filename == "bpf":
        return (
            "device programs on cgroups need root's rights (CAP_BPF and CAP_NET_ADMIN), which "
            "containers and ordinary users do not have"
        )
    where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
    return f"{where}{error.strerror}"

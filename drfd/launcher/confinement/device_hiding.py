"""Device nodes that a job must not open: refused by the kernel on the job's own cgroup.

On version 2 a BPF program decides (device_program.py). It is attached with BPF_F_ALLOW_MULTI, with
which each program between the cgroup and the root may refuse: so it adds to what others have
attached, and what a container inside the job attaches adds to it. On version 1 the devices
controller decides. Both hold for root's processes and for mknod too, as long as the cgroup exists,
whatever becomes of the launcher. A descriptor that was open before stays usable.

Kernel documents: cgroup-v2.rst ("Device controller"), cgroup-v1/devices.rst.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from contextlib import suppress

from drfd.devices.nodes import DeviceNode, node_at, show_node
from drfd.launcher.attempt_files import Key, cgroup_name
from drfd.launcher.confinement.cgroup_files import ancestors, find_own, keys_of
from drfd.launcher.confinement.device_program import device_program
from drfd.launcher.confinement.interface import (
    BY_BPF,
    BY_CONTROLLER,
    NOT_HIDDEN,
    LimitFailed,
)
from drfd.launcher.confinement.processes import remove_all
from drfd.launcher.system.files import get, get_record, put
from drfd.linux import syscalls
from drfd.linux.descriptors import opened

#: Programs that stay loaded, one for each set of hidden devices: of 8 GPUs given one by one, 9.
_MOST_PROGRAMS = 64
#: Devices of which one is hidden from a process for the proof: every machine has them, and nothing
#: happens when they are opened.
_HARMLESS = ("/dev/full", "/dev/zero", "/dev/null")
#: Name of the cgroup of that process, beside those of jobs.
_PROOF = "device-proof"
#: Errors of a moment: the proof is tried again when the next job needs it.
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)
#: Exit status of that process if it could not enter its cgroup.
_NOT_INSIDE = 200
_CONTROLLER = "devices"
#: What devices.list contains where all is allowed but what was denied, which it does not list.
_ALL_ALLOWED = "a *:* rwm"


class HiddenByBpf:
    """The device programs on the cgroups of jobs, which are directories of `parent`."""

    def __init__(self, mount: str, group: str) -> None:
        self._parent = f"{mount}/{group}"
        self._outer = [*ancestors(mount, group), self._parent]
        self._proof = _Proof(BY_BPF, "a BPF program on each job's cgroup refuses them", self._prove)
        #: Devices → (descriptor of the loaded program, its number), the latest used last. Those of
        #: another process are none of a forked one, which closes all descriptors.
        self._programs: dict[frozenset[DeviceNode], tuple[int, int]] = {}
        self._owner = os.getpid()

    def hiding(self) -> tuple[str, str]:
        """Return what `Confinement.hiding` does; the proof is made once."""
        return self._proof.result()

    def hide(self, directory: str, hidden: frozenset[DeviceNode]) -> None:
        """Refuse these devices to all processes that will be in the cgroup at `directory`. Raises
        LimitFailed."""
        self._proof.require()
        self._attach(directory, hidden)

    def _attach(self, directory: str, hidden: frozenset[DeviceNode]) -> None:
        program_fd, number = self._program(hidden)
        try:
            with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as cgroup_fd:
                syscalls.attach_device_program(cgroup_fd, program_fd)
                there = syscalls.device_programs(cgroup_fd)
        except OSError as error:
            if error.errno == errno.EPERM:
                # Somebody may have attached one above that admits no other, after the proof.
                self._check_ancestors()
            raise LimitFailed(f"{directory}: {_explain(error)}") from error
        if there != (syscalls.BPF_F_ALLOW_MULTI, (number,)):
            raise LimitFailed(
                f"{directory}: the device program {number} was attached with the flags "
                f"{syscalls.BPF_F_ALLOW_MULTI}, and the kernel has {list(there.ids)} with "
                f"{there.flags}"
            )

    def _program(self, hidden: frozenset[DeviceNode]) -> tuple[int, int]:
        """Return the descriptor and the number of the program that refuses these devices."""
        if self._owner != os.getpid():
            self._owner, self._programs = os.getpid(), {}
        found = self._programs.pop(hidden, None)
        if found is None:
            if len(self._programs) >= _MOST_PROGRAMS:
                # Cgroups keep the program itself as long as it is attached.
                os.close(self._programs.pop(next(iter(self._programs)))[0])
            found = _load(hidden)
        self._programs[hidden] = found
        return found

    def _prove(self) -> None:
        self._check_ancestors()
        directory = f"{self._parent}/{_PROOF}"
        _prove(
            directory,
            hide=lambda nodes: self._attach(directory, nodes),
            begin=lambda: _fork_into(directory),
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
        self._mountinfo, self._shares = mountinfo, shared_with != ""
        own = shared_with or find_own(mountinfo, memberships, _CONTROLLER)
        #: Directory of the cgroups of jobs, which is made for the first; None if there can be none.
        self.parent = None if own is None else f"{own}/{group}"
        #: Directories of attempts that an earlier launcher has begun in another cgroup.
        self._elsewhere: dict[Key, str] = {}
        how = "a cgroup of the devices controller refuses them to each job"
        self._proof = _Proof(BY_CONTROLLER, how, self._prove)

    def hiding(self) -> tuple[str, str]:
        """Return what `Confinement.hiding` does; the proof is made once."""
        return self._proof.result()

    def adopt(self, key: Key, pids: Callable[[], Collection[int]]) -> None:
        """Note where an earlier launcher, in another cgroup than this one, has hidden devices from
        an attempt. `pids` returns the attempt's processes."""
        if self.parent is None or self._shares or self._exists(key):
            return
        for pid in pids():
            with suppress(OSError):
                found = find_own(self._mountinfo, get(f"/proc/{pid}/cgroup"), _CONTROLLER)
                if found is not None and os.path.basename(found) == cgroup_name(key):
                    self._elsewhere[key] = found
                return

    def directories(self, key: Key) -> list[str]:
        """Return the attempt's directories, besides those of other controllers: none or one, which
        may be missing."""
        if self.parent is None or self._shares:
            return []
        return [self._directory(key)]

    def entrance(self, key: Key) -> list[str]:
        """Return the directories among `directories` that there are."""
        return self.directories(key) if self._exists(key) else []

    def hide(self, key: Key, hidden: Collection[DeviceNode]) -> None:
        """Make the attempt's cgroup and refuse these devices in it. Raises LimitFailed, OSError."""
        self._proof.require()
        if not self._shares:
            os.makedirs(str(self.parent), exist_ok=True)
            os.mkdir(self._directory(key))
        _deny(self._directory(key), hidden)

    def gone(self, key: Key) -> None:
        """Forget an attempt whose cgroup has been removed."""
        self._elsewhere.pop(key, None)

    def leftovers(self) -> list[Key]:
        """Return the attempts that have a directory, but for those that share their hierarchy."""
        if self.parent is None or self._shares:
            return []
        return sorted({*keys_of(self.parent), *self._elsewhere})

    def close(self) -> None:
        """Remove the directory of all jobs, unless it is in use."""
        if self.parent is not None and not self._shares:
            with suppress(OSError):
                os.rmdir(self.parent)

    def _directory(self, key: Key) -> str:
        return self._elsewhere.get(key, f"{self.parent}/{cgroup_name(key)}")

    def _exists(self, key: Key) -> bool:
        return os.path.isdir(self._directory(key))

    def _prove(self) -> None:
        if self.parent is None:
            raise LimitFailed("drfd sees no devices controller of cgroup v1")
        os.makedirs(self.parent, exist_ok=True)
        directory = f"{self.parent}/{_PROOF}"
        try:
            _prove(
                directory,
                hide=lambda nodes: _deny(directory, nodes),
                begin=lambda: _fork_and_enter(f"{directory}/tasks"),
            )
        finally:
            # Most machines need it for nothing else.
            self.close()


class _Proof:
    """What was found out about hiding on this machine, by the first who asks."""

    def __init__(self, how: str, sentence: str, prove: Callable[[], None]) -> None:
        self._found: tuple[str, str] | None = None
        self._how = how
        self._proved = f"device nodes that a job was not given are hidden: {sentence}"
        self._prove = prove

    def result(self) -> tuple[str, str]:
        """Return what `Confinement.hiding` does. During a shortage that is what should hold: the
        proof is made before anything is hidden."""
        try:
            self.require()
        except LimitFailed as error:
            return self._found or (self._how, f"{self._proved}; not proved yet: {error}")
        return self._how, self._proved

    def require(self) -> None:
        """Raise LimitFailed unless hiding works here; by an OSError if the machine is short of what
        the proof needs."""
        if self._found is None:
            try:
                self._prove()
                self._found = self._how, self._proved
            except (LimitFailed, OSError, RuntimeError) as error:
                why = _explain(error) if isinstance(error, OSError) else str(error)
                cause = error if isinstance(error, OSError) else error.__cause__
                if isinstance(cause, OSError) and cause.errno in _SHORTAGES:
                    raise LimitFailed(why) from cause
                self._found = NOT_HIDDEN, f"devices cannot be hidden from jobs: {why}"
        how, why = self._found
        if how == NOT_HIDDEN:
            raise LimitFailed(why)


def _prove(
    directory: str, *, hide: Callable[[frozenset[DeviceNode]], None], begin: Callable[[], int]
) -> None:
    """Make a cgroup at `directory`, hide a harmless device there, and see that a process there
    cannot open it. Raises LimitFailed or OSError if it can, or if that cannot be tried."""
    path, node = _harmless_device()
    launcher = os.getpid()
    # A launcher that was killed may have left it.
    remove_all(directory)
    os.mkdir(directory)
    try:
        hide(frozenset({node}))
        pid = begin()
        if pid == 0:
            os._exit(_try_to_open(path))
        result = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if result == 0:
            raise LimitFailed(f"{path} was hidden in {directory} and could still be opened there")
        if result != errno.EPERM:
            raise LimitFailed(f"the test with {path} in {directory} ended with {result}")
        if _try_to_open(path) != 0:
            raise LimitFailed(f"{path} was hidden in {directory} and could not be opened outside")
    finally:
        if os.getpid() != launcher:
            # A copy of the launcher must never return to its work.
            os._exit(_NOT_INSIDE)
        with suppress(OSError):
            remove_all(directory)


def _harmless_device() -> tuple[str, DeviceNode]:
    for path in _HARMLESS:
        if _try_to_open(path) == 0:
            with suppress(OSError, ValueError):
                return path, node_at(path)
    raise LimitFailed(f"none of {', '.join(_HARMLESS)} can be opened, to try it with")


def _try_to_open(path: str) -> int:
    """Return 0, or the number of the error."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _fork_into(directory: str) -> int:
    """Fork a process that begins in the cgroup of version 2 at `directory`."""
    if syscalls.why_no_fork_into() is None:
        place = opened(directory, os.O_PATH | os.O_DIRECTORY)
        # Where all jobs together have as many processes as allowed, one that moves is let in.
        with place as cgroup_fd, suppress(BlockingIOError):
            return syscalls.fork_into(cgroup_fd)
    return _fork_and_enter(f"{directory}/cgroup.procs")


def _fork_and_enter(file: str) -> int:
    """Fork a process that enters a cgroup by a write to its `file`."""
    pid = syscalls.fork()
    if pid == 0:
        try:
            put(file, "0")
        except OSError:
            os._exit(_NOT_INSIDE)
    return pid


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

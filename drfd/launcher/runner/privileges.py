"""Rights that a runner gives up: some at its start, later all but those to wait and to kill.

A runner that waits for a job of hours is a process of root's that does hardly anything. When its
job has run for a while, the runner drops its privileges: it keeps only the right to kill and the
system calls that it needs to record the end of the job. After that it can no longer change its uid,
execute a program, trace a process, mount or open a socket; it can open only the files of its job's
cgroup, and read /proc. It takes no further attempt, because children would inherit all of this. It
cannot load a Python module any more, so everything it needs is imported before. Short jobs are over
before that time, and share a runner.

The bounding set is never reduced, so set-user-id programs work in jobs.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
from collections.abc import Iterable
from functools import partial

from drfd.common import failpoints
from drfd.linux import syscalls
from drfd.linux.syscalls import Capabilities

#: Seconds that a job runs before its runner drops its privileges. Another runner has to be forked
#: then, which costs as much as a short job.
DROP_AFTER_S = 1.0

#: Numbers of capabilities(7).
DAC_OVERRIDE, DAC_READ_SEARCH, KILL, SETGID, SETUID = 1, 2, 5, 6, 7
SYS_ADMIN, SYS_RESOURCE, AUDIT_CONTROL = 21, 24, 30

#: Architecture → its number in struct seccomp_data; and system call → its numbers on these
#: architectures, for the calls that a runner without privileges is refused. Where an
#: architecture lacks a call, another call in this table does its work there.
_ARCHITECTURES: dict[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # Programs and processes.
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "personality": (135, 92),
    # Other identities and rights.
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setgroups": (116, 159),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
    "capset": (126, 91),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Namespaces and mounts.
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    # Files of others.
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    # The network, and local sockets.
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    # The kernel.
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "syslog": (103, 116),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
}
#: System call numbers from here on belong to x32, a second table of calls of x86_64.
_X32 = 0x40000000

# Classic BPF (linux/filter.h): load a word of seccomp_data, jump if equal, if at least, return.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def needed(*, enters_spaces: bool, serves_root: bool) -> int:
    """Return the capabilities of a runner at its start, as bits. `enters_spaces` is set if jobs
    have a /tmp of their own, and `serves_root` if root's own jobs run here, whose directories and
    output files may belong to any user."""
    found = [KILL, SETGID, SETUID, SYS_RESOURCE, AUDIT_CONTROL]
    found += [SYS_ADMIN] * enters_spaces + [DAC_OVERRIDE, DAC_READ_SEARCH] * serves_root
    return sum(1 << number for number in found)


def limit_capabilities(bits: int) -> None:
    """Give up all capabilities but these, for good. None is added that the process lacks."""
    if os.getuid() != 0:
        return
    try:
        kept = syscalls.capabilities().permitted & bits
        syscalls.set_capabilities(Capabilities(kept, kept, 0))
    except OSError:
        # The numbers of this machine's system calls are unknown; `warnings` reports that.
        return


def drop_privileges(cgroup: Iterable[str] = ()) -> None:
    """Give up all rights but those needed to wait for a job's end. `cgroup` lists the directories
    of the job's cgroup. A part that this kernel lacks is skipped; `warnings` has reported it at the
    launcher's start."""
    limit_capabilities(1 << KILL)
    for give_up in (partial(_restrict_files, cgroup), _filter):
        try:
            give_up()
        except OSError:
            continue


def _restrict_files(cgroup: Iterable[str]) -> None:
    read = syscalls.READ_FILE | syscalls.READ_DIRECTORY
    change = read | syscalls.WRITE_FILE | syscalls.TRUNCATE
    allowed = {"/proc": read} | dict.fromkeys(cgroup, change)
    if (tests := failpoints.directory()) is not None:
        allowed[tests] = ~0
    directories: dict[int, int] = {}
    try:
        for path, rights in allowed.items():
            directories[os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)] = rights
        syscalls.set_no_new_privileges()
        syscalls.allow_only_below(directories)
    finally:
        for fd in directories:
            os.close(fd)


@functools.cache
def why_no_filter() -> str | None:
    """Return the reason why runners cannot filter their system calls here, or None if they can.
    This is tried in a separate process, once."""
    if program() is None:
        return f"the numbers of the system calls are not known for {os.uname().machine}"
    pid = syscalls.fork()
    if pid == 0:
        try:
            _filter()
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return os.strerror(code) if code > 0 else None


def why_open_files() -> str | None:
    """Return the reason why runners can open all of root's files here, or None if they cannot."""
    try:
        syscalls.landlock_rights()
    except OSError as error:
        return error.strerror
    return None


def warnings() -> list[str]:
    """Return sentences for the administrator about rights that runners keep without need."""
    found = []
    if (why := why_no_filter()) is not None:
        found.append(f"runners run without a filter of system calls: {why}")
    if (why := why_open_files()) is not None:
        found.append(f"runners may open any file of root's: no Landlock (Linux 5.13): {why}")
    return found


def _filter() -> None:
    found = program()
    if found is not None:
        syscalls.set_no_new_privileges()
        syscalls.filter_calls(found)


@functools.cache
def program(machine: str = os.uname().machine) -> bytes | None:
    """Return the filter as an array of struct sock_filter, or None for an unknown architecture."""
    if machine not in _ARCHITECTURES:
        return None
    column = list(_ARCHITECTURES).index(machine)
    numbers = (pair[column] for pair in _REFUSED.values())
    refused = sorted({number for number in numbers if number is not None})
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        # Calls by the table of another architecture (32 bits) have other numbers: all are refused.
        (_IF_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_AT_LEAST, len(refused) + 1, 0, _X32),
    ]
    for left, number in zip(range(len(refused), 0, -1), refused, strict=True):
        steps.append((_IF_EQUAL, left, 0, number))
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)

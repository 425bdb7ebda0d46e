"""Becoming the job's user, and the job's environment: in the job's own process, before exec."""

from __future__ import annotations

import functools
import os
import pwd
import resource
import time

# By names of their own: see child.py.
from os import getresuid, getuid, setgroups, setresgid, setresuid

from drfd import service
from drfd.launcher import process
from drfd.launcher.files import get, put
from drfd.launcher.protocol import Order

#: Variables that describe the process drfd, or its submitter, was started in; a job must not take
#: them for its own.
_FOREIGN = (*service.VARIABLES, "DRFD_FAILPOINTS")

#: What the directory has said holds for so long.
_FRESH_S = 1.0

_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class Denied(Exception):
    """The job cannot run as this user; says why."""


def account(uid: int) -> pwd.struct_passwd:
    """The user's present entry: it may have changed since the job was submitted."""
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        if uid == os.getuid():
            # Containers run with bare uids; the user's own daemon needs no name for them.
            return pwd.struct_passwd((str(uid), "", uid, os.getgid(), "", "/", "/bin/sh"))
        raise Denied(f"there is no user with uid {uid} any more") from None


def groups_of(user: pwd.struct_passwd) -> list[int]:
    """The user's present groups, for who can take them."""
    return os.getgrouplist(user.pw_name, user.pw_gid) if os.getuid() == 0 else []


class Directory:
    """Accounts and groups as a runner asks for them. The system's directory may take a hundred
    calls to answer, so that of many short jobs it is asked once a second: whoever is taken out of a
    group is out of it for jobs that start a second later."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, pwd.struct_passwd, list[int]]] = {}

    def look_up(self, uid: int) -> tuple[pwd.struct_passwd, list[int]]:
        """The account and its groups. Raises Denied."""
        now_s = time.monotonic()
        known = self._known.get(uid)
        if known is not None and now_s - known[0] < _FRESH_S:
            return known[1:]
        user = account(uid)
        groups = groups_of(user)
        # Of the others nobody may ask again.
        self._known = {uid: (now_s, user, groups)}
        return user, groups


def become(user: pwd.struct_passwd, groups: list[int], preferred_gid: int) -> None:
    """Drop to the user for good, groups first, and make sure that it holds. `groups`: as
    `groups_of` has them."""
    if getuid() != 0:
        if user.pw_uid != getuid():
            raise Denied(f"this launcher runs as uid {getuid()} and cannot become {user.pw_uid}")
        return
    gid = preferred_gid if preferred_gid in groups else user.pw_gid
    setgroups(groups)
    setresgid(gid, gid, gid)
    setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    if user.pw_uid == 0 or (getresuid() == (user.pw_uid,) * 3 and process.drops_capabilities()):
        return
    try:
        os.setuid(0)
    except PermissionError:
        return
    raise Denied("root's rights could be had back after they were dropped")


def environment(user: pwd.struct_passwd, order: Order) -> dict[str, str]:
    """The submitter's variables, then the account's own, then drfd's: the last one wins."""
    env = {name: value for name, value in order.env.items() if name not in _FOREIGN}
    env.setdefault("PATH", _DEFAULT_PATH)
    env |= {
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell or "/bin/sh",
        "PWD": order.cwd,
    }
    return env | order.variables


_OOM_SCORE = "/proc/self/oom_score_adj"


@functools.cache
def oom_score() -> str:
    """That of this process; asked of the kernel once."""
    return get(_OOM_SCORE).strip()


def reset_oom_score() -> None:
    """A job is as likely to be killed as any program, whatever the launcher's own score."""
    try:
        if oom_score() != "0":
            put(_OOM_SCORE, "0")
    except PermissionError:
        # Set by root for a user's whole session: only root may lower it again.
        return


#: The soft limit of open files that we were started with, which is what jobs get.
_soft_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow_many_files() -> None:
    """The launcher holds a descriptor for each runner: as many as it may have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def reset_file_limit() -> None:
    """Jobs get the usual limit: programs that close all descriptors up to it are slow with more."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (_soft_files, hard))

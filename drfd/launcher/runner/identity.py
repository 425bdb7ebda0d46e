"""The user of a job: the account and groups, and the environment that comes of them."""

from __future__ import annotations

import errno
import json
import os
import pwd
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from os import getuid
from pathlib import Path

from drfd.launcher.protocol import LaunchOrder
from drfd.launcher.system.background import BackgroundWork
from drfd.linux import service, syscalls
from drfd.linux.own_process import drop_rights
from drfd.linux.sealed import read_sealed
from drfd.linux.user_database import PASSWD, Version, version_of, written_name
from drfd.payload.environment import (
    DEFAULT_PATH,
    DEFAULTS,
    GRES_PREFIX,
    OPENMP,
    PASSIVE_WAIT,
    WAIT_POLICY,
    thread_defaults,
)
from drfd.payload.unpack import LaunchPayload

#: Seconds that an answer of the user directory is good for, unless a file in `_FILES` changes, that
#: its groups are asked for again, and that it may take.
_FRESH_S, _KEPT_S, _ANSWER_S = 1.0, 60.0, 120
_FILES = PASSWD, Path("/etc/group")


#: The highest uid that a user can have; the next number means "no uid".
_MOST_UID = (1 << 32) - 2


#: Why a process does not become a user whom it could leave again.
REGAINED = "root's rights could be had back after they were dropped"


class Denied(Exception):
    """The job cannot run, or not as this user; the text is the reason."""


class DirectoryFailed(Exception):
    """The user directory cannot answer now; it may do so later."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the user directory does not answer: {os.strerror(number)}")
        self.errno = number


def account(uid: int, name: str) -> pwd.struct_passwd:
    """Return the user's present entry, which may have changed since the job was submitted. `name`
    is the account's name as drfd writes it (`written_name`). Raises Denied if the uid no longer
    belongs to it, since it may be another person's by now, and DirectoryFailed if the directory
    cannot answer."""
    is_self = uid == os.getuid()
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        if is_self:
            # In containers a uid may have no account; the user's own daemon needs none.
            return pwd.struct_passwd((str(uid), "", uid, os.getgid(), "", "/", "/bin/sh"))
        _insist_on_an_answer(uid)
        raise Denied(f"there is no user with uid {uid} any more") from None
    if written_name(user.pw_name) != name and not is_self:
        raise Denied(f"the account {name} no longer has uid {uid}")
    return user


def _insist_on_an_answer(uid: int) -> None:
    """Raise DirectoryFailed unless it is certain that a uid has no account."""
    if uid > _MOST_UID:
        return
    try:
        has_appeared = syscalls.has_account(uid)
    except OSError as error:
        raise DirectoryFailed(error.errno or errno.EIO) from None
    if has_appeared:
        raise DirectoryFailed(errno.EAGAIN)


def groups_of(user: pwd.struct_passwd, expected: Iterable[int] = ()) -> list[int]:
    """Return the user's present groups, or none if this process cannot change groups. Raises
    DirectoryFailed if an `expected` group is missing and the directory cannot answer what it is:
    getgrouplist silently omits groups that the directory cannot name now."""
    if os.getuid() != 0:
        return []
    try:
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
    except UnicodeEncodeError:
        groups = syscalls.groups_of(os.fsencode(user.pw_name), user.pw_gid)
    for gid in {*expected}.difference(groups):
        try:
            syscalls.has_group(gid)
        except OSError as error:
            raise DirectoryFailed(error.errno or errno.EIO) from None
    return groups


Found = tuple[pwd.struct_passwd, list[int]]


class Directory:
    """The accounts of users and their groups. The system's directory may take a hundred calls to
    answer, or never do so, so it is asked in a process of its own, and for many short jobs once a
    second: a user who is removed from a group of a directory service has lost it for jobs that
    start a second later. Changes of /etc/passwd and /etc/group take effect at the next job."""

    def __init__(self, background: BackgroundWork) -> None:
        self._background = background
        self._known: dict[tuple[int, str], tuple[float, list[Version], Found]] = {}
        self._asked: dict[tuple[int, str], list[Callable[[Denied | DirectoryFailed | None], None]]]
        self._asked = {}

    def known(self, order: LaunchOrder) -> Found | None:
        """Return the account and its groups, or None if they must be asked for."""
        known = self._known.get((order.uid, order.user))
        if known is None or time.monotonic() - known[0] >= _FRESH_S or known[1] != _versions():
            return None
        return known[2]

    def ask(
        self, order: LaunchOrder, on_answer: Callable[[Denied | DirectoryFailed | None], None]
    ) -> None:
        """Ask for the account of an order's user and its groups, and call `on_answer` when they are
        known, or with the reason why they are not. Raises OSError."""
        who = order.uid, order.user
        if who not in self._asked:
            before = self._known[who][2][1] if who in self._known else []
            expected = [gid for gid in (order.gid, *before) if gid <= _MOST_UID]
            # Before it is asked: a change meanwhile makes the answer old.
            versions = _versions()
            answer_fd = os.memfd_create("account", os.MFD_CLOEXEC)
            try:
                self._background.start(
                    lambda: _answer(*who, expected, answer_fd),
                    lambda: self._take(who, versions, answer_fd),
                    answer_fd,
                    nice=0,
                )
            except OSError:
                os.close(answer_fd)
                raise
            self._asked[who] = []
        self._asked[who].append(on_answer)

    def _take(self, who: tuple[int, str], versions: list[Version], answer_fd: int) -> None:
        data = read_sealed(answer_fd)
        os.close(answer_fd)
        problem: Denied | DirectoryFailed | None = None
        try:
            answer = json.loads(data)
        except ValueError:
            # It took too long, was killed, or had no memory for all.
            answer = None
        match answer:
            case [list(entry), list(groups)]:
                now_s = time.monotonic()
                self._known = {
                    other: known for other, known in self._known.items()
                    if now_s - known[0] < _KEPT_S
                }  # fmt: skip
                self._known[who] = now_s, versions, (pwd.struct_passwd(entry), groups)
            case [str(why)]:
                problem = Denied(why)
            case [int(number)]:
                problem = DirectoryFailed(number)
            case _:
                problem = DirectoryFailed(errno.ETIMEDOUT)
        for on_answer in self._asked.pop(who):
            on_answer(problem)


def _versions() -> list[Version]:
    return [version_of(file) for file in _FILES]


def _answer(uid: int, name: str, expected: list[int], into: int) -> None:
    """Write the account and its groups as JSON, or why they cannot be had."""
    # What the directory is asked by is code of the machine's, which needs none of root's rights.
    with suppress(OSError):
        syscalls.set_capabilities(syscalls.Capabilities(0, 0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_ANSWER_S)
    try:
        user = account(uid, name)
        insist_on_root_for(user)
        answer: list[object] = [list(user), groups_of(user, expected)]
    except Denied as error:
        answer = [str(error)]
    except DirectoryFailed as error:
        answer = [error.errno]
    os.write(into, json.dumps(answer).encode())


def insist_on_root_for(user: pwd.struct_passwd) -> None:
    """Raise Denied if this process cannot become the user, because it is another one's."""
    if getuid() not in (0, user.pw_uid):
        raise Denied(f"this launcher runs as uid {getuid()} and cannot become {user.pw_uid}")


def gid_of(user: pwd.struct_passwd, groups: list[int], preferred: int) -> int:
    """Return the primary group of a job: the preferred one, if the user is still in it."""
    return preferred if preferred in groups else user.pw_gid


def become(user: pwd.struct_passwd, groups: list[int], preferred_gid: int) -> None:
    """Drop to the user for good, groups first, and verify it. `groups` come from `groups_of`.
    Raises Denied if root's rights could be regained."""
    insist_on_root_for(user)
    if getuid() != 0:
        return
    try:
        drop_rights(user.pw_uid, gid_of(user, groups, preferred_gid), groups)
    except PermissionError:
        raise Denied(REGAINED) from None


@dataclass(frozen=True, slots=True)
class Variables:
    """What root decides of a job's environment."""

    #: Beginnings of variables of the submitter's that the job does not get.
    hidden: tuple[str, ...]
    #: Those it gets unless the submitter has set them; or them or OPENMP; or them or WAIT_POLICY.
    defaults: dict[str, str]
    openmp: dict[str, str]
    wait: dict[str, str]
    #: Those it gets in any case.
    own: dict[str, str]


def variables_of(user: pwd.struct_passwd, order: LaunchOrder) -> Variables:
    usual, openmp = (
        thread_defaults(order.threads, order.floor_threads) if order.threads else ({}, {})
    )
    # Also those of the service in which drfd, or the submitter, was started.
    hidden = (*(f"{name}=" for name in (*order.hidden, *service.VARIABLES)), GRES_PREFIX)
    wait = PASSIVE_WAIT if order.may_be_lent_cores else {}
    defaults = usual | DEFAULTS | {"PATH": DEFAULT_PATH}
    return Variables(hidden, defaults, openmp, wait, account_variables(user) | order.variables)


def environment(
    user: pwd.struct_passwd, order: LaunchOrder, payload: LaunchPayload
) -> dict[str, str]:
    """Return the job's environment, as `environment` of user.h does."""
    rules = variables_of(user, order)
    given = {
        name: text for name, text in payload.env.items() if not f"{name}=".startswith(rules.hidden)
    }
    openmp = {} if OPENMP in given else rules.openmp
    wait = {} if WAIT_POLICY in given else rules.wait
    return rules.defaults | openmp | wait | given | {"PWD": payload.cwd} | rules.own


def account_variables(user: pwd.struct_passwd) -> dict[str, str]:
    return {
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell or "/bin/sh",
    }

"""The user of a job: the account and groups, and the environment that comes of them."""

from __future__ import annotations

import errno
import pwd
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import TypeAlias

from drfd.launcher.protocol import LaunchOrder
from drfd.launcher.system.accounts import (
    MOST_UID,
    AccountProcess,
    Denied,
    DirectoryFailed,
    NotAsked,
)
from drfd.linux import service
from drfd.linux.user_database import PASSWD, Version, version_of
from drfd.payload.environment import (
    DEFAULT_PATH,
    DEFAULTS,
    GRES_PREFIX,
    PASSIVE_WAIT,
    thread_defaults,
)

#: Seconds after which an answer of the user directory is asked for anew, for which it is good
#: unless a file in `_FILES` changes, that its groups are asked for again, and that it may take.
_FRESH_S, _GOOD_S, _KEPT_S, _ANSWER_S = 1.0, 15.0, 60.0, 120
#: Seconds between a launch by an answer that is not fresh and the next question: the process that
#: asks would compete with the job's start for the machine's cores.
_PAUSE_S = 0.05
_FILES = PASSWD, Path("/etc/group")
#: Numbers of groups, and of the kernel's errors: a directory service's code is others', and what
#: asks it has no rights, so it may answer anything.
_IDS, _ERRORS = range((1 << 32) - 1), range(4096)


Found = tuple[pwd.struct_passwd, list[int]]
Problem: TypeAlias = Denied | DirectoryFailed
OnAnswer = Callable[[Problem | None], None]


class Directory:
    """The accounts of users and their groups. The system's directory may take a hundred calls to
    answer, or never do so, so it is asked for many short jobs once a second, and after a launch,
    not before it, if there was an answer a short time ago: a user who is removed from a group of a
    directory service has lost it for jobs that start 15 seconds later. Changes of /etc/passwd and
    /etc/group take effect at the next job."""

    def __init__(self, accounts: AccountProcess) -> None:
        self._accounts = accounts
        self._known: dict[tuple[int, str], tuple[float, list[Version], Found]] = {}
        self._asked: dict[tuple[int, str], list[OnAnswer]] = {}
        #: Orders whose accounts are to be asked for again, and when (monotonic clock).
        self._stale: dict[tuple[int, str], LaunchOrder] = {}
        self._due_mono_s = 0.0

    def known(self, order: LaunchOrder) -> Found | None:
        """Return the account and its groups, or None if they must be asked for."""
        who, now_s = (order.uid, order.user), time.monotonic()
        at_s, versions, found = self._known.get(who, (-inf, None, None))
        if now_s - at_s >= _GOOD_S or versions != _versions():
            return None
        if now_s - at_s >= _FRESH_S:
            if not self._stale:
                self._due_mono_s = now_s + _PAUSE_S
            self._stale[who] = order
        return found

    def pause_s(self) -> float | None:
        """Return the seconds until accounts are to be asked for again, or None if none are."""
        return max(0.0, self._due_mono_s - time.monotonic()) if self._stale else None

    def run_due(self) -> None:
        """Ask for the accounts that are due."""
        if self.pause_s() == 0:
            orders, self._stale = self._stale.values(), {}
            for order in orders:
                with suppress(OSError):
                    self.ask(order, lambda problem: None)

    def ask(self, order: LaunchOrder, on_answer: OnAnswer) -> None:
        """Ask for the account of an order's user and its groups, and call `on_answer` when they are
        known, or with the reason why they are not. Raises OSError."""
        who = order.uid, order.user
        if who not in self._asked:
            before = self._known[who][2][1] if who in self._known else []
            expected = [gid for gid in (order.gid, *before) if gid <= MOST_UID]
            # Before it is asked: a change meanwhile makes the answer old.
            versions = _versions()
            question = _ANSWER_S, "account", *who, expected
            self._accounts.ask(question, partial(self._take, who, versions))
            self._asked[who] = []
        self._asked[who].append(on_answer)

    def _take(self, who: tuple[int, str], versions: list[Version], answer: object) -> None:
        try:
            found = found_in(answer, who[0])
        except (Denied, DirectoryFailed) as error:
            problem: Problem | None = error
            if who in self._known:
                # Its groups are still to be asked for.
                at_s, before, known = self._known[who]
                self._known[who] = min(at_s, time.monotonic() - _GOOD_S), before, known
        else:
            problem, now_s = None, time.monotonic()
            self._known = {
                other: known for other, known in self._known.items()
                if now_s - known[0] < _KEPT_S
            }  # fmt: skip
            self._known[who] = now_s, versions, found
        for on_answer in self._asked.pop(who):
            on_answer(problem)


def found_in(answer: object, uid: int) -> Found:
    """Return the account and its groups as `accounts` has answered, which is believed only of the
    uid that was asked for. Raises Denied, DirectoryFailed."""
    match answer:
        case [[str(), str(), int(number), int(), str(), str(), str()] as entry, list(groups)]:
            if number == uid and all(type(gid) is int and gid in _IDS for gid in groups):
                return pwd.struct_passwd(entry), groups
        case [str(why)]:
            raise Denied(why.encode(errors="backslashreplace").decode())
        case [int(number)] if number in _ERRORS:
            raise DirectoryFailed(number)
        case {"not_asked": int(number)} if number in _ERRORS:
            raise NotAsked(number)
    raise DirectoryFailed(errno.ETIMEDOUT)


def _versions() -> list[Version]:
    return [version_of(file) for file in _FILES]


def gid_of(user: pwd.struct_passwd, groups: list[int], preferred: int) -> int:
    """Return the primary group of a job: the preferred one, if the user is still in it."""
    return preferred if preferred in groups else user.pw_gid


@dataclass(frozen=True, slots=True)
class Variables:
    """What root decides of a job's environment, and alike jobs have in common."""

    #: Beginnings of variables of the submitter's that the job does not get.
    hidden: tuple[str, ...]
    #: Those it gets unless the submitter has set them; or them or OPENMP; or them or WAIT_POLICY.
    defaults: dict[str, str]
    openmp: dict[str, str]
    wait: dict[str, str]


def variables_of(order: LaunchOrder) -> Variables:
    usual, openmp = (
        thread_defaults(order.threads, order.floor_threads) if order.threads else ({}, {})
    )
    # Also those of the service in which drfd, or the submitter, was started.
    hidden = (*(f"{name}=" for name in (*order.hidden, *service.VARIABLES)), GRES_PREFIX)
    wait = PASSIVE_WAIT if order.limits.cores_max_milli else {}
    defaults = usual | DEFAULTS | {"PATH": DEFAULT_PATH}
    return Variables(hidden, defaults, openmp, wait)


def own_variables(user: pwd.struct_passwd, order: LaunchOrder) -> dict[str, str]:
    """Return those that a job gets in any case."""
    return {
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell or "/bin/sh",
        **order.variables,
    }

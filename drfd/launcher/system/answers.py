"""The program that asks the system's user directory about accounts, as `nobody`: see `accounts`.

python -m drfd.launcher.system.nobody drfd.launcher.system.answers [SOCKET]
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import signal
import socket
import sys
from collections.abc import Iterable, Sequence

from drfd.launcher.system import process
from drfd.launcher.system.accounts import (
    MOST_BYTES,
    MOST_UID,
    Denied,
    DirectoryFailed,
    Question,
)
from drfd.linux import syscalls
from drfd.linux.sealed import receive
from drfd.linux.user_database import look_up_name, written_name


def account(uid: int, name: str, own: tuple[int, int]) -> pwd.struct_passwd:
    """Return the user's present entry, which may have changed since the job was submitted. `name`
    is the account's name as drfd writes it (`written_name`), and `own` the launcher's uid and gid.
    Raises Denied if the uid no longer belongs to it, since it may be another person's by now, and
    DirectoryFailed if the directory cannot answer."""
    is_self = uid == own[0]
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        if is_self:
            # In containers a uid may have no account; the user's own daemon needs none.
            return pwd.struct_passwd((str(uid), "", *own, "", "/", "/bin/sh"))
        _insist_on_an_answer(uid)
        raise Denied(f"there is no user with uid {uid} any more") from None
    if written_name(user.pw_name) != name and not is_self:
        raise Denied(f"the account {name} no longer has uid {uid}")
    return user


def _insist_on_an_answer(uid: int) -> None:
    """Raise DirectoryFailed unless it is certain that a uid has no account."""
    if uid > MOST_UID:
        return
    try:
        has_appeared = syscalls.has_account(uid)
    except OSError as error:
        raise DirectoryFailed(error.errno or errno.EIO) from None
    if has_appeared:
        raise DirectoryFailed(errno.EAGAIN)


def groups_of(user: pwd.struct_passwd, expected: Iterable[int] = ()) -> list[int]:
    """Return the user's present groups. Raises DirectoryFailed if an `expected` group is missing
    and the directory cannot answer what it is: getgrouplist silently omits groups that the
    directory cannot name now."""
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


def _found(uid: int, name: str, expected: list[int], own: tuple[int, int]) -> list[object]:
    """Return the account and its groups, which only root can give a job, or why not."""
    try:
        user = account(uid, name, own)
        if own[0] not in (0, user.pw_uid):
            raise Denied(f"this launcher runs as uid {own[0]} and cannot become {user.pw_uid}")
        return [list(user), groups_of(user, expected) if own[0] == 0 else []]
    except Denied as error:
        return [str(error)]
    except DirectoryFailed as error:
        return [error.errno]


def _name_of(uid: int, own: tuple[int, int]) -> str | None:
    """Return the account's name, or None if there is none. The launcher's own uid may have no
    account, as in containers; then its name is the number."""
    try:
        name = look_up_name(uid)
    except OSError:
        if uid != own[0]:
            raise
        name = None
    return str(uid) if name is None and uid == own[0] else name


def _entry_of(name: str) -> list[object] | None:
    try:
        return list(pwd.getpwnam(name))
    except KeyError:
        return None


def answer_to(question: Question, own: tuple[int, int]) -> object:
    match question:
        case [_, "account", int(uid), str(name), list(expected)]:
            return _found(uid, name, expected, own)
        case [_, "name", int(uid)]:
            return _name_of(uid, own)
        case [_, "entry", str(name)]:
            return _entry_of(name)
    raise ValueError(question)


def main(words: Sequence[str], own: tuple[int, int]) -> None:
    """Answer the questions that come by a socket, whose number is given, or the one that comes by
    standard input. `own` is the launcher's uid and gid."""
    if not words:
        sys.stdout.write(json.dumps(answer_to(json.load(sys.stdin), own)))
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=int(words[0])) as questions:
        while fds := receive(questions, 1, 2)[1]:
            try:
                _answer_apart(questions, fds[0], own)
            except OSError as error:
                # Nobody can be asked now.
                _write(fds[0], {"not_asked": error.errno})
            for fd in fds:
                os.close(fd)


def _answer_apart(questions: socket.socket, fd: int, own: tuple[int, int]) -> None:
    """Answer a question in a process of its own, as the directory may never answer. Whoever asks
    waits for the end of that process. Raises OSError."""
    parent = os.getpid()
    if os.fork() == 0:
        try:
            process.die_with(parent)
            # What the directory's modules do cannot answer for another user.
            questions.close()
            question = json.loads(os.pread(fd, MOST_BYTES, 0))
            signal.alarm(question[0])
            _write(fd, answer_to(question, own))
        finally:
            os._exit(0)


def _write(fd: int, answer: object) -> None:
    """Put the answer in the place of the question."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(answer).encode(), 0)

"""Signatures of submissions: the users' keys, their distribution, and the checks of orders.

Whatever a controller orders, the launcher starts only what its user has signed with a key
(`drfd.payload.signature`). The secret that the users' keys are derived from is a file of the
launcher's own.

Each user gets the user's own key from a separate process, which reads nothing from its callers. The
kernel tells their uid, and the system's user directory the account's name. The process has become
nobody, and a flood of callers delays no launch.
"""

from __future__ import annotations

import gc
import hmac
import mmap
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from drfd.launcher.protocol import SECRET_NAME, Assignment, Inside, LaunchOrder
from drfd.launcher.system.background import BackgroundWork, become_bare
from drfd.linux import syscalls
from drfd.linux.descriptor_guard import guarded
from drfd.linux.descriptors import opened
from drfd.linux.own_process import NOBODY
from drfd.linux.unix_sockets import peer_of
from drfd.linux.user_database import DirectoryAnswer, LocalAccounts, Subordinates, look_up_name
from drfd.payload.signature import (
    KEY_BYTES,
    NO_ACCOUNT,
    Digest,
    exec_digest,
    proof_of,
    user_key,
)

#: Bytes of a sealed file that are in memory at a time.
_PIECE_BYTES = 256 << 10


class SigningKeys:
    """The users' keys."""

    def __init__(self, directory: Path) -> None:
        """Read the secret in the launcher's directory, or make it. Raises OSError or ValueError if
        neither is possible: without it no job that was signed with it could be started."""
        self._secret = _read_secret(directory) or _make_secret(directory)

    def key_of(self, uid: int, name: str) -> bytes:
        return user_key(self._secret, uid, name)

    def accepts(self, uid: int, name: str, digest: bytes, proof: str | None) -> bool:
        return proof is not None and hmac.compare_digest(
            proof_of(self.key_of(uid, name), digest), proof
        )


def sealed_digest(fd: int) -> bytes:
    """Return the digest of a file in memory. The file is read and not mapped: a page that is only a
    hole, or huge, would be allocated for the process that touches it, and be charged to root's
    processes for as long as the file is open anywhere. It is read into memory that is given back,
    so that this process keeps nothing of what a user has written."""
    digest, at = Digest(), 0
    with mmap.mmap(-1, _PIECE_BYTES, flags=mmap.MAP_PRIVATE) as piece, memoryview(piece) as view:
        while count := os.preadv(fd, [view], at):
            digest.update(view[:count])
            at += count
    return digest.value()


def with_check(assignment: Assignment, keys: SigningKeys | None) -> Assignment:
    """Return the assignment with `is_signed` and `digest`. `keys` is None if the controller has the
    launcher's own uid: then it is trusted. Raises OSError."""
    if keys is None:
        return replace(assignment, is_signed=True)
    order, digest = assignment.order, sealed_digest(assignment.payload_fd)
    is_signed = keys.accepts(order.uid, order.user, digest, order.proof)
    return replace(assignment, is_signed=is_signed, digest=digest)


def accepts_inside(order: LaunchOrder, inside: Inside, keys: SigningKeys | None) -> bool:
    """Return whether the job's user has signed this command for this attempt."""
    digest = exec_digest(order.id, order.attempt, inside.command)
    return keys is None or keys.accepts(order.uid, order.user, digest, inside.proof)


def _read_secret(directory: Path) -> bytes | None:
    try:
        secret = (directory / SECRET_NAME).read_bytes()
    except FileNotFoundError:
        return None
    if len(secret) != KEY_BYTES:
        raise ValueError(
            f"{directory / SECRET_NAME} is damaged: restore it, or remove it; then no queued job"
            " can start, and users submit theirs again"
        )
    return secret


def _make_secret(directory: Path) -> bytes:
    """Make the secret and write it to the disk, before anything is signed with it."""
    secret = os.urandom(KEY_BYTES)
    new = directory / f"{SECRET_NAME}.new"
    with opened(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) as fd:
        os.write(fd, secret)
        os.fsync(fd)
    os.rename(new, directory / SECRET_NAME)
    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as fd:
        os.fsync(fd)
    return secret


#: Number of threads that ask the user directory; largest number of uids that wait for them, of
#: subordinate uids that wait for a thread of their own, and of waiting callers of one uid.
_THREADS, _MOST_WAITING, _MOST_LOWEST, _MOST_EACH = 4, 256, 32, 16
#: Largest number of names in the cache.
_MOST_KNOWN = 4096
#: Seconds of pause before the process is started again.
_RESTART_S = 0.5


@dataclass
class KeyService:
    """Keeps the service's process running, as a part of the launcher's loop."""

    listener: socket.socket
    keys: SigningKeys
    background: BackgroundWork
    _due_s: float | None = field(default_factory=time.monotonic)

    def pause_s(self) -> float | None:
        """Return the seconds until the process is to be started, or None if it is running."""
        return None if self._due_s is None else max(0.0, self._due_s - time.monotonic())

    def run_due(self) -> None:
        if self._due_s is None or self._due_s > time.monotonic():
            return
        try:
            self.background.start(self._serve, self._ended, self.listener.fileno())
        except OSError:
            self._ended()
        else:
            self._due_s = None

    def _ended(self) -> None:
        self._due_s = time.monotonic() + _RESTART_S

    def _serve(self) -> None:
        gc.enable()
        # Users' submissions wait for this process, so it is not nice.
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        own_uid = os.getuid()
        if own_uid == 0:
            # Without capabilities root's uid would still open root's files.
            become_bare(NOBODY)
        syscalls.set_no_new_privileges()
        syscalls.set_dumpable(False)
        serve(self.listener, self.keys.key_of, own_uid)


def serve(listener: socket.socket, key_of: Callable[[int, str], bytes], launcher_uid: int) -> None:
    """Answer callers, without end."""
    listener.setblocking(True)
    listener = guarded(listener)
    callers = _Callers(key_of, launcher_uid)
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            # Descriptors are short; callers that give up free some.
            time.sleep(0.01)
            continue
        callers.take(connection, peer_of(connection)[0])


class _Callers:
    """Callers that wait for the name of their account. Each uid is looked up once at a time, and
    subordinate uids, of which one user may have 65,536, in a thread of their own. So a directory
    that does not answer for one user's uids delays no other user."""

    def __init__(self, key_of: Callable[[int, str], bytes], launcher_uid: int) -> None:
        self._key_of, self._launcher_uid = key_of, launcher_uid
        self._subordinates = Subordinates()
        self._local = LocalAccounts()
        #: Guards the two tables below, which the threads share.
        self._lock = threading.Lock()
        #: uid → when the directory was asked (monotonic clock), and its answer.
        self._known: dict[int, tuple[float, DirectoryAnswer]] = {}
        #: uid → callers that wait for its lookup.
        self._callers: dict[int, list[socket.socket]] = {}
        self._usual = self._asked_by(_THREADS, _MOST_WAITING)
        self._lowest = self._asked_by(1, _MOST_LOWEST)

    def _asked_by(self, threads: int, most: int) -> queue.Queue[int]:
        waiting: queue.Queue[int] = queue.Queue(most)
        for _ in range(threads):
            threading.Thread(target=self._work, args=(waiting,), daemon=True).start()
        return waiting

    def take(self, connection: socket.socket, uid: int) -> None:
        """Answer a caller when the name is known. If too many wait, close: it may try again."""
        with self._lock:
            at_s, answer = self._known.get(uid, (0.0, None))
            callers = self._callers.get(uid)
            age_s = time.monotonic() - at_s
            if answer and answer.holds(uid, self._local) and age_s < answer.ages_s()[1]:
                self._answer(connection, uid, answer.name)
                if age_s >= answer.ages_s()[0] and callers is None:
                    self._ask(uid, [])
            elif callers is None:
                self._ask(uid, [connection])
            elif len(callers) < _MOST_EACH:
                callers.append(connection)
            else:
                connection.close()

    def _ask(self, uid: int, callers: list[socket.socket]) -> None:
        try:
            (self._lowest if self._subordinates.has(uid) else self._usual).put_nowait(uid)
        except queue.Full:
            for connection in callers:
                connection.close()
        else:
            self._callers[uid] = callers

    def _work(self, waiting: queue.Queue[int]) -> None:
        while True:
            uid = waiting.get()
            local = self._local.name_of(uid)
            at_s, answer = time.monotonic(), None
            with suppress(OSError, MemoryError):
                answer = DirectoryAnswer(_name_of(uid, uid == self._launcher_uid), local)
            with self._lock:
                callers = self._callers.pop(uid)
                if answer is not None and not answer.holds(uid, self._local):
                    self._ask(uid, callers)
                    continue
                if answer is not None:
                    if len(self._known) >= _MOST_KNOWN:
                        self._known.clear()
                    self._known[uid] = at_s, answer
                for connection in callers:
                    if answer is None:
                        connection.close()
                    else:
                        self._answer(connection, uid, answer.name)

    def _answer(self, connection: socket.socket, uid: int, name: str | None) -> None:
        with connection:
            try:
                connection.setblocking(False)
                connection.send(NO_ACCOUNT if name is None else self._key_of(uid, name))
            except OSError:
                return


def _name_of(uid: int, is_launchers: bool) -> str | None:
    """Return the account's name, or None if there is none. The launcher's own uid may have no
    account, as in containers; then its name is the number."""
    try:
        name = look_up_name(uid)
    except OSError:
        if not is_launchers:
            raise
        name = None
    return str(uid) if name is None and is_launchers else name

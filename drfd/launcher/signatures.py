"""Signatures of submissions: the users' keys, their distribution, and the checks of orders.

Whatever a controller orders, the launcher starts only what its user has signed with a key
(`drfd.payload.signature`). The secret that the users' keys are derived from is a file of the
launcher's own.

A payload may have 64 MiB, whose digest takes a tenth of a second, and no other launch is to wait
for that. So the digest of a longer payload is computed piece by piece, between the other work of
the launcher's loop, and users with long payloads take turns.

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
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from drfd.launcher.attempt_files import Key
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

#: Bytes of a sealed file that are read at a time, in less than a millisecond.
PIECE_BYTES = 256 << 10


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


class SealedDigest:
    """Digest of a file in memory, computed piece by piece, without keeping its contents. The file
    is read and not mapped: a page that is only a hole, or huge, would be allocated for the process
    that touches it, and be charged to root's processes for as long as the file is open anywhere."""

    def __init__(self, fd: int) -> None:
        self._fd, self._at = fd, 0
        self._size = os.fstat(fd).st_size
        self._digest = Digest()

    def step(self) -> bytes | None:
        """Read the next `PIECE_BYTES`. Returns the digest if these were the last, else None."""
        most = min(PIECE_BYTES, self._size - self._at)
        if most:
            with mmap.mmap(-1, most, flags=mmap.MAP_PRIVATE) as piece:
                count = os.preadv(self._fd, [piece], self._at)
                with memoryview(piece) as view, view[:count] as part:
                    self._digest.update(part)
            self._at = self._at + count if count else self._size
        return self._digest.value() if self._at >= self._size else None


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


#: Seconds of pause if the machine is short of memory for a piece.
_SHORTAGE_S = 0.1


@dataclass(eq=False, slots=True)
class _Check:
    assignment: Assignment
    #: Called with the assignment, whose `is_signed` and `digest` are set then.
    on_checked: Callable[[Assignment], None]
    is_launch: bool
    digest: SealedDigest


class SignatureChecks:
    """Checks of assignments, at once or in turns."""

    def __init__(self, keys: SigningKeys | None) -> None:
        """`keys` is None if the controller has the launcher's own uid: then it is trusted."""
        self._keys = keys
        #: uid → its checks; the user whose turn is next comes first.
        self._waiting: dict[int, deque[_Check]] = {}
        self._count = 0
        #: When the next piece is read (monotonic clock).
        self._due_s = 0.0

    def __len__(self) -> int:
        """Return the number of assignments that are waiting."""
        return self._count

    def check_now(self, assignment: Assignment) -> Assignment | None:
        """Return the assignment with `is_signed`, or None if the payload is too long to be checked
        at once."""
        if assignment.is_signed is not None:
            return assignment
        if self._keys is None:
            return replace(assignment, is_signed=True)
        if os.fstat(assignment.payload_fd).st_size > PIECE_BYTES:
            return None
        digest = SealedDigest(assignment.payload_fd)
        while (found := digest.step()) is None:
            pass
        return self._checked(assignment, found)

    def begin(
        self, assignment: Assignment, on_checked: Callable[[Assignment], None], *, is_launch: bool
    ) -> None:
        """Check an assignment in turns with others, and call `on_checked` with the result. An order
        to launch replaces an earlier one for the same attempt."""
        order = assignment.order
        if is_launch:
            self.cancel((order.id, order.attempt))
        check = _Check(assignment, on_checked, is_launch, SealedDigest(assignment.payload_fd))
        self._waiting.setdefault(order.uid, deque()).append(check)
        self._count += 1

    def accepts_inside(self, order: LaunchOrder, inside: Inside) -> bool:
        """Return whether the job's user has signed this command for this attempt."""
        digest = exec_digest(order.id, order.attempt, inside.command)
        return self._keys is None or self._keys.accepts(order.uid, order.user, digest, inside.proof)

    def cancel(self, key: Key) -> None:
        """Drop a waiting order to launch this attempt."""
        for check in [each for one in self._waiting.values() for each in one]:
            order = check.assignment.order
            if check.is_launch and (order.id, order.attempt) == key:
                self._waiting[order.uid].remove(check)
                self._drop(check)

    def cancel_all(self) -> None:
        """Drop all waiting orders, because a controller has connected and sends its own."""
        for checks in self._waiting.values():
            while checks:
                self._drop(checks.popleft())

    def pause_s(self) -> float | None:
        """Return the seconds until `run_due` has something to do, or None if nothing is waiting."""
        return max(0.0, self._due_s - time.monotonic()) if self._count else None

    def run_due(self) -> None:
        """Read the next piece of a payload."""
        if self._due_s > time.monotonic():
            return
        while self._waiting:
            uid = next(iter(self._waiting))
            checks = self._waiting.pop(uid)
            if checks:
                break
        else:
            return
        # This user goes to the end of the queue.
        self._waiting[uid] = checks
        check = checks[0]
        try:
            found = check.digest.step()
        except (OSError, MemoryError):
            self._due_s = time.monotonic() + _SHORTAGE_S
            return
        if found is not None:
            checks.popleft()
            self._count -= 1
            check.on_checked(self._checked(check.assignment, found))

    def _drop(self, check: _Check) -> None:
        self._count -= 1
        check.assignment.close()

    def _checked(self, assignment: Assignment, digest: bytes) -> Assignment:
        order = assignment.order
        if self._keys is None:
            return replace(assignment, is_signed=True)
        is_signed = self._keys.accepts(order.uid, order.user, digest, order.proof)
        return replace(assignment, is_signed=is_signed, digest=digest)


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

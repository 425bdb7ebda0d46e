"""Signatures of submissions: the users' keys, their distribution, and the checks of orders.

Whatever a controller orders, the launcher starts only what its user has signed with a key
(`drfd.payload.signature`). The secret that the users' keys are derived from is a file of the
launcher's own.

Each user gets the user's own key as a file that belongs to the uid. The launcher writes it at the
controller's order, by what the system's user directory says of the uid: an order names nothing
else, and nobody connects to a process of root's for it.
"""

from __future__ import annotations

import hmac
import logging
import os
import signal
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from drfd.common.owner import Owner
from drfd.launcher.protocol import SECRET_NAME, Assignment, ExecOrder
from drfd.launcher.system.background import BackgroundWork
from drfd.linux import syscalls
from drfd.linux.descriptors import opened
from drfd.linux.sealed import read_sealed
from drfd.linux.user_database import look_up_name
from drfd.payload.signature import (
    KEY_BYTES,
    digest_of,
    exec_digest,
    key_file_name,
    proof_of,
    user_key,
)

log = logging.getLogger("drfd.launcher")

#: The right to give a file to its user: CAP_CHOWN, capability 0.
_GIVING = syscalls.Capabilities(1 << 0, 1 << 0, 0)


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
    processes for as long as the file is open anywhere. Nothing of what a user has written is left
    in the memory of this process."""
    content = read_sealed(fd)
    digest = digest_of(content)
    content[:] = bytes(len(content))
    return digest


def with_check(assignment: Assignment, keys: SigningKeys | None) -> Assignment:
    """Return the assignment with `is_signed`. `keys` is None if the controller has the
    launcher's own uid: then it is trusted. Raises OSError."""
    if keys is None:
        return replace(assignment, is_signed=True)
    order, digest = assignment.order, sealed_digest(assignment.payload_fd)
    is_signed = keys.accepts(order.uid, order.user, digest, order.proof)
    return replace(assignment, is_signed=is_signed)


def accepts_exec(order: ExecOrder, owner: Owner, boot_id: str, keys: SigningKeys | None) -> bool:
    """Return whether the attempt's owner has signed that this process be moved into it."""
    if keys is None:
        return True
    if owner.uid is None or owner.user is None or owner.submitted_us is None:
        return False
    job = (order.id, order.attempt, owner.submitted_us)
    digest = exec_digest(*job, order.pid, order.start_ticks, boot_id)
    return keys.accepts(owner.uid, owner.user, digest, order.proof)


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


#: Largest number of key files that are being written, and seconds that the user directory has for
#: each.
_MOST_WRITERS, _PATIENCE_S = 8, 20


class KeyFiles:
    """The users' key files, in a directory that others may enter and not list. Each is its user's
    own, and the name of the account is part of its name. All are written anew after each start of
    the launcher, because the secret may be another one, and accounts may be gone."""

    def __init__(self, directory: Path, keys: SigningKeys, background: BackgroundWork) -> None:
        """Make the directory, or empty it. Raises OSError."""
        self._keys, self._background = keys, background
        directory.mkdir(mode=0o711, exist_ok=True)
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        for name in os.listdir(self._fd):
            os.unlink(name, dir_fd=self._fd)
        #: Uids whose file is being written.
        self._writing: set[int] = set()

    def order(self, uid: int) -> None:
        """Write a user's file, in a process of its own: the user directory may take long. While too
        many are at work, and if no process can be had, nothing is done: clients ask again."""
        if uid in self._writing or len(self._writing) >= _MOST_WRITERS:
            return
        with suppress(OSError):
            write, end = partial(self._write, uid), partial(self._writing.discard, uid)
            # The user's submission waits for it.
            self._background.start(write, end, self._fd, nice=0)
            self._writing.add(uid)

    def _write(self, uid: int) -> None:
        """Write the file under a name that no earlier one has, then rename it, then remove those of
        earlier accounts of the uid, and of a process that was killed."""
        # What asks the directory is code of the machine's, which needs no right of root's.
        with suppress(OSError):
            syscalls.set_capabilities(_GIVING)
        signal.alarm(_PATIENCE_S)
        name = _name_of(uid)
        if name is None:
            return
        key, new, final = self._keys.key_of(uid, name), _new_name(uid), key_file_name(uid, name)
        try:
            with opened(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400, dir_fd=self._fd) as fd:
                os.write(fd, key)
                os.fchown(fd, uid, -1)
            os.rename(new, final, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError as error:
            log.error("event=key-not-written uid=%d error=%s", uid, error.strerror)
        for other in os.listdir(self._fd):
            if other.startswith(f"{uid}-") and other != final:
                os.unlink(other, dir_fd=self._fd)


def _new_name(uid: int) -> str:
    return f"{uid}-new-{os.urandom(8).hex()}"


def _name_of(uid: int) -> str | None:
    """Return the account's name, or None if there is none. The launcher's own uid may have no
    account, as in containers; then its name is the number."""
    is_launchers = uid == os.getuid()
    try:
        name = look_up_name(uid)
    except OSError:
        if not is_launchers:
            raise
        name = None
    return str(uid) if name is None and is_launchers else name

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
from contextlib import suppress
from functools import partial
from pathlib import Path

from drfd.common.owner import Owner
from drfd.launcher.protocol import SECRET_NAME, ExecOrder, LaunchOrder
from drfd.launcher.system.accounts import AccountProcess
from drfd.linux.kernel_files import opened
from drfd.linux.sealed import read_sealed
from drfd.payload.signature import (
    KEY_BYTES,
    digest_of,
    exec_digest,
    key_file_name,
    proof_of,
    user_key,
)

log = logging.getLogger("drfd.launcher")


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


def is_signed(order: LaunchOrder, payload_fd: int, keys: SigningKeys | None) -> bool:
    """Return whether the user has signed what is to be launched. `keys` is None if the controller
    has the launcher's own uid: then it is trusted. Raises OSError."""
    return keys is None or keys.accepts(
        order.uid, order.user, sealed_digest(payload_fd), order.proof
    )


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


#: Largest number of accounts that are asked for, and seconds that the user directory has for each.
_MOST_ASKED, _PATIENCE_S = 8, 20


class KeyFiles:
    """The users' key files, in a directory that others may enter and not list. Each is its user's
    own, and the name of the account is part of its name. All are written anew after each start of
    the launcher, because the secret may be another one, and accounts may be gone."""

    def __init__(self, directory: Path, keys: SigningKeys, accounts: AccountProcess) -> None:
        """Make the directory, or empty it. Raises OSError."""
        self._keys, self._accounts = keys, accounts
        directory.mkdir(mode=0o711, exist_ok=True)
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        for name in os.listdir(self._fd):
            try:
                os.unlink(name, dir_fd=self._fd)
            except OSError as error:
                # What is no file is nobody's key (`client.connection.read_key`).
                log.error("event=not-removed file=%s error=%s", directory / name, error.strerror)
        #: Uids whose accounts are being asked for.
        self._asked: set[int] = set()
        #: The file of each uid that has one.
        self._files: dict[int, str] = {}

    def order(self, uid: int) -> None:
        """Write a user's file as soon as the user directory has told the name. While too many are
        asked for, and if it cannot be asked, nothing is done: clients ask again."""
        if uid in self._asked or len(self._asked) >= _MOST_ASKED:
            return
        with suppress(OSError):
            self._accounts.ask((_PATIENCE_S, "name", uid), partial(self._write, uid))
            self._asked.add(uid)

    def _write(self, uid: int, name: object) -> None:
        """Write the file under a name that no earlier one has, then rename it, then remove that of
        an earlier account of the uid."""
        self._asked.discard(uid)
        if not isinstance(name, str):
            return
        new, final = f"{uid}-new", key_file_name(uid, name)
        try:
            with opened(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400, dir_fd=self._fd) as fd:
                os.write(fd, self._keys.key_of(uid, name))
                os.fchown(fd, uid, -1)
            os.rename(new, final, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            old, self._files[uid] = self._files.get(uid, final), final
            if old != final:
                os.unlink(old, dir_fd=self._fd)
        except OSError as error:
            log.error("event=key-not-written uid=%d error=%s", uid, error.strerror)
            with suppress(OSError):
                os.unlink(new, dir_fd=self._fd)

"""Signatures of submissions by their users, which are checked at the launch.

The launcher has a secret, and derives from it a key for each user, which it writes to a file that
only this user can read. With the key the user's client signs the digest of the payload
(`drfd.payload.pack`); the launcher derives the key again and compares.

Keyed BLAKE2 is a message authentication code by itself (RFC 7693). Imports must stay few: `drf
submit` loads this module.
"""

from __future__ import annotations

import os
from stat import S_ISVTX

try:
    # The same function without OpenSSL, which takes longer to load than everything else.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

KEY_BYTES = 32
#: The directory of the key files, in the launcher's directory.
KEYS_NAME = "keys"
#: Longest payload in bytes. Requests are half as long at most, and the launcher computes digests on
#: its only thread: 4 ms for 4 MiB.
MAX_BYTES = 4 << 20


def digest_of(payload: bytes | bytearray) -> bytes:
    return bytes(blake2b(payload, digest_size=KEY_BYTES).digest())


def exec_digest(
    job_id: int, attempt: int, submitted_us: int, pid: int, start_ticks: int, boot_id: str
) -> bytes:
    """Return the digest of the request that this process be moved into this attempt of a job (`drf
    exec`). Pid, start time and boot identify the process. The id of a job may be given again by a
    restored journal, so the time of submission (`drfd.common.owner.Owner`) identifies it too. It is
    the digest of no payload."""
    process = b"%d.%d.%s" % (pid, start_ticks, boot_id.encode())
    return digest_of(b"drfd-exec-3\0%d.%d.%d\0%s" % (job_id, attempt, submitted_us, process))


def user_key(secret: bytes, uid: int, name: str) -> bytes:
    """Derive the key of a user. It depends on the name too, so that whoever gets the uid of a
    deleted account has another key."""
    about = b"%d\0%s" % (uid, name.encode(errors="surrogateescape"))
    key = blake2b(about, key=secret, digest_size=KEY_BYTES, person=b"drfd-user-key")
    return bytes(key.digest())


def proof_of(key: bytes, digest: bytes) -> str:
    return str(blake2b(digest, key=key, digest_size=KEY_BYTES, person=b"drfd-proof").hexdigest())


def key_file_name(uid: int, name: str) -> str:
    """Return the name of a user's key file. It depends on the user name too, so that the next owner
    of a uid does not take an earlier account's file for the own one."""
    return f"{uid}-{blake2b(name.encode(errors='surrogateescape'), digest_size=8).hexdigest()}"


_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_roots(directory: str) -> int:
    """Open a directory that only root can replace, from / on and without following links. A file
    system that a user has mounted may name root as the owner of anything in it, so nothing is
    opened below a directory of a user's. Raises OSError, PermissionError if it is not so."""
    fd = os.open("/", _STEP)
    try:
        for name in (*directory.split("/"), ""):
            seen = os.fstat(fd)
            if seen.st_uid != 0 or (seen.st_mode & 0o022 and not seen.st_mode & S_ISVTX):
                raise PermissionError
            if name:
                above, fd = fd, os.open(name, _STEP, dir_fd=fd)
                os.close(above)
    except BaseException:
        os.close(fd)
        raise
    return fd

"""Signatures of submissions by their users, which are checked at the launch.

The launcher has a secret, and derives from it a key for each user. Its key service gives a key to
its owner alone, as the kernel identifies the peer. With the key the user's client signs the digest
of the payload (`drfd.payload.pack`); the launcher derives the key again and compares.

Keyed BLAKE2 is a message authentication code by itself (RFC 7693). Imports must stay few: `drf
submit` loads this module.
"""

from __future__ import annotations

import _socket
import time

from drfd.linux.unix_sockets import connect_in_line, peer_of

try:
    # The same function without OpenSSL, which takes longer to load than everything else.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

KEY_BYTES = 32
#: The socket of the key service, in the launcher's directory.
KEY_SOCKET_NAME = "keys.sock"
#: The answer of the key service to a user without an account.
NO_ACCOUNT = b"-"
#: Seconds between two attempts while the key service restarts, and until one answer is there.
_RETRY_S, _ANSWER_S = 0.1, 30


class Digest:
    """The digest of a payload that comes in pieces."""

    def __init__(self) -> None:
        self._state = blake2b(digest_size=KEY_BYTES)

    def update(self, piece: bytes | memoryview) -> None:
        self._state.update(piece)

    def value(self) -> bytes:
        return bytes(self._state.digest())


def digest_of(payload: bytes) -> bytes:
    return bytes(blake2b(payload, digest_size=KEY_BYTES).digest())


def exec_digest(job_id: int, attempt: int, command: bytes) -> bytes:
    """Return the digest of a command that is to run inside this attempt of a job (`drf exec`). It
    is that of no payload, and of no command for another job."""
    return digest_of(b"drfd-exec-1\0%d.%d\0%s" % (job_id, attempt, command))


def user_key(secret: bytes, uid: int, name: str) -> bytes:
    """Derive the key of a user. It depends on the name too, so that whoever gets the uid of a
    deleted account has another key."""
    about = b"%d\0%s" % (uid, name.encode(errors="surrogateescape"))
    key = blake2b(about, key=secret, digest_size=KEY_BYTES, person=b"drfd-user-key")
    return bytes(key.digest())


def proof_of(key: bytes, digest: bytes) -> str:
    return str(blake2b(digest, key=key, digest_size=KEY_BYTES, person=b"drfd-proof").hexdigest())


def fetch_key(key_socket: str, *, patience_s: float) -> bytes | None:
    """Return the key of this process's user, or None without an account, or if no answer is there
    when `patience_s` is over."""
    give_up = time.monotonic() + patience_s
    while True:
        answer = _ask(key_socket)
        if len(answer) == KEY_BYTES:
            return answer
        if answer == NO_ACCOUNT or time.monotonic() > give_up:
            return None
        time.sleep(_RETRY_S)


def _ask(key_socket: str) -> bytes:
    """Return the answer, cut to one byte more than a key has. Only root gives keys: the path of the
    socket comes from the controller."""
    connection = _socket.socket(_socket.AF_UNIX)
    try:
        connect_in_line(connection, key_socket, _ANSWER_S)
        if peer_of(connection)[0] != 0:
            return b""
        # MSG_WAITALL: one timeout for the whole answer.
        return connection.recv(KEY_BYTES + 1, _socket.MSG_WAITALL)
    except OSError:
        return b""
    finally:
        connection.close()

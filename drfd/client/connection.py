"""A connection to the daemon: requests and replies as JSON, also across restarts of the daemon.

Every command of `drf` loads this module, and `drf run` does so while its job is being started, so
imports must stay few: of `socket` only the part that is written in C.
`drfd.client.client` is the interface with Python's own types.
"""

from __future__ import annotations

import _socket
import os
import time
from _collections_abc import Callable
from itertools import islice
from select import select
from stat import S_IFREG
from time import time_ns

from drfd.common.errors import DrfdError, Refused, Unavailable, error_of
from drfd.linux.unix_sockets import at_socket, peer_of
from drfd.payload.pack import of_request
from drfd.payload.signature import KEY_BYTES, digest_of, open_roots, proof_of
from drfd.payload.submitter import SOCKET, SYSTEM_SOCKET, addressed, user_socket
from drfd.protocol.codec import MAX_REQUEST_BYTES, VERSION, Message, decode, encode_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from drfd.payload.pack import Submission
    from drfd.protocol import replies

#: Seconds for which a lost connection is tried again, and between two attempts.
RECONNECT_S = 60.0
RETRY_S = 0.2
#: Seconds that a reply may take, unless the request is to wait.
_ANSWER_S = 120.0
#: Seconds after the launcher went away until which the signing key is waited for, and for how long
#: at least.
_KEY_PATIENCE_S, _LEAST_KEY_PATIENCE_S = 30.0, 5.0
#: Seconds until the key is looked for again, the first time; then twice as long, up to RETRY_S.
_KEY_RETRY_S = 0.01
#: Seconds between two calls of what is done during a wait.
EVERY_S = 1.0
#: Rows in the first page of a long list, which is shown soon, and in each other one.
_FIRST_PAGE, _PAGE = 200, 1000
#: Submissions that are sent together, at most.
_TOGETHER = 128


#: Starts the user's own daemon at this path, and returns when it answers.
Start = Callable[["Path"], None]


class Reconnect:
    """Decides whether and when a request is sent again after its connection failed: for
    `RECONNECT_S` if the daemon was reached before, and otherwise not at all."""

    def __init__(self, connection: Connection, *, is_renewed: bool = True) -> None:
        """`is_renewed`: the time begins again with each lost connection, rather than with the first
        one since `progress`."""
        self._connection = connection
        self._is_renewed = is_renewed
        self._until_s = time.monotonic() + RECONNECT_S if connection.was_there else None

    def progress(self) -> None:
        """Note that the daemon has answered."""
        self._until_s = None

    def check(self, error: Unavailable) -> None:
        """Raise the error if the daemon need not be waited for any longer."""
        now_s = time.monotonic()
        if error.code == "lost" and (self._is_renewed or self._until_s is None):
            self._until_s = now_s + RECONNECT_S
        if self._until_s is None or now_s > self._until_s:
            raise error

    def pause(self, error: Unavailable) -> None:
        """Close the connection and sleep until the next attempt. Raises the error instead if the
        daemon need not be waited for any longer."""
        self._connection.close()
        self.check(error)
        time.sleep(RETRY_S)


class Connection:
    """A connection to the daemon, made at the first request. For one thread at a time."""

    def __init__(
        self, path: Path | str, *, start: Start | None = None, was_there: bool = False
    ) -> None:
        """`start`: called when nothing listens at `path`; it listens there afterwards."""
        self.path = path
        #: Whether the daemon has been reached before.
        self.was_there = was_there
        self._start = start
        self._socket: _socket.socket | None = None
        self._inbox = b""
        #: Whether a request has been sent whose reply has not been read.
        self._is_asked = False
        #: The user's signing key; empty if submissions are not signed, None if it is not known.
        #: Once known it stays: what is signed again was verified with the same key.
        self._key: bytes | None = None

    def request(self, op: str, **fields: object) -> Any:
        """Send a request and return the reply, of which `drfd.protocol.replies` has the type.
        Raises the daemon's refusal, or Unavailable."""
        self.send(op, **fields)
        assert self._socket is not None
        self._socket.settimeout(_ANSWER_S)
        return self.receive()

    def forecast(self, **fields: object) -> replies.DryRunReply:
        """Return the expected start of a job that is not submitted."""
        reply: replies.DryRunReply = self.request("submit", **fields, dry_run=True)
        return reply

    def pages(self, op: str, **fields: object) -> Iterator[Any]:
        """Yield the replies that make up a long list."""
        reply = self.request(op, **{"limit": _FIRST_PAGE, **fields})
        yield reply
        while reply.get("after") is not None:
            reply = self.request(op, **{"limit": _PAGE, **fields, "after": reply["after"]})
            yield reply

    def jobs(self, op: str, **fields: object) -> Iterator[Any]:
        """Yield the jobs of all pages of a list."""
        for page in self.pages(op, **fields):
            yield from page["jobs"]

    def another(self) -> Connection:
        """Return a second connection to the same daemon."""
        return Connection(self.path, start=self._start, was_there=self.was_there)

    def send(self, op: str, **fields: object) -> None:
        """Send a request without waiting for its reply. Raises Unavailable if nobody listens."""
        self._send(self._encoded(op, fields))

    def _encoded(self, op: str, fields: Mapping[str, object]) -> bytes:
        try:
            return encode_request({"op": op, "v": VERSION, **fields})
        except UnicodeEncodeError as error:
            text = f"{_text_around(error)!r} has a character that cannot be sent"
            raise Refused("bad-value", text) from None

    def _send(self, data: bytes) -> None:
        if self._is_asked or self._has_been_left():
            # The last request was interrupted by ^C, and its reply would be taken for this one's;
            # or the daemon was restarted since. A new connection is safe: nothing of this request
            # has been sent.
            self.close()
        if self._socket is None:
            self._socket = self._connect()
        # A `wait` may take days, and an earlier request may have set a timeout.
        self._socket.settimeout(None)
        self._is_asked = True
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            # Either a refusal can be read already, or the daemon is gone.
            pass

    def receive(self) -> Any:
        """Return the next reply, whose type the caller knows. Raises the daemon's refusal, or
        Unavailable: `lost` if the connection was closed, `silent` if the reply takes too long,
        `not-drfd`."""
        reply = self._read_reply()
        if reply.get("ok") is True:
            del reply["ok"]
            return reply
        error = _error_in(reply)
        if error is None:
            raise self._not_drfd()
        raise error

    def await_end(self, timeout_s: float | None = None) -> bool:
        """Wait until the daemon closes the connection. Return False if the time is over first."""
        assert self._socket is not None
        self._socket.settimeout(timeout_s)
        try:
            while self._socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True

    def fileno(self) -> int:
        """Return the descriptor for `select`, or -1 if there is no connection. It is readable when
        a reply, or the end of the connection, has come."""
        return -1 if self._socket is None else self._socket.fileno()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._inbox, self._is_asked = None, b"", False

    def wait(
        self,
        ids: Sequence[int | str],
        *,
        any_one: bool,
        timeout_s: float | None,
        meanwhile: Callable[[], None] | None = None,
    ) -> replies.WaitReply:
        """Wait until the jobs have ended, or one of them if `any_one`, also over restarts of the
        daemon. `meanwhile` is called each second until then."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        reconnect = Reconnect(self)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self.send("wait", ids=list(ids), any=any_one, timeout_s=left)
                while meanwhile is not None and not select([self.fileno()], [], [], EVERY_S)[0]:
                    meanwhile()
                reply: replies.WaitReply = self.receive()
                return reply
            except Unavailable as error:
                if left is not None and left <= 0:
                    self.close()
                    raise
                reconnect.pause(error)

    def _learn_key(self) -> bool:
        """Fetch the signing key unless it is known, and return whether it was asked for. A daemon
        of the same uid is not asked: it seldom wants signatures, and refuses with `not-signed` if
        it does."""
        if self._key is not None:
            return False
        if self._socket is None:
            self._socket = self._connect()
        if peer_of(self._socket)[0] == os.getuid():
            return False
        self._key = self.fetch_key()
        return True

    def fetch_key(self) -> bytes | None:
        """Return the user's signing key: empty if nothing is signed here, None if there is none.
        The daemon is asked to have the launcher write one that cannot be read. A launcher that is
        being restarted is waited for."""
        began_s, pause_s = time.monotonic(), _KEY_RETRY_S
        hello = self.request("hello")
        while True:
            key_file = hello.get("key_file")
            if not isinstance(key_file, str):
                return b""
            key = read_key(key_file)
            left_s = _KEY_PATIENCE_S - (hello.get("launcher_away_s") or 0.0)
            if key or time.monotonic() - began_s > max(_LEAST_KEY_PATIENCE_S, left_s):
                return key
            hello = self.request("hello", needs_key=True)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S)

    def _signed(self, fields: Mapping[str, object]) -> Mapping[str, object]:
        """Return the fields with the user's signature if the daemon wants one. Fields that cannot
        be signed are returned unchanged: the daemon says what is wrong with them."""
        if not self._key or fields.get("dry_run"):
            return fields
        try:
            return {**fields, "proof": proof_of(self._key, digest_of(of_request(fields)))}
        except ValueError:
            return fields

    def submission(self, ref: int | str) -> replies.SubmissionReply:
        """Return the submission of one's own job. Raises Refused unless the daemon gives back what
        its user has signed: nothing else may be signed again. Only the user's own daemon, and
        root's that has nothing signed, are trusted without a signature."""
        reply: replies.SubmissionReply = self.request("submission", id=ref)
        if not reply["label"].replace("_", "", 1).isdecimal():
            # Clients write the label beside what is signed.
            raise self._not_drfd()
        assert self._socket is not None
        uid = peer_of(self._socket)[0]
        self._learn_key()
        if self._key:
            fields, proof = reply["submission"], reply["proof"]
            signed = proof_of(self._key, digest_of(of_request(fields)))
            if proof != signed:
                raise Refused(
                    "not-signed",
                    f"what drfd has kept of job {reply['label']} is not what you have signed",
                    hint="submit it anew",
                )
        elif uid != os.getuid() and (uid != 0 or self._key is None):
            raise Refused(
                "not-signed",
                f"your signature of job {reply['label']} cannot be verified: the launcher gives no"
                " key",
                hint="try again later; drf doctor shows whether the launcher runs",
            )
        return reply

    def addressed(self, fields: Submission) -> dict[str, object]:
        """Return the fields of a new job, whose environment tells `drf` inside it of this
        daemon."""
        return {**fields, "env": addressed(fields["env"], str(self.path))}

    def submit(
        self, meanwhile: Callable[[], None] | None = None, /, **fields: object
    ) -> replies.SubmitReply:
        """Submit a job. A submission whose reply was lost is sent again with the same key, so that
        it is queued once. `meanwhile` is called once, if possible while the daemon is at work."""
        [reply] = self._submit_together([{"key": new_key(), **fields}], meanwhile)
        if isinstance(reply, DrfdError):
            raise reply
        return reply

    def submit_all(
        self, jobs: Iterable[Mapping[str, object]]
    ) -> Iterator[replies.SubmitReply | DrfdError]:
        """Submit many jobs, and yield the reply or the refusal of each, in order. Those that are
        sent together share commits of the daemon's journal, which works on them while the next are
        read. An error of `jobs` is raised when all that came before are answered."""
        left = ({"key": new_key(), **fields} for fields in jobs)
        following: list[Mapping[str, object]] = []
        errors: list[Exception] = []

        def read() -> None:
            try:
                following.extend(islice(left, _TOGETHER))
            except Exception as error:  # of the caller's iterator
                errors.append(error)

        read()
        while following:
            some, following = following, []
            yield from self._submit_together(some, read)
        if errors:
            raise errors[0]

    def _submit_together(
        self, jobs: Sequence[Mapping[str, object]], meanwhile: Callable[[], None] | None
    ) -> Sequence[replies.SubmitReply | DrfdError]:
        """Return the reply or the refusal of each job. Those without a reply when the connection is
        lost are sent again with their keys. `meanwhile` is called once, if possible before the
        first reply is waited for."""
        found: list[replies.SubmitReply | DrfdError] = []
        reconnect = Reconnect(self, is_renewed=False)
        is_asked = False
        while len(found) < len(jobs):
            try:
                is_asked = self._learn_key() or is_asked
                count = self._send_some([self._signed(each) for each in jobs[len(found) :]])
                if meanwhile is not None:
                    meanwhile()
                    meanwhile = None
                got = self._receive_some(count)
            except Unavailable as error:
                reconnect.pause(error)
                continue
            except DrfdError as error:
                got = [error]
            reconnect.progress()
            is_unsigned = isinstance(got[0], DrfdError) and got[0].code == "not-signed"
            if is_unsigned and self._key is None and not is_asked:
                self.close()
                self._key, is_asked = self.fetch_key(), True
                continue
            found += got
        if meanwhile is not None:
            meanwhile()
        return found

    def _send_some(self, jobs: Sequence[Mapping[str, object]]) -> int:
        """Send the first jobs, as many as one request can have, and return how many. Raises Refused
        for the first one if it cannot be sent."""
        texts: list[bytes] = []
        left = MAX_REQUEST_BYTES // 2
        for each in jobs:
            try:
                text = self._encoded("submit", each)
            except Refused:
                if texts:
                    break
                raise
            left -= len(text)
            if texts and left < 0:
                break
            texts.append(text.rstrip(b"\n"))
        if len(texts) == 1:
            self._send(texts[0] + b"\n")
        else:
            self._send(b'{"op":"submit_list","v":%d,"jobs":[%s]}\n' % (VERSION, b",".join(texts)))
        return len(texts)

    def _receive_some(self, count: int) -> list[replies.SubmitReply | DrfdError]:
        assert self._socket is not None
        self._socket.settimeout(_ANSWER_S)
        try:
            reply = self.receive()
        except Unavailable:
            raise
        except DrfdError as error:
            return [error] * count
        return [reply] if count == 1 else [_error_in(each) or each for each in reply["replies"]]

    def _has_been_left(self) -> bool:
        if self._socket is None:
            return False
        try:
            # With a timeout, Python would wait until there is something to read.
            self._socket.setblocking(False)
            return self._socket.recv(1, _socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _connect(self) -> _socket.socket:
        try:
            found = _open(self.path)
        except OSError as error:
            is_nobody = isinstance(error, FileNotFoundError | ConnectionRefusedError)
            if self._start is None or not is_nobody:
                raise Unavailable(
                    "no-daemon",
                    f"no drfd answers at {self.path}: {error.strerror}",
                    hint="is it running? DRFD_SOCKET or --socket name another one",
                ) from None
            from pathlib import Path

            self._start(Path(self.path))
            found = _open(self.path)
        self.was_there = True
        return found

    def _read_reply(self) -> Message:
        assert self._socket is not None
        # A long reply comes in many pieces; each is searched once for the line end.
        pieces = [self._inbox]
        try:
            while b"\n" not in pieces[-1]:
                pieces.append(self._socket.recv(1 << 20))
                if not pieces[-1]:
                    raise ConnectionResetError
        except TimeoutError:
            self.close()
            raise Unavailable(
                "silent", f"drfd has not answered for {_ANSWER_S:.0f} s", hint="is it stopped?"
            ) from None
        except OSError:
            self.close()
            raise Unavailable(
                "lost", "the daemon closed the connection", hint="try again in a moment"
            ) from None
        line, _, self._inbox = b"".join(pieces).partition(b"\n")
        self._is_asked = False
        try:
            return decode(line)
        except ValueError:
            raise self._not_drfd() from None

    def _not_drfd(self) -> Unavailable:
        self.close()
        hint = "DRFD_SOCKET or --socket name another one"
        return Unavailable("not-drfd", f"what answers at {self.path} is not drfd", hint=hint)


def choose(explicit: str | None, *, start: Start | None) -> Connection:
    """Return a connection to the daemon at `explicit` or DRFD_SOCKET, else to the system's, else to
    the user's own. Only the user's own is started when it does not run, and not by a job: it would
    end with the job."""
    named = explicit or os.environ.get(SOCKET)
    if named:
        return Connection(named)
    # The directory exists from the first start after a boot on, so no user's own daemon is started
    # while the system's daemon restarts.
    if os.path.isdir(os.path.dirname(SYSTEM_SOCKET)):
        return Connection(SYSTEM_SOCKET)
    is_inside = "DRF_JOB_ID" in os.environ
    return Connection(user_socket(os.environ), start=None if is_inside else start)


def new_key() -> str:
    """Return a key for a submission. It begins with the time, so that a user's keys come to the end
    of the journal's index: each of random ones would write another page."""
    return f"{time_ns():016x}{os.urandom(8).hex()}"


def count_resources(client: Connection, capacity: Mapping[str, int]) -> Mapping[str, int]:
    """Return how many of each countable resource the machine has, by its capacity of them. Where
    jobs share GPUs by their memory, that is in bytes, and the instances are counted."""
    if not any(":" in name for name in capacity):
        return capacity
    there = client.request("doctor").get("gres", {})
    names = [name.partition(":")[2] or name for name in capacity]
    return {name: len(there[name]) for name in names if name in there}


def _open(path: Path | str) -> _socket.socket:
    connection = _socket.socket(_socket.AF_UNIX)
    try:
        with at_socket(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _error_in(reply: Message) -> DrfdError | None:
    """Return the error in a reply, or None if there is no well-formed one."""
    error = reply.get("error")
    if not isinstance(error, dict):
        return None
    found = [error.get(key) for key in ("kind", "code", "text", "hint")]
    words = [word for word in found if isinstance(word, str)]
    return error_of(*words) if len(words) == len(found) else None


def _text_around(error: UnicodeEncodeError) -> str:
    """Return the text that cannot be encoded, with a ? for each byte that is not UTF-8."""
    first = error.object.rfind('"', 0, error.start) + 1
    text, _, _ = error.object[first:].partition('"')
    return text.encode("ascii", "replace").decode() if not text.isprintable() else text


#: What a key file is, by stat(2).
_KEY_FILE = S_IFREG | 0o400


def read_key(path: str) -> bytes | None:
    """Return the key in this file, or None if there is none. The path comes from the controller,
    and only root gives keys: so the file must be as the launcher makes it, in a directory that only
    root can change."""
    directory, name = os.path.split(path)
    try:
        where = open_roots(directory)
        try:
            place, seen = os.fstat(where), os.stat(name, dir_fd=where, follow_symlinks=False)
            is_roots = not place.st_mode & 0o022 and not _is_users_mount(place.st_dev)
            # A file system may be mounted over the file, too.
            expected = place.st_dev, os.geteuid(), _KEY_FILE
            if not is_roots or (seen.st_dev, seen.st_uid, seen.st_mode) != expected:
                return None
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=where)
        finally:
            os.close(where)
        try:
            key = os.read(file, KEY_BYTES + 1) if os.fstat(file).st_dev == place.st_dev else b""
        finally:
            os.close(file)
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None


def _is_users_mount(device: int) -> bool:
    """Return whether the file system with this device number is a user's (mount.fuse3(8)): one may
    be mounted over the user's home directory, in a directory of root's. Raises OSError."""
    number = b"%d:%d" % (os.major(device), os.minor(device))
    with open("/proc/self/mountinfo", "rb") as mounts:
        for line in mounts:
            # Its point and its source, with blanks escaped, may be named after what is looked for.
            before, _, after = line.rstrip(b"\n").partition(b" - ")
            kinds = after.split(b" ")
            is_same = before.split(b" ")[2] == number and kinds[0].startswith(b"fuse")
            if is_same and b"user_id=0" not in kinds[-1].split(b","):
                return True
    return False

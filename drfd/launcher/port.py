"""The launcher's socket for the controller, and the policy that decides which users' jobs may run.

Jobs run for ordinary users, and for system accounts that the administrator names.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct

from drfd.common.failpoints import reach
from drfd.launcher.protocol import (
    BadMessage,
    Hello,
    LaunchOrder,
    Message,
    Order,
    encode,
    is_system_account,
    read_order,
)
from drfd.linux.sealed import NotSealed, receive, sealed_size
from drfd.linux.unix_sockets import peer_of
from drfd.payload.signature import MAX_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The users whose jobs may run."""

    #: Uids below this are system accounts, which are refused.
    min_uid: int
    #: Uids that are allowed although they are system accounts.
    allowed_uids: frozenset[int]

    def refusal(self, uid: int) -> str | None:
        """Return why jobs of a uid are refused, or None if they may run."""
        if uid in self.allowed_uids or not is_system_account(uid, self.min_uid):
            return None
        return f"jobs of uid {uid} are not allowed: it is root's or a system account's"


log = logging.getLogger("drfd.launcher")

#: Seconds after which a controller that does not read a report is disconnected; it connects again.
_SEND_WAIT_S = 10.0
#: Bytes of reports that are kept until the end of a turn of the loop.
_MAX_UNSENT_BYTES = 64 << 10
#: Largest size of an order, in bytes, and number of descriptors that may precede their orders.
_MAX_ORDER_BYTES, _MAX_WAITING_FDS = 4 << 20, 64
#: Number of descriptors that one message can carry (SCM_MAX_FD, unix(7)).
_MAX_FDS_AT_ONCE = 253


class Port:
    """The connection to the controller, which runs as `controller_uid` or root. A new connection
    replaces the old one."""

    def __init__(self, listener: socket.socket, controller_uid: int) -> None:
        self._listener = listener
        self._controller_uid = controller_uid
        self._connection: socket.socket | None = None
        #: Pieces of a line that is not complete, and their size.
        self._pieces: list[bytes] = []
        self._size = 0
        #: Descriptors whose orders have not been read, in the order of arrival.
        self._fds: deque[int] = deque()
        #: Reports that are to be sent, encoded, and their size.
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0

    def open(
        self,
        selector: selectors.BaseSelector,
        *,
        on_connect: Callable[[], Hello],
        on_order: Callable[[Order, int], None],
    ) -> None:
        """Register with the loop. `on_connect` returns the first report. `on_order` gets an order,
        and the descriptor of a LaunchOrder's payload, a sealed file, which it must close; else
        -1."""
        self._selector, self._hello, self._handle = selector, on_connect, on_order
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def send(self, report: Message | Struct) -> None:
        """Send a report to the controller with the next `flush`, if the controller is connected;
        one that connects later gets all again."""
        if self._connection is None:
            return
        reach("report.before-send")
        data = encode(report)
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes > _MAX_UNSENT_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the reports of this turn of the loop together. Called before whatever takes long."""
        if self._connection is None or not self._unsent:
            return
        data = b"".join(self._unsent)
        self._unsent, self._unsent_bytes = [], 0
        try:
            _send_all(self._connection, data)
        except OSError as error:
            log.warning("event=controller-lost error=%s", error)
            self._drop()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        uid, _ = peer_of(connection)
        if uid not in (0, self._controller_uid):
            log.warning("event=refused peer_uid=%d", uid)
            connection.close()
            return
        # A controller that connects again has lost its old connection, even if the loop has not
        # noticed that.
        self._drop()
        connection.setblocking(False)
        self._connection = connection
        self._selector.register(connection, selectors.EVENT_READ, self._read)
        self.send(self._hello())

    def _drop(self) -> None:
        while self._fds:
            os.close(self._fds.popleft())
        if self._connection is not None:
            self._selector.unregister(self._connection)
            self._connection.close()
        self._connection = None
        self._pieces, self._size = [], 0
        self._unsent, self._unsent_bytes = [], 0

    def _read(self) -> None:
        assert self._connection is not None
        try:
            data, fds, is_cut = receive(self._connection, 1 << 16, _MAX_FDS_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data, fds, is_cut = b"", [], False
        self._fds += fds
        if not data:
            self._drop()
            return
        if is_cut or len(self._fds) > _MAX_WAITING_FDS:
            log.error("event=bad-order error=descriptors")
            self._drop()
            return
        *ends, rest = data.split(b"\n")
        if ends:
            ends[0] = b"".join((*self._pieces, ends[0]))
            self._pieces, self._size = [], 0
        self._pieces.append(rest)
        self._size += len(rest)
        if self._size > _MAX_ORDER_BYTES:
            log.error("event=bad-order error=endless")
            self._drop()
            return
        for line in ends:
            try:
                self._take(line)
            except BadMessage as error:
                log.error("event=bad-order error=%s", error)
                self._drop()
                return

    def _take(self, line: bytes) -> None:
        """Carry out an order. A descriptor that does not belong to it, or is no payload, is closed
        with the connection. Raises BadMessage."""
        order = read_order(line)
        fd = -1
        if isinstance(order, LaunchOrder):
            # The descriptor came with the first byte of this line, or before.
            if not self._fds:
                raise BadMessage("an order without its payload")
            try:
                sealed_size(self._fds[0], MAX_BYTES)
            except NotSealed as error:
                raise BadMessage(str(error)) from None
            fd = self._fds.popleft()
        self._handle(order, fd)


def _send_all(connection: socket.socket, data: bytes) -> None:
    """Send on a socket that does not block. Raises OSError if the other end does not read."""
    try:
        sent = connection.send(data)
    except BlockingIOError:
        sent = 0
    if sent < len(data):
        connection.settimeout(_SEND_WAIT_S)
        connection.sendall(data[sent:])
        connection.setblocking(False)

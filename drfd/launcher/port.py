"""The launcher's one door: the controller's connection, and nobody else's."""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable

from drfd.failpoints import reach
from drfd.launcher.protocol import BadMessage, Message, decode, encode
from drfd.peer import peer_of

log = logging.getLogger("drfd.launcher")

#: A controller that takes no report for so long is dropped; it will connect and ask again.
_SEND_WAIT_S = 10.0
#: No order is longer.
_MAX_ORDER_BYTES = 64 << 20


class Port:
    """Takes one connection at a time, the latest, and only of `controller_uid` or root."""

    def __init__(self, listener: socket.socket, controller_uid: int) -> None:
        self._listener = listener
        self._controller_uid = controller_uid
        self._connection: socket.socket | None = None
        self._inbox = b""

    def open(
        self,
        selector: selectors.BaseSelector,
        *,
        greet: Callable[[], Message],
        obey: Callable[[Message], None],
    ) -> None:
        """Register with the loop. `greet` gives the first report; `obey` raises BadMessage."""
        self._selector, self._greet, self._obey = selector, greet, obey
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def send(self, report: Message) -> None:
        """Without a controller, nothing: it asks for everything when it comes."""
        if self._connection is None:
            return
        reach("report.before-send")
        try:
            self._connection.sendall(encode(report))
        except OSError as error:
            log.warning("event=controller-lost error=%s", error)
            self._drop()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        uid = peer_of(connection).uid
        if uid not in (0, self._controller_uid):
            log.warning("event=refused peer_uid=%d", uid)
            connection.close()
            return
        # A controller that comes back has lost its old connection, even if we have not seen it.
        self._drop()
        connection.settimeout(_SEND_WAIT_S)
        self._connection = connection
        self._selector.register(connection, selectors.EVENT_READ, self._read)
        self.send(self._greet())

    def _drop(self) -> None:
        if self._connection is not None:
            self._selector.unregister(self._connection)
            self._connection.close()
        self._connection, self._inbox = None, b""

    def _read(self) -> None:
        assert self._connection is not None
        try:
            data = self._connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop()
            return
        self._inbox += data
        if len(self._inbox) > _MAX_ORDER_BYTES and b"\n" not in self._inbox:
            log.error("event=bad-order error=endless")
            self._drop()
            return
        *lines, self._inbox = self._inbox.split(b"\n")
        for line in lines:
            try:
                self._obey(decode(line))
            except BadMessage as error:
                log.error("event=bad-order error=%s", error)
                self._drop()
                return

"""Unix sockets that servers listen at."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from drfd.common.errors import HostError
from drfd.linux.unix_sockets import at_socket


class ListeningSocket:
    """A socket of a server. It never replaces a file that is not a dead socket."""

    def __init__(self, path: Path, mode: int) -> None:
        """Listen at `path`, for those whom the `mode` of the file lets write. Raises HostError when
        another program listens there, or when it is not a socket."""
        self.path = path.absolute()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._remove_dead_socket()
            self.listener = self._bind(0o777 & ~mode)
            self._inode = self.path.lstat().st_ino
        except OSError as error:
            raise HostError("socket", f"cannot listen at {path}: {error.strerror}") from error

    def listen(self) -> None:
        """Tell clients of this process's present uid, after it has been changed: they see the one
        with which it has listened (SO_PEERCRED, unix(7))."""
        self.listener.listen()

    def close(self) -> None:
        """Close the socket and remove its file, unless another file is there by now."""
        self.listener.close()
        try:
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        except OSError:
            # Without root's rights the file may stay; the next start removes it.
            return

    def _remove_dead_socket(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise HostError("socket", f"cannot listen at {self.path}: it is not a socket")
        if self._is_answered():
            raise HostError(
                "running",
                f"cannot listen at {self.path}: another program listens there",
                hint="name another with --socket",
            )
        self.path.unlink()

    def _is_answered(self) -> bool:
        try:
            with at_socket(self.path) as address, socket.socket(socket.AF_UNIX) as probe:
                # A blocking connect(2) would wait for a place in a full backlog.
                probe.setblocking(False)
                probe.connect(address)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            return True
        return True

    def _bind(self, mask: int) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        before = os.umask(mask)
        try:
            with at_socket(self.path) as address:
                listener.bind(address)
        finally:
            os.umask(before)
        listener.listen()
        listener.setblocking(False)
        return listener

"""The socket that clients come to: ours alone, and never somebody else's file."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from drfd.errors import HostError
from drfd.paths import at_socket


class Door:
    def __init__(self, path: Path, *, is_open: bool) -> None:
        """Listen at `path`; open to every user of the machine if `is_open`. Raises HostError when
        another daemon answers there, or when it is not a socket."""
        self.path = path.absolute()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._clear()
            self.listener = self._bind(0o111 if is_open else 0o177)
            self._inode = self.path.lstat().st_ino
        except OSError as error:
            raise HostError("socket", f"cannot listen at {path}: {error.strerror}") from error

    def close(self) -> None:
        """Take the socket away, if it is still the one that we made."""
        self.listener.close()
        try:
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        except OSError:
            # Without root's rights any more it stays, and the next start takes it away.
            return

    def _clear(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise HostError("socket", f"cannot listen at {self.path}: it is not a socket")
        if self._is_answered():
            raise HostError(
                "running", f"another drfd answers at {self.path}", hint="name another with --socket"
            )
        self.path.unlink()

    def _is_answered(self) -> bool:
        try:
            with at_socket(self.path) as address, socket.socket(socket.AF_UNIX) as probe:
                probe.connect(address)
        except ConnectionRefusedError:
            return False
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

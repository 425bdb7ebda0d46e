"""How a user's client gets its key."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from drfd.payload.signature import KEY_BYTES, fetch_key


@pytest.mark.slow
def test_who_comes_to_a_crowded_door_waits_in_line(tmp_path: Path) -> None:
    """It was turned away at once, as often as it asked: with a few processes that wait at the door
    all the time one user kept all others from submitting."""
    door = tmp_path / "keys.sock"
    key = bytes(range(KEY_BYTES))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(door))
        listener.listen(0)
        crowd = []
        while True:
            one = socket.socket(socket.AF_UNIX)
            crowd.append(one)
            one.setblocking(False)
            try:
                one.connect(str(door))
            except BlockingIOError:
                break

        def serve() -> None:
            time.sleep(0.5)
            for _ in crowd:
                connection, _ = listener.accept()
                with connection:
                    connection.send(key)

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        assert fetch_key(str(door), patience_s=0) == key
        server.join()
        for one in crowd:
            one.close()


#: More, in either way, than a socket keeps for whoever does not read it.
@pytest.mark.parametrize(("piece_bytes", "pieces"), [(1 << 16, 64), (1, 20_000)])
def test_a_door_that_says_too_much_is_not_heard_out(
    tmp_path: Path, piece_bytes: int, pieces: int
) -> None:
    """All that a false door sent was kept in memory, for as long as it went on."""
    door = tmp_path / "keys.sock"
    sent: list[int] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            for _ in range(pieces):
                sent.append(connection.send(bytes(piece_bytes)))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(door))
        listener.listen(1)
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
        assert fetch_key(str(door), patience_s=-1) is None
        server.join(30)
    assert not server.is_alive()
    assert sum(sent) < piece_bytes * pieces


def test_a_key_that_comes_in_pieces_is_a_key(tmp_path: Path) -> None:
    door = tmp_path / "keys.sock"
    key = bytes(range(KEY_BYTES))

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            for at in range(KEY_BYTES):
                connection.send(key[at : at + 1])
                time.sleep(0.001)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(door))
        listener.listen(1)
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
        assert fetch_key(str(door), patience_s=-1) == key
        server.join(30)

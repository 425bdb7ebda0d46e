"""The socket: ours alone, and never somebody else's file."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from drfd.daemon.door import Door
from drfd.errors import HostError


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(HostError, match="it is not a socket"):
        Door(path, is_open=False)
    assert path.read_text() == "data"


def test_a_socket_that_is_answered_is_left_to_its_owner(tmp_path: Path) -> None:
    first = Door(tmp_path / "s", is_open=False)
    with pytest.raises(HostError, match="another drfd answers"):
        Door(tmp_path / "s", is_open=False)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))
    first.close()
    assert list(tmp_path.iterdir()) == []


def test_a_dead_daemons_socket_is_taken_over(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    door = Door(tmp_path / "s", is_open=True)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o666
    door.close()


def test_at_the_end_another_ones_socket_stays(tmp_path: Path) -> None:
    first = Door(tmp_path / "s", is_open=False)
    (tmp_path / "s").rename(tmp_path / "old")
    second = Door(tmp_path / "s", is_open=False)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    first.close()
    assert (tmp_path / "s").is_socket()
    second.close()


def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 100) / "s"
    door = Door(path, is_open=False)
    assert path.is_socket()
    door.close()

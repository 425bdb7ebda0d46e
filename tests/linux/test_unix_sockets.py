"""Addresses of unix sockets, and connections to them."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.linux.unix_sockets import at_socket, connect_in_line


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="drfd-", dir="/tmp") as directory:
        yield Path(directory)


def of_length(top: Path, length: int) -> Path:
    """A path of exactly this many bytes, in a directory that exists."""
    directory = top
    while length - len(str(directory)) > 100:
        directory /= "d" * min(80, length - len(str(directory)) - 12)
        directory.mkdir()
    path = directory / ("s" * (length - len(str(directory)) - 1))
    assert len(str(path)) == length
    return path


def test_a_path_that_fits_is_its_own_address(short: Path) -> None:
    with at_socket(short / "s") as address:
        assert address == f"{short}/s"


@pytest.mark.parametrize("length", [106, 107, 108, 150, 1000])
def test_a_socket_of_any_path_length_can_be_bound_and_connected_to(
    short: Path, length: int
) -> None:
    path = of_length(short, length)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with at_socket(path) as address:
            assert (address == str(path)) == (length <= 107)
            server.bind(address)
        server.listen()
        connect_in_line(client, str(path), 60)
    assert path.is_socket()


def test_the_length_counts_bytes_and_not_signs(short: Path) -> None:
    path = short / ("ü" * 60)
    with at_socket(path) as address:
        assert address.startswith("/proc/self/fd/")
        assert address.endswith(f"/{path.name}")


def test_the_descriptor_of_a_long_path_is_closed_and_does_not_reach_other_programs(
    short: Path,
) -> None:
    with at_socket(of_length(short, 150)) as address:
        directory = int(address.split("/")[4])
        assert os.get_inheritable(directory) is False
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(directory)


def test_a_long_path_whose_directory_is_missing_is_an_os_error(short: Path) -> None:
    with pytest.raises(FileNotFoundError), at_socket(short / ("d" * 100) / "drfd.sock"):
        pass


@pytest.mark.skipif(os.getuid() == 0, reason="root may list every directory")
def test_the_directory_of_a_long_path_need_only_be_entered(short: Path) -> None:
    path = of_length(short, 150)
    with socket.socket(socket.AF_UNIX) as server, at_socket(path) as address:
        server.bind(address)
        server.listen()
        path.parent.chmod(0o300)
        try:
            with socket.socket(socket.AF_UNIX) as client:
                connect_in_line(client, str(path), 60)
        finally:
            path.parent.chmod(0o700)


@pytest.mark.slow
def test_who_is_not_answered_is_not_kept_for_ever(short: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(short / "s"))
        server.listen()
        before = time.monotonic()
        connect_in_line(client, str(short / "s"), 1)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        assert time.monotonic() - before > 0.9

"""Where things are when nobody says otherwise."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd import paths


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", "/home/alice")
    return Path("/home/alice")


def test_a_users_places_follow_the_xdg_variables() -> None:
    env = {
        "XDG_STATE_HOME": "/s",
        "XDG_CONFIG_HOME": "/c",
        "XDG_RUNTIME_DIR": "/run/user/1001",
    }
    assert paths.user_state(env) == Path("/s/drfd")
    assert paths.user_config(env) == Path("/c/drfd/drfd.toml")
    assert paths.user_socket(env) == Path("/run/user/1001/drfd.sock")


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({}, id="unset"),
        pytest.param(
            {"XDG_STATE_HOME": "", "XDG_CONFIG_HOME": "", "XDG_RUNTIME_DIR": ""}, id="empty"
        ),
    ],
)
def test_without_them_they_are_below_the_home_directory(home: Path, env: dict[str, str]) -> None:
    assert paths.user_state(env) == home / ".local/state/drfd"
    assert paths.user_config(env) == home / ".config/drfd/drfd.toml"
    assert paths.user_socket(env) == home / ".local/state/drfd/drfd.sock"


def test_the_systems_places() -> None:
    """Documented: scripts, unit files and users rely on them."""
    assert Path("/run/drfd/drfd.sock") == paths.SYSTEM_SOCKET
    assert Path("/var/lib/drfd") == paths.SYSTEM_STATE
    assert Path("/etc/drfd/drfd.toml") == paths.SYSTEM_CONFIG


# -- socket addresses --------------------------------------------------------------------------


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="drfd-", dir="/tmp") as directory:
        yield Path(directory)


def test_a_path_that_fits_is_its_own_address(short: Path) -> None:
    assert paths.socket_address(short / "s") == (f"{short}/s", None)


@pytest.mark.parametrize("length", [106, 107, 108, 150, 1000])
def test_a_socket_of_any_path_length_can_be_bound_and_connected_to(
    short: Path, length: int
) -> None:
    path = of_length(short, length)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        for use in (server.bind, client.connect):
            address, directory = paths.socket_address(path)
            assert (directory is None) == (length <= 107)
            try:
                use(address)
            finally:
                if directory is not None:
                    os.close(directory)
            server.listen()
    assert path.is_socket()


def test_the_length_counts_bytes_and_not_signs(short: Path) -> None:
    path = short / ("ü" * 60)
    address, directory = paths.socket_address(path)
    assert directory is not None
    assert address == f"/proc/self/fd/{directory}/{path.name}"
    os.close(directory)


def test_the_descriptor_of_a_long_path_does_not_reach_other_programs(short: Path) -> None:
    _, directory = paths.socket_address(of_length(short, 150))
    assert directory is not None
    assert os.get_inheritable(directory) is False
    os.close(directory)


def test_a_long_path_whose_directory_is_missing_is_an_os_error(short: Path) -> None:
    with pytest.raises(FileNotFoundError):
        paths.socket_address(short / ("d" * 100) / "drfd.sock")


def of_length(top: Path, length: int) -> Path:
    """A path of exactly this many bytes, in a directory that exists."""
    directory = top
    while length - len(str(directory)) > 100:
        directory /= "d" * min(80, length - len(str(directory)) - 12)
        directory.mkdir()
    path = directory / ("s" * (length - len(str(directory)) - 1))
    assert len(str(path)) == length
    return path

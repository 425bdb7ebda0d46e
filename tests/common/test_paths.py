"""Where things are when nobody says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from drfd.common import paths


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

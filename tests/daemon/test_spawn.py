"""What happens before the loop runs: directories, the lock, and whose uids are taken."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from drfd.daemon.config import Config
from drfd.daemon.spawn import Places, group_for, prepare, system_uids
from drfd.errors import ConfigError, HostError


def test_the_state_directory_can_be_passed_through_and_the_controllers_room_not(
    tmp_path: Path,
) -> None:
    """Jobs' users must reach what the launcher makes for them, and nothing of the journal."""
    places = Places(tmp_path / "deep" / "state")
    before = os.umask(0)
    try:
        lock = prepare(places)
    finally:
        os.umask(before)
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (places.state, *places.state.iterdir())
    }
    os.close(lock)
    assert modes == {"state": 0o711, "controller": 0o700, "launcher": 0o711, "lock": 0o600}


def test_one_state_directory_has_one_daemon(tmp_path: Path) -> None:
    places = Places(tmp_path / "state")
    lock = prepare(places)
    with pytest.raises(HostError) as error:
        prepare(places)
    assert (error.value.code, error.value.text) == (
        "running",
        f"another drfd is running with the state directory {places.state}",
    )
    os.close(lock)
    os.close(prepare(places))


def test_a_state_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    tmp_path.joinpath("file").write_text("")
    places = Places(tmp_path / "file" / "state")
    with pytest.raises(HostError, match=str(places.state)):
        prepare(places)


def test_one_state_directory_has_one_cgroup_by_whatever_path(tmp_path: Path) -> None:
    """After a restart the jobs' cgroups must be found again."""
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "link").symlink_to(state)
    assert group_for(tmp_path / "link") == group_for(state) == group_for(state / ".." / "state")
    assert group_for(tmp_path) != group_for(state)
    assert group_for(state).startswith("drfd/")


def test_system_users_are_known_by_their_uids() -> None:
    names = sorted(account.pw_name for account in pwd.getpwall()[:2])
    expected = [pwd.getpwnam(name).pw_uid for name in names]
    assert system_uids(Config(system_users=frozenset(names))) == expected


def test_a_system_user_who_does_not_exist_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(ConfigError, match="there is no user no-such-user"):
        system_uids(Config(system_users=frozenset({"no-such-user"})))

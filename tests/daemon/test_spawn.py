"""What happens before the loop runs: directories, the lock, and whose uids are taken."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

import pytest

from drfd.common.errors import ConfigError, HostError
from drfd.daemon.config import Config
from drfd.daemon.spawn import (
    Places,
    group_for,
    hand_over,
    launcher_command,
    prepare,
    publish,
    refuse_another,
    system_uids,
)


def test_one_state_directory_has_one_daemon(tmp_path: Path) -> None:
    places = Places(tmp_path / "state")
    lock = prepare(places)
    with pytest.raises(HostError) as error:
        prepare(places)
    assert (error.value.code, error.value.text) == (
        "running",
        f"another drfd is running with the state directory {places.state}",
    )
    assert error.value.exit_code == 75, "the other one may be about to answer"
    publish(lock, tmp_path / "socket")
    with pytest.raises(HostError, match=f"{tmp_path}/socket") as error:
        prepare(places)
    assert error.value.exit_code == 1
    os.close(lock)
    os.close(prepare(places))
    assert (places.controller / "lock").read_bytes() == b""


def test_a_start_does_not_change_when_a_daemon_was_last_alive(tmp_path: Path) -> None:
    """That is the time of the lock's file, which a daemon renews now and then."""
    places = Places(tmp_path / "state")
    os.close(prepare(places))
    path = places.controller / "lock"
    path.write_text("/an/older/socket")
    os.utime(path, (1000, 1000))
    lock = prepare(places)
    assert (path.read_bytes(), path.stat().st_mtime) == (b"", 1000)
    publish(lock, tmp_path / "socket")
    assert (path.read_text(), path.stat().st_mtime) == (f"{tmp_path}/socket", 1000)
    os.close(lock)


def test_a_daemon_starts_on_a_full_disk_and_writes_into_no_file_of_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    places = Places(tmp_path / "state")
    lock = prepare(places)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        publish(lock, tmp_path / "socket")
    os.close(lock)
    other = tmp_path / "other"
    other.write_text("theirs")
    (places.controller / "lock").unlink()
    os.link(other, places.controller / "lock")
    lock = prepare(places)
    publish(lock, tmp_path / "socket")
    os.close(lock)
    assert other.read_text() == "theirs"


def test_the_lock_is_not_followed_to_where_it_points(tmp_path: Path) -> None:
    """The controller's own user could have put a link there, for root to make a file."""
    places = Places(tmp_path / "state")
    os.close(prepare(places))
    lock = places.controller / "lock"
    lock.unlink()
    lock.symlink_to(tmp_path / "target")
    with pytest.raises(HostError, match="cannot use the state directory"):
        prepare(places)
    assert not (tmp_path / "target").exists()


def test_the_unit_and_not_the_configuration_says_who_the_controller_is(tmp_path: Path) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    other = next(each.pw_name for each in pwd.getpwall() if each.pw_uid != os.getuid())
    places = Places(tmp_path, tmp_path / "launcher")
    refuse_another(Config(), places)
    refuse_another(Config(user=me), places)
    with pytest.raises(ConfigError, match=f"daemon.user is {other}"):
        refuse_another(Config(user=other), places)
    refuse_another(Config(user=other), Places(tmp_path))


def test_the_launchers_command_is_what_the_configuration_says(tmp_path: Path) -> None:
    plain = launcher_command(tmp_path, Config(), controller_uid=7, allow=[], group="drfd/system")
    assert plain[1:] == [
        *("-I", "-m", "drfd.launcher", "--state", str(tmp_path)),
        *("--controller-uid", "7", "--group", "drfd/system"),
    ]
    config = Config(use_cgroups=False, no_new_privs=True)
    more = launcher_command(tmp_path, config, controller_uid=7, allow=[1, 2], group="drfd/system")
    assert more == [
        *plain,
        "--allow-uid",
        "1",
        "--allow-uid",
        "2",
        "--no-cgroups",
        "--no-new-privs",
    ]


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (Config(private_tmp=True), ["--private-tmp"]),
        (Config(private_tmp=True, private_tmp_dir="/jobs"), ["--private-tmp", "/jobs"]),
        (Config(private_tmp_dir="/jobs"), []),
        (Config(remove_ipc=False), ["--keep-ipc"]),
    ],
)
def test_the_launcher_is_told_what_jobs_have_for_themselves(
    tmp_path: Path, config: Config, options: list[str]
) -> None:
    command = launcher_command(tmp_path, config, controller_uid=7, allow=[], group="x")
    plain = launcher_command(tmp_path, Config(), controller_uid=7, allow=[], group="x")
    assert command == [*plain, *options]


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


@pytest.mark.skipif(os.getuid() != 0, reason="not root")
def test_only_what_was_looked_at_is_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the change of owner the room's own user could put a link to a file of
    root's in the place of the lock, where the kernel lets users link to files of others."""
    room, secret = tmp_path / "controller", tmp_path / "secret"
    room.mkdir()
    lock = room / "lock"
    lock.touch()
    secret.touch()
    inode = lock.stat().st_ino
    looks = {name: getattr(os, name) for name in ("stat", "fstat")}

    def swap(name: str, path: object, **more: object) -> os.stat_result:
        found: os.stat_result = looks[name](path, **more)
        if found.st_ino == inode and not (room / "aside").is_symlink():
            lock.rename(room / "kept")
            os.link(secret, lock)
            (room / "aside").symlink_to("done")
        return found

    for name in looks:
        monkeypatch.setattr(os, name, lambda path, name=name, **more: swap(name, path, **more))
    hand_over(room, pwd.getpwnam("nobody"))
    monkeypatch.undo()
    assert (room / "aside").is_symlink()
    assert secret.stat().st_uid == 0
    assert (room / "kept").stat().st_uid == pwd.getpwnam("nobody").pw_uid

"""The directories of private spaces: whose they are, and what is removed when."""

from __future__ import annotations

import errno
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from alone import alone
from drfd.launcher.system import private_tmp
from drfd.launcher.system.background import BackgroundWork
from drfd.launcher.system.private_tmp import PrivateSpaces, Unsafe, open_home

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="not root")


class Loop:
    """As the launcher's."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()

    def spaces(self, home: Path | None) -> PrivateSpaces:
        return PrivateSpaces(BackgroundWork(self.selector), None if home is None else str(home))

    def until_quiet(self) -> None:
        """Until no process is at work any more."""
        deadline = time.monotonic() + 120
        while self.selector.get_map() and time.monotonic() < deadline:
            for chosen, _ in self.selector.select(1.0):
                chosen.data()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.until_quiet()
    made.selector.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def names(home: Path) -> list[str]:
    return sorted(os.listdir(home))


def test_the_home_is_made_for_root_alone(home: Path) -> None:
    real, fd = open_home(str(home))
    os.close(fd)
    assert real == os.path.realpath(home)
    assert home.stat().st_mode & 0o777 == 0o700
    os.close(open_home(str(home))[1])


def test_a_home_of_somebody_elses_is_refused(home: Path) -> None:
    home.mkdir(mode=0o700)
    os.chown(home, 1, -1)
    with pytest.raises(Unsafe, match="root alone"):
        open_home(str(home))


def test_a_home_that_others_may_enter_is_refused(home: Path) -> None:
    home.mkdir(mode=0o755)
    with pytest.raises(Unsafe, match="0700"):
        open_home(str(home))


def test_a_way_there_that_others_may_change_is_refused(home: Path) -> None:
    home.parent.chmod(0o777)
    with pytest.raises(Unsafe, match="others may write"):
        open_home(str(home))
    home.parent.chmod(0o1777)
    os.close(open_home(str(home))[1])


def test_an_empty_space_is_removed_at_once(loop: Loop, home: Path) -> None:
    spaces = loop.spaces(home)
    place = spaces.place_for((7, 1), 1000)
    assert place == f"{os.path.realpath(home)}/7.1.1000"
    spaces.make((7, 1), place)
    assert names(home / "7.1.1000") == ["tmp", "var"]
    assert (home / "7.1.1000" / "tmp").stat().st_mode & 0o7777 == 0o1777
    spaces.discard((7, 1))
    assert names(home) == []
    assert not loop.selector.get_map()


@alone
def test_what_is_in_it_is_removed_by_another_process(loop: Loop, home: Path) -> None:
    spaces = loop.spaces(home)
    for number in (1, 2):
        spaces.make((number, 1), spaces.place_for((number, 1), 60_000 + number))
        for each in ("tmp", "var"):
            inner = home / f"{number}.1.{60_000 + number}" / each / "directory"
            inner.mkdir()
            os.chown(inner, 60_000 + number, -1)
            # Not the user's: root removes it.
            (inner / "file").touch()
    spaces.discard((1, 1))
    spaces.discard((2, 1))
    # The attempts are over: others of these names may begin.
    assert all(name.startswith("gone-") for name in names(home))
    spaces.make((1, 1), spaces.place_for((1, 1), 60_001))
    loop.until_quiet()
    assert names(home) == ["1.1.60001"]


@alone
def test_a_space_that_is_there_already_is_not_used_again(loop: Loop, home: Path) -> None:
    spaces = loop.spaces(home)
    (home / "7.1.1000" / "tmp").mkdir(parents=True)
    (home / "7.1.1000" / "tmp" / "planted").touch()
    spaces.make((7, 1), spaces.place_for((7, 1), 1000))
    assert names(home / "7.1.1000" / "tmp") == []
    loop.until_quiet()
    assert names(home) == ["7.1.1000"]


@alone
def test_a_start_removes_what_no_attempt_has(loop: Loop, home: Path) -> None:
    loop.spaces(home)
    for name in ("1.1.1000", "2.1.1000", "gone-0a-1000", "notes"):
        (home / name / "tmp").mkdir(parents=True)
    spaces = loop.spaces(home)
    spaces.adopt((2, 1), f"{os.path.realpath(home)}/2.1.1000")
    spaces.adopt((3, 1), None)
    spaces.sweep(str(home.parent / "never-made"))
    loop.until_quiet()
    assert names(home) == ["2.1.1000", "notes"]
    spaces.discard((2, 1))
    spaces.discard((3, 1))
    assert names(home) == ["notes"]


@alone
def test_attempts_keep_their_space_where_the_option_is_off_by_now(loop: Loop, home: Path) -> None:
    before = loop.spaces(home)
    place = before.place_for((1, 1), 1000)
    before.make((1, 1), place)
    (home / "9.1.1000" / "tmp" / "x").mkdir(parents=True)
    spaces = loop.spaces(None)
    assert spaces.place_for((2, 1), 1000) is None
    spaces.make((2, 1), None)
    spaces.adopt((1, 1), place)
    spaces.sweep(str(home))
    loop.until_quiet()
    assert names(home) == ["1.1.1000"]
    spaces.discard((1, 1))
    spaces.discard((2, 1))
    assert names(home) == []


@alone
def test_a_space_that_cannot_be_renamed_is_removed_all_the_same(
    loop: Loop, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*names: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    spaces = loop.spaces(home)
    spaces.make((1, 1), spaces.place_for((1, 1), 0))
    (home / "1.1.0" / "tmp" / "file").touch()
    monkeypatch.setattr(os, "rename", refuse)
    spaces.discard((1, 1))
    loop.until_quiet()
    assert names(home) == []


@pytest.mark.slow
@alone
def test_who_stops_what_cleans_up_keeps_others_waiting_for_one_turn(
    loop: Loop, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each space of a user whose processes stop the one that empties it took a turn of a minute,
    so that with a thousand short jobs those of others stayed on the disk for a day."""
    monkeypatch.setattr("drfd.launcher.system.private_tmp._TURN_S", 1.0)
    hostile, number = 61_777, 30
    turns, take_turn = tmp_path / "turns", private_tmp._as_user
    turns.touch()

    def note(uid: int, places: list[tuple[int, str]]) -> None:
        with turns.open("a") as file:
            file.write(f"{uid}\n")
        take_turn(uid, places)

    monkeypatch.setattr(private_tmp, "_as_user", note)
    home.mkdir(mode=0o700)
    for name in (*(f"gone-{each:02x}-{hostile}" for each in range(number)), "gone-ff-61778"):
        inner = home / name / "tmp"
        inner.mkdir(parents=True)
        (inner / "file").touch()
    stop = "import os, signal, time\nwhile True:\n"
    stop += " try: os.kill(-1, signal.SIGSTOP)\n except OSError: pass\n time.sleep(0.001)"
    stopper = subprocess.Popen(
        [sys.executable, "-I", "-c", stop], user=hostile, group=65534, extra_groups=[]
    )
    try:
        spaces = loop.spaces(home)
        spaces.sweep(None)
        loop.until_quiet()
    finally:
        stopper.kill()
        stopper.wait()
    assert names(home) == []
    # Another round at most, for what the first one has left.
    assert turns.read_text().split().count(str(hostile)) <= 2

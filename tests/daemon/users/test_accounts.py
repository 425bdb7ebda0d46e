"""Names of uids: from memory while the directory is slow, and never taken from its silence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.common.errors import Unavailable
from drfd.core.model.stimuli import Actor
from drfd.daemon.users import accounts as accounts_module
from drfd.daemon.users.accounts import Accounts, Inquiries
from drfd.linux.user_database import LocalAccounts, Subordinates


class Rig:
    """Accounts with a directory and a clock of the test's."""

    def __init__(self, tmp_path: Path) -> None:
        self.names: dict[int, str] = {}
        self.asked: list[int] = []
        self.error: Exception | None = None
        self.is_open = threading.Event()
        self.is_open.set()
        self.mono_s = 1000.0
        self._passwd = tmp_path / "passwd"
        self.accounts = Accounts(
            frozenset({1}),
            self._look_up,
            subordinates=Subordinates(tmp_path / "subuid"),
            local=LocalAccounts(self._passwd),
            mono=lambda: self.mono_s,
        )

    def _look_up(self, uid: int) -> str | None:
        self.asked.append(uid)
        self.is_open.wait(20)
        if self.error is not None:
            raise self.error
        return self.names.get(uid)

    def add_local(self, **uids: int) -> None:
        """Make these the accounts of /etc/passwd, as useradd(8) and userdel(8) do."""
        new = self._passwd.with_name("passwd.new")
        new.write_text("".join(f"{name}:x:{uid}:100::/:/bin/sh\n" for name, uid in uids.items()))
        new.rename(self._passwd)
        self.names |= {uid: name for name, uid in uids.items()}

    async def user(self, uid: int) -> str:
        return (await self.accounts.actor(uid)).user

    async def asked_times(self, count: int) -> None:
        """Until the directory has been asked so often, and has answered."""
        async with asyncio.timeout(10):
            while len(self.asked) < count or self.accounts._again._open:
                await asyncio.sleep(0.005)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.is_open.set()
    made.accounts.close()


@pytest.mark.parametrize(("is_local", "fresh_s"), [(True, 60), (False, 5)])
async def test_a_name_is_asked_for_once_and_again_when_it_is_old(
    rig: Rig, is_local: bool, fresh_s: float
) -> None:
    rig.names[7] = "grace"
    if is_local:
        rig.add_local(grace=7)
    actors = await asyncio.gather(*(rig.accounts.actor(7) for _ in range(256)))
    assert {*actors} == {Actor("grace", 7, is_admin=False)}
    rig.mono_s += fresh_s - 1
    assert await rig.user(7) == "grace"
    assert rig.asked == [7]
    rig.names[7] = "hopper"
    rig.mono_s += 2
    # Asked for again beside the answer, which is not late for it.
    assert await rig.user(7) == "grace"
    await rig.asked_times(2)
    assert await rig.user(7) == "hopper"


async def test_a_uid_that_is_given_to_somebody_else_is_theirs_at_once(rig: Rig) -> None:
    """The new owner counted as the deleted account for up to ten minutes, and saw its jobs."""

    rig.add_local(grace=7, alan=8)
    assert (await rig.user(7), await rig.user(8)) == ("grace", "alan")
    rig.add_local(hopper=7, alan=8)
    assert rig.accounts.at_hand(7) is None
    assert not rig.accounts.is_known(7)
    assert await rig.user(7) == "hopper"
    # The change was not about the other one.
    assert await rig.user(8) == "alan"
    assert rig.asked == [7, 8, 7]


async def test_an_account_that_is_gone_is_nobodys_and_a_new_one_is_known_at_once(rig: Rig) -> None:
    rig.add_local(grace=7)
    await rig.user(7)
    del rig.names[7]
    rig.add_local()
    assert (await rig.accounts.actor(7)).has_account is False
    rig.add_local(hopper=7)
    assert await rig.user(7) == "hopper"


async def test_a_slow_directory_does_not_bring_back_a_name_that_the_file_has_dropped(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A known name is used where the directory does not answer, but not one that is wrong."""
    monkeypatch.setattr(accounts_module, "WAIT_S", 0.05)
    monkeypatch.setattr(accounts_module, "PATIENCE_S", 0.01)

    rig.add_local(grace=7)
    await rig.user(7)
    rig.is_open.clear()
    rig.mono_s += 86400
    assert await rig.user(7) == "grace"
    rig.add_local(hopper=7)
    with pytest.raises(Unavailable, match="who uid 7 is"):
        await rig.user(7)


async def test_an_answer_from_before_a_change_of_the_file_is_asked_for_again(rig: Rig) -> None:
    rig.add_local(grace=7)
    rig.is_open.clear()
    asking = asyncio.create_task(rig.user(7))
    async with asyncio.timeout(10):
        while not rig.asked:
            await asyncio.sleep(0.005)
    rig.add_local(hopper=7)
    rig.is_open.set()
    assert await asking == "hopper"
    assert rig.asked == [7, 7]


async def test_a_name_from_a_directory_service_is_not_used_unasked_after_seconds(rig: Rig) -> None:
    """Nothing but a new answer tells that the uid has become another's."""

    rig.names[7] = "grace"
    await rig.user(7)
    rig.names[7] = "hopper"
    rig.mono_s += 16
    assert await rig.user(7) == "hopper"


def test_the_accounts_of_the_file_are_those_of_getpwuid(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    local = LocalAccounts(file)
    assert local.name_of(0) is None
    file.write_bytes(b"root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\n+\n\nx:y\nj\xf6:x:7:7:::\n")
    assert (local.name_of(0), local.name_of(7)) == ("root", r"j\xf6")
    file.unlink()
    assert local.name_of(0) is None


def test_a_file_that_takes_long_to_read_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drfd.linux.user_database._MOST_PASSWD_BYTES", 100)
    file = tmp_path / "passwd"
    file.write_text("root:x:0:0::/:/bin/sh\n" * 10)
    assert LocalAccounts(file).name_of(0) is None


async def test_a_name_that_was_long_not_asked_for_is_not_used_unasked(rig: Rig) -> None:
    """The uid may be somebody else's by now."""

    rig.names[7] = "grace"
    await rig.user(7)
    rig.names[7] = "hopper"
    rig.mono_s += 86400
    assert await rig.user(7) == "hopper"
    del rig.names[7]
    rig.mono_s += 86400
    gone = await rig.accounts.actor(7)
    assert (gone.user, gone.has_account) == ("7", False)


@pytest.mark.parametrize("age_s", [61, 86400])
@pytest.mark.parametrize("trouble", ["slow", "broken"])
async def test_a_known_user_is_not_kept_waiting(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, age_s: float, trouble: str
) -> None:
    monkeypatch.setattr(accounts_module, "PATIENCE_S", 0.01)

    rig.names[7] = "grace"
    await rig.user(7)
    rig.mono_s += age_s
    if trouble == "slow":
        rig.is_open.clear()
    else:
        rig.error = OSError("no route to the directory")
    async with asyncio.timeout(5):
        for _ in range(20):
            assert await rig.user(7) == "grace"
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("uid", [1, 7])
async def test_silence_is_not_the_word_that_there_is_no_account(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    monkeypatch.setattr(accounts_module, "WAIT_S", 0.05)

    rig.is_open.clear()
    for _ in range(2):
        with pytest.raises(Unavailable, match=f"who uid {uid} is") as caught:
            await rig.accounts.actor(uid)
        assert caught.value.code == "directory-slow"
    rig.names[uid] = "late"
    rig.is_open.set()
    async with asyncio.timeout(5):
        while not rig.accounts.is_known(uid):
            await asyncio.sleep(0.005)
    assert await rig.user(uid) == "late"


async def test_an_error_is_not_kept(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.error = OSError("no route to the directory")
    for _ in range(3):
        with pytest.raises(Unavailable, match="no route"):
            await rig.accounts.actor(7)
    rig.error = None
    assert (await rig.accounts.actor(7)).has_account is False
    rig.names[7] = "grace"
    rig.mono_s += 61
    assert await rig.user(7) == "grace"
    assert len(caplog.records) == 1, "one line a minute tells the administrator enough"


async def test_the_owner_of_a_daemon_is_served_where_the_directory_does_not_run(rig: Rig) -> None:
    """A container may name a directory that is only outside of it."""

    rig.error = ConnectionRefusedError("no directory")
    assert await rig.accounts.actor(1) == Actor("1", 1, is_admin=True)


async def test_what_is_kept_in_memory_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uids that came once were remembered for ever."""
    monkeypatch.setattr(accounts_module, "_MOST_NAMES", 10)
    monkeypatch.setattr(accounts_module, "_MOST_NAMELESS", 5)

    rig.names |= {uid: f"user{uid}" for uid in range(100, 120)}
    for uid in (*range(100, 120), *range(5000, 5100)):
        await rig.user(uid)
        await rig.user(119)
    assert [*rig.accounts._names] == [*range(110, 120)]
    assert len(rig.accounts._nameless) == 5


async def test_too_many_questions_are_refused_and_unwanted_ones_dropped(rig: Rig) -> None:
    """Those that nobody waits for any more would keep the directory busy."""

    few = Inquiries(rig._look_up, lambda *_: None, threads=1, most=3)
    rig.is_open.clear()
    asking = [asyncio.create_task(few.answer(uid)) for uid in (1, 2, 3)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="3 questions"):
        await few.answer(4)
    asking[1].cancel()
    await asyncio.wait([asking[1]])
    asking.append(asyncio.create_task(few.answer(5)))
    await asyncio.sleep(0)
    rig.is_open.set()
    rig.names |= {1: "a", 3: "c", 5: "e"}
    assert [await asking[at] for at in (0, 2, 3)] == ["a", "c", "e"]
    assert rig.asked == [1, 3, 5]
    few.close()


def test_subordinate_uids_are_those_of_the_file_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    known = Subordinates(file)
    assert not known.has(100_000)
    file.write_text("alice:100000:65536\nnonsense\nbob:x:y\n1002:300000:1\n")
    assert [uid for uid in (99_999, 100_000, 165_535, 165_536, 300_000) if known.has(uid)] == [
        100_000,
        165_535,
        300_000,
    ]
    file.unlink()
    assert not known.has(100_000)

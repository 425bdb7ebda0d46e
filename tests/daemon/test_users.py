"""What one user may have of the daemon: a name, quotas, and turns."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.fake_launcher import until
from drfd.common.errors import Refused, Unavailable
from drfd.core.model import events as ev
from drfd.core.model.job import Actor, JobState
from drfd.daemon.config import UserLimits
from drfd.daemon.users import accounts as accounts_module
from drfd.daemon.users import quotas as quotas_module
from drfd.daemon.users.accounts import Accounts
from drfd.daemon.users.quotas import BURST_S, ID_BYTES, Quotas
from drfd.daemon.users.turns import UserTurns
from drfd.linux.user_database import LocalAccounts, Subordinates
from fakes import ALICE, BOB, Clock, all_events, launched

# -- names of uids: from memory while the directory is slow, never from its silence ------------


class Rig:
    """Accounts with a directory and a clock of the test's."""

    def __init__(self, tmp_path: Path) -> None:
        self.names: dict[int, str] = {}
        self.asked: list[int] = []
        self.error: Exception | None = None
        self.is_open = threading.Event()
        self.is_open.set()
        self.mono_s = 1000.0
        self.passwd, self.subuid = tmp_path / "passwd", tmp_path / "subuid"
        self.accounts = Accounts(
            frozenset({1}), self.look_up, subordinates=Subordinates(self.subuid),
            local=LocalAccounts(self.passwd), mono=lambda: self.mono_s,
        )  # fmt: skip

    def look_up(self, uid: int) -> str | None:
        self.asked.append(uid)
        self.is_open.wait(20)
        if self.error is not None:
            raise self.error
        return self.names.get(uid)

    def add_local(self, **uids: int) -> None:
        """Make these the accounts of /etc/passwd, as useradd(8) and userdel(8) do."""
        new = self.passwd.with_name("passwd.new")
        new.write_text("".join(f"{name}:x:{uid}:100::/:/bin/sh\n" for name, uid in uids.items()))
        new.rename(self.passwd)
        self.names |= {uid: name for name, uid in uids.items()}

    async def user(self, uid: int) -> str:
        return (await self.accounts.actor(uid)).user


@pytest.fixture
def rig(tmp_path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.is_open.set()
    made.accounts.close()


async def test_refreshes_that_hang_keep_no_unknown_user_waiting(rig):
    rig.names = {uid: f"user{uid}" for uid in range(2000, 2004)}
    for uid in rig.names:
        await rig.user(uid)
    rig.is_open.clear()
    rig.mono_s += 30
    for uid in rig.names:
        assert await rig.user(uid) == f"user{uid}"
    rig.add_local(carol=1500)
    asking = asyncio.create_task(rig.user(1500))
    await until(lambda: 1500 in rig.asked)
    assert len(rig.asked) == 4 + 1 + 1, "of the refreshes only the first one is under way"
    rig.is_open.set()
    assert await asking == "carol"


@pytest.mark.parametrize(("is_local", "fresh_s"), [(True, 60), (False, 5)])
async def test_a_name_is_asked_for_once_and_again_when_it_is_old(rig, is_local, fresh_s):
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
    async with asyncio.timeout(10):
        while await rig.user(7) != "hopper":
            await asyncio.sleep(0.005)
    assert rig.asked == [7, 7]


async def test_a_uid_that_is_given_to_somebody_else_is_theirs_at_once(rig):
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


async def test_a_slow_directory_does_not_bring_back_a_name_that_the_file_has_dropped(
    rig, monkeypatch
):
    """A known name is used where the directory does not answer, but not one that is wrong."""
    monkeypatch.setattr(accounts_module, "PATIENCE_S", 0.01)
    rig.add_local(grace=7)
    await rig.user(7)
    rig.is_open.clear()
    rig.mono_s += 86400
    assert await rig.user(7) == "grace"
    rig.add_local(hopper=7)
    monkeypatch.setattr(accounts_module, "WAIT_S", 0.05)
    with pytest.raises(Unavailable, match="who uid 7 is"):
        await rig.user(7)


async def test_an_answer_from_before_a_change_of_the_file_is_asked_for_again(rig):
    rig.add_local(grace=7)
    rig.is_open.clear()
    asking = asyncio.create_task(rig.user(7))
    await until(lambda: rig.asked)
    rig.add_local(hopper=7)
    rig.is_open.set()
    assert await asking == "hopper"
    assert rig.asked == [7, 7]


async def test_a_name_from_a_directory_service_is_not_used_unasked_after_seconds(rig):
    """Nothing but a new answer tells that the uid has become another's."""
    rig.names[7] = "grace"
    await rig.user(7)
    rig.names[7] = "hopper"
    rig.mono_s += 16
    assert await rig.user(7) == "hopper"


def test_the_accounts_of_the_file_are_those_of_getpwuid(tmp_path):
    file = tmp_path / "passwd"
    local = LocalAccounts(file)
    assert local.name_of(0) is None
    file.write_bytes(b"root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\n+\n\nx:y\nj\xf6:x:7:7:::\n")
    assert (local.name_of(0), local.name_of(7)) == ("root", r"j\xf6")
    file.unlink()
    assert local.name_of(0) is None


async def test_the_owner_of_a_daemon_is_served_where_the_directory_does_not_run(rig):
    """A container may name a directory that is only outside of it."""
    rig.error = ConnectionRefusedError("no directory")
    assert await rig.accounts.actor(1) == Actor("1", 1, is_admin=True)


async def test_answers_in_memory_are_bounded_and_names_outlast_uids_without_one(rig, monkeypatch):
    monkeypatch.setattr(accounts_module, "MAX_CACHED", 10)
    rig.names |= {uid: f"user{uid}" for uid in range(100, 108)}
    for uid in (*range(100, 108), *range(5000, 5020)):
        await rig.user(uid)
    assert [*rig.accounts.cached] == [*range(100, 108), 5018, 5019]


async def test_too_many_questions_are_refused_and_unwanted_ones_dropped(rig, monkeypatch):
    """Those that nobody waits for any more would keep the directory busy."""
    monkeypatch.setattr(accounts_module, "MAX_QUESTIONS", 8)
    rig.is_open.clear()
    asking = {uid: asyncio.create_task(rig.user(uid)) for uid in range(2, 10)}
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="8 questions"):
        await rig.user(10)
    for uid in (8, 9):
        asking.pop(uid).cancel()
    await asyncio.sleep(0)
    rig.is_open.set()
    rig.names |= {uid: f"user{uid}" for uid in asking}
    assert [await each for each in asking.values()] == [*rig.names.values()]
    assert sorted(rig.asked) == [*asking]


async def test_subordinate_uids_are_not_looked_up_unless_the_file_has_an_account(rig):
    """One user may have 65,536 of them, and kept the directory busy."""
    rig.subuid.write_text("alice:100000:65536\n")
    rig.is_open.clear()
    nobody = Actor("100007", 100_007, is_admin=False, has_account=False)
    assert await rig.accounts.actor(100_007) == nobody
    rig.add_local(hopper=100_008)
    rig.is_open.set()
    assert await rig.user(100_008) == "hopper"
    assert rig.asked == [100_008]


def test_subordinate_uids_are_those_of_the_file_as_it_is_now(tmp_path):
    file = tmp_path / "subuid"
    known = Subordinates(file)
    assert not known.has(100_000)
    file.write_text("alice:100000:65536\nnonsense\nbob:x:y\n1002:300000:1\n")
    assert [uid for uid in (99_999, 100_000, 165_535, 165_536, 300_000) if known.has(uid)] == [
        100_000, 165_535, 300_000,
    ]  # fmt: skip
    assert known.are_of(7, "alice", 100_000) and known.are_of(1002, "carol", 300_000)
    assert not known.are_of(7, "bob", 100_000) and not known.are_of(1002, "carol", 100_000)
    file.unlink()
    assert not known.has(100_000)


# -- quotas ------------------------------------------------------------------------------------


ALICE_UID, BOB_UID = 1001, 1002


def quotas(clock: Clock | None = None, **limits: int) -> Quotas:
    return Quotas(lambda: UserLimits(**limits), clock or Clock())


def test_a_burst_of_submissions_is_not_held_up_and_what_goes_on_and_on_is(clock):
    q = quotas(clock, changes_per_s=10)
    burst = round(10 * BURST_S)
    assert [q.take(ALICE_UID, 1) for _ in range(burst + 1)] == [0.0] * (burst + 1)
    assert q.take(ALICE_UID, 1) == pytest.approx(0.1)
    assert q.take(ALICE_UID, 1) == pytest.approx(0.2)
    assert q.take(BOB_UID, 1) == 0.0
    clock.now_s += BURST_S / 2
    assert [q.take(ALICE_UID, 1) for _ in range(burst // 2 - 2)] == [0.0] * (burst // 2 - 2)
    clock.now_s += 10 * BURST_S
    assert [q.take(ALICE_UID, 1) for _ in range(burst + 1)] == [0.0] * (burst + 1)
    assert q.take(ALICE_UID, 1) > 0


def test_a_submission_counts_for_what_it_brings():
    """200 a second of half a megabyte each were allowed."""
    q = quotas(Clock(), changes_per_s=10)
    assert q.take(ALICE_UID, 1, round(10 * BURST_S) * quotas_module.WEIGHT_BYTES) == 0.0
    assert q.take(ALICE_UID, 1) == pytest.approx(0.1)


# -- turns -------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_what_waits_is_cancelled_before_what_runs(desk):
    """Or a job would start in the place of the first one, to be cancelled as well. That it is done
    in parts is seen by nobody: the answer is in the order in which it was asked for."""
    ids = [await desk.submit(ALICE, 9) for _ in range(60)]
    other = await desk.submit(BOB, 9)
    await desk.feed(launched(ids[0]))
    reply = await desk.ask(ALICE, op="cancel", select={"user": ALICE.user})
    assert reply == {"done": ids, "failed": []}
    asked = [
        event.job_id
        for event in all_events(desk.shell.journal)
        if isinstance(event, ev.Cancelled | ev.StopRequested)
    ]
    assert asked == [*ids[1:], ids[0]]
    assert [*desk.shell.engine.ledger.jobs] == [ids[0], other]


async def test_what_is_asked_of_many_at_a_time_is_bounded(desk, monkeypatch):
    """Or whoever changes many jobs on many connections takes the memory from everybody."""
    monkeypatch.setattr(quotas_module, "MAX_KEPT_BYTES", 40 * ID_BYTES)
    ids = [await desk.submit(ALICE, held=True) for _ in range(30)]
    many = {"op": "set", "select": {"ids": ids}, "priority": 1}
    asking = asyncio.create_task(desk.ask(ALICE, **many))
    async with asyncio.timeout(30):
        while not desk.requests.quotas._kept[ALICE_UID]:
            await asyncio.sleep(0)
    with pytest.raises(Refused) as refusal:
        await desk.ask(ALICE, **many)
    assert refusal.value.code == "too-much-at-once"
    assert (await desk.ask(ALICE, op="cancel", select={"ids": ids[:1]}))["done"] == ids[:1]
    assert len((await asking)["done"]) >= 29
    assert not desk.requests.quotas._kept


async def test_what_is_asked_of_a_long_array_is_answered_as_of_one(desk):
    """However many of its tasks have a record: done if one of them was not refused."""
    array = await desk.submit(ALICE, held=True, array="0-199")
    tasks = [*range(array + 1, array + 121)]
    await desk.ask(ALICE, op="set", select={"ids": tasks}, priority=1)
    one = {"done": [array], "failed": []}
    assert await desk.ask(ALICE, op="release", select={"ids": [array]}) == one
    assert {job.state for job in desk.shell.engine.ledger.jobs.values()} == {
        JobState.PENDING,
        JobState.STARTING,
    }
    again = await desk.ask(ALICE, op="release", select={"ids": [array]})
    assert again["done"] == []
    assert [(each["id"], each["error"]["code"]) for each in again["failed"]] == [
        (array, "not-held")
    ]
    assert await desk.ask(ALICE, op="cancel", select={"ids": [array]}) == one
    left = desk.shell.engine.ledger.jobs.values()
    assert {job.state for job in left} == {JobState.STOPPING}
    assert {*desk.shell.engine.ledger.arrays[array].states} == {JobState.STOPPING}


async def test_between_two_steps_of_somebody_else_lies_one_of_a_flood():
    """Sixteen requests of one user were worked on in each round of the loop."""
    turns, done = UserTurns(), list[int]()

    async def flood() -> None:
        while done.count(BOB_UID) < 100:
            async with turns.next(ALICE_UID):
                done.append(ALICE_UID)

    async def other() -> None:
        for _ in range(100):
            async with turns.next(BOB_UID):
                done.append(BOB_UID)

    floods = [asyncio.create_task(flood()) for _ in range(250)]
    await other()
    await asyncio.gather(*floods)
    between = "".join("a" if uid == ALICE_UID else "b" for uid in done).split("b")
    assert max(map(len, between[:-1])) <= 2


async def test_one_request_of_a_user_is_worked_on_in_a_round_and_the_first_at_once():
    turns, done, rounds = UserTurns(), list[int](), 0

    async def step() -> None:
        async with turns.next(ALICE_UID):
            done.append(rounds)

    steps = [asyncio.create_task(step()) for _ in range(3)]
    while len(done) < 3:
        await asyncio.sleep(0)
        rounds += 1
    assert done == [0, 2, 3]
    await asyncio.gather(*steps)
    await asyncio.sleep(0)
    assert turns._lines == {}, "nothing is kept of who has been served"


async def test_a_short_request_does_not_wait_for_a_long_one_of_its_user():
    turns = UserTurns()
    async with asyncio.timeout(30), turns.next(ALICE_UID, is_long=True), turns.next(ALICE_UID):
        pass


@pytest.mark.parametrize("rounds", range(6))
async def test_who_is_cancelled_at_any_moment_of_his_wait_keeps_nobody_waiting(rounds):
    turns = UserTurns()

    async def step() -> None:
        async with turns.next(ALICE_UID):
            await asyncio.sleep(0)

    steps = [asyncio.create_task(step()) for _ in range(20)]
    for _ in range(rounds):
        await asyncio.sleep(0)
    for each in steps[1::2]:
        each.cancel()
    async with asyncio.timeout(30):
        await asyncio.wait(steps)
        await step()
    assert not any(each.cancelled() for each in steps[0::2])

"""Orders to the launcher and its reports, and the line to it, against one of the test's own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

from daemon.desk import FullDisk, gpu_line, gpu_process, gpu_reading
from daemon.fake_launcher import (
    HELLO,
    LIST,
    Behind,
    FakeLauncher,
    Message,
    about,
    ended,
    launched,
    live_through,
    until,
)
from drfd.common.errors import HostError
from drfd.common.units import show_cores
from drfd.core.decisions import stimuli as st
from drfd.core.model.events import Event
from drfd.core.model.job import (
    Job,
    JobState,
    Outcome,
    Retry,
    Usage,
    Whose,
)
from drfd.core.model.resources import NOTHING, Axes
from drfd.daemon.countable import CountableResource
from drfd.daemon.engine import engine as engine_module
from drfd.daemon.engine.engine import Engine, Work
from drfd.daemon.launcher_link import device_table
from drfd.daemon.launcher_link import link as link_module
from drfd.daemon.launcher_link.core_weights import CoreWeights
from drfd.daemon.launcher_link.link import Link, Links
from drfd.daemon.launcher_link.messages import (
    LaunchSettings,
    final_usage,
    notice_for,
    order_for,
    read_report,
)
from drfd.daemon.launcher_link.wire import Wire
from drfd.daemon.monitoring.meter import Meter
from drfd.devices.gpus import Gpu
from drfd.host.disks import Disk
from drfd.journal.journal import Journal
from drfd.journal.submissions import Payload
from drfd.launcher import protocol
from drfd.launcher.protocol import QUOTA
from drfd.linux.device_nodes import DeviceNode
from fakes import ALICE, BOB, demand, now, of_gpus, replace, rules, spec, with_gpus

# -- orders ------------------------------------------------------------------------------------


JOURNAL_ID = "0" * 32

DISK = Disk(name="data", path="/data", read_bps=1, write_bps=1, devices=("8:0",))
JOB = Job(
    id=42,
    spec=replace(
        spec("root.lab", asks=demand(2.5, 4, read=100, write=200), name="my/job"),
        command="train\0--fast", umask=0o027, stdout="%j-%x.out",
        stderr="/var/tmp/%u%%.err", attach="/tmp/attach",
    ),
    state=JobState.STARTING, attempt=3, submitted_at=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "other", "empties"),
    [
        ({}, {}, True), ({"append": True}, {}, False), ({"stdout": "%x.log"}, {}, True),
        ({"stdout": "%x.log"}, {"stderr": "train.log"}, False),
        ({"stdout": "%x.log"}, {"stderr": "train.log", "cwd": "/elsewhere"}, True),
        ({"stdout": "%x.log"}, {"stderr": "train.log", "uid": 1}, True),
        ({"stdout": "/%x%%x"}, {"stdout": "/tra%x%%x", "name": "in"}, False),
        ({"stdout": "a_b"}, {"stdout": "%x", "name": "a/b"}, False),
        ({"stdout": "/dev/null"}, {"stdout": "/dev/null"}, True),
    ],
)  # fmt: skip
def test_an_output_that_is_another_running_jobs_is_not_emptied(changes, other, empties):
    usual = replace(JOB.spec, name="train", stdout="%j.out", stderr="%j.out")
    job = structs.replace(JOB, attempt=1, spec=replace(usual, **changes))
    beside = [job, structs.replace(JOB, id=43, attempt=1, spec=replace(usual, **other))]
    order = order_for(job, JOURNAL_ID, LaunchSettings([DISK], 512, "weight"), beside=beside)
    assert order.empties_output is empties


@pytest.mark.parametrize("mode", protocol.CORES_MODES)
@pytest.mark.parametrize(
    ("declared", "capacity", "most"), [(8000, 9000, 8000), (8000, 4000, 4000), (8000, 2500, 0)]
)
def test_a_job_with_a_range_knows_its_upper_end(mode, declared, capacity, most):
    settings = LaunchSettings([DISK], 512, mode)
    plain = order_for(JOB, JOURNAL_ID, settings)
    ranged = structs.replace(JOB, spec=replace(JOB.spec, cores_max_milli=declared))
    order = order_for(ranged, JOURNAL_ID, settings, capacity_milli=capacity)
    assert order == replace(
        plain, limits=replace(plain.limits, cores_max_milli=most), threads=max(2, most // 1000),
        variables=order.variables,
    )  # fmt: skip
    shown = {"DRF_CORES_MAX": show_cores(most)} if most else {}
    assert order.variables == plain.variables | {"DRF_CORES": "2.5"} | shown


# -- reports -----------------------------------------------------------------------------------

ATTEMPT = {"id": 7, "attempt": 2}
AT: dict[str, Any] = {**ATTEMPT, "at_s": 5.0, "mono_s": 6.0}


@pytest.mark.parametrize(
    ("report", "stimulus"),
    [
        (
            {"report": "launched", **AT, "cgroup": "drfd/7.2", "runner_pid": 99},
            st.LaunchedReport(
                5.0, 7, 2, mono_s=6.0, runner_pid=99, cgroup="drfd/7.2"
            ),
        ),
        ({"report": "launched", **AT}, st.LaunchedReport(5.0, 7, 2, mono_s=6.0)),
        (
            {"report": "launch_failed", **AT, "text": "no such file"},
            st.LaunchFailedReport(5.0, 7, 2, text="no such file"),
        ),
        (
            {"report": "launch_failed", **AT, "text": "x", "whose": "job", "resource": "memory"},
            st.LaunchFailedReport(5.0, 7, 2, text="x", whose=Whose.JOB, resource="memory"),
        ),
        ({"report": "frozen", **AT}, st.FrozenReport(5.0, 7, 2, mono_s=6.0)),
        ({"report": "missing", **AT}, st.MissingReport(5.0, 7, 2)),
        ({"report": "removed", **AT}, st.RemovedReport(5.0, 7, 2)),
        (
            {"report": "removed", **AT, "of": {"uid": 1}, "notice": "told"},
            st.RemovedReport(5.0, 7, 2, {"uid": 1}, notice="told"),
        ),
        (
            {"report": "exited", **AT, "exit_code": None, "signal": 9, "oom_killed": True,
             "over_limit": True, "cpu_s": 2.0, "counted": {"limit_hits": 7}},
            st.ExitedReport(
                5.0, 7, 2, mono_s=6.0, signal=9, oom_killed=True, over_limit=True, cpu_s=2.0,
                counted={"limit_hits": 7},
            ),
        ),
    ],
    ids=[
        "launched", "launched unconfined", "launch failed", "shortage", "frozen", "missing",
        "removed", "removed after a notice", "exited",
    ],
)  # fmt: skip
def test_a_report_is_a_stimulus(report, stimulus):
    assert read_report(protocol.encode(report)) == stimulus


def test_the_usage_of_an_ended_job_is_what_its_cgroup_counted_or_else_its_runner():
    end = st.ExitedReport(
        5.0, 7, 2, cpu_s=2.0, peak_bytes=300, read_bytes=10, written_bytes=20,
        counted={
            "throttled_us": 0, "limit_hits": 7, "largest_process_bytes": 300, "cpu_us": 1_000_000,
        },
    )  # fmt: skip
    assert final_usage(end, None) == Usage(
        memory_peak_bytes=300, read_bytes=10, written_bytes=20, cpu_s=2.0,
        largest_process_bytes=300, throttled_us=0, limit_hits=7,
    )  # fmt: skip
    # The runner was killed too: the launcher knows no more than that.
    assert final_usage(st.ExitedReport(5.0, 7, 2), None) == Usage()


def test_a_report_that_is_unknown_or_broken_is_an_error():
    exploded = protocol.encode({"report": "exploded", **ATTEMPT})
    for line in (exploded, b"{", b"[]\n", b"\xff\n"):
        with pytest.raises(protocol.BadMessage, match="cannot be understood"):
            read_report(line)


# -- what the launcher is ordered to do so that an owner hears of an end -----------------------


TOLD_SPEC = replace(spec(name="train"), notify=("end",))
TOLD_JOB = Job(
    id=7, spec=TOLD_SPEC, state=JobState.CLEANING, attempt=2, submitted_at=0.0, started_at=100.0,
    ended_at=160.4, exit_code=3, outcome=Outcome.FAILED, outcome_text="exit code 3\0",
)  # fmt: skip


def launch(job: Job = TOLD_JOB) -> Any:
    return order_for(job, JOURNAL_ID, LaunchSettings((), 64, QUOTA))


@pytest.mark.parametrize(
    ("on", "outcome", "is_told"),
    [
        (("end",), Outcome.COMPLETED, True),
        (("end",), Outcome.LOST, True),
        (("fail",), Outcome.COMPLETED, False),
        (("fail",), Outcome.CANCELLED, True),
        (("start",), Outcome.FAILED, False),
        (("start", "fail"), Outcome.TIMEOUT, True),
        # It goes back to the queue.
        (("end", "fail"), None, False),
        ((), Outcome.FAILED, False),
    ],
)
def test_only_such_ends_are_told_of_as_were_asked_for(on, outcome, is_told):
    job = structs.replace(TOLD_JOB, outcome=outcome, spec=replace(TOLD_SPEC, notify=on))
    assert (notice_for(job, launch(job)) is not None) is is_told
    assert launch(job).tells_start is ("start" in on)


def test_a_notification_has_a_small_limit_of_its_own():
    """It had the whole demand of the job, and thirty seconds."""
    large = structs.replace(TOLD_JOB, spec=replace(TOLD_SPEC, demand=demand(8, 64)))
    small = structs.replace(TOLD_JOB, spec=replace(TOLD_SPEC, demand=demand(0.1, 0.0625)))
    orders = [notice_for(large, launch(large)), notice_for(small, launch(small))]
    limits = [(each.limits.cores_milli, each.limits.memory_bytes) for each in orders if each]
    assert limits == [(250, 256 << 20), (100, 64 << 20)]
    assert {(each.threads, each.limits.cores_by) for each in orders if each} == {(1, QUOTA)}


def test_an_attempt_that_is_tried_again_is_no_end():
    trying = replace(TOLD_SPEC, notify=("end",), retry=Retry(1, (Outcome.FAILED,)))
    job = structs.replace(TOLD_JOB, outcome=Outcome.FAILED, spec=trying)
    assert notice_for(job, launch(job)) is None
    assert notice_for(structs.replace(job, retries=1), launch(job)) is not None


# -- the line ----------------------------------------------------------------------------------


NOTIFY = ("end",)


@dataclass
class LinkBench(Behind):
    link: Link
    meter: Meter
    launcher: FakeLauncher
    #: Every connection that the link has opened.
    lines: list[asyncio.WriteTransport]
    running: asyncio.Task[None]

    def submit(self, work: Work) -> None:
        self.engine.submit(work)

    async def ask(self, stimulus: st.Stimulus, payload: Payload | None = None) -> list[Event]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(Work(stimulus, payload, future.set_result))
        result = await future
        assert isinstance(result, list), result
        return result

    async def report(self, *reports: Message) -> None:
        """Tell the controller, and wait until all that follows from it has come back."""
        self.launcher.send(*reports)
        await self.quiet()

    async def ready(self) -> None:
        await until(self.link.is_ready, lambda: "the link is not ready")

    async def quiet(self) -> None:
        """All reports are taken, and all orders that follow from them have arrived."""
        # Several times: one alone may pass while the machine stands still.
        for _ in range(4):
            await asyncio.sleep(0.002)
            await until(lambda: not self.link._tasks, lambda: "a thread looks GPUs up")
        self.launcher.marker.clear()
        self.link.wire.send(b'{"cmd": "marker"}\n')
        async with asyncio.timeout(60):
            await self.launcher.marker.wait()

    def taken(self) -> list[Message]:
        """What the launcher was told since the last look."""
        orders, self.launcher.orders = self.launcher.orders, []
        return orders


@pytest.fixture
def bench(short, tmp_path, monkeypatch):
    """A context: an engine whose host is a link to a fake launcher, started unless told not to."""
    for name in ("RETRY_S", "FAULT_RETRY_S"):
        monkeypatch.setattr(link_module, name, 0.005)
    monkeypatch.setattr(link_module, "RELIST_S", 0.02)
    monkeypatch.setattr(engine_module, "START_DELAY_S", 0.0)
    lines: list[asyncio.WriteTransport] = []
    made = Wire.connection_made

    def note(wire: Wire, line: asyncio.BaseTransport) -> None:
        made(wire, line)
        lines.append(wire.transport)

    monkeypatch.setattr(Wire, "connection_made", note)

    @asynccontextmanager
    async def run(
        *,
        history: Sequence[st.Stimulus] = (),
        known: Sequence[tuple[int, int]] = (),
        news: Sequence[Message] = (),
        present: bool = True,
        kind: type[Journal] = Journal,
    ) -> AsyncIterator[LinkBench]:
        launcher = FakeLauncher(short / "launcher.sock", news=list(news), known=list(known))
        if present:
            await launcher.start()
        meter = Meter(lambda: 0.0)
        link = Link(
            socket_path=launcher.path,
            settings=LaunchSettings([DISK], max_pids=64, cores_by="quota"),
            meter=meter,
        )
        journal = kind(tmp_path / "journal.sqlite")
        engine = Engine(journal=journal, rules=rules(), launchers=Links(link), clock=now)
        if history:
            live_through(engine, history)
        running = asyncio.create_task(link.run(engine))
        made = LinkBench(engine, link, meter, launcher, lines, running)
        try:
            yield made
            if running.done() and not running.cancelled():
                running.result()
                raise AssertionError("the link has stopped listening")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await launcher.leave()
            journal.close()
            # So that a line which the link has left open is noticed by one test and not by all.
            for line in lines:
                line.close()

    return run


def asks(cores: float = 1) -> st.SubmitAsked:
    return st.SubmitAsked(now(), spec(asks=demand(cores)))


def order(kind: str, job_id: int, attempt: int = 1) -> Message:
    return {"cmd": kind, "id": job_id, "attempt": attempt}


def brief(orders: Sequence[Message]) -> list[Message]:
    """Launches without their details."""
    return [
        order("launch", each["id"], each["attempt"]) if each["cmd"] == "launch" else each
        for each in orders
    ]


#: Reports of a job that runs, which an earlier daemon took.
UP_1 = st.LaunchedReport(now().at_s, 1, 1, mono_s=now().mono_s)


async def test_groups_of_jobs_are_weighed_when_jobs_start_and_end_and_for_a_new_launcher(bench):
    async with bench() as b:
        b.launcher.hello = {**HELLO, "ranges": True}
        CoreWeights(b.engine, b.link)
        await b.ready()
        await b.quiet()
        b.taken()

        def weighed() -> list[dict[str, int]]:
            orders = [each for each in b.taken() if each["cmd"] == "weights"]
            return [dict(each["cores_milli"]) for each in orders]

        await b.ask(st.SubmitAsked(now(), spec(asks=demand(1), cores_max_milli=9000)))
        await b.quiet()
        assert weighed() == [{"of-alice": 9000}]
        await b.ask(st.SubmitAsked(now(), spec("root.bob", asks=demand(1), actor=BOB)))
        await b.quiet()
        assert weighed() == [{"of-alice": 8000, "of-bob": 8 * 1000}]
        await b.ask(st.SubmitAsked(now(), spec(asks=demand(1), cores_max_milli=9000)))
        await b.quiet()
        assert weighed() == [], "nobody's part has changed"
        b.lines[-1].abort()
        await until(lambda: len(b.lines) == 2 and b.link.is_ready(), lambda: "no new line")
        await b.quiet()
        assert weighed()[-1] == {"of-alice": 8000, "of-bob": 8 * 1000}


@pytest.mark.parametrize(
    ("hello", "told"),
    [
        # Of another version it may lack everything else; it is said which side to restart.
        ({"version": protocol.VERSION + 1}, ": restart drfd\n"),
        ({"version": 0}, ": restart drfd-launcher\n"),
        ({"version": None}, "speaks version None of the launcher's protocol, "),
        # The controller died of these, again and again. That of Slurm's nodes is not root's.
        *((HELLO | change, "cannot be understood")
          for change in ({"mounts": None}, {"hiding": 3}, {"allowed_uids": 0})),
    ],
)  # fmt: skip
async def test_a_launcher_whose_hello_is_of_another_version_or_lacks_something_gets_no_order(
    bench, caplog, hello, told
):
    async with bench(present=False) as b:
        live_through(b.engine, [asks()])
        b.launcher.hello = {"report": "hello", **hello}
        await b.launcher.start()
        await until(lambda: b.link.fault, lambda: "no fault")
        assert b.link.fault is not None and told in f"{b.link.fault}\n"
        assert (b.link.is_ready(), b.launcher.orders) == (False, [])
        assert [each.message for each in caplog.records if b.link.fault in each.message]
        b.launcher.hello = HELLO
        await b.ready()
        await b.quiet()
        assert (b.link.fault, brief(b.taken())) == (None, [LIST, order("launch", 1)])


# -- a life ------------------------------------------------------------------------------------


async def test_files_of_ended_attempts_are_removed_by_one_order(bench, monkeypatch):
    monkeypatch.setattr(link_module, "_REMOVE_FILES_S", 0.5)
    async with bench() as b:
        await b.ready()
        for _ in range(2):
            await b.ask(asks())
        await b.report(launched(1), launched(2))
        b.taken()
        await b.report(ended(1, gone=True), ended(2, gone=True))
        await until(lambda: b.launcher.orders, lambda: b.job(2))
        both = [[1, 1], [2, 1]]
        assert b.taken() == [{"cmd": "remove-files", "attempts": both}]
        assert [*b.meter.watched_attempts()] == [], "no report follows that would end it"


LEFT = {"counted": {"left_bytes": 1 << 20}}


@pytest.mark.parametrize(
    ("changes", "facts"),
    [({"notify": NOTIFY}, {}), ({}, LEFT), ({"notify": NOTIFY}, LEFT)],
    ids=["notification", "memory left in use", "both"],
)
async def test_resources_are_kept_while_something_of_the_job_is_left(bench, changes, facts):
    async with bench() as b:
        await b.ready()
        await b.ask(st.SubmitAsked(now(), replace(spec(asks=demand(1)), **changes)))
        await b.report(launched(1))
        await b.report(ended(1, gone=True, **facts))
        assert b.job(1).shown_state == "CLEANING"
        is_free = b.engine.ledger.allocated.sums[0] < 1000
        assert is_free is not bool(facts), "it is given to others with the memory that is in use"


async def test_a_notification_holds_the_disk_rates_within_which_it_runs(bench):
    """They were given to the next job, while the command could use them."""
    async with bench() as b:
        await b.ready()
        asks = demand(1, 1, read=1000)
        await b.ask(st.SubmitAsked(now(), replace(spec(asks=asks), notify=NOTIFY)))
        await b.report(launched(1))
        await b.report(ended(1, gone=True))
        held = dict(zip(b.engine.rules.axes.names, b.engine.ledger.allocated.sums, strict=True))
        assert held == {"cores": 250, "memory": 256 << 20, "read": asks.read_bps, "write": 0}


async def test_a_launch_that_found_nothing_to_adopt_is_ordered_again(bench):
    """The runner died before it let its job go: as good as never launched."""
    async with bench() as b:
        await b.ready()
        await b.ask(asks())
        await b.quiet()
        b.taken()
        await b.report(about("missing", 1))
        assert brief(b.taken()) == [order("launch", 1)]
        assert b.job(1).shown_state == "STARTING"


@pytest.mark.parametrize(
    "reports",
    [
        [ended(1), about("removed", 1)],
        # The job counts as ended before the launcher has told that its file is gone.
        [ended(1, gone=True)],
    ],
)
async def test_processes_that_cannot_be_killed_are_remembered_until_they_are_gone(bench, reports):
    async with bench() as b:
        await b.ready()
        await b.ask(asks())
        await b.report(launched(1), about("stuck", 1))
        assert b.link.stuck == {(1, 1)}
        await b.report(*reports)
        assert (b.job(1).shown_state, b.link.stuck) == ("COMPLETED", set())


# -- reconciliation ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("booted_s", "reports", "loss"),
    [(-1, False, "UNKNOWN"), (1, False, "MACHINE_CRASH"), (1, True, "MACHINE_CRASH")],
)
async def test_one_that_began_before_the_boot_went_down_with_the_machine(
    bench, monkeypatch, booted_s, reports, loss
):
    """Its attempt file had not reached the disk, or is empty there, which the launcher reports."""
    monkeypatch.setattr(link_module, "booted_at_s", lambda: UP_1.at_s + booted_s)
    seen: Message = {"known": [(1, 1)], "news": [about("missing", 1)]} if reports else {}
    async with bench(history=[asks(), UP_1], **seen) as b:
        await b.state(1, "CLEANING")
        assert (b.job(1).outcome, b.job(1).loss) == (Outcome.LOST, loss)


async def test_strays_are_removed_but_nothing_that_was_never_ours(bench):
    """An id beyond our last one may mean that the journal is an old copy: hands off."""
    gone = [asks(), st.CancelAsked(now(), 1, ALICE)]
    history = [
        *gone,
        st.LaunchFailedReport(now().at_s, 1, 1, text="x"),
        st.RemovedReport(now().at_s, 1, 1),
    ]
    async with bench(history=history, known=[(1, 1), (1, 2), (77, 1)]) as b:
        await b.ready()
        await b.quiet()
        assert b.taken() == [LIST, order("remove", 1, 1), order("remove", 1, 2)]


async def test_news_of_a_stray_is_not_kept_for_ever(bench):
    """Every restart would leak a little, and live use would be sampled for nobody."""
    async with bench() as b:
        await b.ready()
        await b.report(launched(9), launched(8), ended(8), about("removed", 9), about("removed", 8))
        assert [*b.meter.watched_attempts()] == []


# -- news and a journal that says no -----------------------------------------------------------


async def test_news_that_could_not_be_written_is_not_lost(bench):
    """The launcher tells it once. A disk that was full for a moment must not make a job run for
    ever in the books: it is told again, or asked for again, without a restart."""
    async with bench(kind=FullDisk) as b:
        await b.ready()
        await b.ask(asks())
        await b.report(launched(1))
        b.engine.journal.is_full = True
        b.launcher.known, b.launcher.news = [(1, 1)], [launched(1), ended(1)]
        await b.report(ended(1))
        assert b.job(1).shown_state == "RUNNING"
        b.engine.journal.is_full = False
        await b.state(1, "CLEANING")
        await b.quiet()


async def test_a_job_whose_disk_is_gone_is_not_launched_without_its_limit(bench):
    """It was admitted while the launcher was away, and then the configuration was changed."""
    disks = (("data", 1, 1), ("gone", 1, 0))
    async with bench(present=False) as b:
        axes = Axes(disks=("data", "gone"))
        capacity = replace(demand(9, 18), disks=(("data", 9, 9), ("gone", 9, 9)))
        b.engine.adopt(replace(rules(), axes=axes, capacity=capacity))
        named = st.SubmitAsked(now(), spec(asks=replace(demand(1), disks=disks)))
        live_through(b.engine, [named, asks()])
        assert {job.state for job in b.engine.ledger.jobs.values()} == {JobState.STARTING}
        await b.launcher.start()
        await b.ready()
        await b.state(1, "CLEANING")
        await b.quiet()
        assert b.job(1).outcome_text == "the disk gone is not in the configuration any more"
        assert brief(b.taken()) == [LIST, order("launch", 2), order("remove", 1)]


# -- notifications and GPUs --------------------------------------------------------------------


def measured(*gpus: Message) -> Message:
    return {"report": "gpus", "line": gpu_line(*gpus)}


_MEASURE = {"cmd": "measure-gpus", "on": True}


async def test_launches_of_another_user_delay_a_job_only_as_far_as_they_were_sent(bench):
    async with bench() as b:
        b.engine.adopt(rules(cores=1000, memory_gib=1000))
        await b.ready()
        await b.quiet()
        b.launcher.reads.clear()
        await b.ask(st.SubmitAsked(now(), spec(asks=demand(0.1, 0.1)), spans=((0, 999, 1),)))
        states = b.engine.ledger.job_counts.states
        await until(lambda: states[JobState.STARTING] == 1000)
        asked = spec("root.bob", actor=BOB, asks=demand(0.1, 0.1))
        first, *_ = await b.ask(st.SubmitAsked(now(), asked))
        await b.state(first.job_id, JobState.STARTING)
        b.launcher.reads.set()
        await b.quiet()
        launches = [each["id"] for each in b.taken() if each["cmd"] == "launch"]
        assert len(launches) == 1001
        assert launches.index(first.job_id) < 500


async def test_gpus_are_measured_where_the_configuration_has_some(bench):
    """A reload may bring GPUs, and take them away."""
    async with bench(present=False) as b:
        b.engine.adopt(with_gpus(0, 1))
        await b.launcher.start()
        await b.ready()
        await b.quiet()
        assert b.taken() == [LIST, _MEASURE]
        b.engine.adopt(with_gpus())
        b.link.measure_gpus()
        await b.quiet()
        assert b.taken() == [{**_MEASURE, "on": False}]


async def test_a_process_that_measures_no_gpus_is_ended_and_another_started_later(
    bench, monkeypatch
):
    """Its driver may hang, or be loaded later."""
    monkeypatch.setattr(link_module, "GPUS_SILENT_S", 0.05)
    async with bench(present=False) as b:
        b.engine.adopt(with_gpus(0, 1))
        await b.launcher.start()
        await b.ready()
        orders: list[Message] = []

        def are_ordered() -> bool:
            orders.extend(b.taken())
            return len(orders) >= 4

        await until(are_ordered)
        assert orders[:4] == [LIST, _MEASURE, {**_MEASURE, "on": False}, _MEASURE]
        # One that measures is left alone. A busy machine may keep this process waiting for long.
        monkeypatch.setattr(link_module, "GPUS_SILENT_S", 1.0)
        for rounds in (10, 130):
            b.taken()
            for _ in range(rounds):
                await b.report(measured())
                await asyncio.sleep(0.01)
        assert b.taken() == []


async def test_a_user_who_keeps_asking_has_the_launcher_write_keys_seldom(bench, monkeypatch):
    """Each order is a process of root's."""
    async with bench() as b:
        await b.ready()
        for uid in (1000, 1000, 1001):
            b.link.order_key(uid)
        monkeypatch.setattr(link_module, "_KEY_PAUSE_S", 0.0)
        b.link.order_key(1000)
        await b.quiet()
        assert b.taken() == [LIST, *({"cmd": "key", "uid": uid} for uid in (1000, 1001, 1000))]


async def test_a_gpu_that_somebody_outside_uses_is_not_given_out(bench):
    async with bench() as b:
        b.engine.adopt(with_gpus(0, 1, beside=NOTHING))
        await b.ready()
        user = gpu_process(9, "/x", memory=5 << 30)
        for processes in ([user], []):
            gpu = gpu_reading(*processes, memory_used=5 << 30, memory_total=9 << 30)
            for _ in range(3):
                await b.report(measured(gpu))
            if processes:
                for _ in range(2):
                    await b.ask(st.SubmitAsked(now(), of_gpus(1)))
                assert b.job(1).instances == (("gpu", ("1",)),)
                assert b.job(2).state is JobState.PENDING
        await b.quiet()
        assert b.job(2).instances == (("gpu", ("0",)),)


async def test_a_job_over_its_memory_on_a_gpu_is_stopped_by_two_readings(bench):
    async with bench() as b:
        b.engine.adopt(with_gpus(0, 1))
        await b.ready()
        memory = (("gpu", 1 << 30),)
        two = of_gpus(2)
        asked = replace(two, demand=replace(two.demand, gres_memory=memory))
        await b.ask(st.SubmitAsked(now(), asked))
        await b.report(launched(1, cgroup="drfd/1.1"))

        async def read(*amounts: int) -> JobState:
            gpus = [
                gpu_reading(
                    gpu_process(9, "/drfd/1.1", memory=amount), name=str(at), uuid=None,
                    pci=f"0000:0{at}:00.0", memory_used=3 << 30, memory_total=9 << 30,
                ) for at, amount in enumerate(amounts)
            ]  # fmt: skip
            await b.report(measured(*gpus))
            return b.job(1).state

        over, under = 3 << 29, 1 << 30
        # One spike on each GPU, and all that is on both together, are no breach.
        for amounts in ((under, over), (over, under), (under, over), (under, under)):
            assert await read(*amounts) is JobState.RUNNING
        assert await read(under, over) is JobState.RUNNING
        assert await read(under, over) is JobState.STOPPING
        stop = b.job(1).stop
        assert stop is not None
        assert stop.outcome is Outcome.LIMIT_EXCEEDED
        assert stop.text.startswith("used 1.5G of the memory of GPU 1, and 1G were declared; ")


_GPUS = (CountableResource(name="gpu", instances=("0", "1")),)
_TWO = tuple(
    Gpu(
        name=str(number), vendor="nvidia", pci=f"0000:0{number + 1}:00.0", uuid=f"GPU-{number}",
        nodes=frozenset({DeviceNode("c", 195, number)}),
    ) for number in range(2)
)  # fmt: skip


async def test_the_launcher_is_told_which_gpus_a_job_has_and_how_much_of_their_memory(
    bench, monkeypatch
):
    """It limits that where the kernel can."""
    async with bench(present=False) as b:
        b.engine.adopt(with_gpus(0, 1))
        b.link.settings = replace(b.link.settings, countables=_GPUS)
        monkeypatch.setattr(device_table, "find_gpus", lambda **_: _TWO)
        await b.launcher.start()
        await b.ready()
        one = of_gpus(1)
        asked = replace(one, demand=replace(one.demand, gres_memory=(("gpu", 1 << 30),)))
        await b.ask(st.SubmitAsked(now(), asked))
        await b.quiet()
        (order,) = [each for each in b.taken() if each["cmd"] == "launch"]
        memory = [["0000:01:00.0", 1 << 30]]
        assert order["devices"] == {"hidden": [["c", 195, 1]], "numa_nodes": [], "memory": memory}
        assert order["variables"]["CUDA_VISIBLE_DEVICES"] == "GPU-0"


async def test_a_job_that_is_cancelled_while_gpus_are_looked_up_is_not_launched(bench, monkeypatch):
    """A driver may take seconds, and other requests are answered meanwhile."""
    may_answer = threading.Event()

    def slow(**_: object) -> tuple[Gpu, ...]:
        may_answer.wait(5.0)
        return _TWO

    async with bench(present=False) as b:
        b.engine.adopt(with_gpus(0, 1))
        b.link.settings = replace(b.link.settings, countables=_GPUS)
        await b.launcher.start()
        await b.ready()
        monkeypatch.setattr(device_table, "find_gpus", slow)
        await b.ask(st.SubmitAsked(now(), of_gpus(1)))
        await b.ask(st.CancelAsked(now(), 1, ALICE))
        may_answer.set()
        await b.quiet()
        assert "launch" not in [each["cmd"] for each in b.taken()]


@pytest.mark.parametrize(
    ("gpus", "outcome", "text"),
    [
        (_TWO[1:], Outcome.LAUNCH_FAILED, "it could not be set up: GPU 0: there is no such GPU"),
        (None, Outcome.LAUNCH_FAILED, "it could not be set up: cannot read the list"),
    ],
)
async def test_a_job_whose_gpu_cannot_be_given_to_it_ends_with_the_reason(
    bench, monkeypatch, gpus, outcome, text
):
    def look_up(**_: object) -> tuple[Gpu, ...]:
        if gpus is None:
            raise HostError("gpus", "cannot read the list")
        return gpus

    async with bench(present=False) as b:
        monkeypatch.setattr(device_table, "find_gpus", look_up)
        b.engine.adopt(with_gpus(0, 1))
        b.link.settings = replace(b.link.settings, countables=_GPUS)
        await b.launcher.start()
        await b.ready()
        await b.ask(st.SubmitAsked(now(), of_gpus(1)))
        await b.quiet()
        assert b.job(1).outcome is outcome
        assert b.job(1).outcome_text.startswith(text)

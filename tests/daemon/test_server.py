"""Connections on a real socket: one bounded request after the other, and nobody can hurt others."""

import asyncio
import errno
import gc
import json
import logging
import os
import pwd
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from daemon.desk import Desk
from daemon.fake_launcher import until
from drfd import __version__
from drfd.common.errors import HostError
from drfd.core.model.job import Actor
from drfd.daemon import server as server_module
from drfd.daemon.config import Config, UserLimits
from drfd.daemon.lookup import follow as follow_module
from drfd.daemon.lookup.follow import EventFeed
from drfd.daemon.lookup.lookup import Lookup
from drfd.daemon.lookup.snapshots import Overview, SnapshotFeed
from drfd.daemon.server import MAX_ACCEPTS, Acceptor, Server
from drfd.daemon.users import quotas as quotas_module
from drfd.daemon.users.accounts import Accounts
from drfd.daemon.users.quotas import ID_BYTES, MAX_KEPT_BYTES, STRANGERS, UNKNOWN
from drfd.linux import descriptor_guard
from drfd.linux.descriptor_guard import guarded
from drfd.linux.listening import ListeningSocket
from drfd.linux.user_database import look_up_name
from drfd.protocol.codec import MAX_REQUEST_BYTES
from drfd.protocol.requests import SubmitRequest
from kernel import send_lingering

ME = pwd.getpwuid(os.getuid()).pw_name
SUBMIT = {"op": "submit", "argv": ["true"], "cwd": "/", "demand": {"cores_milli": 1000}}


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Write it all, even if nobody reads on."""
        with suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def reply(self) -> dict[str, Any]:
        line = await self.reader.readline()
        assert line.endswith(b"\n"), f"no whole reply: {line!r}"
        reply = json.loads(line)
        assert isinstance(reply, dict)
        return reply

    async def ask(self, **fields: Any) -> dict[str, Any]:
        await self.send(encoded(**fields))
        return await self.reply()

    async def is_at_end(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@dataclass
class Front:
    """A server with its desk, and who may come to it."""

    desk: Desk
    server: Server
    running: asyncio.Task[None]
    path: Path
    clients: list[Client]

    async def client(self) -> Client:
        client = Client(*await asyncio.open_unix_connection(self.path, limit=1 << 26))
        self.clients.append(client)
        return client

    async def ask(self, **fields: Any) -> dict[str, Any]:
        """One request on a connection of its own."""
        client = await self.client()
        reply = await client.ask(**fields)
        await client.close()
        return reply

    async def is_well(self) -> bool:
        return (await self.ask(op="hello")) == {
            "ok": True, "version": __version__, "user": ME, "admin": True, "key_file": None,
            "time_limit_s": self.desk.requests.site.defaults.time_limit_s,
        }  # fmt: skip

    async def idle(self) -> None:
        """Until the server has noticed that everybody has left, and nobody is waited for."""
        waits = self.desk.requests.waits
        await until(lambda: self.server.is_idle and not waits.waiters)


@dataclass
class Pauses:
    """How long requests that come too early are to wait, by a clock that stands still. All of them
    go on when the test says so."""

    lengths_s: list[float] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, seconds: float) -> None:
        self.lengths_s.append(seconds)
        await self.over.wait()

    async def begun(self, count: int) -> None:
        while len(self.lengths_s) < count:
            await asyncio.sleep(0)


@pytest.fixture
def pauses(monkeypatch) -> Pauses:
    """Without a burst, each request that comes after another one waits."""
    monkeypatch.setattr(quotas_module, "BURST_S", 0.0)
    return Pauses()


def encoded(**fields: Any) -> bytes:
    return json.dumps({"v": 1, **fields}).encode() + b"\n"


@pytest.fixture
def front(make_desk, short):
    """Opens a front for the length of a block."""

    @asynccontextmanager
    async def run(
        *,
        admins: frozenset[int] | None = None,
        look_up: Callable[[int], str | None] = look_up_name,
        pauses: Pauses | None = None,
        **options: Any,
    ) -> AsyncIterator[Front]:
        path = short / "drfd.sock"
        listener = listening(path)
        listener.setblocking(False)
        if pauses is not None:
            options["mono"] = lambda: 0.0
        desk = make_desk(**options)
        uids = frozenset({os.getuid()}) if admins is None else admins
        feed = EventFeed(desk.shell.engine, desk.requests.meter)
        lookup = Lookup(desk.shell.engine, desk.requests.meter)
        overview = Overview(desk.shell.engine, lookup, desk.requests.curves)
        snapshots = SnapshotFeed(overview)
        accounts = Accounts(uids, look_up)
        server = Server(desk.requests, feed, snapshots, accounts, pause=pauses or asyncio.sleep)
        running = asyncio.create_task(server.run(listener))
        clients: list[Client] = []
        try:
            async with asyncio.timeout(90):
                yield Front(desk, server, running, path, clients)
        finally:
            for client in clients:
                await client.close()
            await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running], timeout=2)
            desk.shell.host.take()

    return run


async def test_a_user_whose_name_is_not_utf_8_submits_like_others(front, monkeypatch):
    """The name goes to the journal and into each reply, which are UTF-8."""
    raw = os.fsdecode(b"m\xfcller")
    me = pwd.getpwuid(os.getuid())
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd((raw, *me[1:])))
    written = r"m\xfcller"
    async with front() as f:
        c = await f.client()
        assert (await c.ask(op="hello"))["user"] == written
        assert await c.ask(**SUBMIT) == {"ok": True, "id": 1}
        status = await c.ask(op="status")
        assert [(job["id"], job["user"]) for job in status["jobs"]] == [(1, written)]
        kept = f.desk.shell.journal.job(1)
        assert kept is not None and kept.spec.user == written


# -- a day at the front ------------------------------------------------------------------------


async def test_the_asker_is_who_the_kernel_says(front):
    async with front(admins=frozenset()) as f:
        assert (await f.ask(op="hello"))["admin"] is False
        reply = await f.ask(op="drain", on=True)
        assert (reply["ok"], reply["error"]["kind"]) == (False, "NotPermitted")
        await f.ask(**SUBMIT)
        spec = f.desk.shell.engine.ledger.jobs[1].spec
        assert (spec.user, spec.uid, spec.gid) == (ME, os.getuid(), os.getgid())


async def test_no_field_of_a_message_says_who_asks(front):
    async with front() as f:
        for field in ("uid", "user", "gid"):
            reply = await f.ask(**SUBMIT, **{field: 0})
            assert (reply["ok"], reply["error"]["code"]) == (False, "bad-request")


async def test_a_refused_request_leaves_the_connection_usable(front):
    async with front() as f:
        c = await f.client()
        for line in (b"nonsense\n", b"\n", b"[]\n", b"\xff\n", b'{"op":"hello","v":99}\n'):
            await c.send(line)
            reply = await c.reply()
            assert (reply["ok"], reply["error"]["kind"]) == (False, "Refused")
        assert (await c.ask(op="hello"))["ok"] is True


def listed(*lines: bytes) -> bytes:
    """A list of submissions."""
    return b'{"v":1,"op":"submit_list","jobs":[%s]}\n' % b",".join(map(bytes.rstrip, lines))


async def test_submissions_of_a_list_share_commits_and_each_has_its_own_reply(
    front, monkeypatch, caplog
):
    caplog.set_level(logging.INFO, "drfd.audit")
    async with front() as f:
        commits = []
        journal = f.desk.shell.engine.journal
        commit = journal.commit
        monkeypatch.setattr(journal, "commit", lambda: (commits.append(1), commit()))
        c = await f.client()
        good, bad = encoded(**SUBMIT, held=True), encoded(**SUBMIT | {"argv": []})
        dry, nonsense = encoded(**SUBMIT, dry_run=True), encoded(op="submit", argv=7)
        await c.send(listed(*[good] * 96, bad, nonsense, dry, encoded(op="status"), good))
        replies = (await c.reply())["replies"]
        assert len(commits) < 20
        refused = [each["error"]["code"] for each in replies[96:-1]]
        assert refused == ["no-command", *["bad-request"] * 3]
        assert [each["id"] for each in (*replies[:96], replies[-1])] == [*range(1, 98)]
        assert len((await c.ask(op="status"))["jobs"]) == 97
    about = f"event=audit verb=submit uid={os.getuid()} user={ME}"
    assert [each.getMessage() for each in caplog.records if each.name == "drfd.audit"] == [
        *(f"{about} jobs={job_id} result=done" for job_id in range(1, 97)),
        f"{about} result=no-command",
        f"{about} jobs=97 result=done",
    ]


# -- the hostile -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"x" * (10 << 20), id="10 MB without an end"),
        pytest.param(b"\0" * (10 << 20), id="10 MB of NUL"),
        pytest.param(b"[" * (10 << 20), id="10 MB of brackets"),
        pytest.param(b'"' + b"x" * (10 << 20) + b'"\n', id="10 MB in one line"),
    ],
)
async def test_ten_megabytes_of_garbage_are_one_refusal_and_the_end(front, garbage):
    async with front() as f:
        c = await f.client()
        sending = asyncio.create_task(c.send(garbage))
        reply = await c.reply()
        assert (reply["ok"], reply["error"]["kind"], reply["error"]["code"]) == (
            False, "Refused", "too-long",
        )  # fmt: skip
        assert str(MAX_REQUEST_BYTES) in reply["error"]["text"]
        assert await c.is_at_end()
        await sending
        assert await f.is_well()
        await c.close()
        await f.idle()


async def test_a_drop_now_and_then_does_not_keep_a_frame_open(front, monkeypatch):
    monkeypatch.setattr(server_module, "FRAME_S", 0.05)
    async with front() as f:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as slow:
            slow.setblocking(False)
            await loop.sock_connect(slow, str(f.path))
            for _ in range(15):
                with suppress(ConnectionError):
                    await loop.sock_sendall(slow, b" ")
                await asyncio.sleep(0.01)
            reply = json.loads(await loop.sock_recv(slow, 1 << 16))
        assert reply["error"]["code"] == "too-slow"


@pytest.mark.parametrize(
    "last_words",
    [
        b"", b'{"op":', b"x" * 100_000, encoded(op="status"), encoded(op="hello") * 1000,
        encoded(op="snapshots"),
    ],
    ids=["nothing", "half a request", "garbage", "a request", "a thousand requests", "a watch"],
)  # fmt: skip
async def test_who_vanishes_leaves_nothing_behind(front, last_words):
    async with front() as f:
        for _ in range(20):
            c = await f.client()
            c.writer.write(last_words)
            c.writer.transport.abort()
        await f.idle()
        assert await f.is_well()


@pytest.mark.parametrize("last_words", [encoded(op="events", after=0), encoded(op="hello")])
async def test_who_vanishes_leaves_nothing_to_the_garbage_collector(front, last_words):
    """Which seldom runs: clients that opened a stream and left took 12 KB each."""
    async with front() as f:
        for _ in range(20):
            await f.ask(**SUBMIT | {"argv": ["true", "x" * 100_000]}, held=True)
        gc.collect()
        gc.disable()
        try:
            before = sum(isinstance(each, asyncio.StreamReader) for each in gc.get_objects())
            for _ in range(20):
                with knock(f.path) as peer:
                    peer.sendall(last_words)
                    await asyncio.sleep(0.01)
            await f.idle()
            after = sum(isinstance(each, asyncio.StreamReader) for each in gc.get_objects())
        finally:
            gc.enable()
        assert after <= before


async def test_a_wait_whose_asker_has_left_with_words_unsaid_is_given_up_too(front, monkeypatch):
    """Else 256 of them lock their user out until the job ends."""
    monkeypatch.setattr(server_module, "HANGUP_CHECK_S", 0.02)
    async with front() as f:
        await f.ask(**SUBMIT)
        c = await f.client()
        await c.send(encoded(op="wait", ids=[1]) + b"and another thing")
        await until(lambda: f.desk.requests.waits.waiters)
        await c.close()
        await f.idle()


async def test_a_reader_that_does_not_read_does_not_hold_up_others(front):
    async with front() as f:
        c = await f.client()
        await c.send(encoded(**SUBMIT, held=True, name="n" * 256) * 100)
        for _ in range(100):
            await c.reply()
        lazy = socket.socket(socket.AF_UNIX)
        lazy.setblocking(False)
        await asyncio.get_running_loop().sock_connect(lazy, str(f.path))
        await asyncio.get_running_loop().sock_sendall(lazy, encoded(op="status") * 50)
        for _ in range(5):
            assert await f.is_well()
        lazy.close()
        await c.close()
        await f.idle()


@pytest.mark.parametrize("last_words", [b"", encoded(op="wait", ids=[1])], ids=["idle", "waiting"])
def test_stopping_does_not_wait_for_those_who_are_connected(front, caplog, last_words):
    """From Python 3.12.1 on, asyncio's own server waits for every client (cpython #123720): a
    restart would last as long as somebody's `drf wait`. Nor is a stop worth a traceback."""

    async def story() -> None:
        async with front() as f:
            await f.ask(**SUBMIT)
            c = await f.client()
            assert (await c.ask(op="hello"))["ok"] is True
            await c.send(last_words)
            await asyncio.sleep(0.02)
            f.running.cancel()
            # It would be there for as long as the client.
            done, _ = await asyncio.wait([f.running], timeout=30)
            assert done, "the server does not stop while a client is connected"

    # In a loop of its own: what asyncio logs when the loop closes counts, too.
    asyncio.run(story())
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_one_user_has_a_bounded_number_of_connections(front):
    async with front(config=Config(limits=UserLimits(connections=3))) as f:
        held = [await f.client() for _ in range(3)]
        for client in held:
            assert (await client.ask(op="hello"))["ok"] is True
        c = await f.client()
        reply = await c.reply()
        assert (reply["ok"], reply["error"]["code"]) == (False, "too-many-connections")
        assert await c.is_at_end()
        await held[0].close()
        is_let_in = False
        while not is_let_in:
            with suppress(ConnectionError):
                is_let_in = (await f.ask(op="hello"))["ok"]


async def test_long_requests_without_end_are_bounded_over_all_connections(front):
    """Two megabytes each, and hundreds of connections: the daemon would keep it all."""
    async with front() as f:
        loop, refusals = asyncio.get_running_loop(), []
        slow = [socket.socket(socket.AF_UNIX) for _ in range(MAX_KEPT_BYTES // (1 << 20) + 4)]
        for each in slow:
            each.setblocking(False)
            await loop.sock_connect(each, str(f.path))
            with suppress(ConnectionError):
                await loop.sock_sendall(each, b"x" * (1 << 20))
        assert await f.is_well(), "a short request is taken all the same"
        for each in slow:
            with suppress(BlockingIOError), each:
                refusals.append(json.loads(each.recv(4096))["error"]["code"])
        assert 1 <= len(refusals) <= 5
        assert set(refusals) == {"too-much-at-once"}
        await f.idle()
        assert not f.desk.requests.quotas._kept
        long = encoded(op="submit", cwd="/", argv=["true", *["x" * 100_000] * 4])
        c = await f.client()
        await c.send(long)
        assert (await c.reply())["ok"] is True


async def test_a_submission_too_early_waits_and_holds_nothing_else_up(front, pauses):
    config = Config(limits=UserLimits(changes_per_s=2))
    async with front(config=config, admins=frozenset(), pauses=pauses) as f:
        clients = [await f.client() for _ in range(19)]
        assert (await clients[0].ask(**SUBMIT))["ok"] is True
        for client in clients:
            await client.send(encoded(**SUBMIT))
        await pauses.begun(len(clients))
        assert pauses.lengths_s == [each / 2 for each in range(1, len(clients) + 1)]
        assert (await f.ask(op="hello"))["ok"] is True
        pauses.over.set()
        assert sorted([(await client.reply())["id"] for client in clients]) == [
            *range(2, len(clients) + 2)
        ]


async def test_a_loop_of_changes_is_slowed_down_and_a_cancellation_is_not(
    front, pauses, monkeypatch
):
    """No verb but submit had a rate: one user grew the journal by 72 MB a second."""
    monkeypatch.setattr(quotas_module, "MAX_CANCEL_DELAY_S", 0.0)
    config = Config(limits=UserLimits(changes_per_s=1))
    async with front(config=config, admins=frozenset(), pauses=pauses) as f:
        for _ in range(2):
            await f.desk.submit(Actor(ME, os.getuid(), is_admin=False), held=True)
        change = {"op": "set", "select": {"ids": [1, 2]}}
        assert (await f.ask(**change, priority=1))["done"] == [1, 2]
        slow = await f.client()
        await slow.send(encoded(**change, priority=2))
        await pauses.begun(1)
        assert pauses.lengths_s == [3.0], "a request, and two jobs"
        engine = f.desk.shell.engine
        assert engine.ledger.jobs[1].spec.priority == 1
        assert (await f.ask(op="cancel", select={"ids": [1]}))["done"] == [1]
        pauses.over.set()
        assert (await slow.reply())["done"] == [2], "it has only waited"
        assert engine.ledger.jobs[2].spec.priority == 2


@pytest.mark.parametrize("count", [1, 30], ids=["single", "list"])
async def test_submissions_that_wait_for_their_turn_are_not_kept_decoded(front, pauses, count):
    """Decoded, one takes twenty times the memory, and hundreds may wait."""

    def decoded() -> int:
        return sum(isinstance(each, SubmitRequest) for each in gc.get_objects())

    config, before = Config(limits=UserLimits(changes_per_s=1)), decoded()
    async with front(config=config, admins=frozenset(), pauses=pauses) as f:
        assert (await f.ask(**SUBMIT))["ok"]
        c = await f.client()
        each = encoded(**SUBMIT)
        await c.send(each if count == 1 else listed(*[each] * count))
        await pauses.begun(1)
        assert decoded() <= before
        pauses.over.set()
        assert (await c.reply())["ok"]


async def test_one_user_waits_for_a_bounded_number_of_ids(front, monkeypatch):
    """Each costs memory for as long as it is waited for, on every one of many connections."""
    monkeypatch.setattr(quotas_module, "MAX_KEPT_BYTES", 3 * ID_BYTES)
    async with front() as f:
        await f.ask(**SUBMIT, held=True)
        await f.ask(**SUBMIT, held=True)
        waiter, listener, other = [await f.client() for _ in range(3)]
        await waiter.send(b'{"v":1,"op":"wait","ids":[1,2]}\n')
        await listener.send(b'{"v":1,"op":"events","select":{"ids":[1]},"after":0}\n')
        await until(lambda: f.desk.requests.quotas._kept[os.getuid()] == 3 * ID_BYTES)
        reply = await other.ask(op="wait", ids=[1])
        assert (reply["ok"], reply["error"]["code"]) == (False, "too-much-at-once")
        await f.ask(op="cancel", select={"ids": [1, 2]})
        assert (await waiter.reply())["done"] is True
        assert (await other.ask(op="wait", ids=[1, 2]))["done"] is True
        while f.desk.requests.quotas._kept:
            assert "ok" in await listener.reply()


async def test_what_one_user_does_not_read_is_bounded_over_all_connections(front, monkeypatch):
    """A list may be long; hundreds that nobody reads must not fill the daemon's memory."""
    monkeypatch.setattr(quotas_module, "MAX_KEPT_BYTES", 3 << 20)
    # All rows are one piece of the stream, however long they take.
    monkeypatch.setattr(follow_module, "PART_S", 30.0)
    async with front() as f:
        long = {"stdout": "o" * 4000, "stderr": "e" * 4000}
        for _ in range(250):
            await f.ask(**SUBMIT | long, held=True)
        stuck, other, stream = [await f.client() for _ in range(3)]
        stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await stuck.send(b'{"v":1,"op":"status"}\n')
        await until(lambda: f.desk.requests.quotas._kept[os.getuid()])
        reply = await other.ask(op="status")
        assert (reply["ok"], reply["error"]["code"]) == (False, "too-much-at-once")
        assert len((await other.ask(op="show", id=1))["job"]["stdout"]) > 4000
        # Events come as many at a time as there are, so one is to be too much by itself.
        monkeypatch.setattr(quotas_module, "MAX_KEPT_BYTES", 2_200_000)
        await stream.send(b'{"v":1,"op":"events"}\n')
        assert "mark" in await stream.reply()
        assert (await stream.reply())["error"]["code"] == "too-much-at-once"
        stuck.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await stuck.reply())["jobs"]) == 250
        assert len((await other.ask(op="status"))["jobs"]) == 250


# -- accounts ----------------------------------------------------------------------------------


async def test_uids_without_an_account_count_as_one_user_and_have_no_jobs(front, monkeypatch):
    """Anybody may have 65,536 of them, and would have as many times what one user may have."""
    config = Config(limits=UserLimits(connections=3))
    async with front(admins=frozenset(), look_up=lambda _: None, config=config) as f:
        refusal = (await f.ask(**SUBMIT))["error"]
        assert (refusal["kind"], refusal["code"]) == ("NotPermitted", "no-account")
        assert refusal["text"].startswith(f"uid {os.getuid()} has no account")
        await f.idle()
        # As other uids of that kind would do.
        with (
            f.desk.requests.quotas.connection(STRANGERS),
            f.desk.requests.quotas.connection(STRANGERS),
        ):
            c = await f.client()
            assert (await c.ask(op="hello"))["user"] == str(os.getuid())
            assert (await (await f.client()).reply())["error"]["code"] == "too-many-connections"
            # What one of them has not read, waits for or has changed counts for all, too.
            quotas = f.desk.requests.quotas
            quotas.take(STRANGERS, 1_000_000)
            monkeypatch.setattr(f.server, "_pause", pauses := Pauses())
            pauses.over.set()
            await c.ask(op="hold", select={"ids": [1]})
            assert pauses.lengths_s
            with quotas.keeping(STRANGERS) as keep:
                keep(MAX_KEPT_BYTES)
                refusal = (await c.ask(op="wait", ids=[1]))["error"]
            assert refusal["text"].startswith("long requests, unread replies and named jobs of ")
            assert "everybody without an account" in refusal["text"]
            await c.close()
        await f.idle()


async def test_who_has_hung_up_is_not_looked_up_any_more(front, monkeypatch):
    """Thousands of connections that were gone kept the directory busy for minutes."""
    monkeypatch.setattr(server_module, "HANGUP_CHECK_LOOKING_S", 0.01)
    asked, is_open, carol = list[int](), threading.Event(), 5000

    def look_up(uid: int) -> str | None:
        asked.append(uid)
        is_open.wait(20)
        return "carol" if uid == carol else None

    async with front(look_up=look_up) as f:
        for uid in range(7000, 7050):
            monkeypatch.setattr(server_module, "peer_of", lambda _, uid=uid: (uid, uid))
            c = await f.client()
            await until(lambda: f.desk.requests.quotas._connections[UNKNOWN])
            await c.close()
        await f.idle()
        count = len(asked)
        assert count < 10
        is_open.set()
        monkeypatch.setattr(server_module, "peer_of", lambda _: (carol, carol))
        assert (await f.ask(op="hello"))["user"] == "carol"
        assert len(asked) == count + 1


def test_who_left_without_reading_all_has_hung_up():
    """asyncio closes such a connection itself, while the answer is awaited."""
    here, there = socket.socketpair()
    with there:
        assert not server_module.has_hung_up(here)
        here.close()
        assert server_module.has_hung_up(here)
        assert server_module.has_read_all(here)


async def test_a_peer_has_a_while_to_read_what_is_unsent():
    for flush_s, reads in ((0.01, False), (60, True)):
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        (_, answering) = await asyncio.open_connection(sock=ours)
        reply = bytes(4 << 20)
        answering.write(reply)
        reading = asyncio.create_task(reader.read()) if reads else None
        await server_module.close(answering, flush_s)
        read = await reading if reading is not None else await reader.read()
        assert (len(read) == len(reply)) is reads
        writer.close()


async def test_a_snapshot_more_than_once_a_second_is_refused(front):
    async with front() as f:
        reply = await f.ask(op="snapshots", every_s=0.5)
        assert (reply["ok"], reply["error"]["code"]) == (False, "bad-request")


@pytest.mark.slow
@pytest.mark.parametrize("before", [b"", encoded(op="wait", ids=[1])], ids=["first", "unread"])
async def test_a_descriptor_with_a_request_stops_nobody(front, before):
    """Reading past it, or closing the connection, closed it in the loop: one user's socket, which
    the kernel closes as slowly as that user wishes, stopped the daemon for everybody."""
    async with front() as f:
        with ExitStack() as stack:
            mine = stack.enter_context(socket.socket(socket.AF_UNIX))
            mine.connect(str(f.path))
            mine.sendall(before)
            await asyncio.sleep(0.05)
            send_lingering(mine, stack)
            assert await f.is_well()
            mine.close()
            assert await f.is_well()
            await f.idle()


def knock(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(path))
    return made


def listening(path: Path, kind: type[socket.socket] = socket.socket) -> socket.socket:
    listener = kind(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(512)
    return listener


async def test_a_crowd_is_let_in_by_small_numbers_and_who_has_left_costs_nobody_a_turn(short):
    """Four a round were let in, with all that a conversation costs, those who had left among them:
    behind hundreds of these everybody else waited in one line."""
    path = short / "door.sock"
    listener = listening(path)
    for _ in range(100):
        knock(path).close()
    speaking = knock(path)
    speaking.send(b"last words")
    speaking.close()
    stays = knock(path)
    taken: list[socket.socket] = []
    entrance = Acceptor(listener, taken.append)
    rounds = 0
    async with asyncio.timeout(30):
        while len(taken) < 2:
            rounds += 1
            await asyncio.sleep(0)
    assert rounds <= 102 // MAX_ACCEPTS + 2
    assert taken[0].recv(100) == b"last words"
    assert not taken[1].getblocking()
    entrance.close()
    for each in (stays, *taken):
        each.close()


async def test_who_brings_descriptors_first_is_not_taken(short, monkeypatch):
    """A task and a transport were made for him before that was seen."""
    # The thread that closes his connection waits no longer for others.
    monkeypatch.setattr(descriptor_guard, "_STAYS_S", 0.1)
    path = short / "door.sock"
    taken: list[socket.socket] = []
    entrance = Acceptor(guarded(listening(path)), taken.append)
    brings = knock(path)
    socket.send_fds(brings, [b"with"], [0])
    silent = knock(path)
    await until(lambda: taken)
    brings.settimeout(30)
    with suppress(ConnectionError):
        assert brings.recv(1) == b""
    entrance.close()
    for each in (brings, silent, *taken):
        each.close()


async def test_a_shortage_of_descriptors_is_told_once_and_who_knocks_waits(short, monkeypatch):
    monkeypatch.setattr(server_module, "RETRY_S", 0.01)

    class Short(socket.socket):
        fails = 3

        def accept(self) -> Any:
            if self.fails:
                self.fails -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    told: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"].errno))
    path = short / "door.sock"
    taken: list[socket.socket] = []
    entrance = Acceptor(listening(path, Short), taken.append)
    client = knock(path)
    await until(lambda: taken)
    assert told == [errno.EMFILE] * 3
    entrance.close()
    for each in (client, *taken):
        each.close()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(HostError, match="it is not a socket"):
        ListeningSocket(path, 0o600)
    assert path.read_text() == "data"


@contextmanager
def full_listener(path: Path) -> Iterator[socket.socket]:
    """A socket that listens at `path`, accepts nothing, and whose backlog is full."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        clients = []
        try:
            with suppress(BlockingIOError):
                while True:
                    clients.append(socket.socket(socket.AF_UNIX))
                    clients[-1].setblocking(False)
                    clients[-1].connect(str(path))
            yield listener
        finally:
            for client in clients:
                client.close()


@contextmanager
def fails_after(seconds: float) -> Iterator[None]:
    """Fail the block if it takes longer, also where it waits in the kernel."""

    def fail(*_: object) -> None:
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_socket_that_is_answered_is_left_to_its_owner(tmp_path):
    first = ListeningSocket(tmp_path / "s", 0o600)
    with pytest.raises(HostError, match="another program listens"):
        ListeningSocket(tmp_path / "s", 0o600)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))
    first.close()
    assert list(tmp_path.iterdir()) == []


def test_a_socket_with_a_full_backlog_is_left_to_its_owner_at_once(tmp_path):
    """A blocking connect(2) would wait for the other program to accept."""
    path = tmp_path / "s"
    refused = pytest.raises(HostError, match="another program listens")
    with full_listener(path), fails_after(10.0), refused:
        ListeningSocket(path, 0o600)
    assert path.is_socket()


def test_a_dead_daemons_socket_is_taken_over(tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    door = ListeningSocket(tmp_path / "s", 0o666)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o666
    door.close()


def test_at_the_end_another_ones_socket_stays(tmp_path):
    first = ListeningSocket(tmp_path / "s", 0o600)
    (tmp_path / "s").rename(tmp_path / "old")
    second = ListeningSocket(tmp_path / "s", 0o600)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    first.close()
    assert (tmp_path / "s").is_socket()
    second.close()

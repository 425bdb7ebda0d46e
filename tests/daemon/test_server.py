"""Connections on a real socket: one bounded request after the other, and nobody can hurt others."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drfd import __version__
from drfd.core.effects import Launch
from drfd.core.stimuli import Actor
from drfd.daemon import accounts as accounts_module
from drfd.daemon import frames
from drfd.daemon import quotas as quotas_module
from drfd.daemon import server as server_module
from drfd.daemon.accounts import Accounts
from drfd.daemon.config import Config, Limits
from drfd.daemon.feed import Feed
from drfd.daemon.lookup import Lookup
from drfd.daemon.overview import Overview
from drfd.daemon.quotas import AT_ONCE, MAX_COMING_BYTES, STRANGERS
from drfd.daemon.server import Server
from drfd.daemon.snapshots import Snapshots
from drfd.wire.codec import MAX_REQUEST_BYTES
from fakes import now, rules

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

    desk: Any
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
            "ok": True,
            "version": __version__,
            "user": ME,
            "admin": True,
        }

    async def idle(self) -> None:
        """Until the server has noticed that everybody has left, and nobody is waited for."""
        async with asyncio.timeout(10):
            while not self.server.is_idle or self.desk.requests._awaited._waiting._waiters:
                await asyncio.sleep(0.005)


def encoded(**fields: Any) -> bytes:
    return json.dumps({"v": 1, **fields}).encode() + b"\n"


@pytest.fixture
def front(make_desk: Callable[..., Any], short: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def run(*, admins: frozenset[int] | None = None, **options: Any) -> AsyncIterator[Front]:
        path = short / "drfd.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(64)
        listener.setblocking(False)
        desk = make_desk(**options)
        uids = frozenset({os.getuid()}) if admins is None else admins
        feed = Feed(desk.shell.engine, desk.requests.meter)
        lookup = Lookup(desk.shell.engine, desk.requests.meter)
        overview = Overview(desk.shell.engine, lookup, desk.requests.curves)
        snapshots = Snapshots(overview)
        server = Server(desk.requests, feed, snapshots, Accounts(uids))

        def job_changed(job: Any) -> None:
            desk.requests.job_changed(job)
            feed.job_changed(job)
            snapshots.job_changed(job)

        desk.shell.engine.on_change = job_changed
        running = asyncio.create_task(server.run(listener))
        clients: list[Client] = []
        try:
            async with asyncio.timeout(30):
                yield Front(desk, server, running, path, clients)
        finally:
            for client in clients:
                await client.close()
            await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running], timeout=2)
            desk.shell.host.take()

    return run


# -- a day at the front ------------------------------------------------------------------------


def test_a_whole_session_on_one_connection(front: Any) -> None:
    async def story() -> None:
        async with front() as f:
            c = await f.client()
            assert await c.ask(**SUBMIT) == {"ok": True, "id": 1}
            assert f.desk.shell.host.take() == [Launch(1, 1)]
            assert await c.ask(**SUBMIT, held=True) == {"ok": True, "id": 2}
            status = await c.ask(op="status")
            assert [(job["id"], job["state"], job["user"]) for job in status["jobs"]] == [
                (1, "STARTING", ME),
                (2, "HELD", ME),
            ]
            assert (status["ok"], status["draining"]) == (True, False)
            assert (await c.ask(op="why", id=2))["job"]["reason"]["code"] == "HELD"
            assert (await c.ask(op="show", id=2))["events"][0]["event"] == "Submitted"
            assert await c.ask(op="release", select={"ids": [2]}) == {
                "ok": True,
                "done": [2],
                "failed": [],
            }
            assert await c.ask(op="cancel", select={"ids": [2]}) == {
                "ok": True,
                "done": [2],
                "failed": [],
            }
            assert await c.ask(op="drain", on=True) == {"ok": True, "draining": True}
            assert await c.ask(op="drain", on=False) == {"ok": True, "draining": False}
            assert (await c.ask(op="hold", select={"ids": [1]}))["failed"][0]["id"] == 1
            assert [n["path"] for n in (await c.ask(op="shares"))["nodes"]] == [f"root.{ME}"]
            assert (await c.ask(op="doctor"))["launcher"] == "away"
            await f.desk.finish(1, exit_code=7)
            waited = await c.ask(op="wait", ids=[1])
            assert [(job["id"], job["status"]) for job in waited["ended"]] == [(1, 7)]
            assert await c.ask(op="hello") == {
                "ok": True,
                "version": __version__,
                "user": ME,
                "admin": True,
            }

    asyncio.run(story())


def test_the_asker_is_who_the_kernel_says(front: Any) -> None:
    async def story() -> None:
        async with front(admins=frozenset()) as f:
            assert (await f.ask(op="hello"))["admin"] is False
            reply = await f.ask(op="drain", on=True)
            assert (reply["ok"], reply["error"]["kind"]) == (False, "NotPermitted")
            await f.ask(**SUBMIT)
            spec = f.desk.shell.engine.ledger.jobs[1].spec
            assert (spec.user, spec.uid, spec.gid) == (ME, os.getuid(), os.getgid())

    asyncio.run(story())


def test_no_field_of_a_message_says_who_asks(front: Any) -> None:
    async def story() -> None:
        async with front() as f:
            for field in ("uid", "user", "gid"):
                reply = await f.ask(**SUBMIT, **{field: 0})
                assert (reply["ok"], reply["error"]["code"]) == (False, "bad-request")

    asyncio.run(story())


def test_a_refused_request_leaves_the_connection_usable(front: Any) -> None:
    async def story() -> None:
        async with front() as f:
            c = await f.client()
            for line in (b"nonsense\n", b"\n", b"[]\n", b"\xff\n", b'{"op":"hello","v":99}\n'):
                await c.send(line)
                reply = await c.reply()
                assert (reply["ok"], reply["error"]["kind"]) == (False, "Refused")
            assert (await c.ask(op="hello"))["ok"] is True

    asyncio.run(story())


def test_requests_that_were_sent_ahead_are_answered_in_order(front: Any) -> None:
    async def story() -> None:
        async with front() as f:
            c = await f.client()
            await c.send(b"".join(encoded(**SUBMIT, held=True) for _ in range(5)))
            assert [(await c.reply())["id"] for _ in range(5)] == [1, 2, 3, 4, 5]

    asyncio.run(story())


def test_submissions_that_were_sent_ahead_share_commits(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is durable before it is answered, and none waits for the disk alone."""

    async def story() -> None:
        async with front() as f:
            commits = []
            journal = f.desk.shell.engine.journal
            commit = journal.commit
            monkeypatch.setattr(journal, "commit", lambda: (commits.append(1), commit()))
            c = await f.client()
            await c.send(b"".join(encoded(**SUBMIT, held=True) for _ in range(300)))
            assert [(await c.reply())["id"] for _ in range(300)] == list(range(1, 301))
            assert len(commits) < 30

    asyncio.run(story())


def test_what_is_asked_after_submissions_knows_of_all_of_them(front: Any) -> None:
    """And what is refused among them is told in its place."""

    async def story() -> None:
        async with front() as f:
            c = await f.client()
            good, bad = encoded(**SUBMIT, held=True), encoded(**SUBMIT | {"argv": []})
            dry = encoded(**SUBMIT, dry_run=True)
            look = encoded(op="status")
            await c.send(good + bad + good + look + b"nonsense\n" + good + dry + look)
            replies = [await c.reply() for _ in range(8)]
            assert [each["ok"] for each in replies] == [
                *(True, False, True, True),
                *(False, True, True, True),
            ]
            assert [replies[at]["id"] for at in (0, 2, 5)] == [1, 2, 3]
            assert [len(replies[at]["jobs"]) for at in (3, 7)] == [2, 3]
            assert replies[1]["error"]["code"] == "no-command"

    asyncio.run(story())


def test_who_leaves_after_submissions_has_submitted_them(front: Any) -> None:
    async def story() -> None:
        async with front() as f:
            c = await f.client()
            await c.send(encoded(**SUBMIT, held=True) * 50)
            await c.close()
            while len(f.desk.shell.engine.ledger.jobs) < 50:
                await asyncio.sleep(0.005)
            await f.idle()
            assert await f.is_well()

    asyncio.run(story())


def test_who_reads_no_answers_submits_no_more_than_a_few_ahead(front: Any) -> None:
    """What is kept of one connection is bounded: one long request, or so many short ones."""

    async def story() -> None:
        async with front() as f:
            c = await f.client()
            long = encoded(**SUBMIT, held=True, script="x" * (400 << 10))
            await c.send(long * 20)
            assert [(await c.reply())["id"] for _ in range(20)] == list(range(1, 21))

    asyncio.run(story())


def test_a_request_may_come_in_pieces(front: Any) -> None:
    async def story() -> None:
        async with front() as f:
            c = await f.client()
            for sign in encoded(op="hello"):
                await c.send(bytes([sign]))
                await asyncio.sleep(0)
            assert (await c.reply())["ok"] is True

    asyncio.run(story())


def test_what_has_come_of_a_long_request_is_not_looked_at_again_with_every_byte() -> None:
    async def cost_s(start: bytes) -> float:
        reader = asyncio.StreamReader(limit=frames.PIECE_BYTES)
        reading = asyncio.ensure_future(frames.Frames(reader).next(lambda size: None))
        reader.feed_data(start)
        while reader._buffer:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        begin_s = time.process_time()
        for _ in range(5000):
            reader.feed_data(b"y")
            await asyncio.sleep(0)
        reader.feed_data(b"\n")
        assert await reading == start + b"y" * 5000 + b"\n"
        return time.process_time() - begin_s

    async def story() -> None:
        long = b"x" * (MAX_REQUEST_BYTES - 5001)
        assert min([await cost_s(long) for _ in range(3)]) < 4 * await cost_s(b"x") + 0.05

    asyncio.run(story())


def test_many_connections_of_one_user_have_a_few_requests_read_at_a_time(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much they bring all at once, between two rounds of the loop little is done of it."""

    async def story() -> None:
        async with front(admins=frozenset()) as f:
            rounds: list[int] = [0]
            decode = server_module.decode_request

            def counted(line: bytes) -> Any:
                rounds[-1] += 1
                return decode(line)

            async def count() -> None:
                while True:
                    rounds.append(0)
                    await asyncio.sleep(0)

            clients = [await f.client() for _ in range(40)]
            assert all([(await c.ask(op="hello"))["ok"] for c in clients])
            monkeypatch.setattr(server_module, "decode_request", counted)
            counting = asyncio.create_task(count())
            for c in clients:
                await c.send(encoded(**SUBMIT | {"argv": []}) * 60)
            for c in clients:
                assert not any([(await c.reply())["ok"] for _ in range(60)])
            counting.cancel()
            assert sum(rounds) == 40 * 60
            assert max(rounds) <= AT_ONCE

    asyncio.run(story())


def test_a_wait_does_not_hold_up_anybody(front: Any) -> None:
    async def story() -> None:
        async with front() as f:
            await f.ask(**SUBMIT)
            c = await f.client()
            await c.send(encoded(op="wait", ids=[1]))
            assert await f.is_well()
            await f.desk.finish(1)
            reply = await c.reply()
            assert (reply["done"], reply["ended"][0]["status"]) == (True, 0)

    asyncio.run(story())


def test_a_submission_of_the_largest_size_is_taken(front: Any) -> None:
    async def story() -> None:
        async with front() as f:
            script = "x" * ((512 << 10) - 1)
            argv = ["y" * 1000] * 500
            reply = await f.ask(op="submit", argv=argv, cwd="/", script=script, held=True)
            assert reply == {"ok": True, "id": 1}

    asyncio.run(story())


def test_a_reply_of_many_megabytes_arrives_whole(front: Any) -> None:
    async def story() -> None:
        async with front(by=rules(max_waiting_per_user=5000)) as f:
            c = await f.client()
            await c.send(encoded(**SUBMIT, held=True, name="n" * 256) * 1500)
            for _ in range(1500):
                await c.reply()
            await c.send(encoded(op="status"))
            await asyncio.sleep(0.05)
            assert len((await c.reply())["jobs"]) == 1500

    asyncio.run(story())


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
def test_ten_megabytes_of_garbage_are_one_refusal_and_the_end(front: Any, garbage: bytes) -> None:
    async def story() -> None:
        async with front() as f:
            c = await f.client()
            sending = asyncio.create_task(c.send(garbage))
            reply = await c.reply()
            assert (reply["ok"], reply["error"]["kind"], reply["error"]["code"]) == (
                False,
                "Refused",
                "too-long",
            )
            assert str(MAX_REQUEST_BYTES) in reply["error"]["text"]
            assert await c.is_at_end()
            await sending
            assert await f.is_well()
            await c.close()
            await f.idle()

    asyncio.run(story())


def test_a_frame_that_never_ends_is_refused_after_a_while(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FRAME_S", 0.1)

    async def story() -> None:
        async with front() as f:
            c = await f.client()
            await c.send(b'{"op": "hel')
            assert await f.is_well(), "others are served meanwhile"
            reply = await c.reply()
            assert (reply["ok"], reply["error"]["code"]) == (False, "too-slow")
            assert await c.is_at_end()
            await f.idle()

    asyncio.run(story())


def test_a_drop_now_and_then_does_not_keep_a_frame_open(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FRAME_S", 0.1)

    async def story() -> None:
        async with front() as f:
            loop = asyncio.get_running_loop()
            with socket.socket(socket.AF_UNIX) as slow:
                slow.setblocking(False)
                await loop.sock_connect(slow, str(f.path))
                for _ in range(30):
                    with suppress(ConnectionError):
                        await loop.sock_sendall(slow, b" ")
                    await asyncio.sleep(0.01)
                reply = json.loads(await loop.sock_recv(slow, 1 << 16))
            assert reply["error"]["code"] == "too-slow"

    asyncio.run(story())


def test_an_open_connection_that_says_nothing_is_left_alone(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FRAME_S", 0.02)

    async def story() -> None:
        async with front() as f:
            c = await f.client()
            await asyncio.sleep(0.1)
            assert (await c.ask(op="hello"))["ok"] is True

    asyncio.run(story())


@pytest.mark.parametrize(
    "last_words",
    [
        b"",
        b'{"op":',
        b"x" * 100_000,
        encoded(op="status"),
        encoded(op="hello") * 1000,
        encoded(op="snapshots"),
    ],
    ids=["nothing", "half a request", "garbage", "a request", "a thousand requests", "a watch"],
)
def test_clients_that_vanish_leave_nothing_behind(front: Any, last_words: bytes) -> None:
    async def story() -> None:
        async with front() as f:
            for _ in range(20):
                c = await f.client()
                c.writer.write(last_words)
                c.writer.transport.abort()
            await f.idle()
            assert await f.is_well()

    asyncio.run(story())


def test_a_client_that_shuts_its_side_still_gets_its_answer(front: Any) -> None:
    """As `echo … | nc -U` does."""

    async def story() -> None:
        async with front() as f:
            c = await f.client()
            await c.send(encoded(op="hello"))
            c.writer.write_eof()
            assert (await c.reply())["ok"] is True
            assert await c.is_at_end()

    asyncio.run(story())


def test_a_wait_whose_asker_has_left_is_given_up(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_HANGUP_CHECK_S", 0.02)

    async def story() -> None:
        async with front() as f:
            await f.ask(**SUBMIT)
            c = await f.client()
            await c.send(encoded(op="wait", ids=[1]))
            while not f.desk.requests._awaited._waiting._waiters:
                await asyncio.sleep(0.005)
            await c.close()
            await f.idle()

    asyncio.run(story())


def test_a_wait_whose_asker_has_left_with_words_unsaid_is_given_up_too(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else 256 of them lock their user out until the job ends."""
    monkeypatch.setattr(server_module, "_HANGUP_CHECK_S", 0.02)

    async def story() -> None:
        async with front() as f:
            await f.ask(**SUBMIT)
            c = await f.client()
            await c.send(encoded(op="wait", ids=[1]) + b"and another thing")
            while not f.desk.requests._awaited._waiting._waiters:
                await asyncio.sleep(0.005)
            await c.close()
            await f.idle()

    asyncio.run(story())


def test_a_reader_that_does_not_read_does_not_hold_up_others(front: Any) -> None:
    async def story() -> None:
        async with front() as f:
            c = await f.client()
            await c.send(encoded(**SUBMIT, held=True, name="n" * 256) * 300)
            for _ in range(300):
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

    asyncio.run(story())


@pytest.mark.parametrize("last_words", [b"", encoded(op="wait", ids=[1])], ids=["idle", "waiting"])
def test_stopping_does_not_wait_for_those_who_are_connected(
    front: Any, caplog: pytest.LogCaptureFixture, last_words: bytes
) -> None:
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
            done, _ = await asyncio.wait([f.running], timeout=2)
            assert done, "the server does not stop while a client is connected"

    asyncio.run(story())
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_one_user_has_a_bounded_number_of_connections(front: Any) -> None:
    async def story() -> None:
        async with front(config=Config(limits=Limits(connections=3))) as f:
            held = [await f.client() for _ in range(3)]
            for client in held:
                assert (await client.ask(op="hello"))["ok"] is True
            c = await f.client()
            reply = await c.reply()
            assert (reply["ok"], reply["error"]["code"]) == (False, "too-many-connections")
            assert await c.is_at_end()
            await held[0].close()
            while f.server._quotas._connections[os.getuid()] > 2:
                await asyncio.sleep(0.005)
            assert await f.is_well()


def test_long_requests_that_do_not_end_are_bounded_over_all_connections(front: Any) -> None:
    """Two megabytes each, and hundreds of connections: the daemon would keep it all."""

    async def story() -> None:
        async with front() as f:
            loop, refusals = asyncio.get_running_loop(), []
            slow = [socket.socket(socket.AF_UNIX) for _ in range(MAX_COMING_BYTES // (1 << 20) + 4)]
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
            assert not f.server._quotas._coming
            long = encoded(op="submit", cwd="/", argv=["true", *["x" * 100_000] * 4])
            c = await f.client()
            await c.send(long)
            assert (await c.reply())["ok"] is True

    asyncio.run(story())


def test_a_submission_too_early_waits_and_holds_nothing_else_up(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas_module, "BURST_S", 0.0)
    config = Config(limits=Limits(submissions_per_s=2))

    async def story() -> None:
        async with front(config=config, admins=frozenset()) as f:
            clients = [await f.client() for _ in range(AT_ONCE + 3)]
            first = await clients[0].ask(**SUBMIT)
            assert first["ok"] is True
            for client in clients:
                await client.send(encoded(**SUBMIT))
            replies = [asyncio.create_task(client.reply()) for client in clients]
            done, _ = await asyncio.wait(replies, timeout=0.2)
            assert len(done) <= 1
            assert (await f.ask(op="hello"))["ok"] is True
            await asyncio.wait(replies, return_when=asyncio.FIRST_COMPLETED)
            for reply in replies:
                reply.cancel()

    asyncio.run(story())


def test_one_user_waits_for_a_bounded_number_of_ids(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs memory for as long as it is waited for, on every one of many connections."""
    monkeypatch.setattr(quotas_module, "MAX_AWAITED", 3)

    async def story() -> None:
        async with front() as f:
            await f.ask(**SUBMIT, held=True)
            await f.ask(**SUBMIT, held=True)
            waiter, listener, other = [await f.client() for _ in range(3)]
            await waiter.send(b'{"v":1,"op":"wait","ids":[1,2]}\n')
            await listener.send(b'{"v":1,"op":"events","select":{"ids":[1]},"after":0}\n')
            while f.server._quotas._awaited[os.getuid()] < 3:
                await asyncio.sleep(0.005)
            reply = await other.ask(op="wait", ids=[1])
            assert (reply["ok"], reply["error"]["code"]) == (False, "too-many-ids")
            await f.ask(op="cancel", select={"ids": [1, 2]})
            assert (await waiter.reply())["done"] is True
            assert (await other.ask(op="wait", ids=[1, 2]))["done"] is True
            while f.server._quotas._awaited:
                assert "ok" in await listener.reply()

    asyncio.run(story())


def test_what_one_user_does_not_read_is_bounded_over_all_connections(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list may be long; hundreds that nobody reads must not fill the daemon's memory."""
    monkeypatch.setattr(quotas_module, "MAX_UNREAD_BYTES", 3 << 20)

    async def story() -> None:
        async with front() as f:
            long = ["true", *["x" * 100_000] * 4]
            for _ in range(5):
                await f.ask(**SUBMIT | {"argv": long}, held=True)
            stuck, other, stream = [await f.client() for _ in range(3)]
            stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await stuck.send(b'{"v":1,"op":"status"}\n')
            while not f.server._quotas._unread[os.getuid()]:
                await asyncio.sleep(0.005)
            # As long as nothing else is unread, a list of any length is sent.
            reply = await other.ask(op="status")
            assert (reply["ok"], reply["error"]["code"]) == (False, "too-much-unread")
            assert len((await other.ask(op="show", id=1))["job"]["argv"]) == 5
            await stream.send(b'{"v":1,"op":"events"}\n')
            assert "mark" in await stream.reply()
            assert (await stream.reply())["error"]["code"] == "too-much-unread"
            stuck.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len((await stuck.reply())["jobs"]) == 5
            assert len((await other.ask(op="status"))["jobs"]) == 5

    asyncio.run(story())


def test_a_job_with_hostile_words_is_told_as_it_is(front: Any) -> None:
    """JSON carries anything; making it harmless is up to who prints it."""
    name = "\x1b[31m[/x]\n\u202e" + "\U0001f600" * 10

    async def story() -> None:
        async with front() as f:
            await f.ask(**SUBMIT, name=name, held=True)
            assert (await f.ask(op="status"))["jobs"][0]["name"] == name

    asyncio.run(story())


@pytest.mark.parametrize("huge", [2**63, 2**64, 10**400])
def test_a_machine_of_any_size_can_be_shown(front: Any, huge: int) -> None:
    """The configuration decides the capacity; no number of it may break a reply."""
    big = rules(cores=9)
    object.__setattr__(big, "capacity", type(big.capacity)(cores_milli=9000, memory_bytes=huge))

    async def story() -> None:
        async with front(by=big) as f:
            assert (await f.ask(op="shares"))["capacity"]["memory"] == huge

    asyncio.run(story())


# -- accounts ----------------------------------------------------------------------------------


def test_a_uid_without_a_name_is_called_by_its_number() -> None:
    async def story() -> None:
        for is_admin in (False, True):
            accounts = Accounts(frozenset({4_000_000_123} if is_admin else ()))
            # A container's bare uid may have a daemon of its own.
            assert await accounts.actor(4_000_000_123) == Actor(
                "4000000123", 4_000_000_123, is_admin=is_admin, has_account=is_admin
            )

    asyncio.run(story())


def test_uids_without_an_account_count_as_one_user_and_have_no_jobs(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may have 65,536 of them, and would have as many times what one user may have."""

    class Empty:
        @staticmethod
        def getpwuid(uid: int) -> Any:
            raise KeyError(uid)

    monkeypatch.setattr(accounts_module, "pwd", Empty)

    async def story() -> None:
        async with front(admins=frozenset(), config=Config(limits=Limits(connections=3))) as f:
            refusal = (await f.ask(**SUBMIT))["error"]
            assert (refusal["kind"], refusal["code"]) == ("NotPermitted", "no-account")
            assert refusal["text"].startswith(f"uid {os.getuid()} has no account")
            # As other uids of that kind would do.
            with f.server._quotas.connection(STRANGERS), f.server._quotas.connection(STRANGERS):
                c = await f.client()
                assert (await c.ask(op="hello"))["user"] == str(os.getuid())
                assert (await (await f.client()).reply())["error"]["code"] == "too-many-connections"
                await c.close()
            await f.idle()

    asyncio.run(story())


def test_names_are_looked_up_off_the_loop_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory service that hangs delays its own users alone, and those it knows not at all."""
    looked_up: list[int] = []

    class Directory:
        @staticmethod
        def getpwuid(uid: int) -> Any:
            looked_up.append(uid)
            if uid == 2:
                raise_after(1.5)
            return pwd.struct_passwd((f"user{uid}", "x", uid, uid, "", "/", "/bin/sh"))

    def raise_after(seconds: float) -> None:
        import time

        time.sleep(seconds)

    monkeypatch.setattr(accounts_module, "pwd", Directory)
    monkeypatch.setattr(accounts_module, "_WAIT_S", 1.0)

    async def story() -> None:
        accounts = Accounts(frozenset({1}))
        slow = asyncio.create_task(accounts.actor(2))
        await asyncio.sleep(0.01)
        quick = await accounts.actor(1)
        assert (quick.user, quick.is_admin, slow.done()) == ("user1", True, False)
        assert (await slow).user == "2"
        assert (await accounts.actor(1)).user == "user1"
        assert looked_up == [2, 1]

    asyncio.run(story())


def test_a_name_that_many_ask_for_at_once_is_looked_up_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A burst of one user's connections would keep all threads busy, and others waiting."""
    looked_up: list[int] = []

    class Directory:
        @staticmethod
        def getpwuid(uid: int) -> Any:
            looked_up.append(uid)
            return pwd.struct_passwd((f"user{uid}", "x", uid, uid, "", "/", "/bin/sh"))

    monkeypatch.setattr(accounts_module, "pwd", Directory)

    async def story() -> None:
        accounts = Accounts(frozenset())
        actors = await asyncio.gather(*(accounts.actor(7) for _ in range(256)))
        assert {actor.user for actor in actors} == {"user7"}
        assert looked_up == [7]

    asyncio.run(story())


def test_the_clock_of_the_fakes_is_not_the_machines() -> None:
    """A guard: these tests must not depend on when they run."""
    assert now().at_s == 1_700_000_000


def test_who_does_not_read_keeps_nobody_from_leaving(front: Any) -> None:
    """A reply that lies half unread in the socket when the daemon is told to stop."""

    async def story() -> None:
        async with front() as f:
            for _ in range(3):
                await f.ask(**SUBMIT, held=True, name="x" * 200)
            lazy = socket.socket(socket.AF_UNIX)
            lazy.setblocking(False)
            lazy.connect(str(f.path))
            # Some megabytes of replies, of which nothing is read.
            lazy.send(encoded(op="status") * 2000)
            await asyncio.sleep(0.5)
            f.running.cancel()
            _, late = await asyncio.wait([f.running], timeout=15)
            lazy.close()
            assert not late

    asyncio.run(story())


def test_who_has_not_read_one_snapshot_is_not_sent_the_next(front: Any) -> None:
    """The kernel would keep many short lines, and show old ones first to who comes back."""

    async def story() -> None:
        async with front() as f:
            with closing(socket.socket(socket.AF_UNIX)) as slow:
                slow.connect(str(f.path))
                slow.sendall(encoded(op="snapshots"))
                client = await f.client()
                lines = []
                client.writer.write(encoded(op="snapshots"))
                for _ in range(4):
                    lines.append(json.loads(await client.reader.readline()))
                assert all(list(line["snapshot"])[:2] == ["user", "mine"] for line in lines)
                slow.setblocking(False)
                assert slow.recv(1 << 20).count(b"\n") == 1
                assert await f.is_well()

    asyncio.run(story())


def test_watchers_who_leave_after_a_line_or_in_one_leave_nothing_behind(
    front: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with front() as f:
            for number in range(40):
                await f.desk.submit(Actor("u", 1001, False), name=f"{number:0>250}", held=True)
            for reads in (1, 100_000):
                for _ in range(5):
                    c = await f.client()
                    c.writer.write(encoded(op="snapshots"))
                    await c.reader.read(reads)
                    c.writer.transport.abort()
            await f.idle()
            assert await f.is_well()

    asyncio.run(story())
    assert caplog.records == []


def test_a_snapshot_more_than_once_a_second_is_refused(front: Any) -> None:
    async def story() -> None:
        async with front() as f:
            reply = await f.ask(op="snapshots", every_s=0.5)
            assert (reply["ok"], reply["error"]["code"]) == (False, "bad-request")

    asyncio.run(story())

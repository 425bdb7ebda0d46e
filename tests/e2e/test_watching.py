"""Watchers of a real daemon: fast ones, one that does not read, many; over its restarts and end."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import drfd.client
from drfd.client.connection import Connection
from drfd.protocol.codec import encode_request
from instance import PATIENCE, Instance, wait_for

#: Room for what runs, and a lone user who has much queued: lines longer than the kernel keeps.
QUEUED = 400
MIB = 1 << 20


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    instance = Instance()
    try:
        instance.start()
        client = Connection(instance.socket)
        for number in range(QUEUED):
            client.request(
                "submit", argv=["true"], cwd="/", name=f"{number:0>250}", held=True, pool="A"
            )
        client.close()
        yield instance
    finally:
        instance.destroy()


@pytest.fixture(scope="module")
def busy(instance: Instance) -> int:
    """A job that uses all that it may of a core, for as long as the tests last."""
    command = "while :; do :; done"
    return instance.submit("-c", "0.5", "-m", "64M", "-t", "10m", "--", "sh", "-c", command)


class Watcher:
    """Reads only when it is told to."""

    def __init__(self, instance: Instance) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(instance.socket))
        self._socket.settimeout(60 * PATIENCE)
        self._socket.sendall(encode_request({"op": "snapshots", "v": 1}))
        self._file = self._socket.makefile("rb")

    def see(self) -> dict[str, Any]:
        line = self._file.readline()
        assert line.endswith(b"\n"), "the stream has ended"
        return dict(json.loads(line)["snapshot"])

    def is_told(self) -> None:
        """Return when a line has begun to arrive; it is not taken."""
        assert self._socket.recv(1, socket.MSG_PEEK), "the stream has ended"

    def has_ended(self) -> bool:
        """When all has been read that was still to come."""
        try:
            while self._file.readline().endswith(b"\n"):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@contextmanager
def watchers(instance: Instance, many: int) -> Iterator[list[Watcher]]:
    all_of_them = [Watcher(instance) for _ in range(many)]
    try:
        yield all_of_them
    finally:
        for each in all_of_them:
            each.close()


def memory_bytes(instance: Instance) -> int:
    assert instance.process is not None
    status = Path(f"/proc/{instance.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def test_who_reads_nothing_for_ten_seconds_costs_nobody_anything(
    instance: Instance, busy: int
) -> None:
    """Others see each second, the daemon keeps nothing, and then comes the newest, not the rest."""
    with watchers(instance, 20) as slow, watchers(instance, 2) as quick:
        for each in quick:
            assert len(json.dumps(each.see())) > 212_992, "a shorter line would lie in the kernel"
        for each in slow:
            each.is_told()
        begin_s, before = time.time(), memory_bytes(instance)
        seen = 0
        while time.time() - begin_s < 10:
            ats = [each.see()["at"] for each in quick]
            assert all(abs(time.time() - at) < 10 * PATIENCE for at in ats)
            seen += 1
        assert seen >= 5, "others have waited for those who did not read"
        # What was kept for each of the slow ones would be 40 MiB; some comes and goes by itself.
        assert memory_bytes(instance) - before < 12 * MIB
        for each in slow:
            assert each.see()["at"] < begin_s, "what was begun is told to its end"
        # Nothing of the ten seconds in between, in which others were told ten times.
        assert all(each.see()["at"] > begin_s + 5 for each in slow)


def test_two_hundred_watchers_all_see_each_second_and_others_are_answered(
    instance: Instance, busy: int
) -> None:
    with watchers(instance, 200) as many:
        begin_s = time.monotonic()
        firsts = [each.see() for each in many]
        thirds = [[each.see() for each in many] for _ in range(2)][-1]
        for first, third in zip(firsts, thirds, strict=True):
            assert third["at"] - first["at"] > 1.5
            assert third["counts"]["HELD"] == QUEUED
        # All of them were shown few pictures: each was made for all, and one a second.
        assert len({each["at"] for each in thirds}) < 20 + time.monotonic() - begin_s
        assert instance.show(busy)["state"] == "RUNNING"


def test_what_a_job_uses_is_seen_and_kept_over_a_restart(instance: Instance, busy: int) -> None:
    with drfd.client.connect(instance.socket) as client:
        wait_for("points", lambda: len(client.usage(busy).at) >= 4)
        stream = client.snapshots()
        first = next(stream)
        (row,) = (row for row in first.running if row.id == busy)
        assert row.now is not None
        assert row.demand.cores == 0.5
        known = [cores for cores in client.usage(busy).cores if cores is not None]
        # As far as others let it; without cgroups nothing keeps it at half a core.
        assert 0.02 < max(known) < (0.7 if instance.has_cgroups() else 1.3)
        assert [each for each in client.usage(user=row.user).cores if each]
        before = client.usage(busy)
        instance.stop()
        instance.start()
        after = client.usage(busy)
        # To the millisecond, as it is kept; the clock of the world may be slewed meanwhile.
        assert after.at[: len(before.at)] == pytest.approx(before.at, abs=0.5)
        assert next(at for at in (each.at for each in stream) if at > first.at)
        stream.close()
        wait_for("a new point", lambda: len(client.usage(busy).at) > len(before.at))
        client.cancel(busy)
        client.wait(busy, timeout="1m")
        ended = client.usage(busy)
        assert 4 <= len(ended.at) <= 32
        assert ended.at[-1] > after.at[-1] - 1
        assert ended.demand is not None and ended.demand.cores == 0.5
        instance.kill()
        instance.start()
        assert client.usage(busy) == ended


def test_watchers_do_not_keep_the_daemon_from_its_end(instance: Instance) -> None:
    instance.restart_if_dead()
    with watchers(instance, 10) as slow, watchers(instance, 10) as quick:
        for each in quick:
            each.see()
        begin_s = time.monotonic()
        instance.stop()
        assert time.monotonic() - begin_s < 10 * PATIENCE
        ends: list[bool] = []
        readers = [
            threading.Thread(target=lambda each=each: ends.append(each.has_ended()))
            for each in (*quick, *slow)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(30)
        assert ends == [True] * 20
    assert "Traceback" not in instance.log.read_text()
    assert "event=bug" not in instance.log.read_text()

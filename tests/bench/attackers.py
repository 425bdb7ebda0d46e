"""What a hostile user does to drfd: one attack after the other's name, until it is killed.

Run as that user with `python -I -c TEXT NAME SOCKET DIRECTORY SECONDS PROCESSORS`; nothing of drfd
is used, as somebody's own client would not either. It prints `begun` when the attack is under way.
With SECONDS it ends by itself. `spin` uses so many PROCESSORS (1).
"""

import array
import json
import math
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, cycle
from typing import Any

Request = dict[str, Any]
Attack = Callable[[], None]

_WORDS = sys.argv[1:] if __name__ == "__main__" else []
NAME, PATH, HOME, SECONDS, PROCESSORS = (*_WORDS, *[""] * 5)[:5]
UNTIL_S = time.monotonic() + float(SECONDS or "inf")
ATTACKS: dict[str, tuple[str, Attack]] = {}
#: So many connections one user may have, less one for the preparations.
MOST = 250
BIG = "x" * 100_000


def attack(what: str) -> Callable[[Attack], Attack]:
    """`what`: the attack in a few words, for the table."""

    def note(function: Attack) -> Attack:
        ATTACKS[function.__name__.replace("_", "-")] = (what, function)
        return function

    return note


# -- tools -----------------------------------------------------------------------------------------


def line(op: str, **fields: Any) -> bytes:
    return json.dumps({"v": 1, "op": op, **fields}).encode() + b"\n"


def job(*argv: str, **fields: Any) -> Request:
    demand = {"cores_milli": 100, "memory_bytes": 8 << 20, **fields.pop("demand", {})}
    output = {"stdout": "/dev/null", "stderr": "/dev/null"}
    return {"argv": [*argv], "cwd": HOME, "demand": demand, **output, **fields}


def connected() -> socket.socket:
    """Again and again: while drfd is being restarted, or refuses one more."""
    while not is_over():
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(PATH)
        except OSError:
            made.close()
            time.sleep(0.05)
            continue
        return made
    sys.exit(0)


def is_over() -> bool:
    return time.monotonic() > UNTIL_S


class Caller:
    """One request after the other, on connections that are made anew when they end."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def ask(self, op: str, **fields: Any) -> Request:
        """The reply; an empty one when the connection has ended."""
        if self._socket is None:
            self._socket = connected()
        data = b""
        try:
            self._socket.sendall(line(op, **fields))
            while not data.endswith(b"\n"):
                piece = self._socket.recv(1 << 20)
                if not piece:
                    raise ConnectionResetError
                data += piece
        except OSError:
            self._socket.close()
            self._socket = None
            return {}
        reply = json.loads(data)
        return reply if isinstance(reply, dict) else {}

    def submit(self, *argv: str, **fields: Any) -> int:
        """The id; 0: refused."""
        return int(self.ask("submit", **job(*argv, **fields)).get("id", 0))


def begun() -> None:
    print("begun", flush=True)


def storm(requests: Iterator[bytes], connections: int) -> None:
    """On so many connections at once, the next as soon as one is answered."""
    selector = selectors.DefaultSelector()

    def open_one() -> None:
        made = connected()
        made.setblocking(False)
        selector.register(made, selectors.EVENT_READ, bytearray())
        send(made)

    def send(to: socket.socket) -> None:
        data = memoryview(next(requests))
        to.settimeout(5)
        try:
            to.sendall(data)
        except OSError:
            pass
        to.setblocking(False)

    for _ in range(connections):
        open_one()
    begun()
    while not is_over():
        ready = selector.select(0.5)
        for key, _ in ready:
            found = key.fileobj
            assert isinstance(found, socket.socket)
            try:
                data = found.recv(1 << 20)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                selector.unregister(found)
                found.close()
                open_one()
                time.sleep(0.001)
                continue
            for _ in range(data.count(b"\n")):
                send(found)


def hold_open(connections: int, first: bytes) -> list[socket.socket]:
    made = []
    for _ in range(connections):
        each = connected()
        each.settimeout(1)
        try:
            each.sendall(first)
        except OSError:
            pass
        made.append(each)
    return made


def fill(number: int, fields: Callable[[int], Request]) -> list[int]:
    """Submit so many, as far as that is allowed, on one connection."""
    ids = []
    made = connected()
    made.settimeout(60)
    reader = made.makefile("rb")
    for first in range(0, number, 50):
        some = range(first, min(first + 50, number))
        made.sendall(b"".join(line("submit", **fields(at)) for at in some))
        for _ in some:
            reply = json.loads(reader.readline() or b"{}")
            if reply.get("ok") is True:
                ids.append(int(reply["id"]))
    made.close()
    return ids


def running(script: str, **fields: Any) -> int:
    """A job that runs."""
    caller = Caller()
    job_id = caller.submit("sh", "-c", script, **fields)
    for _ in range(600):
        if caller.ask("show", id=job_id).get("job", {}).get("state") == "RUNNING" or is_over():
            break
        time.sleep(0.05)
    return job_id


def own(verb: str, ids: list[int], **fields: Any) -> bytes:
    return line(verb, select={"ids": ids}, **fields)


# -- what the journal keeps ------------------------------------------------------------------------


@attack("set priority of a 500 KB job, again and again")
def set_big() -> None:
    ids = fill(4, lambda _: job(*[BIG] * 4, held=True)) or fill(4, lambda _: job("x", held=True))
    storm((own("set", [each], priority=at) for at, each in zip(count(), cycle(ids))), 16)


@attack("show a job with thousands of events")
def show_long() -> None:
    (job_id, *_) = fill(1, lambda _: job("x", held=True))
    caller = Caller()
    for at in range(3000):
        caller.ask("set", select={"ids": [job_id]}, priority=at)
    storm(cycle([line("show", id=job_id)]), 32)


@attack("jobs of 100,000 arguments")
def arguments() -> None:
    data = line("submit", **job(*["a"] * 100_000, held=True))
    storm(cycle([data]), 8)


@attack("jobs that wait for 1,000 others")
def dependencies() -> None:
    ids = fill(1000, lambda _: job("x", held=True))
    after = [{"id": each} for each in ids] or [{"id": 1}]
    storm(cycle([line("submit", **job("true", after=after))]), 8)


@attack("submissions on 200 connections")
def submissions() -> None:
    storm(cycle([line("submit", **job("true", held=True))]), 200)


@attack("submissions of 60 KB each that wait for their turn")
def queued() -> None:
    env = {f"V{number:x}": f"{number % 10}" for number in range(4500)}
    each = json.loads(line("submit", **job("true", held=True, env=env)))
    storm(cycle([line("submit_list", jobs=[each] * 30)]), MOST)


@attack("arrays of 10,000, submitted and cancelled")
def arrays() -> None:
    caller = Caller()
    begun()
    while not is_over():
        ids = [caller.submit("true", array="0-9999", held=True) for _ in range(10)]
        caller.ask("cancel", select={"ids": [each for each in ids if each]})


@attack("hold and release of an array torn into 10,000 ranges, and its list")
def torn() -> None:
    caller = Caller()
    pieces = ",".join(map(str, range(0, 1000, 2)))
    array_id = caller.submit("true", array=f"{pieces},2000-21499", held=True)
    caller.ask("cancel", select={"ids": [*range(array_id + 1, array_id + 20_000, 2)]})
    asked = [own(verb, [array_id]) for verb in ("release", "hold")]
    storm(cycle([*asked, line("status"), line("show", id=array_id)]), 8)


# -- what the scheduler looks at -------------------------------------------------------------------


def wait_unlike(number: int = 4000) -> list[int]:
    """Jobs of unlike demands that wait for one of the same user's that takes all he may have."""
    running("exec sleep 1000", demand={"cores_milli": 8000})
    return fill(number, lambda at: job("true", demand={"cores_milli": 1000 + at}))


@attack("4,000 waiting jobs of unlike demands")
def unlike() -> None:
    ids = wait_unlike()
    storm((own("set", [each], priority=at) for at, each in zip(count(), cycle(ids or [1]))), 4)


@attack("set priority of all 4,000 waiting jobs")
def set_all() -> None:
    wait_unlike()
    storm((line("set", select={"everything": True}, priority=at % 1000) for at in count()), 2)


@attack("forecasts (dry runs) among 4,000 waiting jobs")
def forecasts() -> None:
    wait_unlike()
    storm(cycle([line("submit", **job("true", dry_run=True))]), 64)


@attack("why of a job that waits, on 64 connections")
def whys() -> None:
    ids = wait_unlike(2000)
    storm((line("why", id=each) for each in cycle(ids or [1])), 64)


# -- what is long to answer ------------------------------------------------------------------------


@attack("status with unlike patterns of names")
def patterns() -> None:
    fill(1000, lambda _: job("true", held=True, name="a" * 256))
    texts = (f"{at:08}".replace("0", "*a").replace("1", "?*")[:16] + "*a" * 120 for at in count())
    storm((line("status", select={"name": text}) for text in texts), 16)


@attack("lists of 10,000 jobs that are hardly read")
def slow_readers() -> None:
    fill(10_000, lambda _: job("true", held=True, name="n" * 200))
    held = hold_open(MOST, line("status") * 50)
    begun()
    while not is_over():
        for each in held:
            each.settimeout(0.001)
            try:
                each.recv(64)
            except OSError:
                pass
        time.sleep(0.05)


@attack("history and report over everything")
def history() -> None:
    ids = fill(3000, lambda _: job("true", held=True))
    Caller().ask("cancel", select={"ids": ids})
    both = [line("history"), line("report", by="job"), line("history", past={"name": "*x*"})]
    storm(cycle(both), 32)


@attack("history of 10,000 names of tasks of ended arrays")
def ended_names() -> None:
    caller = Caller()
    ranges = ",".join(map(str, range(0, 1784, 2)))
    ids = [caller.submit("true", array=ranges, held=True) for _ in range(8)]
    caller.ask("cancel", select={"ids": ids})
    names = [f"{array_id}_{index}" for index in range(0, 1784, 2) for array_id in ids]
    storm(cycle([line("history", past={"ids": (2 * names)[:10_000]})]), 2)


@attack("all events since the beginning, again and again")
def replay() -> None:
    ids = fill(3000, lambda _: job("true", held=True))
    Caller().ask("cancel", select={"ids": ids})
    begun()
    while not is_over():
        for each in hold_open(32, line("events", after=0)):
            try:
                each.recv(1 << 16)
            except OSError:
                # drfd has others to serve, too.
                pass
            each.close()


@attack("events of 100,000 ids, twice, and changes of an array")
def listeners() -> None:
    caller = Caller()
    array_id = caller.submit("true", array="0-9", held=True)
    held = hold_open(2, line("events", select={"ids": [*range(1, 100_001)]}))
    storm((own("set", [array_id], priority=at % 100) for at in count()), 8)
    del held


@attack("watchers of events and snapshots that do not read")
def watchers() -> None:
    fill(3000, lambda _: job("true", held=True, name="n" * 200))
    held = hold_open(MOST // 2, line("snapshots"))
    held += hold_open(MOST // 2 - 1, line("events", select={"everything": True}, standing=True))
    begun()
    caller = Caller()
    while not is_over():
        caller.ask("set", select={"everything": True}, priority=int(time.monotonic()) % 100)
        time.sleep(0.2)
    del held


# -- connections -----------------------------------------------------------------------------------


@attack("connections of uids that nobody knows")
def unknown_uids() -> None:
    """By root, as newuidmap lets a user do it."""
    begun()
    for uid in cycle(range(3_100_000_000, 3_100_060_000)):
        if is_over():
            return
        os.seteuid(uid)
        made = socket.socket(socket.AF_UNIX)
        made.setblocking(False)
        try:
            made.connect(PATH)
            made.send(line("hello"))
        except OSError:
            pass
        os.seteuid(0)
        made.close()


@attack("connections that come and go")
def churn() -> None:
    begun()
    while not is_over():
        for each in hold_open(64, b""):
            each.close()


@attack("requests with descriptors sent along")
def descriptors() -> None:
    begun()
    with socket.socket(socket.AF_UNIX) as extra:
        rights = array.array("i", [extra.fileno()] * 100)
        sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        while not is_over():
            made = [connected() for _ in range(16)]
            for each in made:
                each.settimeout(1)
                try:
                    each.sendmsg([line("hello")], sent)
                except OSError:
                    pass
            for each in made:
                each.close()


@attack("requests that are half sent")
def half_open() -> None:
    held = hold_open(MOST, line("status")[:10])
    begun()
    while not is_over():
        for each in held:
            try:
                each.send(b" ")
            except OSError:
                pass
            time.sleep(0.0005)


@attack("nonsense: deep, huge and broken JSON")
def nonsense() -> None:
    deep = b'{"v":1,"op":"status","select":' + b"[" * 100_000 + b"\n"
    numbers = b'{"v":1,"op":"show","id":' + b"9" * 100_000 + b"}\n"
    storm(cycle([deep, numbers, b"\n", b"\xff" * 60_000 + b"\n"]), 32)


# -- jobs ------------------------------------------------------------------------------------------


@attack("processes that move into a job of one's own, on 12 connections")
def moves() -> None:
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    fields = {"id": running("exec sleep 1000"), "attempt": 1, "start_ticks": ticks}
    storm(cycle([line("exec", **fields, pid=os.getpid(), proof="0" * 64)]), 12)


@attack("suspend and resume of 20 running jobs")
def suspensions() -> None:
    script = "while :; do sleep 0.2; done"
    ids = [running(script, demand={"cores_milli": 20}) for _ in range(20)]
    storm((own(verb, ids) for verb in cycle(("suspend", "resume"))), 4)


@attack("jobs with notification commands")
def notices() -> None:
    notify = {"on": ["start", "end", "fail"], "argv": ["sleep", "5"]}
    storm(cycle([line("submit", **job("false", notify=notify))]), 8)


@attack("jobs that fail at once, and are tried 1,000 times more")
def retries() -> None:
    retry = {"times": 1000, "on": ["FAILED"]}
    storm(cycle([line("submit", **job("false", retry=retry))]), 2)


@attack("jobs that cannot be launched")
def unlaunchable() -> None:
    storm(cycle([line("submit", **job("true") | {"cwd": "/nonexistent"})]), 8)


@attack("(for comparison: processor time, and nothing of drfd)")
def spin() -> None:
    """In parts of a hundredth of a second, by as many processes as that needs."""
    share = float(PROCESSORS or 1)
    processes = max(1, math.ceil(share))
    for _ in range(processes - 1):
        if os.fork() == 0:
            break
    else:
        begun()
    work_s = 0.01 * share / processes
    while not is_over():
        begin_s, used_s = time.monotonic(), time.process_time()
        while time.process_time() - used_s < work_s:
            pass
        time.sleep(max(0.0, 0.01 - (time.monotonic() - begin_s)))


if __name__ == "__main__":
    while not is_over():
        try:
            ATTACKS[NAME][1]()
        except (OSError, ValueError) as error:
            # drfd has let us go, or is being restarted: once more from the beginning.
            print(f"{NAME}: {error!r}", file=sys.stderr, flush=True)
            time.sleep(0.2)

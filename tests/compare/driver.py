"""A whole drfd in virtual time: `drfd serve --launcher DIR` with a clock, users and a launcher that
are made up. `tests.compare` runs it with the interpreter of one tree, and with the histories of the
present one:

    driver.py TESTS histories        plays each history of the ranges that it reads, prints a trace
    driver.py TESTS serve DIRECTORY  plays the fixed history, and then answers clients for ever, at
                                     a time that stands still

Of its tree it knows the command line, the configuration file, requests and replies, and the lines
between daemon and launcher; all else that it replaces is Python's. Where one of these changes, this
file follows (`World.ask` and `Launcher`), and what `histories` and `readings` use of it stays.

While there is anything to do the clock stands still; then it goes on to what is due next. So the
same requests have the same effects at the same times, whatever the machine does.
"""

import asyncio
import gc
import importlib.util
import json
import os
import pwd
import queue
import re
import selectors
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from weakref import WeakSet

Message = dict[str, Any]
Key = tuple[int, int]

USERS = {"root": 0, "ann": 1001, "ben": 1002, "cyd": 1003, "dan": 1004}
#: Whether the tree is older than this file, and the names that its launcher's reports have then.
IS_OLD = importlib.util.find_spec("drfd.core.decisions.decide") is not None
_OLD_REPORTS = {"launched": "up", "exited": "ended", "notified": "told"}
#: Begin of the names of sockets of clients that are made up.
_CLIENT = "\0drfd-compare-"
#: Seconds of real time after which a history hangs.
_HISTORY_S = 600
#: Seconds of virtual time after a reply, and after daemon or launcher have come up.
_MOMENT_S = 0.001
#: Difference between the times of jobs with successive ids; the loop takes a thousand as one time.
_ORDER_S = 1e-12
#: Histories after which garbage is collected.
_COLLECT = 25


class CLOCK:
    """Virtual time; a clock that is stopped does not go on."""

    mono_s = ahead_s = 0.0
    is_stopped = False

    @classmethod
    def mono(cls) -> float:
        return cls.mono_s

    @classmethod
    def at(cls) -> float:
        return cls.mono_s + cls.ahead_s


class _Queue(queue.SimpleQueue):
    """Work for threads, of which is known whether it is done: users are looked up so."""

    #: How much work there is in this life of the daemon; a list of one.
    busy: ClassVar[list[int]] = [0]
    _guard, _own = threading.Lock(), threading.local()

    def __init__(self) -> None:
        self._busy = _Queue.busy

    def _count(self, by: int) -> None:
        with self._guard:
            self._busy[0] += by

    def put(self, item: Any, *more: Any) -> None:
        self._count(item is not None)
        super().put(item, *more)

    def get(self, *more: Any, **options: Any) -> Any:
        self._count(-getattr(self._own, "has_work", False))
        self._own.has_work = False
        item = super().get(*more, **options)
        self._own.has_work = item is not None
        return item


class _Selector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> Any:
        if CLOCK.is_stopped:
            return super().select(timeout)
        # What threads have done before they count as idle is seen by the look after that.
        is_busy = _Queue.busy[0] > 0
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if is_busy:
            return super().select(0.01)
        if timeout is None:
            raise RuntimeError("the daemon waits for nothing")
        CLOCK.mono_s += timeout
        return []


class _Loop(asyncio.SelectorEventLoop):
    """A loop in virtual time: what it gives to a thread is done at once."""

    def __init__(self) -> None:
        self.timers: WeakSet[asyncio.TimerHandle] = WeakSet()
        super().__init__(_Selector())

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def set_default_executor(self, executor: Any) -> None:
        executor.shutdown()

    def call_at(self, *about: Any, **options: Any) -> asyncio.TimerHandle:
        timer = super().call_at(*about, **options)
        self.timers.add(timer)
        return timer


def install_stubs(caller: Path) -> None:
    """Replace clocks, users, and the end of the process, before the tree takes the real ones. The
    user of a client that is made up stands in the name of its socket, that of others in a file."""
    time.time, time.time_ns = CLOCK.at, lambda: round(CLOCK.at() * 1e9)
    for name in ("monotonic", "perf_counter", "thread_time", "process_time"):
        setattr(time, name, CLOCK.mono)
        setattr(time, f"{name}_ns", lambda: round(CLOCK.mono() * 1e9))
    time.clock_gettime = lambda which: (CLOCK.mono if which else CLOCK.at)()

    def getsockopt(peer: socket.socket, level: int, option: int, *more: Any) -> Any:
        if option != socket.SO_PEERCRED:
            return real(peer, level, option, *more)
        name = os.fsdecode(peer.getpeername())
        uid = USERS[name.split("-")[-1] if name.startswith(_CLIENT) else caller.read_text()]
        return struct.pack("iII", os.getpid(), uid, uid)

    def account(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", USERS[name], USERS[name], "", "/", "/bin/sh"))

    def end(code: int) -> None:
        if os.getpid() != own:  # a child's
            really_end(code)
        raise SystemExit(code)

    own, really_end = os.getpid(), os._exit
    real, socket.socket.getsockopt = socket.socket.getsockopt, getsockopt
    pwd.getpwnam, names = account, {uid: name for name, uid in USERS.items()}
    pwd.getpwuid = lambda uid: account(names[uid])
    os._exit, queue.SimpleQueue = end, _Queue
    # A collection of all garbage takes half as long as a history.
    gc.collect, gc.freeze = lambda generation=2: 0, lambda: None


class World:
    """A daemon and all that is around it, through several lives."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.seed, self.directory = seed, directory
        #: What came of it: pairs of a kind and a text.
        self.trace: list[tuple[str, str]] = []
        self.launcher = Launcher(self)
        for name in ("launcher", "state"):
            (directory / name).mkdir(parents=True)
        CLOCK.mono_s, CLOCK.ahead_s = 1000.0, 1_699_999_000.0

    def record(self, kind: str, text: str) -> None:
        self.trace.append((kind, text))

    @staticmethod
    def set_clock(by_s: float) -> None:
        CLOCK.ahead_s += by_s

    def configure(self, text: str) -> None:
        from drfd.core.fairness.rules import Preempting

        if not hasattr(Preempting, "exempt_s"):
            # The baseline spares a job only after a stop.
            text = re.sub("preempt_exempt = [0-9]+", "preempt_cooldown = 1", text)
        (self.directory / "drfd.toml").write_text(text)

    def play(self, player: Coroutine[Any, Any, None]) -> None:
        """Play to the end, or to that of a daemon which fails."""
        from drfd.daemon.main import main

        os.chdir(self.directory)
        self.loop, self._life = _Loop(), asyncio.Event()
        asyncio.set_event_loop(self.loop)
        self._player = self.loop.create_task(self._to_the_end(player))
        asyncio.run = lambda daemon, **_: self.loop.run_until_complete(self._live(daemon))
        words = "serve --as-root --config drfd.toml --state state --launcher launcher"
        while not self._player.done():
            _Queue.busy = [0]
            try:
                main([*words.split(), "--socket", "drfd.sock"])
            except SystemExit as end:
                if end.code:
                    raise RuntimeError(f"exit status {end.code}") from None
        self._player.result()

    async def _live(self, daemon: Coroutine[Any, Any, None]) -> None:
        """A life of the daemon."""
        life = asyncio.create_task(daemon)
        self._clients: dict[str, Any] = {}
        self._life.set()
        await asyncio.wait([life, self._player], return_when=asyncio.FIRST_COMPLETED)
        if not life.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await life
        # What the daemon has still begun ends with its process.
        await asyncio.sleep(0)
        for timer in set(self.loop.timers) - self.launcher.timers():
            timer.cancel()

    async def _to_the_end(self, player: Coroutine[Any, Any, None]) -> None:
        await self._life.wait()
        await self.launcher.rise()
        await player

    async def restart(self) -> None:
        """Let the daemon end, and begin anew."""
        self._life.clear()
        os.kill(os.getpid(), signal.SIGTERM)
        await self._life.wait()
        await self.come_to_rest()

    @staticmethod
    async def come_to_rest() -> None:
        """Threads take a while of real time, and must not decide what comes first."""
        await asyncio.sleep(_MOMENT_S)

    async def ask(self, user: str, op: str, **fields: Any) -> Message:
        """The reply to a request, when there is nothing more to do at this time."""
        if user not in self._clients:
            client = socket.socket(socket.AF_UNIX)
            client.bind(f"{_CLIENT}{os.getpid()}-{id(client)}-{user}")
            client.connect("drfd.sock")
            self._clients[user] = await asyncio.open_unix_connection(sock=client, limit=1 << 26)
        reader, writer = self._clients[user]
        writer.write(json.dumps({"v": 1, "op": op, **fields}).encode() + b"\n")
        reply = json.loads(await reader.readline())
        await self.come_to_rest()
        return reply


@dataclass
class _Attempt:
    #: Seconds that its program runs.
    left_s: float
    #: What is to happen to it next.
    next: asyncio.TimerHandle | None = None
    is_alive: bool = True
    is_frozen: bool = False
    #: The reports that tell all of it.
    told: list[Message] = field(default_factory=list)


class Launcher:
    """A launcher and its machine. How an attempt fares is drawn from the number of the history and
    its own name, or stands in `fates`: by job the seconds, exit code, signal, whether it is for
    want of memory."""

    def __init__(self, world: World) -> None:
        self.fates: dict[int, tuple[float, int | None, int | None, bool]] = {}
        self._world = world
        self._attempts: dict[Key, _Attempt] = {}
        #: How often each launch was ordered.
        self._tries: dict[Key, int] = {}
        self._is_kind = False
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None

    def timers(self) -> set[asyncio.TimerHandle | None]:
        return {attempt.next for attempt in self._attempts.values()}

    # -- what befalls it --------------------------------------------------------------------------

    async def rise(self) -> None:
        path = self._world.directory / "launcher/launcher.sock"
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, path)
        await self._world.come_to_rest()

    def fall(self) -> None:
        """It dies; what it has started goes on."""
        assert self._server is not None
        self._server.close()
        if self._writer is not None:
            self._writer.close()

    def lose(self, which: int) -> None:
        """An attempt ends, and nobody knows how."""
        alive = [key for key, attempt in sorted(self._attempts.items()) if attempt.is_alive]
        if alive:
            self._exit(alive[which % len(alive)], None, None)

    def be_kind(self) -> None:
        """Whatever runs ends soon, and nothing goes wrong any more."""
        self._is_kind = True
        for key, attempt in sorted(self._attempts.items()):
            attempt.left_s = min(attempt.left_s, 2.0)
            if attempt.is_alive and attempt.told and not attempt.is_frozen:
                self._soon(key, attempt.left_s, self._finish)

    # -- the line to the daemon -------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._send({
            "report": "hello", "version": 1, "kind": "cgroup2",
            "mounts": {}, "cores": {},
            "controls": dict.fromkeys(("cores", "memory", "read", "write", "pids"), "enforced"),
            "min_uid": 1000, "allowed_uids": [], "hiding": [True, ""], "warnings": [],
            # Asked for at d5967423.
            "lost_devices": [],
            "private_tmp": None, "processes": None, "removes_ipc": True,
            "exec": True, "output_max": True, "measures_gpus": True,
            "ranges": True, "limits_gpus": [],
        })  # fmt: skip
        while line := await reader.readline():
            order = json.loads(line)
            key = order.get("id"), order.get("attempt")
            if order["cmd"] == "launch" and key not in self._tries:
                gpus = order["variables"].get("DRF_GRES_GPU", "")
                self._world.record("start", f"{key[0]}.{key[1]} {gpus}".rstrip())
            self._obey(order["cmd"], key)

    def _send(self, report: Message) -> None:
        if IS_OLD:
            old = {**_OLD_REPORTS, "launch_failed": "shortage" if "whose" in report else "broke"}
            report = {**report, "report": old.get(report["report"], report["report"])}
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(report).encode() + b"\n")

    def _tell(self, report: str, key: Key, **facts: Any) -> None:
        self._send(self._report(report, key, **facts))

    def _report(self, report: str, key: Key, **facts: Any) -> Message:
        now = {"at_s": CLOCK.at(), "mono_s": CLOCK.mono()}
        return {"report": report, "id": key[0], "attempt": key[1], **now, **facts}

    def _note(self, report: str, key: Key, **facts: Any) -> None:
        """Tell what is true from now on."""
        said = self._report(report, key, **facts)
        self._attempts[key].told.append(said)
        self._send(said)

    def _obey(self, command: str, key: Key) -> None:
        attempt = self._attempts.get(key)
        is_alive = attempt is not None and attempt.is_alive
        match command:
            case "list":
                for each in sorted(self._attempts):
                    self._tell_all(each)
                self._send({"report": "listed", "known": sorted(self._attempts), "owners": {}})
            case "launch" if attempt is not None:
                self._tell_all(key)
            case "launch":
                self._launch(key)
            case "notify" if attempt is None:
                self._tell("notified", key, notice="told")
            case "remove" | "notify":
                if is_alive:
                    self._exit(key, None, 9)
                self._attempts.pop(key, None)
                self._tell("removed", key)
            case "terminate" | "kill" | "freeze" | "thaw" if attempt is None:
                self._tell("missing", key)
            case "terminate" if is_alive and not attempt.is_frozen:
                manner = self._chance(key, "term").random()
                if manner < 0.7:
                    end = (None, 15) if manner < 0.4 else (0, None)
                    self._soon(key, 0.2, lambda key: self._exit(key, *end))
            case "kill" if is_alive:
                self._soon(key, 0.3, lambda key: self._exit(key, None, 9))
            case "freeze" if is_alive:
                attempt.next.cancel()
                attempt.is_frozen = True
                self._tell("frozen", key)
            case "thaw" if is_alive and attempt.is_frozen:
                attempt.is_frozen = False
                self._run(key)

    def _tell_all(self, key: Key) -> None:
        for report in self._attempts[key].told:
            self._send(report)

    # -- attempts ---------------------------------------------------------------------------------

    def _chance(self, key: Key, what: str) -> Random:
        return Random(f"{self._world.seed} {key} {what}")

    def _soon(self, key: Key, delay_s: float, what: Callable[[Key], None]) -> None:
        """In place of what was to happen to it. At one time, attempts come in the order of their
        jobs, and not in that of the loop's heap, in which the daemon's own timers are, too."""
        attempt = self._attempts[key]
        if attempt.next is not None:
            attempt.next.cancel()
        later_s = delay_s + key[0] * _ORDER_S
        attempt.next = asyncio.get_running_loop().call_later(later_s, what, key)

    def _launch(self, key: Key) -> None:
        self._tries[key] = self._tries.get(key, 0) + 1
        random = self._chance(key, f"launch {self._tries[key]}")
        is_sure = self._is_kind or key[0] in self.fates
        fate = 1.0 if is_sure else random.random()
        left_s = random.choice([0.0, 0.5, 2.0, 5.0, 11.0, 20.0, 45.0, 1e6]) + random.random()
        if fate < 0.05:
            self._tell("launch_failed", key, text="it could not be set up")
        elif fate < 0.1:
            # After one of a user or of the machine the baseline tries a single job first.
            facts = {"whose": "job", "resource": "processes"}
            self._tell("launch_failed", key, text="there was no process to spare", **facts)
        else:
            left_s = self.fates[key[0]][0] if key[0] in self.fates else left_s
            self._attempts[key] = _Attempt(min(left_s, 2.0) if self._is_kind else left_s)
            self._soon(key, random.choice([0.0, 0.0, 0.1, 1.5]), self._run)

    def _run(self, key: Key) -> None:
        attempt = self._attempts[key]
        if not attempt.told:
            self._note("launched", key, runner_pid=1 << 30, cgroup=f"drfd/{key[0]}.{key[1]}")
        self._soon(key, attempt.left_s, self._finish)

    def _finish(self, key: Key) -> None:
        random = self._chance(key, "end")
        code, number = random.choice([(0, None)] * 6 + [(3, None), (None, 11)])
        is_oom = random.random() < 0.1
        _, code, number, is_oom = self.fates.get(key[0], (0, code, number, is_oom))
        self._exit(key, None if is_oom else code, 9 if is_oom else number, is_oom)

    def _exit(self, key: Key, code: int | None, number: int | None, is_oom: bool = False) -> None:
        attempt = self._attempts[key]
        attempt.next.cancel()
        attempt.is_alive = False
        facts = {"exit_code": code, "signal": number, "oom_killed": is_oom, "over_limit": is_oom}
        if attempt.told:
            self._note("exited", key, **facts, cpu_s=1.0, peak_bytes=1 << 20)
        else:
            # It never ran.
            del self._attempts[key]
            self._tell("missing", key)


def one_history(seed: int) -> list[tuple[str, str]]:
    """What comes of it."""
    directory = Path(tempfile.mkdtemp(prefix="history-"))
    world = World(seed, directory)
    signal.signal(signal.SIGALRM, lambda *_: sys.exit("it hangs"))
    signal.alarm(_HISTORY_S)
    try:
        world.configure(histories.configuration(seed))
        world.play(histories.play(world))
    except Exception as error:
        world.record("the daemon ends", f"{type(error).__name__}: {error}")
    # Not when it is collected: that would take the signals of the next one.
    world.loop.close()
    signal.alarm(0)
    shutil.rmtree(directory)
    return world.trace


async def serve(world: World) -> None:
    await readings.play(world)
    CLOCK.is_stopped = True
    print(json.dumps([CLOCK.at(), world.trace]), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    work, *words = sys.argv[2:]
    collect = gc.collect
    install_stubs(Path(*words, "../caller"))
    if work == "serve":
        world = World(0, Path(*words))
        world.configure(readings.CONFIGURATION)
        world.play(serve(world))
    for line in sys.stdin:
        for seed in range(*map(int, line.split())):
            print(json.dumps(one_history(seed)), flush=True)
            if seed % _COLLECT == 0:
                collect()


if __name__ == "__main__":
    sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/compare"]
    import histories
    import readings

    main()

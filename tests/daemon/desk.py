"""Parts of the daemon without its process: an engine (Shell), and who answers requests (Desk)."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from drfd.common.errors import DrfdError, HostError
from drfd.core.decisions.stimuli import Actor, RemovedReport, Stimulus
from drfd.core.explain.forecast import Forecast
from drfd.core.fairness.rules import Rules
from drfd.core.model import events as ev
from drfd.core.model.job import Job, Now
from drfd.daemon.children.children import Children
from drfd.daemon.config import Config, Site, UserLimits
from drfd.daemon.engine.engine import Engine, Work
from drfd.daemon.handlers.doctor import InstallContext
from drfd.daemon.handlers.requests import VERBS, Requests
from drfd.daemon.launcher_link.link import Link, Links
from drfd.daemon.launcher_link.messages import LaunchSettings
from drfd.daemon.main import main
from drfd.daemon.monitoring.meter import Curves, Meter
from drfd.daemon.monitoring.reserves import Reserves
from drfd.host.disks import Disk
from drfd.journal.files import Reserve
from drfd.journal.journal import Journal
from drfd.journal.submissions import Payload
from drfd.protocol.requests import REQUESTS, decode_request
from fakes import FakeHost, ended, launched, now

Result = list[ev.Event] | DrfdError
#: A reply as JSON.
View = dict[str, Any]
DISK = Disk(name="data", path="/data", read_bps=2000, write_bps=1000, devices=("8:0",))


@dataclass
class Shell:
    """An engine, and what came out of it: answers, changed jobs, effects."""

    engine: Engine
    journal: Journal
    host: FakeHost
    changed: list[Job]

    def turn(self, *stimuli: Stimulus | tuple[Stimulus, Payload]) -> list[Result]:
        """One turn over all of them; their answers."""
        answers: list[Result] = []
        batch = []
        for each in stimuli:
            stimulus, payload = each if isinstance(each, tuple) else (each, None)
            batch.append(Work(stimulus, payload, answers.append))
        self.engine.turn(batch)
        assert len(answers) == len(stimuli), "every asker is answered, once"
        return answers

    def submit(self, work: Work) -> None:
        """Queue work for the next turn of the asyncio loop."""
        self.engine.submit(work)


class FullDisk(Journal):
    """Refuses to commit, or to append the event of a given kind, while `is_full`."""

    is_full = False
    refused_kind: type | None = None
    has_events = False

    def commit(self) -> None:
        if self.is_full and self.has_events:
            raise HostError("journal", "cannot write the journal: disk is full")
        super().commit()
        self.has_events = False

    def rollback(self) -> None:
        super().rollback()
        self.has_events = False

    def append(self, event: ev.Event, *more: Any) -> None:
        if self.is_full and type(event) is self.refused_kind:
            raise HostError("journal", "cannot write the journal: disk is full")
        super().append(event, *more)
        self.has_events = True


#: Opens a shell on the test's journal file: the second one is the daemon after its restart.
MakeShell = Callable[..., Shell]


@dataclass
class Desk:
    """The daemon's answering side over a shell, inside a running asyncio loop."""

    shell: Shell
    requests: Requests
    link: Link
    #: What was said to end the daemon: after its jobs, or at once.
    told_to_end: list[bool]

    async def ask(self, actor: Actor, **fields: Any) -> View:
        """The reply to a request of this actor. Raises what refuses it."""
        line = json.dumps({"v": 1, **fields}).encode()
        reply = cast(View, await self.requests.answer(actor, actor.uid, decode_request(line)))
        for name in ("jobs", "ended", "never"):
            if isinstance(reply.get(name), list):
                # The rows of a long list are kept as they are sent.
                reply[name] = [
                    msgspec.json.decode(row) if isinstance(row, msgspec.Raw) else row
                    for row in reply[name]
                ]
        declared = get_type_hints(VERBS[REQUESTS[fields["op"]]].answer)["return"]
        assert misfits(reply, declared) == []
        return reply

    async def submit(self, actor: Actor, cores: float = 1, **fields: Any) -> int:
        asked = {"argv": ["true"], "cwd": "/home", **fields}
        asked.setdefault("demand", {"cores_milli": round(cores * 1000), "memory_bytes": 1 << 30})
        job_id = (await self.ask(actor, op="submit", **asked))["id"]
        assert isinstance(job_id, int)
        return job_id

    async def feed(self, *stimuli: Stimulus) -> None:
        """News from the host, each in a turn of its own."""
        for stimulus in stimuli:
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.shell.submit(Work(stimulus, answer=done.set_result))
            await done

    async def finish(self, job_id: int, **facts: Any) -> None:
        await self.feed(
            launched(job_id), ended(job_id, **facts), RemovedReport(now().at_s, job_id, 1)
        )


class OwnPrograms(Children):
    """Does the work of programs in this process, which takes less time than to start one. That a
    program gives the same answers is tested where they are slow."""

    async def ask(self, prepare: Callable[[], Any], answer: Any = Any) -> Any:
        work = prepare()
        found = [*import_module(work.module).answers(work.task)][-1]
        return msgspec.json.decode(msgspec.json.encode(found))


def open_shell(
    directory: Path,
    by: Rules,
    journal: type[Journal] = Journal,
    *,
    ready: bool = True,
    clock: Callable[[], Now] = now,
) -> Shell:
    book = journal(directory / "journal.sqlite")
    host = FakeHost(ready=ready)
    changed: list[Job] = []
    engine = Engine(journal=book, rules=by, launchers=host, clock=clock)
    engine.listeners.append(changed.append)
    return Shell(engine, book, host, changed)


def make_desk_over(
    shell: Shell,
    directory: Path,
    config: Config,
    takes_root: bool = True,
    mono: Callable[[], float] = time.monotonic,
) -> Desk:
    told: list[bool] = []
    meter = Meter(lambda: 0.0)
    link = Link(
        socket_path=directory / "launcher.sock",
        settings=LaunchSettings([DISK], max_pids=64, cores_by="quota"),
        meter=meter,
    )
    # As if it had connected.
    link.away_since_s = None
    requests = Requests(
        engine=shell.engine, config=config,
        site=Site(shell.engine.rules, (DISK,), config.defaults, ("a warning",)),
        meter=meter, curves=Curves(meter, shell.journal, now), links=Links(link),
        reserves=Reserves(
            Reserve(directory / "reserve", most_bytes=0),
            lambda: UserLimits(reserve_disk_bytes=0), memory=list,
        ),
        install=InstallContext(
            uid=0, config_file=Path("/etc/drfd/drfd.toml"), is_systems=True, is_service=False,
            has_systemd=False, lingers=False,
        ),
        takes_root=takes_root, reload=lambda: requests.site,
        shut_down=lambda *, after_jobs: told.append(after_jobs), mono=mono,
    )  # fmt: skip
    requests.history.children = OwnPrograms(requests.history.children.kind, patience_s=60)
    return Desk(shell, requests, link, told)


def look_ahead(engine: Engine) -> Forecast:
    """What a look ahead would begin with now."""
    return engine.forecast.copy()


# -- what is read of GPUs ----------------------------------------------------------------------


def gpu_process(
    pid: int, *cgroups: str, memory: int | None = 100, utilisation: int | None = 10, uid: int = 7
) -> View:
    return {
        "pid": pid, "uid": uid, "cgroups": list(cgroups), "memory": memory,
        "utilisation": utilisation,
    }  # fmt: skip


def gpu_reading(*processes: View, **changes: Any) -> View:
    usual = {
        "name": "0", "pci": "0000:01:00.0", "uuid": "GPU-a", "slice": None, "memory_used": 900,
        "memory_total": 1000, "utilisation": 50, "is_lost": False, "processes": list(processes),
    }  # fmt: skip
    assert changes.keys() <= usual.keys()
    found = usual | changes
    # One that discovery does not know has no name.
    return found if found["name"] else {key: found[key] for key in found if key != "name"}


def gpu_line(*gpus: View, why: str | None = None) -> str:
    """A line of a process that measures."""
    return json.dumps({"gpus": gpus, "why": why})


def drfd(*words: object) -> int:
    """The status of a command that only the administrator types, run in this process."""
    try:
        main([*map(str, words)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def misfits(value: Any, declared: Any, place: str = "$") -> list[str]:
    """Each place where the value is not what is declared."""
    if declared is object:
        return []
    origin, arguments = get_origin(declared), get_args(declared)
    if is_typeddict(declared):
        return _misfits_of_keys(value, declared, place)
    if origin in (Union, UnionType):
        found = [misfits(value, each, place) for each in arguments]
        return min(found, key=len)
    if origin in (list, tuple) and isinstance(value, list | tuple):
        kinds = arguments * len(value) if origin is list else arguments
        pairs = zip(value, kinds, strict=True)
        return [
            m for at, (one, kind) in enumerate(pairs) for m in misfits(one, kind, f"{place}[{at}]")
        ]
    if origin is dict and isinstance(value, dict):
        return [
            m for key, one in value.items() for m in misfits(one, arguments[1], f"{place}.{key}")
        ]
    kinds = {float: (int, float), None: (NoneType,)}.get(declared, (origin or declared,))
    is_right = isinstance(value, kinds) and (declared is bool or not isinstance(value, bool))
    return [] if is_right else [f"{place}: {value!r} is not {declared}"]


def _misfits_of_keys(value: Any, declared: Any, place: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{place}: {value!r} is not an object"]
    hints = get_type_hints(declared)
    found = [
        f"{place}.{key} is missing" for key in sorted(declared.__required_keys__ - value.keys())
    ]
    for key, one in value.items():
        if key in hints:
            found += misfits(one, hints[key], f"{place}.{key}")
        else:
            found.append(f"{place}.{key} is not declared")
    return found

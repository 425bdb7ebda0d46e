"""State and wire lines as this version writes them: `python -m tests.goldens [DIRECTORY]`.

They are written once for each release, from 0.1.0 on, and must load for ever;
`tests/torture/test_goldens.py` tries that. Before a release a change of the schema, a new event or
a new verb asks for them to be written again; after it, for a new directory beside the old one.

    journal.sql      the dump of a journal with every kind of event
    attempts/        attempt files of jobs of several fates, exit records among them
    orders.jsonl     what the controller tells the launcher
    reports.jsonl    what the launcher tells the controller
    wire.jsonl       a conversation with the daemon that uses every verb: requests and replies
    events.jsonl     a stream of changes
    snapshot.jsonl   how everything stands, as the live view is told
"""

import itertools
import json
import os
import socket
import sqlite3
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))

from drfd.core.ledger.ledger import Ledger  # noqa: E402
from drfd.core.model import events as ev  # noqa: E402
from drfd.core.model import job as jobs  # noqa: E402
from drfd.core.model.job import Dependency, Outcome, Usage, command_text  # noqa: E402
from drfd.core.model.resources import Axes, Resources  # noqa: E402
from drfd.core.usage import BeyondTally, Curve, GpuTally, Point  # noqa: E402
from drfd.journal.journal import Journal  # noqa: E402
from drfd.journal.records import encode  # noqa: E402
from drfd.launcher import attempt_files, protocol  # noqa: E402
from drfd.launcher.protocol import AttemptLimits, DiskLimit, LaunchOrder, Order  # noqa: E402
from drfd.linux.device_nodes import DeviceNode  # noqa: E402
from fakes import apply_and_append, payload, replace, spec  # noqa: E402
from instance import ALONE, CONFIG, Instance, wait_for  # noqa: E402

HERE = TESTS / "data" / "v0.1"

_clock = itertools.count(1)


def _now(kind: type, job_id: int, **fields: Any) -> Any:
    """An event of a job, a second after the last one."""
    return kind(job_id=job_id, at_s=next(_clock) + 0.5, **fields)


ASKS = Resources(cores_milli=1500, memory_bytes=1 << 33, read_bps=1000, write_bps=2000)
USAGE = Usage(
    cores_milli=0, memory_bytes=0, memory_peak_bytes=3, read_bytes=4, written_bytes=5, cpu_s=6.5
)
SPEC = spec(asks=ASKS, priority=7, name="train")
LONG = command_text(["sh", "-c", "ü" * 200, "", "x" * 300])
#: A specification that has all there is.
FULL = replace(
    SPEC, name="evaluate", command=LONG,
    demand=replace(
        ASKS, gres=(("gpu", 1),), gres_memory=(("gpu", 1 << 30),), node="n2", features=("ssd",)
    ),
    cores_max_milli=64_000, preemptible=True, append=True, output_max_bytes=1 << 20,
    after=(Dependency(7), Dependency(6, jobs.RequiredOutcome.ANY)), begin_s=50,
    retry=jobs.Retry(3, (Outcome.FAILED, Outcome.LOST)), warn=jobs.Warn(10, 60),
    notify=("end", "fail"), group=jobs.UserGroup("sweep", 2),
    cancel_if_never=True, again=jobs.Again(2),
)  # fmt: skip
_SHORT = jobs.Postponed(
    whose=jobs.Whose.MACHINE, text="the machine is short of processes", resource="processes",
    at_s=76.5, until_s=80.5, tries=3,
)  # fmt: skip
_GONE = ev.Settled(on=7, outcome=Outcome.CANCELLED, is_met=False)
#: A history in which every kind of event happens.
EVENTS: list[ev.Event] = [
    _now(ev.Submitted, 1, spec=SPEC, held=True),
    _now(ev.Released, 1, by="alice"),
    _now(ev.Held, 1, by="root"),
    _now(ev.Cancelled, 1, by="root"),
    _now(ev.Submitted, 2, spec=SPEC),
    _now(ev.Admitted, 2, attempt=1, why=ev.StartReason.BACKFILL),
    _now(ev.Launched, 2, attempt=1, mono_s=70.5, cgroup="drfd/0123456789/job-2.1"),
    _now(
        ev.Exited, 2, attempt=1, exit_code=None, signal=9, outcome=Outcome.OUT_OF_MEMORY,
        text="needed more than its memory limit of 8G", usage=USAGE,
    ),
    _now(ev.Cleaned, 2, attempt=1, notice="told"),
    _now(ev.Submitted, 3, spec=SPEC),
    _now(ev.Admitted, 3, attempt=1),
    _now(
        ev.LaunchFailed, 3, attempt=1, text="there is no command x in the job's PATH",
        outcome=Outcome.LAUNCH_FAILED,
    ),
    _now(ev.Submitted, 4, spec=SPEC),
    _now(ev.Admitted, 4, attempt=1, node="n1", why=ev.StartReason.RESERVATION),
    _now(ev.Launched, 4, attempt=1, mono_s=150.5, cgroup=None),
    _now(
        ev.StopRequested, 4, mono_s=160.5, outcome=Outcome.TIMEOUT,
        text="ran for its whole time limit of 1h00m",
    ),
    _now(ev.Escalated, 4),
    _now(ev.Submitted, 5, spec=replace(SPEC, preemptible=True)),
    _now(ev.Admitted, 5, attempt=1),
    _now(ev.Launched, 5, attempt=1, mono_s=200.5, cgroup=None),
    _now(ev.PreemptRequested, 5, mono_s=210.5, text="stopped for job 4 (alice)"),
    _now(
        ev.Exited, 5, attempt=1, exit_code=None, signal=15, outcome=None,
        text="stopped for job 4 (alice)", usage=USAGE,
    ),
    _now(ev.Requeued, 5, attempt=1),
    _now(ev.Admitted, 5, attempt=2),
    _now(ev.Launched, 5, attempt=2, mono_s=250.5, cgroup=None),
    _now(ev.SuspendRequested, 5, by=None, text="suspended for job 4 (alice)"),
    _now(ev.Suspended, 5, attempt=2, mono_s=270.5),
    _now(ev.Resumed, 5, mono_s=280.5),
    _now(ev.SuspendRequested, 5, by="alice", text="suspended by alice"),
    _now(ev.ResumeRequested, 5, by="root"),
    _now(ev.Suspended, 5, attempt=2, mono_s=310.5),
    ev.Drained(at_s=36.5, on=True, by="root", reason="new fan", since_s=30.5, node="n1"),
    _now(ev.Submitted, 6, spec=SPEC),
    _now(ev.Submitted, 7, spec=SPEC),
    _now(ev.Submitted, 8, spec=FULL),
    _now(ev.Submitted, 9, spec=replace(FULL, after=(Dependency(7),))),
    _now(ev.Cancelled, 7, by="drfd", why="its user asked for that"),
    _now(ev.Cancelled, 6, by="alice"),
    _now(
        ev.DependencySettled, 8,
        ends=(_GONE, ev.Settled(on=6, outcome=Outcome.CANCELLED, is_met=True)),
    ),
    _now(ev.DependencySettled, 9, ends=(_GONE,)),
    _now(
        ev.Altered, 8, by="alice", text="all of it", name="other", pool="root.lab", priority=-1,
        time_limit_s=0, demand=ASKS, after=(), begin_s=50, group=jobs.UserGroup(""),
        cores_max_milli=2000,
    ),
    _now(ev.BeginReached, 8),
    _now(ev.Admitted, 8, attempt=1),
    _now(ev.Launched, 8, attempt=1, mono_s=520.5, cgroup=None),
    _now(ev.Warned, 8, signal=10),
    _now(ev.SignalRequested, 8, signal=12, by="alice"),
    _now(
        ev.Exited, 8, attempt=1, exit_code=3, signal=None, outcome=Outcome.FAILED,
        text="exit code 3", usage=USAGE,
    ),
    _now(ev.Retried, 8, attempt=1, not_before_s=62),
    ev.ArraySubmitted(
        array_id=10, at_s=61.5, spec=SPEC, spans=((0, 2, 2), (7, 8, 1)), at_once=2, held=True
    ),
    *(_now(ev.Released, job_id, by="alice") for job_id in (10, 11, 12, 13, 14)),
    _now(ev.Admitted, 11, attempt=1),
    _now(ev.Cancelled, 12, by="alice"),
    _now(ev.LaunchPostponed, 11, attempt=1, not_before_s=86, why=_SHORT),
    ev.ArraySubmitted(
        array_id=15, at_s=70.5, spec=replace(FULL, after=()), spans=((5, 9, 1),), at_once=None
    ),
    _now(ev.Cancelled, 16, by="alice"),
    ev.IdsRaised(at_s=73.5, next_id=40),
]  # fmt: skip
CURVE = Curve(
    attempt=1,
    points=(
        Point.of(1_700_000_002_000, 0, memory_bytes=(1 << 20, 1), gpu_memory_bytes=(1 << 20, 1)),
        Point.of(
            1_700_000_004_001, 2001, cores_milli=(3_000_000, 2001), memory_bytes=(2 << 20, 1),
            read_bps=(24_000, 2001), write_bps=(0, 2001), gpu_memory_bytes=(2 << 20, 1),
            gpu_percent=(150, 1), beyond_milli=(2_000_000, 2001),
        ),
    ),
    gpu_tally=GpuTally(3 << 20, 1 << 20, 150, 1),
    beyond_tally=BeyondTally(2_000_000, 3_000_000, 50),
)  # fmt: skip
PAYLOAD = payload({"PATH": "/usr/bin"}, script="#!/bin/sh\necho ü\n", proof="0" * 64)

LOAD = 1 << 30
Message = dict[str, Any]

CREATED = {"uid": 1001, "boot_id": "b", "cgroup": "drfd/x/job-1-1", "at_s": 5.5, "mono_s": 0.5}
RUNNER = {"pid": 10, "start_ticks": 99}
RUNNING = {"pid": 11, "start_ticks": 100}
COUNTED = {"memory_peak_bytes": 4096, "cpu_us": 250_000, "oom_kills": 0, "processes_peak": 2}
ENDED = {
    "at_s": 7.5, "mono_s": 2.5, "exit_code": 3, "signal": None, "oom_killed": False,
    "over_limit": False, "cpu_s": 0.25, "peak_bytes": 8192, "read_bytes": 0, "written_bytes": 512,
    "counted": COUNTED,
}  # fmt: skip
_JUDGED = ("oom_killed", "over_limit", "counted")
ENDED_BY_RUNNER = {name: ENDED[name] for name in ENDED if name not in _JUDGED}
ENDED_BY_RUNNER["counters"] = COUNTED
_NOT_FOUND = {"by_root": 0, "report": b"program\0002\0x".hex()}
#: Job → the records of its attempt, besides `created`.
FATES: dict[int, dict[str, Message]] = {
    1: {},
    2: {"runner": RUNNER},
    3: {"runner": RUNNER, "launched": RUNNING},
    4: {"runner": RUNNER, "launch_failed": _NOT_FOUND},
    5: {"runner": RUNNER, "launched": RUNNING, "exited": ENDED_BY_RUNNER},
    6: {
        "runner": RUNNER, "launched": RUNNING,
        "exited": {
            **ENDED_BY_RUNNER, "exit_code": None, "signal": 9,
            "counters": {**COUNTED, "own_ooms": 1, "oom_kills": 1},
        },
    },
    7: {"runner": RUNNER, "launched": RUNNING},
    8: {"submitted": {"slurm_id": 77, "at_s": 6.0}, "launched": RUNNING, "exited": ENDED},
}  # fmt: skip
#: The job that has been sent signals, and the one on a node of Slurm's.
SIGNALLED, AWAY = 3, 8

ORDER = LaunchOrder(
    id=5, attempt=1, uid=1001, user="alice", journal="0" * 32, submitted_us=1, gid=1001,
    array_id=4, array_index=0, name="train", threads=1, variables={"DRF_JOB_ID": "5"},
    hidden=("ROCR_VISIBLE_DEVICES",), tells_start=True, empties_output=True, proof="0" * 64,
    limits=AttemptLimits(
        cores_milli=1500, memory_bytes=1 << 30, pids=64, cores_by=protocol.QUOTA,
        disks=(DiskLimit(device="8:0", read_bps=1000, write_bps=2000),),
    ),
)  # fmt: skip
_ONE = {"id": 5, "attempt": 1}
ORDERS: list[Order] = [
    ORDER,
    replace(ORDER, devices=protocol.Devices(
        frozenset({DeviceNode("c", 195, 0)}), frozenset({1}), (("0000:01:00.0", 1 << 30),)
    )),
    replace(ORDER, limits=replace(
        ORDER.limits, cores_max_milli=8000, groups=("of-lab", "of-alice")
    )),
    replace(ORDER, node="n1", gres=(("gpu", 1),)),
    replace(ORDER, is_notice=True),
    protocol.ExecOrder(**_ONE, number=1, pid=9, start_ticks=8, proof="0" * 64),
    protocol.SignalOrder(**_ONE, count=3, signals=(10, 12)),
    protocol.WeightsOrder((("of-lab/of-alice", 2000),)),
    protocol.RemoveFilesOrder(((5, 1),)),
    protocol.ListOrder(),
    protocol.KeyOrder(1000),
    protocol.MeasureGpusOrder(on=True),
    *(protocol.ControlOrder(**_ONE, do=do) for do in get_args(protocol.Control)),
]  # fmt: skip
_NOW = {"at_s": 7.5, "mono_s": 2.5}
_FAILED = {**_NOT_FOUND, "has_space": False}
REPORTS: list[Message] = [
    {
        "report": "hello", "version": protocol.VERSION, "kind": "none",
        "controls": {"memory": "measured"}, "cores": {"quota": "measured"}, "mounts": {},
    },
    {"report": "launched", **_ONE, "at_s": 5.5, "mono_s": 0.5, "cgroup": None, "runner_pid": 10},
    {
        "report": "launched", **_ONE, "at_s": 5.5, "mono_s": 0.5, "cgroup": "drfd/5.1",
        "runner_pid": 10,
    },
    {"report": "launch_failed", **_ONE, **_NOW, "text": "jobs of uid 5 are not allowed"},
    {"report": "start_failed", **_ONE, **_NOW, "failed": _FAILED},
    {
        "report": "launch_failed", **_ONE, **_NOW, "text": "it has no process: EAGAIN",
        "whose": "machine", "resource": "EAGAIN",
    },
    {"report": "exited", **_ONE, **ENDED},
    {"report": "exited", **_ONE, **ENDED_BY_RUNNER},
    {"report": "frozen", **_ONE, **_NOW},
    {"report": "exec", **_ONE, **_NOW, "number": 1, "text": "the job does not run any more"},
    {"report": "missing", **_ONE, **_NOW},
    {"report": "notified", **_ONE, **_NOW, "text": "not told: it is not for the job's own user"},
    {"report": "notified", **_ONE, **_NOW, "failed": _FAILED},
    {"report": "notified", **_ONE, **_NOW, "ended": {"exit_code": 0, "signal": None}},
    {"report": "removed", **_ONE, **_NOW},
    {"report": "stuck", **_ONE, **_NOW},
    {"report": "listed", "known": [[5, 1], [6, 2]], "owners": {"5.1": {"uid": 1001}}},
    {
        "report": "nodes", "away": None,
        "nodes": {"n1": {"cores": 32, "memory_bytes": 128 << 30, "fault": "it is down"}},
    },
    {"report": "gpus", "line": '{"gpus":[],"why":null}'},
]  # fmt: skip

_JOB: Message = {
    "argv": ["sh", "-c", "exit 0"], "cwd": "/", "stdout": "/dev/null", "stderr": "/dev/null",
    "demand": {
        "cores_milli": 100, "memory_bytes": 64 << 20, "read_bps": 1 << 20, "write_bps": 1 << 20,
    },
}  # fmt: skip
_SLEEP: Message = {**_JOB, "argv": ["sleep", "1000"]}
#: Held, so that nothing of it runs: a submission that says all that can be said.
WORDY: Message = {
    **_JOB,
    "held": True,
    "name": "train",
    "comment": "fold 3 of ü",
    "pool": "A",
    "time_limit_s": 5400,
    "priority": 3,
    "umask": 0o027,
    "env": {"LANG": "C.UTF-8"},
    "script": "#!/bin/sh\necho ü\n",
    "demand": {
        "cores_milli": 2500,
        "cores_max_milli": "all",
        "memory_bytes": 1 << 30,
        "disks": {"test": {"read_bps": 1000, "write_bps": 2000}},
        "gres": {"gpu": 1},
        "gres_memory": {"gpu": 20 << 30},
    },
    "node": "head",
    "features": ["ssd"],
    "notify": {"on": ["end"], "argv": ["true"]},
    "if_never": "cancel",
    "preemptible": True,
    "append": True,
    "output_max_bytes": 1 << 20,
    "group": "sweep%2",
    "again": {"of": 2},
    "proof": "0" * 64,
    "after": [{"id": 1, "want": "any"}],
    "begin_s": 1_000_000_000,
    "key": "0123",
    "retry": {"times": 2, "on": ["FAILED"]},
    "warn": {"signal": 10, "before_s": 60},
}


def _on(*ids: int | str) -> Message:
    return {"select": {"ids": list(ids)}}


#: Verb and fields; ids are given out from 1 on. After each is waited until all has come of it.
ASKED: list[tuple[str, Message]] = [
    ("hello", {"needs_key": True}),
    ("doctor", {}),
    ("metrics", {}),
    ("submit", _JOB),
    ("submit", {**_JOB, "argv": ["sh", "-c", "exit 3"]}),
    ("wait", {"ids": [1, 2], "any": False, "timeout_s": 60.0}),
    ("submit", WORDY),
    ("submit", {**_JOB, "array": "0-3%2"}),
    ("wait", {"ids": [4], "any": True}),
    ("submit", {**_JOB, "dry_run": True}),
    ("submit", _SLEEP),
    ("suspend", _on(9)),
    ("resume", _on(9)),
    ("signal", {**_on(9), "signal": 18}),
    ("requeue", {**_on(10), "held": False}),
    ("status", {}),
    (
        "status",
        {"select": {"user": "nobody", "states": ["HELD"]}, "ended": 10, "tasks": True, "limit": 5},
    ),
    ("status", {"after": [1, False]}),
    ("usage", {"id": 9}),
    ("show", {"id": 2}),
    ("show", {"id": 3}),
    ("show", {"id": "4_1"}),
    ("show", {"id": 4}),
    ("show", {"id": 9}),
    ("why", {"id": 2}),
    ("why", {"id": 3}),
    ("why", {"id": 9}),
    ("submission", {"id": 3}),
    ("recent", {"limit": 10, "name": "train"}),
    ("shares", {}),
    ("set", {**_on(3), "priority": 5, "time_limit_s": 600, "begin_s": 4_000_000_000, "after": []}),
    (
        "set",
        {**_on(3), "name": "other", "comment": "", "pool": "A", "group": "",
         "demand": {"cores_milli": 500, "cores_max_milli": 0}},
    ),
    ("release", _on(3)),
    ("hold", _on(3)),
    ("cancel", _on(3, 9)),
    ("history", {"past": {"states": ["COMPLETED", "FAILED"]}, "limit": 10}),
    ("history", {"after": [4_000_000_000.0, 1]}),
    ("report", {"past": {"pool": "root.A"}, "by": "name", "limit": 10, "least": 1}),
    ("drain", {"on": True}),
    ("drain", {"on": False}),
    ("drain", {"on": True, "node": "head", "reason": "new fan"}),
    ("nodes", {}),
    ("drain", {"on": False, "node": "head"}),
    ("reload", {}),
    ("show", {"id": 4711}),
    ("end_stray", {"id": 4711, "attempt": 1}),
    ("exec", {"id": 3, "attempt": 0, "pid": 9, "start_ticks": 8, "proof": "0" * 64}),
    ("shutdown", {"kill_jobs": False}),
]  # fmt: skip
STREAM: Message = {"op": "events", "v": 1, "select": {"ids": [1, 2, 4]}, "standing": True}
#: The first line of a stream that has no end.
SNAPSHOT: Message = {"op": "snapshots", "v": 1, "every_s": 1.0}
#: What the conversation is held with.
_NODE = '[nodes.head]\nengine = "local"\nfeatures = ["ssd"]\n'
SETTINGS = CONFIG + "[gres]\ngpu = [0, 1]\n" + _NODE + ALONE
_PASSING = ("STARTING", "STOPPING", "CLEANING")


def converse(instance: Instance, requests: list[Message]) -> Iterator[Message]:
    """The reply to each request of a conversation with a daemon that has just been born."""
    for request in requests:
        fields = {name: value for name, value in request.items() if name not in ("op", "v")}
        message = {"v": 1, "op": request["op"], **fields}
        reply = wait_for(f"a reply to {request['op']}", partial(_answered, instance, message))
        yield reply
        if request["op"] == "shutdown":
            wait_for("its end", instance.is_dead)
        elif reply["ok"]:
            _settle(instance, request)


def _answered(instance: Instance, request: Message) -> Message | None:
    (reply,) = ask(instance, request)
    # Until the job has been measured, nothing is said of its usage.
    return None if reply.get("usage", {}).get("at") == [] else reply


def ask(instance: Instance, request: Message) -> list[Message]:
    """The lines of the reply: one, or those of a stream until it is done."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(120)
        connection.connect(str(instance.socket))
        connection.sendall(json.dumps(request).encode() + b"\n")
        lines = []
        with connection.makefile("rb") as replies:
            for line in replies:
                lines.append(json.loads(line))
                if request["op"] != "events" or "done" in lines[-1] or not lines[-1]["ok"]:
                    break
        return lines


def _settle(instance: Instance, request: Message) -> None:
    goal = {"suspend": "SUSPENDED", "resume": "RUNNING"}.get(request["op"])

    def is_at_rest() -> bool:
        jobs = ask(instance, {"op": "status", "v": 1})[0]["jobs"]
        if goal is not None:
            return goal in {job["state"] for job in jobs}
        waits = {"STARTING_SOON", "RESOURCES", "FAIR_SHARE", "LIMIT"}
        reasons = {job["reason"]["code"] for job in jobs if job["reason"]}
        return not waits & reasons and not {job["state"] for job in jobs} & {*_PASSING}

    wait_for(f"rest after {request['op']}", is_at_rest, show=instance.log.read_text)


def write_state(place: Path) -> None:
    """Write what needs no daemon."""
    (place / "attempts").mkdir(parents=True, exist_ok=True)
    _write_journal(place / "journal.sql")
    _write_attempts(place / "attempts")
    _write_lines(place / "orders.jsonl", map(msgspec.to_builtins, ORDERS))
    _write_lines(place / "reports.jsonl", REPORTS)


def write(place: Path) -> None:
    write_state(place)
    instance = Instance(SETTINGS)
    try:
        instance.start()
        requests = [{"op": op, "v": 1, **fields} for op, fields in ASKED]
        replies = [*converse(instance, requests[:-1])]
        stream = ask(instance, STREAM)
        snapshot = ask(instance, SNAPSHOT)
        replies += converse(instance, requests[-1:])
        said = [
            {"request": request, "reply": reply}
            for request, reply in zip(requests, replies, strict=True)
        ]
        for name, messages in (("wire", said), ("events", stream), ("snapshot", snapshot)):
            _write_lines(place / f"{name}.jsonl", messages, hide=str(instance.root))
    finally:
        instance.destroy()


def _write_journal(path: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        whole = Path(directory, "journal.sqlite")
        with closing(Journal(whole)) as journal:
            ledger = Ledger(Axes())
            signed = {7: PAYLOAD._replace(key="0123"), 10: PAYLOAD}
            for event in EVENTS:
                job_id = getattr(event, "job_id", getattr(event, "array_id", 0))
                apply_and_append(journal, event, ledger, signed.get(job_id))
            journal.put_curve(2, CURVE)
            journal.put_fact("external_load", LOAD)
            journal.commit()
        with closing(sqlite3.connect(whole)) as database:
            database.execute(f"update facts set value = '{'0' * 32}' where name = 'id'")
            # As it is: what compression makes of it depends on the version of zlib.
            plain = zlib.compress(encode(CURVE), 0)
            database.execute("update curves set data = ?", (plain,))
            names = ("application_id", "user_version")
            marks = [(each, database.execute(f"pragma {each}").fetchone()[0]) for each in names]
            lines = [f"PRAGMA {name} = {value};" for name, value in marks]
            path.write_text("\n".join([*lines, *database.iterdump()]) + "\n")


def created_of(job_id: int) -> dict[str, Any]:
    """The first record of the job's attempt: AWAY has a node."""
    return {**CREATED, **({"cgroup": None, "node": "n1"} if job_id == AWAY else {})}


def _write_attempts(place: Path) -> None:
    for path in place.iterdir():
        path.unlink()
    directory = os.open(place, os.O_RDONLY)
    for job_id, records in FATES.items():
        fd = attempt_files.create(directory, (job_id, 1), created_of(job_id))
        for kind, record in records.items():
            attempt_files.append(fd, kind, record)
        os.close(fd)
    attempt_files.note_signals(directory, (SIGNALLED, 1), 2)
    os.close(directory)
    for path in place.iterdir():
        path.chmod(0o644)


def _write_lines(path: Path, messages: list[Message], hide: str = "\0") -> None:
    lines = (json.dumps(message, separators=(",", ":"), ensure_ascii=False) for message in messages)
    path.write_text("".join(line.replace(hide, "/srv/drfd") + "\n" for line in lines))


if __name__ == "__main__":
    started = time.monotonic()
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    write(chosen)
    print(f"{chosen}: written in {time.monotonic() - started:.1f} s")

"""Every request the daemon understands, and how it refuses the rest."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from drfd.common.errors import Refused
from drfd.launcher import protocol as launcher
from drfd.protocol import requests as msg
from drfd.protocol.requests import (
    Demand,
    DependencyPart,
    HistoryFilter,
    RetryPart,
    Selection,
    WarnPart,
    decode_request,
)
from goldens import ORDER
from seeds import examples

FULL_SUBMIT: dict[str, Any] = {
    "op": "submit",
    "v": 1,
    "argv": ["train", "--epochs", "3"],
    "cwd": "/home/alice",
    "demand": {
        "cores_milli": 8000,
        "memory_bytes": 1 << 34,
        "read_bps": 1000,
        "write_bps": 0,
        "gres": {"gpu": 2},
        "gres_memory": {"gpu": 1 << 34},
        "cores_max_milli": "all",
        "read_max_bps": 2000,
        "disks": {"data": {"read_bps": 1, "write_bps": 2, "write_max_bps": "all"}},
    },
    "name": "train",
    "pool": "lab",
    "time_limit_s": 3600,
    "priority": -5,
    "umask": 0o077,
    "env": {"PATH": "/bin"},
    "stdout": "%j.out",
    "stderr": "%j.err",
    "script": "#!/bin/sh\n",
    "attach": "/tmp/x",
    "held": True,
    "preemptible": True,
    "dry_run": True,
    "key": "0123",
}
ACCEPTED: list[tuple[dict[str, Any], msg.AnyRequest]] = [
    ({"op": "hello", "v": 1}, msg.HelloRequest(v=1)),
    (
        {"op": "submit", "v": 1, "argv": ["true"], "cwd": "/"},
        msg.SubmitRequest(v=1, argv=["true"], cwd="/"),
    ),
    (
        FULL_SUBMIT,
        msg.SubmitRequest(
            v=1,
            argv=["train", "--epochs", "3"],
            cwd="/home/alice",
            demand=Demand(
                cores_milli=8000,
                memory_bytes=1 << 34,
                read_bps=1000,
                write_bps=0,
                gres={"gpu": 2},
                gres_memory={"gpu": 1 << 34},
                cores_max_milli="all",
                read_max_bps=2000,
                disks={"data": msg.Rates(1, 2, write_max_bps="all")},
            ),
            name="train",
            pool="lab",
            time_limit_s=3600,
            priority=-5,
            umask=0o077,
            env={"PATH": "/bin"},
            stdout="%j.out",
            stderr="%j.err",
            script="#!/bin/sh\n",
            attach="/tmp/x",
            held=True,
            preemptible=True,
            dry_run=True,
            key="0123",
        ),
    ),
    ({"op": "status", "v": 1}, msg.StatusRequest(v=1)),
    (
        {"op": "status", "v": 1, "select": {"ids": [1, 2]}, "ended": 20},
        msg.StatusRequest(v=1, select=Selection(ids=[1, 2]), ended=20),
    ),
    (
        {"op": "status", "v": 1, "select": {"user": "al", "name": "n", "states": ["HELD"]}},
        msg.StatusRequest(v=1, select=Selection(user="al", name="n", states=frozenset({"HELD"}))),
    ),
    ({"op": "show", "v": 1, "id": 1}, msg.ShowRequest(v=1, id=1)),
    ({"op": "why", "v": 1, "id": 7}, msg.WhyRequest(v=1, id=7)),
    ({"op": "submission", "v": 1, "id": "7_1"}, msg.SubmissionRequest(v=1, id="7_1")),
    ({"op": "recent", "v": 1, "limit": 5, "name": "t"}, msg.RecentRequest(v=1, limit=5, name="t")),
    ({"op": "history", "v": 1}, msg.HistoryRequest(v=1)),
    (
        {
            "op": "history",
            "v": 1,
            "past": {"user": "al", "states": ["LOST"], "pool": "lab", "since_s": 5.5},
            "limit": 20,
            "after": [7.5, 3],
        },
        msg.HistoryRequest(
            v=1,
            past=HistoryFilter(user="al", states=frozenset({"LOST"}), pool="lab", since_s=5.5),
            limit=20,
            after=(7.5, 3),
        ),
    ),
    ({"op": "report", "v": 1}, msg.ReportRequest(v=1)),
    (
        {"op": "report", "v": 1, "by": "job", "past": {"ids": [3]}, "limit": 1, "least": 1},
        msg.ReportRequest(v=1, by="job", past=HistoryFilter(ids=[3]), limit=1, least=1),
    ),
    ({"op": "snapshots", "v": 1}, msg.SnapshotsRequest(v=1, every_s=1.0)),
    ({"op": "snapshots", "v": 1, "every_s": 2.5}, msg.SnapshotsRequest(v=1, every_s=2.5)),
    ({"op": "usage", "v": 1, "id": "42_7"}, msg.UsageRequest(v=1, id="42_7")),
    ({"op": "usage", "v": 1, "user": "al"}, msg.UsageRequest(v=1, user="al")),
    ({"op": "waiting", "v": 1}, msg.WaitingRequest(v=1)),
    ({"op": "ledger", "v": 1}, msg.LedgerRequest(v=1)),
    (
        {"op": "ledger", "v": 1, "since_s": 5.5, "until_s": 7.0, "user": "al"},
        msg.LedgerRequest(v=1, since_s=5.5, until_s=7.0, user="al"),
    ),
    ({"op": "ledger_check", "v": 1}, msg.LedgerCheckRequest(v=1)),
    (
        {"op": "waiting", "v": 1, "text": "fit", "user": "al", "skip": None, "reverse": True},
        msg.WaitingRequest(v=1, text="fit", user="al", skip=None, reverse=True),
    ),
    ({"op": "wait", "v": 1, "ids": [3]}, msg.WaitRequest(v=1, ids=[3])),
    (
        {"op": "wait", "v": 1, "ids": [3, 4], "any": True, "timeout_s": 0.5},
        msg.WaitRequest(v=1, ids=[3, 4], any=True, timeout_s=0.5),
    ),
    (
        {"op": "cancel", "v": 1, "select": {"everything": True}},
        msg.CancelRequest(v=1, select=Selection(everything=True)),
    ),
    (
        {"op": "hold", "v": 1, "select": {"ids": [1]}},
        msg.HoldRequest(v=1, select=Selection(ids=[1])),
    ),
    (
        {"op": "release", "v": 1, "select": {"ids": [1]}},
        msg.ReleaseRequest(v=1, select=Selection(ids=[1])),
    ),
    (
        {"op": "suspend", "v": 1, "select": {"ids": [1]}},
        msg.SuspendRequest(v=1, select=Selection(ids=[1])),
    ),
    (
        {"op": "resume", "v": 1, "select": {"states": ["SUSPENDED"]}},
        msg.ResumeRequest(v=1, select=Selection(states=frozenset({"SUSPENDED"}))),
    ),
    (
        {"op": "status", "v": 1, "limit": 1000, "after": [42, True]},
        msg.StatusRequest(v=1, limit=1000, after=(42, True)),
    ),
    (
        {"op": "signal", "v": 1, "select": {"ids": [1]}, "signal": 10},
        msg.SignalRequest(v=1, select=Selection(ids=[1]), signal=10),
    ),
    (
        {
            "op": "set",
            "v": 1,
            "select": {"name": "train-*"},
            "priority": 3,
            "begin_s": 0,
            "after": [{"id": 7}, {"id": 8, "want": "any"}],
            "demand": {"cores_milli": 500},
        },
        msg.SetRequest(
            v=1,
            select=Selection(name="train-*"),
            priority=3,
            begin_s=0,
            after=[DependencyPart(id=7), DependencyPart(id=8, want="any")],
            demand=Demand(cores_milli=500),
        ),
    ),
    (
        {
            "op": "submit",
            "v": 1,
            "argv": ["true"],
            "cwd": "/",
            "after": [{"id": 7}],
            "begin_s": 1_700_000_000,
            "retry": {"times": 3, "on": ["FAILED", "TIMEOUT"]},
            "warn": {"signal": 10, "before_s": 60},
        },
        msg.SubmitRequest(
            v=1,
            argv=["true"],
            cwd="/",
            after=[DependencyPart(id=7)],
            begin_s=1_700_000_000,
            retry=RetryPart(times=3, on=["FAILED", "TIMEOUT"]),
            warn=WarnPart(signal=10, before_s=60),
        ),
    ),
    ({"op": "events", "v": 1, "after": 7}, msg.EventsRequest(v=1, after=7)),
    ({"op": "drain", "v": 1, "on": True}, msg.DrainRequest(v=1, on=True)),
    ({"op": "reload", "v": 1}, msg.ReloadRequest(v=1)),
    ({"op": "shutdown", "v": 1}, msg.ShutdownRequest(v=1)),
    ({"op": "shutdown", "v": 1, "kill_jobs": True}, msg.ShutdownRequest(v=1, kill_jobs=True)),
    (
        {"op": "drain", "v": 1, "on": True, "node": "n1"},
        msg.DrainRequest(v=1, on=True, node="n1"),
    ),
    ({"op": "nodes", "v": 1}, msg.NodesRequest(v=1)),
    ({"op": "shares", "v": 1}, msg.SharesRequest(v=1)),
    ({"op": "doctor", "v": 1}, msg.DoctorRequest(v=1)),
    (
        {"op": "end_stray", "v": 1, "id": 7, "attempt": 2},
        msg.EndStrayRequest(v=1, id=7, attempt=2),
    ),
    (
        {
            "op": "exec",
            "v": 1,
            "id": "4_1",
            "attempt": 2,
            "command": "d29yZHM=",
            "proof": "0" * 64,
        },
        msg.ExecRequest(v=1, id="4_1", attempt=2, command=b"words", proof="0" * 64),
    ),
]


def _name(case: object) -> str | None:
    return case["op"] if isinstance(case, dict) else None


@pytest.mark.parametrize(("message", "request_"), ACCEPTED, ids=_name)
def test_a_request_is_understood(message: dict[str, Any], request_: msg.AnyRequest) -> None:
    assert decode_request(json.dumps(message).encode()) == request_


def test_every_verb_of_the_wire_is_among_the_accepted_requests() -> None:
    """A verb that is added here late would not be tested at all."""
    assert {type(request) for _, request in ACCEPTED} == set(msg.AnyRequest.__args__)


def submit(**changes: object) -> bytes:
    return json.dumps({"op": "submit", "v": 1, "argv": ["true"], "cwd": "/"} | changes).encode()


def demand(**changes: object) -> bytes:
    return submit(demand=changes)


MALFORMED = {
    "nothing": b"",
    "an empty line": b"\n",
    "not JSON": b"submit please",
    "a list": b"[]",
    "a number": b"42",
    "null": b"null",
    "two objects": b'{"op":"hello","v":1} {"op":"hello","v":1}',
    "half an object": b'{"op":"hello","v":',
    "binary": bytes(range(256)),
    "not UTF-8": b'{"op":"why\xff","v":1,"id":1}',
    "not UTF-8 in argv": b'{"op":"submit","v":1,"argv":["\xff"],"cwd":"/"}',
    "an encoded surrogate": b'{"op":"submit","v":1,"argv":["\xed\xa0\x80"],"cwd":"/"}',
    "a lone high surrogate": b'{"op":"submit","v":1,"argv":["\\ud800"],"cwd":"/"}',
    "a lone low surrogate": b'{"op":"submit","v":1,"argv":["\\udc00"],"cwd":"/"}',
    "a lone surrogate in the environment": b'{"op":"submit","v":1,"argv":["a"],"cwd":"/",'
    b'"env":{"A":"\\udcff"}}',
    "no verb": b'{"v":1}',
    "unknown verb": b'{"op":"explode","v":1}',
    "a verb that is a number": b'{"op":1,"v":1}',
    "a verb that is a list": b'{"op":["hello"],"v":1}',
    "no version": b'{"op":"hello"}',
    "a version that is a text": b'{"op":"hello","v":"1"}',
    "a version that is a float": b'{"op":"hello","v":1.5}',
    "a version that is true": b'{"op":"hello","v":true}',
    "an unknown field": b'{"op":"hello","v":1,"uid":0}',
    "an unknown field of a submission": submit(uid=0),
    "an unknown field of a demand": demand(memory="1G"),
    "an unknown field of a selection": b'{"op":"cancel","v":1,"select":{"all":true}}',
    "no argv": b'{"op":"submit","v":1,"cwd":"/"}',
    "argv as text": submit(argv="true"),
    "a number in argv": submit(argv=["sleep", 1]),
    "null in argv": submit(argv=[None]),
    "no working directory": b'{"op":"submit","v":1,"argv":["true"]}',
    "a relative working directory": submit(cwd="home"),
    "an empty working directory": submit(cwd=""),
    "an endless working directory": submit(cwd="/" + "x" * 4096),
    "cores as text": demand(cores_milli="1"),
    "cores as a fraction": demand(cores_milli=1.5),
    "negative cores": demand(cores_milli=-1),
    "no cores": demand(cores_milli=0),
    "huge cores": demand(cores_milli=1 << 62),
    "negative memory": demand(memory_bytes=-1),
    "no memory": demand(memory_bytes=0),
    "memory beyond 64 bits": demand(memory_bytes=1 << 64),
    "memory of a thousand digits": b'{"op":"submit","v":1,"argv":["a"],"cwd":"/","demand":'
    b'{"memory_bytes":1' + b"0" * 1000 + b"}}",
    "negative rate": demand(read_bps=-1),
    "a negative end of a range": demand(cores_max_milli=-1),
    "a strange end of a range": demand(cores_max_milli="most"),
    "an end of a range with a unit": demand(read_max_bps="2M"),
    "negative count": demand(gres={"gpu": -1}),
    "negative memory on a countable": demand(gres_memory={"gpu": -1}),
    "a count without a name": demand(gres={"": 1}),
    "an empty name": submit(name=""),
    "an endless name": submit(name="x" * 257),
    "negative time": submit(time_limit_s=-1),
    "endless time": submit(time_limit_s=1 << 60),
    "a priority out of range": submit(priority=10**7),
    "a negative umask": submit(umask=-1),
    "a umask with other bits": submit(umask=0o7777),
    "an environment as a list": submit(env=["A=1"]),
    "a number in the environment": submit(env={"A": 1}),
    "held as text": submit(held="yes"),
    "preemptible as a number": submit(preemptible=1),
    "a dry run as text": submit(dry_run="true"),
    "id zero": b'{"op":"show","v":1,"id":0}',
    "a negative id": b'{"op":"show","v":1,"id":-1}',
    "an id as text": b'{"op":"show","v":1,"id":"1"}',
    "an id beyond 2^53": b'{"op":"show","v":1,"id":9007199254740993}',
    "an id of a thousand digits": b'{"op":"show","v":1,"id":1' + b"0" * 1000 + b"}",
    "waiting for nothing": b'{"op":"wait","v":1,"ids":[]}',
    "a negative timeout": b'{"op":"wait","v":1,"ids":[1],"timeout_s":-1}',
    "a timeout beyond numbers": b'{"op":"wait","v":1,"ids":[1],"timeout_s":1e999}',
    "a timeout that is no number": b'{"op":"wait","v":1,"ids":[1],"timeout_s":NaN}',
    "a page without a row": b'{"op":"status","v":1,"limit":0}',
    "a page that is no page": b'{"op":"status","v":1,"limit":10001}',
    "a negative number of ended jobs": b'{"op":"status","v":1,"ended":-1}',
    "a cancellation of nothing": b'{"op":"cancel","v":1}',
    "a suspension of nothing": b'{"op":"suspend","v":1}',
    "a resumption of nothing": b'{"op":"resume","v":1}',
    "drain without a direction": b'{"op":"drain","v":1}',
    "a million brackets": b"[" * 1_000_000,
    "deep nesting": b'{"op":"hello","v":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep nesting in a known field": b'{"op":"submit","v":1,"argv":'
    + b"[" * 100_000
    + b"]" * 100_000
    + b',"cwd":"/"}',
    "deep nesting of objects": b'{"op":"submit","v":1,"demand":' * 50_000,
    "a verb with a line break": b'{"op":"a\\nb","v":1}',
    "an unknown field with a line break": b'{"op":"hello","v":1,"a\\nb\\u001b[31m":1}',
    "an unknown field of a megabyte": b'{"op":"hello","v":1,"' + b"a" * (1 << 20) + b'":1}',
}


@pytest.mark.parametrize("line", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_request_is_refused_in_one_line(line: bytes) -> None:
    with pytest.raises(Refused) as refusal:
        decode_request(line)
    assert refusal.value.code == "bad-request"
    assert type(refusal.value) is Refused
    assert_one_line(str(refusal.value))


@pytest.mark.parametrize("version", [-1, 0, 2, 1000, 2**62])
def test_another_protocol_version_is_unsupported_and_says_which(version: int) -> None:
    with pytest.raises(Refused) as refusal:
        decode_request(b'{"op":"hello","v":%d}' % version)
    assert refusal.value.code == "unsupported"
    assert f"version {version}, the daemon version 1" in refusal.value.text
    assert refusal.value.hint == "restart drfd, or use the drf that was installed with it"


def test_a_newer_client_is_told_so_even_when_its_request_has_new_fields() -> None:
    """Version first: "unknown field" would send people looking in the wrong place."""
    with pytest.raises(Refused) as refusal:
        decode_request(b'{"op":"hello","v":2,"new":1}')
    assert refusal.value.code == "unsupported"


def test_the_refusal_names_the_place_of_the_fault() -> None:
    with pytest.raises(Refused, match=r"\$\.demand\.memory_bytes"):
        decode_request(demand(memory_bytes=-1))


@given(some.binary(max_size=200))
@example(b'{"op":"hello","v":1}')
@examples(300)
def test_any_bytes_are_a_request_or_a_refusal(line: bytes) -> None:
    _understood_or_refused(line)


@given(
    some.sampled_from([json.dumps(message).encode() for message, _ in ACCEPTED]),
    some.integers(0, 400),
    some.integers(0, 400),
    some.binary(max_size=6),
)
@examples(400)
def test_a_damaged_request_is_a_request_or_a_refusal(
    line: bytes, start: int, count: int, put: bytes
) -> None:
    _understood_or_refused(line[:start] + put + line[start + count :])


def _understood_or_refused(line: bytes) -> None:
    try:
        decode_request(line)
    except Refused as refusal:
        assert_one_line(str(refusal))


def assert_one_line(text: str) -> None:
    assert text
    assert text.isprintable(), f"not one printable line: {text[:200]!r}"
    assert len(text) <= 1000, f"{len(text)} characters are not a line for people"


@given(
    proof=some.none() | some.text(max_size=70) | some.from_regex(r"[0-9a-f]{63,65}\n?"),
    command=some.text(max_size=12)
    | some.binary(max_size=50).map(lambda it: b64encode(it).decode()),
)
@example(proof="x", command="eA==")
@example(proof="0" * 64, command="eA==")
@example(proof="0" * 63 + "\n", command="eA==")
def test_the_launcher_reads_each_command_that_is_accepted_here(
    proof: str | None, command: str
) -> None:
    """It hangs up on a controller whose order it cannot read, so no user may cause one."""
    fields = {"op": "exec", "v": 1, "id": 2, "attempt": 1, "command": command, "proof": proof}
    try:
        request = decode_request(json.dumps(fields).encode())
    except Refused:
        return
    assert isinstance(request, msg.ExecRequest)
    inside = launcher.Inside(number=1, command=request.command, proof=request.proof)
    message = launcher.decode(launcher.encode(launcher.exec_message(ORDER, inside)))
    assert launcher.read_inside(message) == (ORDER, inside)


def test_a_filter_of_states_is_short() -> None:
    """One of 150,000 entries was searched for each job, while everybody waited."""
    for op in ("status", "cancel"):
        fields = {"v": 1, "op": op, "select": {"states": ["A" * (n + 1) for n in range(17)]}}
        with pytest.raises(Refused, match="select"):
            decode_request(json.dumps(fields).encode())
    past = {"v": 1, "op": "history", "past": {"states": ["A" * (n + 1) for n in range(17)]}}
    with pytest.raises(Refused, match="past"):
        decode_request(json.dumps(past).encode())
    repeated = {"v": 1, "op": "status", "select": {"states": ["HELD"] * 1000}}
    decoded = decode_request(json.dumps(repeated).encode())
    assert isinstance(decoded, msg.StatusRequest) and decoded.select.states == {"HELD"}


@pytest.mark.parametrize("part", ["select", "past"])
def test_a_huge_filter_of_states_is_refused_before_a_set_is_built(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To build it took 40 ms, in which nobody else had a turn."""
    looked: list[bytes] = []

    class Decoder:
        def decode(self, line: bytes) -> object:
            looked.append(line)
            return msg.StatusRequest(v=1)

    monkeypatch.setattr(msg, "_decoder", Decoder())
    many = {"v": 1, "op": "status", part: {"states": [f"S{each}" for each in range(150_000)]}}
    with pytest.raises(Refused, match=f"too many states - at `..{part}.states`"):
        decode_request(json.dumps(many).encode())
    assert not looked
    broken = b'{"select": {"states": 7, ' + b"x" * 100_000
    assert decode_request(broken) == msg.StatusRequest(v=1)
    long = json.dumps({"v": 1, "op": "status", "select": {"name": "x" * 100_000}}).encode()
    assert decode_request(long) == msg.StatusRequest(v=1)
    assert looked == [broken, long]


def test_a_name_of_a_task_ends_with_its_index() -> None:
    """A last newline passed the pattern."""
    good, bad = {"v": 1, "op": "show", "id": "1_1"}, {"v": 1, "op": "show", "id": "1_1\n"}
    assert decode_request(json.dumps(good).encode()) == msg.ShowRequest(v=1, id="1_1")
    with pytest.raises(Refused, match="id"):
        decode_request(json.dumps(bad).encode())

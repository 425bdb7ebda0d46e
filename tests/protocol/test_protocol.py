"""The protocol: one message a line of JSON, every request that the daemon understands, and how it
refuses the rest.
"""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from drfd.common.errors import Refused
from drfd.launcher import protocol as launcher
from drfd.payload.pack import of_request
from drfd.protocol import requests as msg
from drfd.protocol.codec import decode, encode_request
from drfd.protocol.requests import SubmitRequest, decode_request
from seeds import examples

# -- messages --------------------------------------------------------------------------------------

# Without the private characters that stand for bytes of a job.
TEXT = some.text(some.characters(codec="utf-8", max_codepoint=0x10FEFF), max_size=20)
VALUES = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**63), 2**63) | TEXT,
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
# Hypothesis makes its tables of characters once: not during the first test that needs them.
TEXT.validate()


@given(some.dictionaries(TEXT, VALUES, max_size=6))
def test_what_is_encoded_decodes_to_the_same(message):
    assert decode(encode_request(message)) == message


@given(some.dictionaries(TEXT, VALUES, max_size=6))
def test_a_message_is_exactly_one_line(message):
    text = encode_request(message)
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\n", id="an empty line"),
        pytest.param(b"[1, 2]\n", id="a list"),
        pytest.param(b'"text"\n', id="a text"),
        pytest.param(b"null\n", id="null"),
        pytest.param(b"\xff\xfe\n", id="not UTF-8"),
        pytest.param(b"{} {}\n", id="two objects"),
        pytest.param(b'{"a": 1' + b"0" * 5000 + b"}\n", id="a huge number"),
        pytest.param(b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", id="deep nesting"),
    ],
)
def test_anything_but_one_object_is_a_value_error(line):
    with pytest.raises(ValueError):
        decode(line)


# -- requests --------------------------------------------------------------------------------------

DEMAND: dict[str, Any] = {
    "cores_milli": 8000,
    "memory_bytes": 1 << 34,
    "read_bps": 1000,
    "write_bps": 0,
    "gres": {"gpu": 2},
    "gres_memory": {"gpu": 1 << 34},
    "cores_max_milli": "all",
    "disks": {"data": {"read_bps": 1, "write_bps": 2}},
}
FULL_SUBMIT: dict[str, Any] = {
    "argv": ["train", "--epochs", "3"],
    "cwd": "/home/alice",
    "demand": DEMAND,
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


def line(op: str, **fields: object) -> bytes:
    return json.dumps({"op": op, "v": 1} | fields).encode()


def submit(**changes: object) -> bytes:
    return line("submit", **{"argv": ["true"], "cwd": "/"} | changes)


def demand(**changes: object) -> bytes:
    return submit(demand=changes)


MALFORMED = {
    "nothing": b"",
    "not JSON": b"submit please",
    "two objects": b'{"op":"hello","v":1} {"op":"hello","v":1}',
    "half an object": b'{"op":"hello","v":',
    "binary": bytes(range(256)),
    "not UTF-8": b'{"op":"why\xff","v":1,"id":1}',
    "not UTF-8 in argv": b'{"op":"submit","v":1,"argv":["\xff"],"cwd":"/"}',
    "an encoded surrogate": b'{"op":"submit","v":1,"argv":["\xed\xa0\x80"],"cwd":"/"}',
    "a lone high surrogate": b'{"op":"submit","v":1,"argv":["\\ud800"],"cwd":"/"}',
    "a lone surrogate in the environment": b'{"op":"submit","v":1,"argv":["a"],"cwd":"/",'
    b'"env":{"A":"\\udcff"}}',
    "no verb": b'{"v":1}',
    "unknown verb": b'{"op":"explode","v":1}',
    "no version": b'{"op":"hello"}',
    "a version that is true": b'{"op":"hello","v":true}',
    "an unknown field": b'{"op":"hello","v":1,"uid":0}',
    "an unknown field of a demand": demand(memory="1G"),
    "an unknown field of a selection": b'{"op":"cancel","v":1,"select":{"all":true}}',
    "no argv": b'{"op":"submit","v":1,"cwd":"/"}',
    "a number in argv": submit(argv=["sleep", 1]),
    "no working directory": b'{"op":"submit","v":1,"argv":["true"]}',
    "a relative working directory": submit(cwd="home"),
    "negative cores": demand(cores_milli=-1),
    "no cores": demand(cores_milli=0),
    "memory beyond 64 bits": demand(memory_bytes=1 << 64),
    "memory of a thousand digits": b'{"op":"submit","v":1,"argv":["a"],"cwd":"/","demand":'
    b'{"memory_bytes":1' + b"0" * 1000 + b"}}",
    "a strange end of a range": demand(cores_max_milli="most"),
    "a count without a name": demand(gres={"": 1}),
    "an empty name": submit(name=""),
    "an endless name": submit(name="x" * 257),
    "endless time": submit(time_limit_s=1 << 60),
    "a priority out of range": submit(priority=10**7),
    "a umask with other bits": submit(umask=0o7777),
    "a number in the environment": submit(env={"A": 1}),
    "id zero": b'{"op":"show","v":1,"id":0}',
    "an id beyond 2^53": b'{"op":"show","v":1,"id":9007199254740993}',
    "waiting for nothing": b'{"op":"wait","v":1,"ids":[]}',
    "a negative timeout": b'{"op":"wait","v":1,"ids":[1],"timeout_s":-1}',
    "a timeout beyond numbers": b'{"op":"wait","v":1,"ids":[1],"timeout_s":1e999}',
    "a timeout that is no number": b'{"op":"wait","v":1,"ids":[1],"timeout_s":NaN}',
    "a page without a row": b'{"op":"status","v":1,"limit":0}',
    "a page that is no page": b'{"op":"status","v":1,"limit":10001}',
    "a negative number of ended jobs": b'{"op":"status","v":1,"ended":-1}',
    "a pattern of many ranges": b'{"op":"status","v":1,"select":{"name":"' + b"[a]" * 9 + b'"}}',
    "a cancellation of nothing": b'{"op":"cancel","v":1}',
    "a million brackets": b"[" * 1_000_000,
    "deep nesting": b'{"op":"hello","v":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep nesting in a known field": b'{"op":"submit","v":1,"argv":' + b"[" * 100_000,
    "deep nesting of objects": b'{"op":"submit","v":1,"demand":' * 50_000,
    "a verb with a line break": b'{"op":"a\\nb","v":1}',
    "an unknown field with a line break": b'{"op":"hello","v":1,"a\\nb\\u001b[31m":1}',
    "an unknown field of a megabyte": b'{"op":"hello","v":1,"' + b"a" * (1 << 20) + b'":1}',
}


@pytest.mark.parametrize("line", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_request_is_refused_in_one_line(line):
    with pytest.raises(Refused) as refusal:
        decode_request(line)
    assert refusal.value.code == "bad-request"
    assert type(refusal.value) is Refused
    assert_one_line(str(refusal.value))


@pytest.mark.parametrize("version", [-1, 0, 2, 1000, 2**62])
def test_another_protocol_version_is_unsupported_and_says_which(version):
    with pytest.raises(Refused) as refusal:
        decode_request(b'{"op":"hello","v":%d}' % version)
    assert refusal.value.code == "unsupported"
    assert f"version {version}, the daemon version 1" in refusal.value.text
    assert refusal.value.hint == "restart drfd, or use the drf that was installed with it"


def test_a_newer_client_is_told_so_even_when_its_request_has_new_fields():
    """Version first: "unknown field" would send people looking in the wrong place."""
    with pytest.raises(Refused) as refusal:
        decode_request(b'{"op":"hello","v":2,"new":1}')
    assert refusal.value.code == "unsupported"


@given(some.binary(max_size=200))
@example(b'{"op":"hello","v":1}')
@examples(300)
def test_any_bytes_are_a_request_or_a_refusal(line):
    _understood_or_refused(line)


@given(
    some.sampled_from(
        [
            line("submit", **FULL_SUBMIT),
            line("set", select={"name": "train-*"}, after=[{"id": "7_1", "want": "any"}]),
            line("history", past={"states": ["LOST"], "since_s": 5.5}, after=[7.5, 3]),
            line("signal", select={"ids": [1]}, signal=10),
        ]
    ),
    some.integers(0, 400),
    some.integers(0, 400),
    some.binary(max_size=6),
)
@examples(400)
def test_a_damaged_request_is_a_request_or_a_refusal(line, start, count, put):
    _understood_or_refused(line[:start] + put + line[start + count :])


def _understood_or_refused(line: bytes) -> None:
    try:
        decode_request(line)
    except Refused as refusal:
        assert_one_line(str(refusal))


@given(some.lists(some.binary(max_size=20), min_size=1), some.binary(max_size=50))
@examples(300)
def test_all_bytes_of_arguments_and_scripts_reach_the_payload(words, script):
    words = [word.replace(b"\0", b"") for word in words]
    fields = {
        "argv": [word.decode(errors="surrogateescape") for word in words], "cwd": "/", "env": {},
        "script": script.decode(errors="surrogateescape"),
    }  # fmt: skip
    try:
        line = encode_request({"op": "submit", "v": 1, **fields})
    except UnicodeEncodeError:
        # The private characters themselves.
        assert b"\xf4\x8f" in b"".join([*words, script])
        return
    request = decode_request(line)
    assert isinstance(request, SubmitRequest)
    received = {name: getattr(request, name) for name in fields}
    payload = of_request(received)
    assert payload == of_request(fields), "what the client signs"
    assert payload.endswith(b"\0".join([b"", *words, b""]) + script)
    # The daemon gives it back as it was.
    assert decode(json.dumps(received).encode()) == fields


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"after": [{"id": 1}] * 1001}, "--after has more than 1000 entries (wait for a whole "
         "array, or for a job that waits for the others)"),
        ({"argv": ["x"] * 32_769}, "the command has more than 32768 entries (write them to a "
         "file that the command reads)"),
        ({"stdout": "x" * 4097}, "-o has more than 4096 characters"),
        ({"name": ""}, "the name is empty"),
        ({"comment": "x" * 1025}, "--comment has more than 1024 characters"),
        *(({field: f"a{sign}b"}, f"{what} has a line's end or another control character")
          for field, what in (("name", "the name"), ("comment", "--comment"), ("group", "-g"))
          for sign in "\0\n\x1b\x9b"),
        ({"pool": "x" * 257}, "-p has more than 256 characters"),
        ({"notify": {"on": ["end"], "argv": ["x" * 4097]}},
         "--notify-command has more than 4096 characters"),
        ({"demand": {"gres": {"x" * 257: 1}}}, "--gres has more than 256 characters"),
        *(({"demand": {field: {str(at): each for at in range(65)}}},
           f"{option} has more than 64 entries")
          for field, option, each in (("disks", "--io", {"read_bps": 1, "write_bps": 1}),
                                      ("gres", "--gres", 1), ("gres_memory", "--gres", 1))),
        ({"demand": {"cores_milli": 9}}, "-c is less than 0.01"),
        ({"retry": {"times": 1001}}, "--retry is more than 1000"),
    ],
)  # fmt: skip
def test_a_limit_is_told_in_the_users_words(fields, told):
    request = {"op": "submit", "v": 1, "argv": ["x"], "cwd": "/", **fields}
    with pytest.raises(Refused) as refusal:
        decode_request(json.dumps(request).encode())
    assert str(refusal.value) == told


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        *(({"op": op, "past": {"name": "x" * 257}}, "the name has more than 256 characters")
          for op in ("history", "report")),
        ({"op": "history", "past": {"user": "x" * 257}}, "-u has more than 256 characters"),
        ({"op": "history", "past": {"group": "x" * 257}}, "-g has more than 256 characters"),
        ({"op": "history", "past": {"pool": "x" * 257}}, "-p has more than 256 characters"),
        ({"op": "history", "past": {"ids": [1] * 100_001}},
         "the list of jobs has more than 100000 entries (name fewer at a time)"),
        ({"op": "cancel", "select": {"ids": [1] * 100_001}},
         "the list of jobs has more than 100000 entries (name fewer at a time)"),
        ({"op": "status", "select": {"group": "x" * 257}}, "-g has more than 256 characters"),
    ],
)  # fmt: skip
def test_a_limit_of_a_list_is_told_in_the_users_words(asked, told):
    with pytest.raises(Refused) as refusal:
        decode_request(json.dumps({"v": 1, **asked}).encode())
    assert str(refusal.value) == told


def assert_one_line(text: str) -> None:
    assert text
    assert text.isprintable(), f"not one printable line: {text[:200]!r}"
    assert len(text) <= 1000, f"{len(text)} characters are not a line for people"


@given(
    proof=some.none() | some.text(max_size=70) | some.from_regex(r"[0-9a-f]{63,65}\n?"),
    number=some.integers(-2, 1 << 64),
)
@example(proof="x", number=1)
@example(proof="0" * 64, number=1)
@example(proof="0" * 63 + "\n", number=1)
def test_the_launcher_reads_each_command_that_is_accepted_here(proof, number):
    """It hangs up on a controller whose order it cannot read, so no user may cause one."""
    try:
        asked = line("exec", id=2, attempt=1, pid=number, start_ticks=number, proof=proof)
        request = decode_request(asked)
    except Refused:
        return
    assert isinstance(request, msg.ExecRequest)
    order = launcher.ExecOrder(
        id=2, attempt=1, number=1,
        pid=request.pid, start_ticks=request.start_ticks, proof=request.proof,
    )  # fmt: skip
    assert launcher.read_order(launcher.encode(order)) == order


@pytest.mark.parametrize(
    ("op", "part"), [("status", "select"), ("cancel", "select"), ("history", "past")]
)
def test_a_filter_of_states_is_short(op, part):
    """One of 150,000 entries was searched for each job, while everybody waited."""
    with pytest.raises(Refused, match=part):
        decode_request(line(op, **{part: {"states": ["A" * (n + 1) for n in range(17)]}}))

"""The launcher runs as root: what it does not understand to the letter, it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drfd.launcher import attempts
from drfd.launcher.protocol import (
    BadMessage,
    DiskLimit,
    Limits,
    Message,
    Order,
    decode,
    encode,
    launch_message,
    read_attempt,
    read_order,
    read_signals,
    signal_message,
)
from launcher.rig import order

DISK = DiskLimit(device="8:0", read_bps=1000, write_bps=0)
FULL = order(
    "echo",
    "a b",
    "",
    "\udc80 and \n",
    cwd=Path("/home/alice"),
    env={"A": "1", "B": "x=y"},
    variables={"DRF_JOB_ID": "1"},
    script="#!/bin/sh\necho \0\n",
    attach="/run/user/1001/drf.sock",
    limits=Limits(
        cores_milli=1500, memory_bytes=1 << 40, pids=64, disks=(DISK, DISK), cores_by="pin"
    ),
)

NUMBERS = ["id", "attempt", "uid", "gid", "umask"]
PATHS = ["cwd", "stdout", "stderr"]
LIMITS = ["cores_milli", "memory_bytes", "pids"]
RATES = ["read_bps", "write_bps"]

#: Pairwise distinct JSON types, numbers that are none, and numbers that mean trouble.
WRONG_FOR_A_NUMBER = [None, True, False, 1.0, "1", [], {}, -1]
WRONG_FOR_A_TEXT = [None, True, 1, ["a"], {}]


def message(change: Callable[[dict[str, Any]], object] = lambda message: None) -> Message:
    """A valid launch message as it comes over the wire, then changed."""
    message = decode(encode(launch_message(FULL)))
    change(message)
    return message


def put(*path: str | int, value: object) -> Message:
    def change(place: Any) -> None:
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return message(change)


def without(*path: str | int) -> Message:
    def change(place: Any) -> None:
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]

    return message(change)


def refused(message: Message) -> None:
    with pytest.raises(BadMessage):
        read_order(message)


@pytest.mark.parametrize("order", [FULL, order(cwd=Path("/"))], ids=["full", "plain"])
def test_an_order_comes_out_as_it_went_in(order: Order) -> None:
    assert read_order(decode(encode(launch_message(order)))) == order


def test_a_message_is_one_line() -> None:
    line = encode(launch_message(FULL))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1


def test_reading_an_order_leaves_the_message_as_it_was() -> None:
    there = message()
    read_order(there)
    assert there == message()


@pytest.mark.parametrize("line", [b"", b"{", b"nonsense", b"\xff\xfe{}", b'{"a":\x80}', b"{} {}"])
def test_what_is_not_json_is_a_bad_message(line: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(line)


@pytest.mark.parametrize("line", [b"[]", b"1", b'"cmd"', b"null", b"true"])
def test_json_that_is_no_object_is_a_bad_message(line: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(line)


def test_json_of_any_depth_is_a_bad_message_at_worst() -> None:
    """A deep nest overflows the parser, which says so with an exception of its own."""
    with pytest.raises(BadMessage):
        decode(b'{"cmd":' + b"[" * 200_000)


@settings(database=None, deadline=None)
@given(st.binary(max_size=200))
def test_no_line_raises_anything_but_bad_message(line: bytes) -> None:
    try:
        assert isinstance(decode(line), dict)
    except BadMessage:
        pass


@pytest.mark.parametrize("field", ["id", "attempt"])
@pytest.mark.parametrize("value", [0, 10**18, 10**400])
def test_a_number_that_no_attempt_can_be_called_by_is_refused(field: str, value: int) -> None:
    """Its file would not be found again, or could not be made at all; the highest one can."""
    refused(put(field, value=value))
    about = {"id": 1, "attempt": 1, field: value}
    with pytest.raises(BadMessage):
        read_attempt(about)
    with pytest.raises(BadMessage):
        read_signals({**about, "count": 1, "signals": [1]})
    highest = read_attempt({**about, field: 10**18 - 1})
    assert attempts.cgroup_key(attempts.cgroup_name(highest)) == highest


@pytest.mark.parametrize("field", sorted(set(launch_message(FULL)) - {"cmd"}))
def test_an_order_with_a_field_missing_is_refused(field: str) -> None:
    refused(without(field))


@pytest.mark.parametrize("field", [*LIMITS, "disks", "cores_by"])
def test_limits_with_a_field_missing_are_refused(field: str) -> None:
    """A limit that nobody named would be one that nobody enforces."""
    refused(without("limits", field))


@pytest.mark.parametrize("value", [None, "", "Pin", "fair", 1, ["pin"], {}])
def test_cores_are_given_in_a_known_way(value: object) -> None:
    refused(put("limits", "cores_by", value=value))


@pytest.mark.parametrize("field", [*RATES, "device"])
def test_a_disk_limit_with_a_field_missing_is_refused(field: str) -> None:
    refused(without("limits", "disks", 1, field))


@pytest.mark.parametrize("path", [(), ("limits",), ("limits", "disks", 0)], ids=str)
def test_a_field_that_nobody_knows_is_refused(path: tuple[str | int, ...]) -> None:
    refused(put(*path, "nice", value=1))


@pytest.mark.parametrize("value", WRONG_FOR_A_NUMBER, ids=repr)
@pytest.mark.parametrize("field", NUMBERS)
def test_a_number_is_a_natural_number(field: str, value: object) -> None:
    refused(put(field, value=value))


@pytest.mark.parametrize("value", WRONG_FOR_A_NUMBER, ids=repr)
@pytest.mark.parametrize("field", LIMITS)
def test_a_limit_is_a_natural_number(field: str, value: object) -> None:
    """The kernel reads a negative limit as "none"."""
    refused(put("limits", field, value=value))


@pytest.mark.parametrize("value", WRONG_FOR_A_NUMBER, ids=repr)
@pytest.mark.parametrize("field", RATES)
def test_a_rate_is_a_natural_number(field: str, value: object) -> None:
    refused(put("limits", "disks", 0, field, value=value))


@pytest.mark.parametrize("value", WRONG_FOR_A_TEXT, ids=repr)
@pytest.mark.parametrize("field", PATHS)
def test_a_path_is_text(field: str, value: object) -> None:
    refused(put(field, value=value))


@pytest.mark.parametrize("value", [True, 1, ["a"], {}], ids=repr)
@pytest.mark.parametrize("field", ["script", "attach"])
def test_script_and_attach_are_text_or_null(field: str, value: object) -> None:
    refused(put(field, value=value))


@pytest.mark.parametrize("field", ["script", "attach"])
def test_script_and_attach_may_be_null(field: str) -> None:
    assert getattr(read_order(put(field, value=None)), field) is None


@pytest.mark.parametrize("value", [None, "echo", {"0": "echo"}, 1], ids=repr)
def test_argv_is_a_list(value: object) -> None:
    refused(put("argv", value=value))


@pytest.mark.parametrize("value", WRONG_FOR_A_TEXT, ids=repr)
def test_an_argument_is_text(value: object) -> None:
    refused(put("argv", 1, value=value))


def test_an_order_without_a_program_is_refused() -> None:
    refused(put("argv", value=[]))


@pytest.mark.parametrize("value", [None, [], "A=1", 1], ids=repr)
@pytest.mark.parametrize("field", ["env", "variables"])
def test_an_environment_is_an_object(field: str, value: object) -> None:
    refused(put(field, value=value))


@pytest.mark.parametrize("value", WRONG_FOR_A_TEXT, ids=repr)
@pytest.mark.parametrize("field", ["env", "variables"])
def test_a_variable_is_text(field: str, value: object) -> None:
    refused(put(field, "A", value=value))


@pytest.mark.parametrize("value", [None, [], 1, "8:0"], ids=repr)
def test_limits_are_an_object(value: object) -> None:
    refused(put("limits", value=value))


@pytest.mark.parametrize("value", [None, {}, "8:0", [None], ["8:0"], [[]]], ids=repr)
def test_disks_are_a_list_of_objects(value: object) -> None:
    refused(put("limits", "disks", value=value))


@pytest.mark.parametrize("value", [*WRONG_FOR_A_TEXT, "", "sda", "8", "8:0 1", "*:*"], ids=repr)
def test_a_device_is_two_numbers(value: object) -> None:
    """It becomes part of a line that root writes into a kernel file."""
    refused(put("limits", "disks", 0, "device", value=value))


@pytest.mark.parametrize("field", [*PATHS, "attach"])
def test_a_path_holds_no_nul(field: str) -> None:
    refused(put(field, value="/tmp/a\0b"))


@pytest.mark.parametrize(
    "message",
    [
        put("argv", 0, value="a\0b"),
        put("env", "A", value="a\0b"),
        put("env", "A\0B", value="a"),
        put("variables", "A", value="a\0b"),
        put("variables", "A\0B", value="a"),
    ],
    ids=["argument", "value", "name", "our value", "our name"],
)
def test_arguments_and_variables_hold_no_nul(message: Message) -> None:
    refused(message)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.sampled_from([*launch_message(FULL), "x"]) | st.text(), JSON)
PLACES = st.sampled_from(
    [
        *((field,) for field in launch_message(FULL)),
        *(("limits", field) for field in [*LIMITS, "disks", "cores_by"]),
        *(("limits", "disks", 0, field) for field in [*RATES, "device"]),
        ("limits", "disks", 1),
        ("argv", 0),
        ("env", "A"),
    ]
)


@settings(database=None, deadline=None)
@given(OBJECTS)
def test_no_object_raises_anything_but_bad_message(there: Message) -> None:
    with pytest.raises(BadMessage):
        read_order(there)
    try:
        read_attempt(there)
    except BadMessage:
        pass


@settings(database=None, deadline=None)
@given(PLACES, JSON)
def test_no_value_anywhere_raises_anything_but_bad_message(
    place: tuple[str | int, ...], value: object
) -> None:
    """What is taken is the order that was sent, not something near it."""
    sent = put(*place, value=value)
    try:
        taken = read_order(sent)
    except BadMessage:
        return
    assert decode(encode(launch_message(taken))) == sent | {"cmd": "launch"}


def test_an_attempt_is_named_by_two_numbers() -> None:
    assert read_attempt({"id": 41, "attempt": 2}) == (41, 2)


@pytest.mark.parametrize("value", WRONG_FOR_A_NUMBER, ids=repr)
@pytest.mark.parametrize("field", ["id", "attempt"])
def test_an_attempt_is_named_by_natural_numbers(field: str, value: object) -> None:
    with pytest.raises(BadMessage):
        read_attempt({"id": 1, "attempt": 1} | {field: value})


@pytest.mark.parametrize("field", ["id", "attempt"])
def test_an_attempt_is_named_by_both_numbers(field: str) -> None:
    with pytest.raises(BadMessage):
        read_attempt({field: 1})


def test_a_command_with_a_field_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadMessage):
        read_attempt({"id": 1, "attempt": 1, "signal": 9})


def test_a_signal_comes_out_as_it_went_in() -> None:
    message = decode(encode(signal_message((3, 2), 7, (10, 12))))
    assert message.pop("cmd") == "signal"
    assert read_signals(message) == ((3, 2), 7, (10, 12))


@pytest.mark.parametrize(
    "changes",
    [
        {"signals": [0]}, {"signals": [65]}, {"signals": [-9]}, {"signals": ["USR1"]},
        {"signals": [True]}, {"signals": 10}, {"signals": None}, {"count": -1}, {"count": "1"},
        {"id": "1"}, {"attempt": None}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_signal_with_anything_wrong_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadMessage):
        read_signals({"id": 1, "attempt": 1, "count": 1, "signals": [10]} | changes)

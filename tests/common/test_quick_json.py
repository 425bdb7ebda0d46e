"""The short way to JSON says and reads what the long one does."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.common.quick_json import decode, encode

VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text() | some.floats(allow_nan=False),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
)


@given(VALUES)
def test_it_writes_what_json_writes(value: object) -> None:
    assert encode(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@given(VALUES)
def test_it_reads_what_json_reads(value: object) -> None:
    assert decode(json.dumps(value).encode() + b"\n") == value
    assert decode(f" {json.dumps(value, ensure_ascii=False, indent=1)}\r\n".encode()) == value


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"{", b"{} {}", b"[1,]", b"nul", b'{"a" 1}', b"\xff", b'"\n"'], ids=repr
)
def test_what_json_refuses_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        json.loads(line)
    with pytest.raises(ValueError):
        decode(line)


@pytest.mark.parametrize("value", [b"x", {1}, {"a": [object()]}, {b"x": 1}], ids=repr)
def test_what_is_not_json_is_not_written(value: object) -> None:
    with pytest.raises(TypeError):
        json.dumps(value)
    with pytest.raises(TypeError):
        encode(value)


def test_a_tuple_is_a_list() -> None:
    assert encode({"a": (1, ("b",))}) == '{"a":[1,["b"]]}'

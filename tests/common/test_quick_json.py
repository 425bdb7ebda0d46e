"""The short way to JSON says and reads what the long one does."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.common.quick_json import decode, encode

VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
)


@given(VALUES)
def test_it_writes_what_json_writes(value: object) -> None:
    assert encode(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@given(VALUES)
def test_it_reads_what_json_reads(value: object) -> None:
    assert decode(json.dumps(value).encode() + b"\n") == value


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"{", b"{} {}", b"[1,]", b"nul", b'{"a" 1}', b"\xff", b'"\n"'], ids=repr
)
def test_what_json_refuses_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        json.loads(line)
    with pytest.raises(ValueError):
        decode(line)


def test_numbers_with_a_point_are_read() -> None:
    assert decode(b'{"a": 1.5}') == {"a": 1.5}


@pytest.mark.parametrize("value", [1.5, b"x", (1,), {"a": {1}}], ids=repr)
def test_what_no_request_holds_is_not_written(value: object) -> None:
    with pytest.raises(TypeError):
        encode(value)

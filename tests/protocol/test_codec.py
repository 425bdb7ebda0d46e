"""One message, one line of JSON."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.protocol.codec import decode, encode

TEXT = some.text(some.characters(codec="utf-8"), max_size=20)
VALUES = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**63), 2**63) | TEXT,
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
# Hypothesis makes its tables of characters once: not during the first test that needs them.
TEXT.validate()


@given(some.dictionaries(TEXT, VALUES, max_size=6))
def test_what_is_encoded_decodes_to_the_same(message: dict[str, object]) -> None:
    assert decode(encode(message)) == message


@given(some.dictionaries(TEXT, VALUES, max_size=6))
def test_a_message_is_exactly_one_line(message: dict[str, object]) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line.splitlines()) == 1


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
def test_anything_but_one_object_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode(line)

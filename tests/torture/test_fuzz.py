"""A short attack on each target, without atheris; and all that was ever found, once more.

`python -m tests.torture.fuzz all --seconds 600` is the long form.
"""

from __future__ import annotations

import pytest

from torture.fuzz import CORPUS, attack, corpus_of, made, targets

#: Of processor time, for each target.
SECONDS = 1.0


@pytest.mark.parametrize("name", targets())
def test_nothing_but_a_clear_refusal_comes_of_an_attack_on(name: str) -> None:
    assert attack(name, SECONDS, seed=1) > 100


@pytest.mark.parametrize("name", targets())
def test_the_corpus_holds_for(name: str) -> None:
    with made(name) as target:
        for data in corpus_of(name):
            target(data)


def test_every_corpus_has_its_target() -> None:
    """`trace` waits for the reader of workloads."""
    assert {path.name for path in CORPUS.iterdir()} <= {*targets(), "trace"}

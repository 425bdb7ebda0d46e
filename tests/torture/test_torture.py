"""Random lives of a whole drfd, with every fault that it promises to outlive; and the short forms
of the other harnesses.

More of them: `python -m tests.torture`, which also tells one step by step, `python -m
tests.torture.fuzz all --seconds 600`, `python -m tests.torture.nodes --kills 1000`, and `python -m
tests.torture.siege --minutes 60`, also with `--alone`.
"""

import logging
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

from drfd.core.decisions import dependencies
from drfd.core.model import effects as ef
from drfd.core.model import events as ev
from drfd.core.model.job import Outcome
from drfd.core.model.machine import Allocation, FreeResources
from drfd.daemon.engine import engine
from private_slurm import missing
from torture.fuzz import CORPUS, TARGETS, attack, corpus_of, made
from torture.life import attempt, kind_of, script, shrink
from torture.nodes import torture
from torture.siege import siege
from torture.world import World

#: Runs in each of the blocks, and how many blocks.
RUNS, BLOCKS = 40, int(os.environ.get("DRFD_TORTURE_BLOCKS", "8"))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """That a journal cannot be written is meant."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@cache
def lived(block: int) -> Counter[str]:
    """What was met in its runs; the first that fails ends it, with the command that tells it."""
    met: Counter[str] = Counter()
    for seed in range(block * RUNS, (block + 1) * RUNS):
        world = attempt(seed, script(seed))
        if isinstance(world, Exception):
            again = f"python -m tests.torture --runs 1 --seed {seed}"
            raise AssertionError(f"{again}\n{kind_of(world)}: {world}") from world
        met.update(world.books.seen)
        met.update(world.counts)
        met.update(outcome.value for outcome in world.books.ended.values())
    return met


@pytest.mark.parametrize("block", range(BLOCKS))
def test_whatever_happens_no_promise_is_broken_and_everything_ends(block):
    assert lived(block)["Admitted"]


def test_room_that_is_given_up_for_a_starving_job_is_given_to_others_at_once():
    """Jobs were told that they start with the next pass, which did not come for seconds."""
    found = attempt(2124, script(2124))
    assert isinstance(found, World), found


def test_the_runs_meet_every_event_every_order_and_every_end():
    """Else they would prove less than they seem to."""
    met = sum((lived(block) for block in range(BLOCKS)), Counter())
    orders = [kind.__name__ for kind in ef.Effect.__args__]
    others = "controller deaths", "choices", "untold ends", "parts of GPUs"
    few = {
        name: met[name]
        for name in [*ev.KINDS, *orders, *Outcome, *others]
        # Written after a journal was restored from a copy.
        if met[name] < 3 and name != "IdsRaised"
    }
    assert few == {}


def told(seed: int) -> str:
    """A digest of all that happens in a run."""
    lines: list[str] = []
    assert isinstance(attempt(seed, script(seed), lines.append), World)
    return sha256("\n".join(lines).encode()).hexdigest()


def test_a_run_is_the_same_every_time():
    """Also where sets come in another order."""
    here = Path(__file__).parent
    code = "import torture.test_torture as t; print(t.told(3))"
    paths = f"{here.parent}:{here.parent.parent / 'cli'}"
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env, cwd=here.parent.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == told(3)


# -- that it can fail --------------------------------------------------------------------------


def let_all_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FreeResources, "fits", lambda room, demand: True)


def give_nothing_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Allocation, "__sub__", lambda left, right: left)


def forget_times(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dependencies, "begin", lambda ledger, at_s: [])


def owe_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "owed", lambda job: None)


@pytest.mark.parametrize(
    ("how", "found"),
    [
        (let_all_in, "more is given out than there is"),
        (give_nothing_back, "sums differ"),
        (forget_times, "turns decide nothing and go on"),
        (owe_nothing, "some never come to their end"),
    ],
)
def test_a_drfd_that_is_broken_on_purpose_is_found_out(monkeypatch, how, found):
    how(monkeypatch)
    endings = (attempt(seed, script(seed)) for seed in range(100))
    kinds = (kind_of(each) for each in endings if isinstance(each, Exception))
    assert any(found in kind for kind in kinds)


def test_of_a_run_that_fails_only_what_matters_is_left(monkeypatch):
    let_all_in(monkeypatch)
    failing = ((seed, attempt(seed, script(seed))) for seed in range(100))
    seed, failure = next(each for each in failing if isinstance(each[1], Exception))
    assert isinstance(failure, Exception)
    fewer = shrink(seed, script(seed), failure)
    assert 0 < len(fewer) <= 3
    again = attempt(seed, fewer)
    assert isinstance(again, Exception)
    assert kind_of(again) == kind_of(failure)


# -- the short forms of other harnesses -------------------------------------------------------

#: Of processor time, for each target of the fuzzer: without atheris.
ATTACK_S = 1.0
SIEGE_S = float(os.environ.get("DRFD_SIEGE_S", "30"))
KILLS = 20


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_a_clear_refusal_comes_of_an_attack_on(name):
    assert attack(name, ATTACK_S, seed=1) > 100


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_holds_for(name):
    with made(name) as target:
        for data in corpus_of(name):
            target(data)


def test_every_corpus_has_its_target():
    assert {path.name for path in CORPUS.iterdir()} <= {*TARGETS}


@pytest.mark.system
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_twenty_kills_of_drfds_and_slurms_daemons_start_no_job_twice_and_lose_none():
    done = torture(KILLS, seed=7)
    assert done.deviations == []
    assert done.deaths() >= KILLS
    # They are no end of all jobs: most end as they would have without them.
    assert done.counts["ended: COMPLETED"] > 0
    assert done.jobs() > KILLS / 2


def test_half_a_minute_of_jobs_and_deaths_leaves_nothing_behind():
    done = siege(SIEGE_S, seed=7, per_second=20.0, is_alone=True, least_deaths=3)
    assert done.deviations == []
    # As many as a slow machine accepts: each submission waits for the one before.
    assert done.jobs() > SIEGE_S
    assert done.deaths() >= 3
    assert done.counts["looks"] > SIEGE_S / 10


# -- the page of promises ---------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text()


def test_there_are_ten_promises_in_order_and_the_readme_leads_to_them():
    assert re.findall(r"^## (\d+)\.", PAGE, re.MULTILINE) == [str(each) for each in range(1, 11)]
    assert "docs/promises.md" in (ROOT / "README.md").read_text()


def test_each_promise_has_a_command_and_all_that_it_names_is_there():
    for section in PAGE.split("\n## ")[1:]:
        commands = re.findall(r"`((?:DRFD_\w+=1 )?(?:pytest|python -m) [^`]*)`", section)
        assert commands, section
        for command in commands:
            paths = re.findall(r"tests[\w/.]*", command)
            assert paths
            for path in paths:
                module = path.replace(".", "/") + ".py"
                is_there = (ROOT / path).exists() or (ROOT / module).exists()
                assert is_there, f"{command}: no {path}"

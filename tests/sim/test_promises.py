"""The account of promises of whole runs: what was short and why, and what starts went past.

The recorded workload is read where DRFD_TRACES names the folder of the traces.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from drfd.core.amounts.resources import Resources
from drfd.core.fairness.rules import Pool, Rules
from drfd.core.fairness.stored_rules import rules_text
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.stimuli import Actor
from drfd.core.promises.account import Parts, Starts
from drfd.core.promises.event_fold import EventFold
from drfd.journal.journal import Journal, digest
from drfd.journal.promises.account_file import AccountFile
from drfd.journal.promises.check import check
from drfd.sim.driver import Run, simulate
from drfd.sim.machine import parse_capacity, rules_of
from drfd.sim.metrics import measure, over_time
from drfd.sim.recorded_workloads import read_trace
from drfd.sim.synthetic_workloads import Recipe, generate
from fakes import apply_and_append, happened, now, spec
from seeds import seeds

FOLDER = os.environ.get("DRFD_TRACES")
HOUR_MS = 3_600_000
NODE = Resources(cores_milli=64_000, memory_bytes=256 << 30)
POOLS = {
    "lab": Pool(users=frozenset({"u1", "u2", "u3"}), guarantee={"cores": 20_000}),
    "den": Pool(users=frozenset({"u4", "u5"}), weight=Fraction(3), limit={"memory": 100 << 30}),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("pools", [{}, POOLS], ids=["flat", "pools"])
def test_only_places_that_were_kept_go_to_others_than_those_who_are_short(
    seed: int, pools: Any
) -> None:
    """A start in the order of fair shares, and beyond the own promise, never goes past a job that
    fits and that would keep its user's promise; without that order, most starts do."""
    recipe = Recipe(
        jobs=600, users=13, capacity=NODE, seed=seed, load=1.3, burst=10,
        mix={"cpu": 6, "memory": 6, "big": 1},
    )  # fmt: skip
    jobs, rules = generate(recipe).jobs, Rules(capacity=NODE, pools=pools)
    found = measure(simulate(jobs, rules))
    assert found["starts"]["turn"]["past_fitting"] == 0
    assert sum(counts["all"] for counts in found["starts"].values()) == found["jobs"]
    assert sum(found["promised"].values()) == pytest.approx(1)
    fifo = measure(simulate(jobs, rules, policy="fifo"))
    assert fifo["starts"]["turn"]["past_fitting"] > 100
    assert fifo["promised"]["kept"] < found["promised"]["kept"]


def events_of(run: Run) -> Iterator[ev.Event | ev.AuditEvent]:
    """What a daemon's journal would have of the run, if it began at the Unix time 0."""
    yield ev.DaemonStarted(at_s=0.0, version="1", rules="", away_since_s=None)
    moments: list[tuple[float, int, int, ev.Event]] = []
    for at, ran in enumerate(run.ran):
        job_id = ran.job.id
        pool = run.rules.pool_for(ran.job.user, None)
        actor = Actor(ran.job.user, 1000, False)
        asked = spec(pool, actor=actor, asks=ran.job.demand)
        moments += [
            (ran.job.submit_s, 1, job_id, happened(ev.Submitted, job_id, spec=asked)),
            (ran.start_s, 2, at, happened(ev.Admitted, job_id, why=run.reasons[job_id])),
            (ran.end_s, 0, at, happened(ev.Exited, job_id)),
        ]
    begin_s = min(ran.job.submit_s for ran in run.ran)
    for since_s, *_, event in sorted(moments, key=lambda each: each[:3]):
        at_s = since_s - begin_s
        yield replace(event, at_s=at_s)
        if isinstance(event, ev.Exited):
            yield happened(ev.Cleaned, event.job_id, at_s=at_s - now().at_s)


@pytest.mark.parametrize("policy", seeds(["drf", "fifo"], quick=1))
def test_a_journal_of_a_run_gives_the_account_of_the_run(policy: str) -> None:
    recipe = Recipe(jobs=150, users=7, capacity=NODE, seed=5, load=1.3, burst=10)
    jobs = generate(recipe).jobs
    run = simulate(jobs, Rules(capacity=NODE, pools=POOLS), policy=policy)
    told = over_time(run).account
    fold = EventFold(HOUR_MS, lambda digest: run.rules)
    for event in events_of(run):
        fold.take(event)
    assert fold.account.sums == told.sums
    assert fold.account.pairs == told.pairs
    assert fold.account.starts == told.starts
    assert fold.account.longest == told.longest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "waited_h", "promised", "longest", "pairs", "worst_pair"),
    [
        (
            "drf", 19579, {"kept": 82.1, "own_limit": 0, "others": 17.6, "size": 0.3},
            ("root.u815", 212), 1319, ("root.u62", "root.u1037", 14.8),
        ),
        (
            "fifo", 80369, {"kept": 28.8, "own_limit": 0, "others": 71.2, "size": 0},
            ("root.u116", 1540), 1937, ("root.u24", "root.u62", 22.5),
        ),
    ],
)  # fmt: skip
def test_two_months_of_an_overloaded_cluster(
    policy: str, waited_h: int, promised: Any, longest: Any, pairs: int, worst_pair: Any
) -> None:
    """CERIT-SC in January and February 2013, as one machine that is too small on purpose."""
    if FOLDER is None:
        pytest.skip("DRFD_TRACES does not name the folder of the traces")
    jobs = read_trace(Path(FOLDER, "cerit-sc-2013-jan-feb.csv.gz")).jobs
    run = simulate(jobs, rules_of(parse_capacity("cores=700,memory=4600G")), policy=policy)
    found = measure(run)
    assert {name: round(100 * part, 1) for name, part in found["promised"].items()} == promised
    account = over_time(run).account
    waited_ms = sum(sums.waited for sums in account.sums.values())
    assert round(waited_ms / HOUR_MS) == waited_h
    leaf = max(account.longest, key=lambda each: account.longest[each].length_ms)
    assert (leaf, account.longest[leaf].length_ms // HOUR_MS) == longest
    by: Counter[tuple[str, str]] = Counter()
    for (_, *both), amount in account.pairs.items():
        by[both[0], both[1]] += amount
    assert len(by) == pairs
    ((most, amount),) = by.most_common(1)
    assert (*most, round(amount / 1e9 / HOUR_MS, 1)) == worst_pair
    if policy == "drf":
        beyond = {name: counts["beyond"] for name, counts in found["starts"].items()}
        past = {name: counts["past_fitting"] for name, counts in found["starts"].items()}
        assert beyond == {"turn": 56, "reservation": 600, "backfill": 4046}
        assert past == {"turn": 0, "reservation": 170, "backfill": 439}


@pytest.mark.slow
def test_two_months_of_an_overloaded_cluster_as_a_journal_keeps_them(tmp_path: Path) -> None:
    """The same run, entered into a journal and kept by the hour beside it."""
    if FOLDER is None:
        pytest.skip("DRFD_TRACES does not name the folder of the traces")
    jobs = read_trace(Path(FOLDER, "cerit-sc-2013-jan-feb.csv.gz")).jobs
    rules = rules_of(parse_capacity("cores=700,memory=4600G"))
    text = rules_text(rules)
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        journal.audit.put_rules(text)
        books = Ledger(rules.axes)
        for event in events_of(simulate(jobs, rules)):
            if isinstance(event, ev.DaemonStarted):
                journal.append_audit(replace(event, rules=digest(text)))
            else:
                apply_and_append(journal, event, books)  # type: ignore[arg-type]  # of jobs alone
        journal.commit()
        with AccountFile(journal.path) as file:
            hours = file.catch_up().close_at(0)
            hours = [*(stored.hour() for stored in file.hours()), *hours]
            checked = check(file)
    assert (checked.fault, checked.computed, checked.gone) == (None, checked.hours, 0)
    rows = [parts for hour in hours for _, parts, _ in hour.rows]
    total = Parts(*map(sum, zip(*rows, strict=True)))
    parts = {name: round(100 * getattr(total, name) / total.promised, 1) for name in Parts._fields}
    assert (len(rows), round(total.waited / HOUR_MS)) == (20046, 19579)
    assert (parts["kept"], parts["others"], parts["size"]) == (82.1, 17.6, 0.3)
    starts = [counts for hour in hours for _, counts in hour.starts]
    assert Starts(*map(sum, zip(*starts, strict=True))) == Starts(8424, 4702, 4067, 609)

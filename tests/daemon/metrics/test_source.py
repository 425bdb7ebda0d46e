"""What the source makes of a snapshot: series that do not come and go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from daemon.desk import MakeShell, Shell
from drfd.core.fairness.rules import Pool
from drfd.core.fairness.week_quotas import QuotaUse
from drfd.core.model.stimuli import Actor, SubmitAsked
from drfd.daemon.metrics.source import held_back_leaves, with_all_states
from fakes import ALICE, BOB, demand, now, rules, spec


def test_each_state_of_a_live_job_has_its_number() -> None:
    assert with_all_states({"RUNNING": 2}) == {
        "PENDING": 0,
        "HELD": 0,
        "STARTING": 0,
        "RUNNING": 2,
        "SUSPENDED": 0,
        "STOPPING": 0,
        "CLEANING": 0,
    }


LEAF = "root.alice"


def submit(shell: Shell, actor: Actor, cores: float) -> None:
    """Submit a job, and let what can start."""
    shell.turn(SubmitAsked(now(), spec("root", actor=actor, asks=demand(cores))))
    shell.host.take()


def held_back_now(shell: Shell, used_up: Mapping[str, QuotaUse]) -> frozenset[str]:
    assert [*shell.engine.ledger.queues] == [LEAF]
    return held_back_leaves(shell.engine.ledger, shell.engine.rules, used_up)


def test_whose_jobs_do_not_fit_is_not_held_back(shell: Shell) -> None:
    submit(shell, BOB, 9)
    submit(shell, ALICE, 1)
    assert held_back_now(shell, {}) == frozenset()


def test_who_has_used_up_a_quota_is_held_back(shell: Shell) -> None:
    """Nothing is promised to those who are served last, either."""
    submit(shell, BOB, 9)
    submit(shell, ALICE, 1)
    for waits in (True, False):
        use = QuotaUse(LEAF, 3.0, 2.0, waits=waits, restored_s=0.0)
        assert held_back_now(shell, {LEAF: use}) == {LEAF}


def test_who_is_at_a_limit_is_held_back(make_shell: MakeShell) -> None:
    limited = replace(rules(), members={("", "alice"): Pool(limit={"cores": 3000})})
    shell = make_shell(by=limited)
    submit(shell, BOB, 7)
    submit(shell, ALICE, 2)
    submit(shell, ALICE, 2)
    assert held_back_now(shell, {}) == {LEAF}
    submit(shell, ALICE, 1)
    assert held_back_now(shell, {}) == frozenset()

"""A pass against the slow one of `core/oracle.py`, which was written from the rules alone: is each
launch of somebody whose turn it is, and is nothing left that may start?

Only where nothing is reserved: the slow pass of the oracle knows one reservation, and follows it.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.oracle import Ask, Rule, Tree, begin
from core.worlds import carry_on
from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.scheduling.plan import Plan
from torture.claims import claim


def look_at_choices(
    plan: Plan, ledger: Ledger, rules: Rules, past_usage: Mapping[str, float]
) -> None:
    """`plan`: of a pass that is not in the books as yet."""
    tree = Tree(
        rules.shares.capacity,
        {
            path: Rule(each.weights, each.limit, each.guarantee)
            for path, each in rules.shares.rules.items()
        },
    )
    waiting = {
        job_id: Ask(leaf, demand, -order)
        for leaf, queue in ledger.queues.items()
        for demand, line in queue.groups.items()
        for order, job_id in line
    }
    state = begin(tree, waiting, ledger.used, past_usage)
    for job_id in plan.admitted:
        could = state.choices()
        claim(job_id in could, "somebody starts out of turn", job_id, could, plan.admitted)
        carry_on(state, job_id)
    left = set() if plan.is_cut else state.choices()
    claim(not left, "somebody may start and does not", left, plan.admitted)

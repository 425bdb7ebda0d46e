"""What becomes of tasks that together ask for more than their node has: they slow down.

A model, for schedulers that overcommit. Who never does never needs it: the factor is 1 then.

Cores are shared out: tasks that ask for 12 of 8 cores run at 8/12 of their speed. Memory is worse.
Of tasks that hold h of m bytes, h > m, a part f = 1 - m/h is in the swap space: what is touched the
least. If touches fall off evenly from the most to the least used byte, f^2 of them go there, and
each of these costs `swap_cost` times as much as one in memory: the tasks take 1 + swap_cost * f^2
times as long. Both hold for every task of the node, also for those that it would have had room for.
"""

from __future__ import annotations

from fractions import Fraction

from drfd.core.resources import Vector

#: Places in the vectors of a cluster.
CORES, MEMORY = 0, 1

#: Chosen so that with six slots a node as many large jobs end as in the DRF paper's figure 9; all
#: else follows.
SWAP_COST = 40


def slowdown(held: Vector, node: Vector, swap_cost: int) -> Fraction:
    """How many times as long everything takes on a node whose tasks ask for `held` together."""
    crowd = max(Fraction(1), Fraction(held[CORES], node[CORES]))
    if held[MEMORY] <= node[MEMORY]:
        return crowd
    swapped = 1 - Fraction(node[MEMORY], held[MEMORY])
    return crowd * (1 + swap_cost * swapped**2)

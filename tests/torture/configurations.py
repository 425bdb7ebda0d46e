"""What the machine has in a run, and gives to whom, drawn from a seed.

Every later configuration of a run asks no more and gives no more than the first, which is the last
again: so whatever was taken can run in the end.
"""

from dataclasses import replace
from fractions import Fraction
from random import Random

from msgspec import structs

from drfd.core.fairness.rules import NodeSettings, Pool, Preempting, ReservationSettings, Rules
from drfd.core.model.resources import Axes, Resources
from fakes import GIB

USERS = ("ann", "ben", "cyd", "dan")
#: Pools that take some users' jobs, and one that takes anybody's.
LAB, BIO, OPEN = "lab", "lab.bio", "open"
#: The memory of each GPU that jobs may share.
GPU_BYTES = 8 * GIB


def first_rules(seed: int) -> Rules:
    random = Random(f"rules {seed}")
    gpus = random.choice([0, 0, 1, 3])
    policy = random.choice(["drf"] * 9 + ["fifo", "slots", "asset"])
    how = random.choice([None, _preempting(random), _preempting(random)])
    return Rules(
        axes=_axes(tuple(map(str, range(gpus))), Random(f"shared {seed}").random() < 0.8),
        capacity=Resources(
            cores_milli=random.choice([2000, 4000, 9000]),
            memory_bytes=random.choice([4, 8]) * GIB,
            read_bps=1000,
            write_bps=random.choice([0, 1000]),
            gres=(("gpu", gpus),) if gpus else (),
        ),
        pools=_pools(random),
        members={(LAB, "ann"): NodeSettings(weight=Fraction(random.choice([1, 2])))},
        grace_s=random.choice([1, 5]),
        max_waiting_per_user=25,
        max_suspended_s=Random(f"suspended {seed}").choice([None, 20]),
        reserving=ReservationSettings(
            delay_s=random.choice([0.0, 2.0, 15.0]),
            drain_after_s=random.choice([5.0, 40.0, 1e6]),
            reserves=random.random() < 0.7,
            depth=random.choice([1, 1, 2, 3]),
        ),
        policy=policy,
        preempting=how if policy == "drf" else None,
        half_life_s=random.choice([60, 604_800]),
        min_charge_s=random.choice([0, 0, 10]),
        beside=random.choice([None, Resources(cores_milli=500, memory_bytes=GIB)]),
    )


def later_rules(first: Rules, random: Random) -> Rules:
    """As somebody who edits the configuration might change them."""
    pools = dict(first.pools)
    if random.random() < 0.5:
        pools = {
            name: replace(each, limit={**pool.limit, **_limit(random)})
            for (name, each), pool in zip(_pools(random).items(), pools.values(), strict=True)
        }
    capacity, axes = first.capacity, first.axes
    if random.random() < 0.5:
        part = random.choice([1, 2, 3])
        capacity = structs.replace(
            capacity,
            cores_milli=capacity.cores_milli * part // 3,
            memory_bytes=capacity.memory_bytes * random.choice([2, 3]) // 3,
        )
    if capacity.gres and random.random() < 0.4:
        _, names = axes.instances[0]
        kept = tuple(each for each in names if random.random() < 0.6)
        gres = (("gpu", len(kept)),) if kept else ()
        axes = _axes(kept, axes.shared is not None)
        capacity = structs.replace(capacity, gres=gres)
    if capacity.gres and Random(f"shared {capacity} {first.grace_s}").random() < 0.3:
        axes = replace(axes, shared=None if axes.shared else ("gpu", GPU_BYTES))
    return replace(
        first,
        axes=axes,
        capacity=capacity,
        pools=pools,
        preempting=random.choice([first.preempting, None]),
        policy=random.choice([first.policy, first.policy, "drf"]),
    )


def _axes(gpus: tuple[str, ...], shared: bool) -> Axes:
    if not gpus:
        return Axes()
    size = ("gpu", GPU_BYTES) if shared else None
    return Axes(gres=("gpu",), instances=(("gpu", gpus),), shared=size)


def _pools(random: Random) -> dict[str, Pool]:
    weight = [Fraction(1), Fraction(2), Fraction(1, 3)]
    guarantee = random.choice([{}, {}, {"cores": 1000}])
    return {
        LAB: Pool(
            weight=random.choice(weight), users=frozenset({"ann", "ben"}), guarantee=guarantee
        ),
        BIO: Pool(
            weights=random.choice([{}, {"memory": Fraction(5, 2)}]), users=frozenset({"cyd"})
        ),
        OPEN: Pool(weight=random.choice(weight), limit=_limit(random)),
    }


def _limit(random: Random) -> dict[str, int]:
    return random.choice([{}, {}, {"cores": 2000}, {"memory": 3 * GIB}])


def _preempting(random: Random) -> Preempting:
    return Preempting(
        suspends=random.random() < 0.5,
        after_s=random.choice([0.0, 4.0]),
        exempt_s=random.choice([0, 2, 60]),
    )

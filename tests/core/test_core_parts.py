"""The parts of the cores that the kernel gives pools and users."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as some

from drfd.core.fairness.core_parts import divide_cores
from drfd.core.fairness.share_tree import FairShare, NodeRule

HEAVY = FairShare((4000, 1), {"root.heavy": NodeRule(weights=(Fraction(2), Fraction(1)))})


def test_what_all_want_is_divided_by_weights():
    ends = [("root.ann", 100, 4000), ("root.heavy", 100, 4000)]
    assert divide_cores(HEAVY, ends, 4000) == {"root.ann": 1333, "root.heavy": 2667}
    assert divide_cores(HEAVY, [], 4000) == {}


def test_lower_ends_come_first_and_nobody_has_more_than_the_upper_ones():
    ends = [("root.ann", 1000, 2000)] * 3 + [("root.heavy", 100, 4000), ("root.bob", 100, 200)]
    # Without a range, weight beyond the part costs nobody anything.
    assert divide_cores(HEAVY, ends, 4000) == {
        "root.ann": 3000, "root.heavy": 800, "root.bob": 200,
    }  # fmt: skip
    plain = divide_cores(HEAVY, [("root.ann", 500, 500), ("root.heavy", 100, 4000)], 4000)
    assert plain == {"root.ann": 8 * 500, "root.heavy": 3500}


def test_users_of_a_pool_divide_its_part():
    ends = [("root.heavy.ann", 100, 4000), ("root.heavy.bob", 100, 4000), ("root.eve", 100, 4000)]
    assert divide_cores(HEAVY, ends, 3000) == {
        "root.heavy": 2000, "root.heavy.ann": 1000, "root.heavy.bob": 1000, "root.eve": 1000,
    }  # fmt: skip


LEAVES = ("root.ann", "root.bob", "root.lab.ann", "root.lab.eve", "root.heavy.bob")
JOBS = some.tuples(some.sampled_from(LEAVES), some.integers(10, 900), some.integers(0, 9000))


@given(some.lists(JOBS, max_size=8))
def test_no_part_is_below_the_lower_ends_and_all_fit_the_machine(jobs):
    ends = [(leaf, least, least + more) for leaf, least, more in jobs]
    capacity = max(4000, sum(least for _, least, _ in ends))
    found = divide_cores(HEAVY, ends, capacity)
    for path, part in found.items():
        below = [each for each in ends if f"{each[0]}.".startswith(f"{path}.")]
        assert part + 1 >= sum(least for _, least, _ in below)
    tops = [path for path in found if path.count(".") == 1]
    ranged = [path for path in tops if any(least < most for leaf, least, most in ends
              if f"{leaf}.".startswith(f"{path}."))]  # fmt: skip
    assert sum(found[path] for path in ranged) <= capacity + len(ranged)

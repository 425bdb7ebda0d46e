"""Fair shares as rules: exact shares, who pays for a job, decayed use, limits by hour."""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import structs

from core.worlds import forecast, pass_of
from drfd.common.errors import NotPermitted, Refused
from drfd.common.week import parse_week_hours
from drfd.core.explain.forecast import Forecast
from drfd.core.explain.reasons import explain_wait
from drfd.core.fairness.rules import (
    HourlyLimit,
    NodeSettings,
    Pool,
    Preempting,
    ReservationSettings,
    Rules,
    rules_text,
)
from drfd.core.fairness.service_order import DecayedUsage
from drfd.core.fairness.share_tree import (
    AxisClaim,
    FairShare,
    divide,
    divide_all,
    path_up,
)
from drfd.core.model.calendar import NOTHING, Calendar, LimitSpan, LimitSteps, make_calendar
from drfd.core.model.job import ROOT, Actor, JobSpec, JobState, Outcome
from drfd.core.model.resources import Axes, Resources
from drfd.core.scheduling.release_times import Certainty, StartForecast
from drfd.core.scheduling.scheduler import Scheduler
from drfd.core.scheduling.waits import BeyondLimit, BeyondLimitNow, Wait
from fakes import (
    ALICE,
    BOB,
    Bench,
    demand,
    flat,
    launched,
    now,
    replace,
    rules,
    schedule,
    spec,
)
from seeds import examples

HOUR, DAY = 3600, 86400


# -- division by weight, guarantee and limit -------------------------------------------------------


FRACTIONS = some.builds(Fraction, some.integers(0, 12), some.just(12))
FINE_WEIGHTS = some.builds(Fraction, some.integers(1, 9), some.integers(1, 9))
CLAIMS = some.lists(
    some.builds(
        AxisClaim, weight=FINE_WEIGHTS, guarantee=FRACTIONS, limit=some.none() | FRACTIONS
    ).filter(lambda claim: claim.limit is None or claim.limit >= claim.guarantee),
    min_size=1,
    max_size=6,
)


def slow_divide(whole: Fraction, claims: list[AxisClaim]) -> list[Fraction]:
    """By bisection over x, to 200 halvings: no shared code."""

    def at(level: Fraction) -> list[Fraction]:
        found = [max(level * claim.weight, claim.guarantee) for claim in claims]
        pairs = zip(found, claims, strict=True)
        return [part if c.limit is None else min(part, c.limit) for part, c in pairs]

    low, high = Fraction(0), Fraction(1000)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(at(middle)) < whole else (low, middle)
    return at(high)


@examples(300, quick=15)
@given(FRACTIONS.filter(bool), CLAIMS)
def test_the_parts_are_those_of_a_slow_search(whole, claims):
    found = divide(whole, claims)
    if sum(claim.guarantee for claim in claims) >= whole:
        assert sum(found) == whole
        return
    slow = slow_divide(whole, claims)
    assert max(abs(a - b) for a, b in zip(found, slow, strict=True)) < Fraction(1, 1 << 100)


# -- shares and satisfaction -----------------------------------------------------------------------


STEADY = examples(100)
WEIGHTS = some.builds(Fraction, some.integers(1, 12), some.integers(1, 12))
CAPACITIES = some.lists(some.integers(0, 1000), min_size=1, max_size=4).map(tuple)

Holders = tuple[tuple[int, ...], dict[str, Fraction], dict[str, tuple[int, ...]]]


def slow_share(capacity: tuple[int, ...], used: tuple[int, ...]) -> Fraction:
    shares = [Fraction(amount, top) for amount, top in zip(used, capacity, strict=True) if top]
    return max(shares, default=Fraction(0))


@some.composite
def holders(draw: some.DrawFn) -> Holders:
    """A capacity, some weights, and what each of some leaves holds."""
    capacity = draw(CAPACITIES)
    weights = draw(some.dictionaries(some.sampled_from("abc"), WEIGHTS))
    holding = some.tuples(*(some.integers(0, top) for top in capacity))
    used = draw(some.dictionaries(some.sampled_from("abcd"), holding, min_size=2))
    return capacity, weights, used


@STEADY
@given(holders())
def test_shares_agree_with_plain_fractions(machine):
    capacity, weights, used = machine
    shares = flat(capacity, weights)
    share_tree = shares.share_tree(used, ())
    nothing = (0,) * len(capacity)
    everyone = sum((weights.get(leaf, Fraction(1)) for leaf in used), Fraction(0))
    for leaf, held in used.items():
        promised = weights.get(leaf, Fraction(1)) / everyone
        share = slow_share(capacity, held)
        assert shares.dominant_share(held) == share
        assert share_tree.least_entitled(leaf) == promised or not any(capacity)
        assert share_tree.satisfaction(leaf) == share / promised
        assert share_tree.keeps_promise(leaf, nothing) is (share <= promised)
        axis = shares.dominant_axis(held)
        assert (axis is None) is (share == 0)
        assert axis is None or Fraction(held[axis], capacity[axis]) == share


def slow_entitled(shares: FairShare, path: str, active: Iterable[str]) -> tuple[Fraction, ...]:
    """From the top down, list by list."""
    if path == "root":
        return (Fraction(1),) * len(shares.capacity)
    above = path.rpartition(".")[0]
    siblings = {
        node for leaf in active for node in path_up(leaf) if node.rpartition(".")[0] == above
    }
    claims = {node: shares.claims(node) for node in sorted(siblings)}
    return divide_all(slow_entitled(shares, above, active), claims)[path]


@STEADY
@given(some.lists(some.integers(0, 1 << 41), min_size=1, max_size=4), some.integers(0, 999))
def test_the_rounded_dominant_share_is_the_float_nearest_to_it(capacity, seed):
    used = tuple(Random(seed).randint(0, top) for top in capacity)
    shares = FairShare(tuple(capacity))
    assert shares.rounded_dominant_share(used) == float(shares.dominant_share(used))


# -- who pays for a job ----------------------------------------------------------------------------


RULES = Rules(
    capacity=demand(9, 18),
    pools={
        "lab": Pool(weight=Fraction(3), users=frozenset({"alice", "bob"})),
        "open": Pool(),
        "second": Pool(users=frozenset({"alice"})),
        "nobody": Pool(users=frozenset()),
    },
)


@pytest.mark.parametrize(
    ("user", "pool", "leaf"),
    [
        ("carol", None, "root.carol"),
        ("alice", None, "root.lab"),
        ("carol", "open", "root.open"),
        ("carol", "root.open", "root.open"),
        ("alice", "second", "root.second"),
        ("carol", "carol", "root.carol"),
        ("carol", "main", "root.carol"),
        ("alice", "main", "root.lab"),
        ("carol", "root.carol", "root.carol"),
    ],
)
def test_a_job_is_paid_for_by_the_pool_it_names_else_by_its_users(user, pool, leaf):
    assert RULES.pool_for(user, pool) == leaf


@pytest.mark.parametrize(("user", "pool"), [("carol", "lab"), ("carol", "nobody")])
def test_a_pool_takes_no_jobs_of_those_who_are_not_in_it(user, pool):
    with pytest.raises(NotPermitted) as caught:
        RULES.pool_for(user, pool)
    assert caught.value.code == "not-in-pool"
    assert str(caught.value) == f"pool {pool} does not take jobs of {user}"


@pytest.mark.parametrize(
    ("by", "pool", "hint"),
    [
        (RULES, "opne", "did you mean open?"),
        (RULES, "x", "configured pools: lab, nobody, open, second"),
        (Rules(capacity=demand()), "x", "configured pools: none"),
    ],
)
def test_an_unknown_pool_is_refused_with_those_that_there_are(by, pool, hint):
    with pytest.raises(Refused) as caught:
        by.pool_for("carol", pool)
    assert (caught.value.code, caught.value.hint) == ("no-such-pool", hint)


@pytest.mark.parametrize(
    ("user", "pool"),
    [("open", None), ("open", "open"), ("pi", None), ("night", None), ("nobody", None)],
)
def test_a_user_and_a_pool_of_several_cannot_share_a_name(user, pool):
    """The user's own node in the tree would be that of all of them."""
    clashing = Rules(
        capacity=demand(),
        pools={
            "open": Pool(),
            "pi": Pool(users=frozenset({"pi", "student"})),
            "lab": Pool(users=frozenset({"night"})),
            "lab.night": Pool(),
            "nobody": Pool(users=frozenset()),
            "alone": Pool(users=frozenset({"alone"})),
        },
    )
    with pytest.raises(Refused) as caught:
        clashing.pool_for(user, pool)
    assert caught.value.code == "name-clash"
    assert clashing.pool_for("student", None) == "root.pi"
    assert clashing.pool_for("alone", None) == "root.alone"


def test_rules_get_axes_for_disks_that_are_gone_and_no_capacity_on_them():
    plain = Rules(axes=Axes(disks=("a",)), capacity=demand(9, 18, read=10, write=20))
    assert plain.also_for([on("a")]) is plain
    lost = plain.also_for([on("a"), on("z"), on("b")])
    assert lost.axes == Axes(disks=("a",), lost=("b", "z"))
    assert lost.shares.capacity == (*plain.shares.capacity, 0, 0, 0, 0)


def test_rules_get_axes_for_countables_that_are_gone_and_no_capacity_on_them():
    axes = Axes(gres=("gpu",), instances=(("gpu", ("0",)),))
    plain = Rules(axes=axes, capacity=replace(demand(9, 18), gres=(("gpu", 1),)))
    asked = [replace(demand(), gres=((name, 1),)) for name in ("gpu", "tape", "fpga")]
    assert plain.also_for(asked[:1]) is plain
    lost = plain.also_for(asked)
    assert lost.axes.gres == ("gpu", "fpga", "tape")
    assert lost.shares.capacity == (*plain.shares.capacity, 0, 0)
    assert (lost.lost_gres, plain.lost_gres) == (("fpga", "tape"), ())


def on(disk: str) -> Resources:
    return Resources(disks=((disk, 1, 0),))


# -- the text of the rules -------------------------------------------------------------------------


NIGHTS = parse_week_hours("22:00-06:00")
LAB_POOL = Pool(weight=Fraction(3, 2), users=frozenset({"bob", "alice"}), limit={"cores": 4000})


CHANGES: list[dict[str, object]] = [
    {"pools": {"lab": LAB_POOL}},
    {"members": {("lab", "alice"): NodeSettings(guarantee={"cores": 2000})}},
    {"limits_now": {"root.lab": {"cores": 2000}}},
    {"pools": {"lab": Pool(hours=(HourlyLimit(when=NIGHTS, limit={"cores": 1000}),))}},
    {"capacity": Resources(cores_milli=1, memory_bytes=1)},
    {"policy": "fifo"},
    {"reserving": ReservationSettings(delay_s=31)},
    {"preempting": Preempting()},
    {"half_life_s": 1},
    {"beside": Resources(cores_milli=500)},
]
each_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))


@each_change
def test_other_rules_have_another_text(change):
    assert rules_text(replace(rules(), **change)) != rules_text(rules())
    assert rules_text(replace(rules(), **change)) == rules_text(replace(rules(), **change))


# -- use that decays -------------------------------------------------------------------------------


YEAR = 365 * DAY


def past_usage(*jobs: tuple[str, float, float, float]) -> dict[str, float]:
    history = DecayedUsage(half_life_s=7 * DAY)
    for job in jobs:
        history.add(*job)
    return history.past_usage


def test_use_from_the_future_counts_as_of_now():
    """The clock was ahead for an hour, and who used the machine in that hour lost every tie for ten
    years after it had been set right."""
    history = DecayedUsage(half_life_s=7 * DAY)
    now_s, ahead_s = 20_000 * DAY, 3650 * DAY
    history.add("root.before", 0.5, now_s - DAY, now_s)
    history.add("root.ahead", 0.5, now_s + ahead_s - 100, now_s + ahead_s)
    history.add("root.across", 0.5, now_s, now_s + ahead_s)
    assert history.clamp(now_s + 10)
    assert history.past_usage["root.ahead"] < history.past_usage["root.before"]
    assert history.past_usage["root.ahead"] == pytest.approx(
        past_usage(("root.ahead", 0.5, now_s - 90, now_s + 10))["root.ahead"]
    )
    # Nobody knows how long that job ran. Two weeks of the whole machine are more, all the same.
    history.add("root.more", 1.0, now_s, now_s + 14 * DAY)
    assert history.past_usage["root.across"] < history.past_usage["root.more"]
    assert not history.clamp(now_s + 14 * DAY)


def test_a_clock_that_is_set_back_a_little_changes_no_order():
    history = DecayedUsage(half_life_s=7 * DAY)
    history.add("root.a", 0.5, 0, 100)
    history.add("root.b", 0.5, 100, 200)
    before = dict(history.past_usage)
    assert not history.clamp(150)
    assert history.past_usage == before


def test_a_scheduler_dates_use_from_the_future_back_when_it_hears_of_it_and_in_each_pass():
    bench = Bench()
    job = structs.replace(bench.job(bench.submit()), outcome=Outcome.FAILED)
    rules, scheduler = bench.rules, Scheduler(half_life_s=7 * DAY)
    ahead = structs.replace(job, started_at=now(10 * YEAR - 50).at_s, ended_at=now(10 * YEAR).at_s)
    usual = structs.replace(job, started_at=now(-50).at_s, ended_at=now(0).at_s)
    # As a restarted daemon reads it in the journal.
    scheduler.remember([ahead], rules, now(0))
    read = dict(scheduler.past_usage)
    assert scheduler._short_jobs.forget(now(rules.min_charge_s).mono_s) == [job.spec.leaf]
    scheduler = Scheduler(half_life_s=7 * DAY)
    scheduler.remember([usual], rules, now(0))
    assert read == pytest.approx(scheduler.past_usage)
    # As it happens while the clock is ahead.
    scheduler = Scheduler(half_life_s=7 * DAY)
    scheduler.remember([ahead], rules, now(10 * YEAR))
    list(scheduler.run(bench.ledger, rules, now(0)))
    assert scheduler.past_usage == pytest.approx(read)


# -- limits by hour --------------------------------------------------------------------------------


LAB = "root.lab"
AXES = ("cores", "memory")
SOME = examples(200)


def unix(at_s: float) -> float:
    return now(at_s).at_s


def hourly_cores(*steps: tuple[float, float | None], path: str = LAB) -> Calendar:
    """So many cores from these times on; None for no limit."""
    return hourly(**{path: steps})


def hourly(**steps: tuple[tuple[float, float | None], ...]) -> Calendar:
    return Calendar(
        {
            path.replace("__", "."): LimitSteps(
                tuple(unix(at_s) for at_s, _ in each),
                tuple({} if most is None else {"cores": int(most * 1000)} for _, most in each),
            )
            for path, each in steps.items()
        }
    )


# -- the times -------------------------------------------------------------------------------------


def test_it_is_known_how_long_a_limit_holds_and_when_it_rises():
    found = hourly_cores((0, 2), (10, 1), (20, 4), (30, None))
    steps = found.steps[LAB]
    assert [steps.rises_s("cores", unix(at_s)) for at_s in (0, 10, 20, 30)] == [
        *(unix(20), unix(20), unix(30), None)
    ]
    times = [unix(at_s) for at_s in (-5, 10, 15, 30)]
    assert [found.next_s(at_s) for at_s in times] == [unix(10), unix(20), unix(20), inf]
    assert steps.at(unix(-5)) == {"cores": 2000}, "the first one holds before, too"
    assert steps.most(unix(0)) == {}
    assert hourly_cores((0, 2), (10, 1)).steps[LAB].most(unix(5)) == {"cores": 2000}
    assert hourly_cores((0, 2), (10, 1)).steps[LAB].most(unix(10)) == {"cores": 1000}


LIMITS = some.dictionaries(some.sampled_from(AXES), some.integers(0, 3))
SPANS = some.builds(
    lambda start, length, limit: LimitSpan(
        path=LAB, start_s=start, end_s=start + length, limit=limit
    ),
    some.integers(-5, 30), some.integers(1, 15), LIMITS,
)  # fmt: skip
WINDOWS = some.builds(
    lambda start, length: LimitSpan(start_s=start, end_s=start + length),
    some.integers(-5, 30), some.integers(1, 15),
)  # fmt: skip


@given(
    own=LIMITS,
    spans=some.lists(SPANS, min_size=1, max_size=5),
    windows=some.lists(WINDOWS, max_size=3),
    asked=LIMITS,
    length_s=some.integers(1, 9),
)
@SOME
def test_the_calendar_is_what_each_moment_says_by_itself(own, spans, windows, asked, length_s):
    """Against a slow oracle that knows neither steps nor bisection."""

    def limit(at_s: float) -> dict[str, int]:
        found = {}
        for axis in AXES:
            open_now = [
                each.limit[axis]
                for each in spans
                if each.start_s <= at_s < each.end_s and axis in each.limit
            ]
            if open_now or axis in own:
                found[axis] = min(open_now) if open_now else own[axis]
        return found

    def may(at_s: float) -> bool:
        return all(not asked[axis] or asked[axis] <= limit(at_s).get(axis, 99) for axis in asked)

    def is_open(at_s: float) -> bool:
        return any(each.start_s <= at_s < each.end_s for each in windows)

    found = make_calendar([*windows, *spans], {LAB: own}, AXES, from_s=0, until_s=30)
    steps = found.steps[LAB]
    assert found.until_s == 30
    known = range(30)
    assert [steps.at(at_s) for at_s in known] == [limit(at_s) for at_s in known]
    changes = [at_s for at_s in known[1:] if limit(at_s) != limit(at_s - 1)]
    edges = {at_s for each in windows for at_s in (each.start_s, each.end_s)}
    assert [*found.times] == sorted({*changes, *edges})
    for at_s in known:
        assert ROOT not in found.at(at_s) or (found.at(at_s)[ROOT] == NOTHING) is is_open(at_s)
        ahead = next((each for each in known if each >= at_s and may(each) and
                      not any(map(is_open, range(each, each + length_s)))), None)  # fmt: skip
        start_s = found.first_start_s(at_s, length_s, [LAB], asked)
        assert ahead == start_s or (ahead is None and start_s > known[-1])
        first = next((each for each in known[at_s:] if may(each)), None)
        assert found.first_start_s(at_s, None, [LAB], asked) == first
        rises = [each for each in known[at_s:] if limit(each).get("cores", 99) >
                 limit(at_s).get("cores", 99)]  # fmt: skip
        assert steps.rises_s("cores", at_s) == (rises[0] if rises else None)


# -- what may start --------------------------------------------------------------------------------


class HourBench(Bench):
    """A bench whose limits follow the hour."""

    def at(self, at_s: float) -> None:
        self.rules = replace(self.rules, limits_now=self.ledger.calendar.at(unix(at_s)))
        self.ledger.hold_back(unix(at_s))

    def schedule(self, at_s: float = 0.0) -> list[int]:
        self.at(at_s)
        return super().schedule(at_s)

    def why(self, job_id: int, at_s: float = 0.0) -> Wait | None:
        self.at(at_s)
        last = schedule(self.ledger, self.rules, at_s=at_s)
        return explain_wait(self.job(job_id), self.ledger, last, self.rules)

    def ahead(self, at_s: float = 0.0) -> Forecast:
        self.at(at_s)
        return forecast(self, at_s)


def with_pools(**pools: Pool) -> Rules:
    return replace(rules(), pools=pools)


@pytest.fixture
def bench() -> Iterator[HourBench]:
    """Nothing of the pool lab starts in the first hour; then it may hold 4 cores, after two hours
    anything."""
    bench = HourBench(with_pools(lab=Pool(), free=Pool()))
    bench.ledger.calendar = hourly_cores((0, 0), (HOUR, 4), (2 * HOUR, None))
    yield bench
    bench.check()


def asks(number: float, path: str = LAB, *, actor: Actor = ALICE, limit_s: int = 60) -> JobSpec:
    return spec(path, actor=actor, asks=demand(number), time_limit_s=limit_s)


def test_a_guarantee_counts_up_to_the_limit_of_the_hour():
    """Else a pool that may start nothing would keep others from what it is promised."""
    plain = with_pools(lab=Pool(guarantee={"cores": 6000}, weight=Fraction(1)), free=Pool())
    shut = replace(plain, limits_now={LAB: {"cores": 2000}})
    assert shut.shares.rule(LAB).guarantee == (2000, 0, 0, 0)
    tree = shut.shares.share_tree({}, ["root.lab.alice", "root.free.bob"])
    assert tree.entitled("root.free")[0] == Fraction(7, 9)
    assert plain.shares.rule(LAB).guarantee == (6000, 0, 0, 0)


def test_a_drain_for_a_job_ends_at_the_hour_from_which_on_it_may_not_start():
    """What is kept free for it would be idle until its limits let it start."""
    reserving = replace(rules().reserving, delay_s=0.0, drain_after_s=0.0)
    bench = HourBench(replace(with_pools(lab=Pool()), reserving=reserving))
    bench.ledger.calendar = hourly_cores((0, None), (HOUR, 0), (9 * HOUR, None))
    scheduler = Scheduler(7 * 86400)

    def started(at_s: float) -> list[int]:
        bench.at(at_s)
        return pass_of(bench, scheduler, at_s)

    first = bench.submit(asks(8, "root.bob", actor=BOB, limit_s=2 * HOUR))
    assert started(0) == [first]
    big = bench.submit(asks(9), at_s=1)
    assert started(2) == []
    assert [each.job_id for each in scheduler.reservations] == [big]
    assert scheduler.reservations[0].start_s == unix(9 * HOUR), "when its limit lets it, not before"
    small = bench.submit(asks(1, "root.bob", actor=BOB, limit_s=12 * HOUR), at_s=HOUR)
    assert started(HOUR) == [small]
    assert scheduler.reservations == ()


# -- what is refused -------------------------------------------------------------------------------


def test_what_the_limits_of_two_nodes_never_allow_together_is_refused():
    """The pool by night and the user in it by day."""
    members = {("lab", "alice"): NodeSettings()}
    bench = HourBench(replace(with_pools(lab=Pool()), members=members))
    night, day = ((0, 0), (HOUR, None)), ((0, None), (HOUR, 0))
    bench.ledger.calendar = hourly(root__lab=night, root__lab__alice=day)
    bench.at(0)
    with pytest.raises(Refused, match="at no hour do the limits of lab/alice and lab together"):
        bench.submit(asks(1))
    # It was taken before the configuration was changed.
    bench.ledger.calendar = Calendar()
    bench.at(0)
    job_id = bench.submit(asks(1))
    bench.ledger.calendar = hourly(root__lab=night, root__lab__alice=day)
    assert bench.why(job_id) == BeyondLimitNow(LAB, "cores", 1000, 0, unix(HOUR), None)


# -- what is said ----------------------------------------------------------------------------------


def test_a_limit_of_all_hours_says_that_the_job_never_starts(bench):
    job_id = bench.submit(asks(5))
    bench.ledger.calendar = hourly_cores((0, 0), (HOUR, 4), (2 * HOUR, 0))
    assert bench.why(job_id) == BeyondLimit("1", LAB, "cores", 5000, 4000, is_changeable=True)


def test_a_forecast_waits_for_the_hour_and_for_the_jobs_before(bench):
    small, next_one = bench.submit(asks(4)), bench.submit(asks(4, limit_s=30 * 60))
    big = bench.submit(asks(5))
    assert bench.ahead().expected_start(small) == StartForecast(unix(HOUR), Certainty.LIMITS)
    assert bench.ahead().start_s(next_one) == unix(HOUR + 60)
    assert bench.ahead().start_s(big) == unix(2 * HOUR)


def test_nobody_can_say_when_a_job_starts_that_waits_beyond_what_is_known():
    bench = HourBench(with_pools(lab=Pool()))
    bench.ledger.calendar = replace(
        hourly_cores((0, 1), (HOUR, 0), (9 * HOUR, 1)), until_s=unix(8 * HOUR)
    )
    first = bench.start(asks(1, limit_s=2 * HOUR))
    late = bench.submit(asks(1))
    assert bench.ahead().expected_start(late) == StartForecast(None, Certainty.UNKNOWN)
    other = bench.submit(asks(9, "root.bob", actor=BOB))
    assert bench.ahead().start_s(other) == unix(2 * HOUR), "no limit of its own depends on the hour"
    bench.finish(first)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_no_job_starts_beyond_a_limit_of_its_hour_and_forecasts_come_true(seed):
    """Jobs run as long as their limits, so that a forecast at the begin is exact."""
    random = Random(seed)
    bench = HourBench(
        replace(
            with_pools(lab=Pool(), night=Pool(limit={"cores": 3000})),
            policy=random.choice(["drf", "drf", "fifo"]),
            reserving=replace(rules().reserving, reserves=False),
        )
    )
    paths = ("root.lab", "root.night", "root.lab.alice")
    own: Mapping[str, float | None] = {"root.night": 3}
    table: dict[str, tuple[tuple[float, float | None], ...]] = {}
    for path in random.sample(paths, random.randrange(1, 4)):
        steps, at = [(0.0, random.choice([0, 1, 4, own.get(path)]))], 0.0
        for _ in range(random.randrange(1, 6)):
            at += random.randrange(1, 200)
            steps.append((at, random.choice([0, 1, 2, 4, 6])))
        table[path.replace(".", "__")] = (*steps, (at + 50, own.get(path)))
    bench.ledger.calendar = hourly(**table)
    bench.rules = replace(bench.rules, members={("lab", "alice"): NodeSettings()})
    bench.at(0)
    for _ in range(random.randrange(1, 12)):
        path = random.choice(["root.lab", "root.night", "root.free"])
        actor = random.choice([ALICE, BOB])
        path = f"root.{actor.user}" if path == "root.free" else path
        limit_s = random.choice([1, 5, 20, 50, 100, 200])
        try:
            bench.submit(asks(random.randrange(1, 7), path, actor=actor, limit_s=limit_s))
        except Refused as refusal:
            assert refusal.code == "above-limit"
    expected = {job_id: bench.ahead().start_s(job_id) for job_id in bench.ledger.jobs}
    assert None not in expected.values(), "each of them fits at some hour"
    clock, ends, began = 0.0, dict[int, float](), dict[int, float]()
    while bench.ledger.jobs:
        for job_id in bench.schedule(clock):
            began[job_id] = unix(clock)
            bench.feed(launched(job_id, at_s=clock))
            ends[job_id] = clock + (bench.job(job_id).spec.time_limit_s or 0)
        limits = bench.ledger.calendar.at(unix(clock))
        for job in bench.ledger.jobs.values():
            if job.state is JobState.PENDING:
                reason = bench.why(job.id, clock)
                assert reason is not None
                fact = reason
                assert not isinstance(fact, BeyondLimit)
                if isinstance(fact, BeyondLimitNow):
                    assert limits[fact.path]["cores"] == fact.limit < fact.needed
                    assert fact.from_s is not None
                    assert (
                        unix(clock) < (fact.until_s or 0) <= fact.from_s <= (expected[job.id] or 0)
                    )
        for path, limit in limits.items():
            started = [
                bench.job(job_id)
                for job_id in ends
                if began[job_id] == unix(clock) and path in path_up(bench.job(job_id).spec.leaf)
            ]
            most = limit.get("cores", 9000)
            assert all(bench.ledger.demand(job)[0] <= most for job in started)
            if started:
                used = bench.ledger.used.items()
                assert sum(held[0] for leaf, held in used if path in path_up(leaf)) <= most
        next_s = bench.ledger.calendar.next_s(unix(clock))
        clock = min([*ends.values(), next_s - unix(0)])
        for job_id, end_s in list(ends.items()):
            if end_s <= clock:
                del ends[job_id]
                bench.finish(job_id, at_s=clock)
    assert began == expected

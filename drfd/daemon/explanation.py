"""What a configuration means, in sentences: who gets what of this machine."""

from __future__ import annotations

import pwd
from collections.abc import Iterator
from pathlib import Path
from statistics import mode

from drfd.common.units import clock_time, show_duration, show_need
from drfd.core.fairness.rules import NodeSettings, Rules
from drfd.core.model.calendar import Calendar
from drfd.core.model.job import ROOT, leaf_path, show_path
from drfd.daemon.config import Config, Site

#: A user in place of all in a pool that takes everybody's jobs.
_ANYBODY = "*"


def explain(site: Site, calendar: Calendar) -> Iterator[str]:
    """Yield lines on what jobs get of this machine, how it is divided, and when nothing runs."""
    rules = site.rules
    amounts = zip(rules.axes.names, rules.axes.amounts(rules.capacity), strict=True)
    yield f"jobs together: {', '.join(show_need(*pair) for pair in amounts)}"
    for disk in site.disks:
        # Before an installation, the directory of the state is not there.
        if disk.why_none and Path(disk.path).exists():
            yield f"disk {disk.name}: rates are not limited: {disk.why_none}"
        elif disk.is_guess:
            yield f"disk {disk.name} ({disk.path}): a rate is a guess (drfd calibrate measures)"
    yield from _division(rules)
    for window in calendar.next_windows():
        span, when = show_duration(window.end_s - window.start_s), clock_time(window.start_s)
        about = f" ({window.reason})" if window.reason else ""
        yield f"window {window.name}: no job runs from {when} for {span}{about}"


def _division(rules: Rules) -> Iterator[str]:
    """Yield a line for each pool and user of the configuration, with its part of the machine."""
    if not rules.pools and not rules.members:
        yield "all users with jobs get equal parts: there are no pools"
        return
    users = {(name, user) for name, pool in rules.pools.items() for user in pool.users or ()}
    users |= {(name, _ANYBODY) for name, pool in rules.pools.items() if pool.users is None}
    leaves = {leaf_path(f"{ROOT}.{name or user}", user) for name, user in {*users, *rules.members}}
    tree = rules.shares.share_tree({}, leaves)
    yield (
        "parts of the machine if all pools and users below have jobs, limits aside; each further "
        "user is beside the pools, with weight 1:"
    )
    for path, node in sorted(rules.pools_and_users()):
        part = "no users"
        if path in tree.nodes:
            # Bounds change that of single resources, and stand beside it.
            pairs = zip(tree.entitled(path), rules.shares.capacity, strict=True)
            part = f"{float(mode(part for part, top in pairs if top)):.0%}"
        facts = [_weight(node), part, *_bounds(node)]
        pool = rules.pools.get(path.removeprefix(f"{ROOT}."))
        if pool is not None:
            who = (
                "everybody's jobs with -p" if pool.users is None else ", ".join(sorted(pool.users))
            )
            facts += [f"for {who}"] if who else []
        yield f"  {show_path(path)}: {'; '.join(facts)}"


def _weight(node: NodeSettings) -> str:
    if not node.weights:
        return f"weight {float(node.weight):g}"
    weights = ", ".join(f"{name} {float(each):g}" for name, each in node.weights.items())
    return f"weights {weights}"


def _bounds(node: NodeSettings) -> Iterator[str]:
    for what, amounts in (("limit", node.limit), ("guarantee", node.guarantee)):
        if amounts:
            yield f"{what} {', '.join(show_need(*each) for each in amounts.items())}"


def misplaced(config: Config) -> Iterator[str]:
    """Yield a sentence for each setting of a user that does not count where it seems."""
    pool_of = _pools_of_users(config)
    for pool, user in config.members:
        if not pool and user in pool_of:
            yield (
                f"users.{user}: {user} is a member of pool {pool_of[user]}, where this does not "
                f"count (write [pools.{pool_of[user]}.users.{user}])"
            )


def doubts(config: Config) -> Iterator[str]:
    """Yield a sentence for each setting of a user that counts for nobody or not where it seems."""
    yield from misplaced(config)
    pool_of = _pools_of_users(config)
    named = {**{user: f"users.{user}" for _, user in config.members}, **{
        user: f"pools.{pool}.users" for user, pool in pool_of.items()
    }}  # fmt: skip
    for user, place in sorted(named.items()):
        if not _has_account(user):
            yield f"{place}: no account is named {user}; what is said of it counts for nobody yet"


def _pools_of_users(config: Config) -> dict[str, str]:
    return {user: name for name, pool in config.pools.items() for user in pool.users or ()}


def _has_account(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except (KeyError, OSError):
        return False
    return True

"""Doubtful settings of pools and users, as sentences for the administrator.

They are warnings, never errors: an account may be made later than the configuration, and a machine
may have lost memory.
"""

from __future__ import annotations

import pwd
import re
import threading
from collections.abc import Iterable, Iterator, Mapping

from drfd.common.units import show_need
from drfd.core.fairness.rules import NodeSettings, Pool, Rules, pools_and_users
from drfd.core.fairness.share_tree import parent_of
from drfd.core.model.job import ROOT

#: The most names in one sentence.
_MOST_NAMES = 5
#: What is in no user's name, and at its beginning a sign for groups in other files.
_NO_NAME = re.compile(r"[@%+].*|.*[*?\[\],:/\s].*", re.DOTALL)


def bound_warnings(rules: Rules) -> Iterator[str]:
    """Yield a sentence for each guarantee that cannot be kept: above the node's own limit, or more
    than there is together with those of its siblings."""
    sums: dict[str, list[int]] = {}
    places = _places(rules.pools, rules.members)
    for path, where in places.items():
        rule = rules.shares.rule(path)
        if rule.guarantee is None:
            continue
        least = zip(rules.axes.names, rule.guarantee, rule.limit or (), strict=False)
        for axis, promised, most in least:
            if most is not None and promised > most:
                yield (
                    f"{where}: its guarantee is {show_need(axis, promised)}, but its limit "
                    f"{show_need(axis, most)}: it never gets more than its limit"
                )
        before = sums.get(parent_of(path), [0] * len(rule.guarantee))
        sums[parent_of(path)] = [a + b for a, b in zip(before, rule.guarantee, strict=True)]
    capacity = rules.axes.vector(rules.capacity)
    for path, promised_in_all in sums.items():
        limit = rules.shares.rule(path).limit or (None,) * len(capacity)
        for axis, promised, most, there in zip(
            rules.axes.names, promised_in_all, limit, capacity, strict=True
        ):
            top = there if most is None else min(most, there)
            if promised <= top:
                continue
            of = "the machine has" if top == there else f"the limit of {places[path]} is"
            whose = "of pools and users" if path == ROOT else f"below {places.get(path, path)}"
            yield (
                f"the guarantees {whose} add up to {show_need(axis, promised)}, but {of} "
                f"{show_need(axis, top)}: not all of them can be kept at once"
            )


def user_warnings(
    pools: Mapping[str, Pool], members: Mapping[tuple[str, str], NodeSettings], within_s: float
) -> list[str]:
    """Return a sentence for each pool that names users who are none, and one for [users]. The user
    directory has `within_s` seconds to answer; names it is not asked about in time are taken for
    those of users."""
    named: dict[str, Iterable[str]] = {
        f"pools.{_toml(name)}.users": pool.users or () for name, pool in pools.items()
    }
    named["users"] = [user for pool, user in members if not pool]
    unknown = _unknown({user for users in named.values() for user in users}, within_s)
    found = []
    for where, users in named.items():
        strange = sorted(user for user in users if _NO_NAME.fullmatch(user))
        if strange:
            found.append(
                f"{where}: {_listed(strange)} can be no user's name: write the names of users, "
                "without groups or patterns; a pool without users takes anybody's jobs"
            )
        missing = sorted(set(users) & unknown - set(strange))
        if missing:
            found.append(f"{where}: there is no user {_listed(missing)} on this machine")
    return found


def _places(
    pools: Mapping[str, Pool], members: Mapping[tuple[str, str], NodeSettings]
) -> dict[str, str]:
    """Return where each node stands in the configuration, by its path."""
    places = [f"pools.{_toml(name)}" for name in pools]
    places += [
        f"pools.{_toml(name)}.users.{user}" if name else f"users.{user}" for name, user in members
    ]
    paths = (path for path, _ in pools_and_users(pools, members))
    return dict(zip(paths, places, strict=True))


def _toml(name: str) -> str:
    return name.replace(".", ".pools.")


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:_MOST_NAMES]))
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _unknown(names: Iterable[str], within_s: float) -> set[str]:
    unknown: set[str] = set()
    # A directory service may be slow or hang, so that it is asked in a thread of its own.
    asking = threading.Thread(target=_ask, args=(sorted(names), unknown), daemon=True)
    try:
        asking.start()
    except RuntimeError:
        # A machine that has run out of processes starts no thread.
        return set()
    asking.join(within_s)
    return set(unknown)


def _ask(names: list[str], unknown: set[str]) -> None:
    for name in names:
        try:
            pwd.getpwnam(name)
        except KeyError:
            unknown.add(name)
        except ValueError:
            # A name with a NUL.
            unknown.add(name)

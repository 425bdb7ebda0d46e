"""The journal's upkeep: records for a later audit are added, old jobs are removed.

An audit record that could not be written stays pending until the next turn.

Ended jobs are kept up to the age and the size of the journal in the configuration. A few are
removed at a time, followed by a pause ten times as long. When the journal is too large, jobs of the
user with the most stored bytes are removed first, so that a user's flood does not remove the
history of others.

Removal goes by a clock that follows a leap ahead only in time. A machine may take the year for 2036
for an hour, because its battery is empty or a time server is wrong, and removed jobs do not come
back when the clock is right again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from drfd import __version__
from drfd.common.errors import HostError
from drfd.core.fairness.rules import Rules, rules_text
from drfd.core.model import events as ev
from drfd.core.model.job import Now
from drfd.core.model.resources import NOTHING, ClusterNode, Resources
from drfd.daemon.config import HistorySettings
from drfd.journal.journal import Journal, digest
from drfd.journal.pruning import StoredBytes, read_shares

#: Least recorded change of the external load, as a divisor of the capacity.
_NOTABLE_PART = 20
#: Seconds between two records of the external load, at least.
_LOAD_PAUSE_S = 30.0
#: Seconds between two records that a launcher is away, at least: one may end as soon as it starts.
_AWAY_PAUSE_S = 30.0


class AuditRecords:
    """The audit records that are not durable yet."""

    def __init__(self, journal: Journal, clock: Callable[[], Now]) -> None:
        self._journal = journal
        self._clock = clock
        self._pending: list[ev.AuditEvent] = []
        #: The texts of the rules that pending records name, by digest.
        self._texts: dict[str, str] = {}
        self._rules_digest: str | None = None
        #: What was last recorded, by node; the controller's own machine is "".
        self._load: Mapping[str, Resources] = {}
        self._load_mono_s = float("-inf")
        #: As last recorded: whether nothing starts anywhere, and the nodes without a launcher.
        self._away: tuple[bool, tuple[str, ...]] = False, ()
        self._away_mono_s = float("-inf")

    def started(self, rules: Rules, seen_alive_s: float) -> None:
        """Record that the daemon starts. `seen_alive_s` is when a daemon was last seen alive by the
        lock file, in Unix time; the last event of the journal may be later."""
        # A load that has ended meanwhile must be recorded as ended.
        last = self._journal.last_load()
        self._load = {} if last is None else _by_node(last.kept, last.elsewhere)
        last_s = self._journal.last_event_at()
        self._rules_digest = self._note_text(rules)
        self._pending.append(
            ev.DaemonStarted(
                at_s=self._clock().at_s,
                version=__version__,
                rules=self._rules_digest,
                away_since_s=None if last_s is None else max(last_s, seen_alive_s),
            )
        )

    def stopped(self) -> None:
        """Record that the daemon ends in order."""
        self._pending.append(ev.DaemonStopped(at_s=self._clock().at_s))

    def adopted(self, rules: Rules) -> None:
        """Record the rules that are in force from now on. Nothing is recorded if they have not
        changed, or before `started`, which records those of the start."""
        if self._rules_digest is None:
            return
        found = self._note_text(rules)
        if found != self._rules_digest:
            self._rules_digest = found
            self._pending.append(ev.Configured(at_s=self._clock().at_s, rules=found))

    def see_load(
        self,
        kept: Resources,
        capacity: Resources,
        elsewhere: Iterable[tuple[str, Resources]] = (),
        nodes: Iterable[ClusterNode] = (),
    ) -> bool:
        """Note the resources that are now kept free for external processes on the controller's own
        machine, which has this capacity, and what is given to others' jobs on those other nodes.
        Return whether there is something to record. Begin and end of a load are always recorded,
        though not within the pause after the last record."""
        capacities = {node.name: node.capacity for node in nodes} | {"": capacity}
        load = _by_node(kept, [each for each in elsewhere if each[0] in capacities])
        now = self._clock()
        if load == self._load or now.mono_s - self._load_mono_s < _LOAD_PAUSE_S:
            return False
        if load.keys() == self._load.keys() and not any(
            _is_notable(load[name], self._load[name], capacities[name]) for name in load
        ):
            return False
        self._load, self._load_mono_s = load, now.mono_s
        others = tuple(sorted((name, used) for name, used in load.items() if name))
        self._pending.append(
            ev.ExternalLoadChanged(at_s=now.at_s, kept=load.get("", NOTHING), elsewhere=others)
        )
        return True

    def see_away(self, *, everywhere: bool, nodes: Collection[str]) -> None:
        """Note where no launcher takes orders now. That all are back is recorded at once."""
        away = everywhere, () if everywhere else tuple(sorted(nodes))
        if away == self._away:
            return
        now = self._clock()
        if any(away):
            if now.mono_s - self._away_mono_s < _AWAY_PAUSE_S:
                return
            self._away_mono_s = now.mono_s
        self._away = away
        self._pending.append(ev.LaunchersAway(at_s=now.at_s, everywhere=away[0], nodes=away[1]))

    def write(self) -> None:
        """Add the pending records to the journal's open transaction. Raises HostError."""
        for event in self._pending:
            if isinstance(event, ev.Configured | ev.DaemonStarted):
                self._journal.put_rules(self._texts[event.rules])
            self._journal.append_audit(event)

    def written(self) -> None:
        """Drop the pending records: their transaction is durable."""
        self._pending.clear()
        self._texts.clear()

    def _note_text(self, rules: Rules) -> str:
        text = rules_text(rules)
        found = digest(text)
        self._texts[found] = text
        return found


def _by_node(kept: Resources, elsewhere: Iterable[tuple[str, Resources]]) -> dict[str, Resources]:
    """Return the parts of a load that are not nothing."""
    return {name: used for name, used in (("", kept), *elsewhere) if used != NOTHING}


def _is_notable(kept: Resources, before: Resources, capacity: Resources) -> bool:
    changes = {axis: abs(kept.amount(axis) - before.amount(axis)) for axis in capacity.amounts}
    return any(
        change and change * _NOTABLE_PART >= capacity.amount(axis)
        for axis, change in changes.items()
    )


#: Seconds of a leap that is trusted at once, and how much faster than time passes a greater one is
#: followed.
_LEAST_S, _FASTER = 3600.0, 10
#: Seconds between two records of the trusted time.
_SAVE_S = 1800.0


class TrustedClock:
    """A clock that returns Unix time when called, and follows a leap ahead only in time."""

    def __init__(
        self, clock: Callable[[], Now], trusted_s: float | None, save: Callable[[float], None]
    ) -> None:
        """`trusted_s` is the Unix time that an earlier daemon trusted last, or None; `save` records
        the trusted time for the next daemon."""
        self._clock, self._save = clock, save
        now = clock()
        self._at_s = now.at_s if trusted_s is None else trusted_s
        self._mono_s, self._saved_s = now.mono_s, -inf

    def __call__(self) -> float:
        now = self._clock()
        passed_s, self._mono_s = now.mono_s - self._mono_s, now.mono_s
        is_ahead = now.at_s - self._at_s > _LEAST_S
        self._at_s = min(now.at_s, self._at_s + _FASTER * passed_s) if is_ahead else now.at_s
        if not 0 <= self._at_s - self._saved_s < _SAVE_S:
            self._saved_s = self._at_s
            try:
                self._save(self._at_s)
            except HostError as error:
                log.warning("event=time-not-kept error=%s", error.text)
        return self._at_s


log = logging.getLogger("drfd")

#: Seconds until the next step when nothing was to be done, or after a failure.
_REST_S = 60.0
#: Pause after a step, as a multiple of its duration, and the shortest one in seconds.
_PAUSES, _LEAST_PAUSE_S = 10, 0.05
#: Time until users' stored bytes are read again while there is too much: in seconds, and as a
#: multiple of the time that reading took.
_SHARES_S, _SHARES_PAUSES = 10.0, 20
#: Part of the allowed size to which an exceeded journal is reduced.
_ENOUGH = 0.98


@dataclass
class Retention:
    """Removes ended jobs from the journal when they are too old or too many."""

    journal: Journal
    #: Returns the present configuration.
    history: Callable[[], HistorySettings]
    #: Returns Unix time that can be relied on, see `TrustedClock`.
    clock: Callable[[], float]
    #: Stored bytes by user, and when they must be read again, on the monotonic clock.
    _shares: StoredBytes = field(default_factory=StoredBytes)
    _good_until_s: float = -inf
    #: Whether the size was exceeded and is not yet reduced.
    _is_over: bool = False

    async def run(self) -> None:
        while True:
            begun_s = time.monotonic()
            try:
                is_busy = await self.step()
            except HostError as error:
                log.error("event=%s-failed error=%s", error.code, error.text)
                is_busy = False
            worked_s = time.monotonic() - begun_s
            await asyncio.sleep(max(_LEAST_PAUSE_S, _PAUSES * worked_s) if is_busy else _REST_S)

    async def step(self) -> bool:
        """Remove a few jobs, and return whether there may be more to remove."""
        keep_s, most = self.history().keep_s, self.history().max_bytes
        removed = None
        if keep_s is not None:
            removed = self.journal.remove_ended(self.clock() - keep_s)
        if removed is None and most:
            removed = await self._shrink(most)
        has_more = self.journal.give_back()
        return removed is not None or has_more

    async def _shrink(self, most: int) -> int | None:
        used = self.journal.used_bytes()
        if used <= most:
            self._is_over = False
            return None
        begun_s = time.monotonic()
        if begun_s > self._good_until_s:
            self._shares = await asyncio.to_thread(read_shares, self.journal.path)
            now_s = time.monotonic()
            self._good_until_s = now_s + max(_SHARES_S, _SHARES_PAUSES * (now_s - begun_s))
        shares = self._shares
        # Live jobs have limits of their own. If they counted, a user with many waiting jobs would
        # have everybody's history removed.
        over = used * shares.ended_bytes // max(1, shares.ended_bytes + shares.live_bytes)
        self._is_over = over > (most * _ENOUGH if self._is_over else most)
        if not self._is_over or not shares.ended:
            return None
        user = max(shares.ended, key=shares.ended.__getitem__)
        removed = self.journal.remove_ended(inf, user)
        if removed is None:
            # Nothing of this user's can be removed.
            del shares.ended[user]
            return 0 if shares.ended else None
        shares.ended[user] -= removed
        return removed

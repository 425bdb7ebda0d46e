"""Clients that want to hear of every change: one stream each, as fast as they read.

A listener holds no more than the ids of what has changed since its last line, each once; when
these become too many they are forgotten, and read from the journal. So one that does not read
costs no more than one that does, and each hears the last state of every job.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from drfd.core import stimuli as st
from drfd.core.array import Array, Group
from drfd.core.job import Job
from drfd.daemon.breath import Breath, Turns
from drfd.daemon.engine import Engine
from drfd.daemon.lookup import Lookup, Row, passes
from drfd.daemon.meter import Meter
from drfd.daemon.refs import ids_of
from drfd.daemon.waiting import Waiting
from drfd.journal.past import read_changed
from drfd.wire import messages as msg
from drfd.wire.parts import Selection
from drfd.wire.views import View

#: More changed jobs than this are not kept for one listener.
_MOST_CHANGED = 10_000
#: So many events of the journal are looked at at a time.
_PAGE = 5_000
#: After so many jobs others have their turn.
_AT_ONCE = 50


@dataclass(eq=False, slots=True)
class Listener:
    #: What has changed, the latest change last.
    changed: dict[int, None] = field(default_factory=dict)
    #: Too much has changed: the journal knows what.
    is_behind: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, job_id: int) -> None:
        self.changed.pop(job_id, None)
        self.changed[job_id] = None
        if len(self.changed) > _MOST_CHANGED:
            self.changed.clear()
            self.is_behind = True
        self.woken.set()

    def take(self) -> list[int]:
        taken = list(self.changed)
        self.changed.clear()
        self.woken.clear()
        return taken


@dataclass
class Feed:
    engine: Engine
    meter: Meter
    #: By what they listen for: the id of a job or array, the name of a user, or "" for everything.
    #: A change costs only those whom it may concern.
    _listeners: dict[int | str, set[Listener]] = field(default_factory=dict)
    #: One at a time for each user, so that nobody can slow others down with many streams.
    _turns: Turns = field(default_factory=Turns)

    def __post_init__(self) -> None:
        self._lookup = Lookup(self.engine, self.meter)
        self._waiting = Waiting(self.engine)

    def job_changed(self, job: Job) -> None:
        """Or all tasks of an array that had no record of their own."""
        if not self._listeners:
            return
        keys: list[int | str | None] = [job.id, job.array_id, job.spec.user, ""]
        if job.id == job.array_id:
            keys += self._listened_tasks(job.id)
        for key in set(keys):
            for listener in self._listeners.get(key, ()) if key is not None else ():
                listener.hear(job.id)

    async def tell(self, actor: st.Actor, request: msg.Events) -> AsyncGenerator[list[View], None]:
        """`{"event": job}` for each change, and first and after each run of them `{"mark": place}`,
        from where another stream may go on. Without end, unless all that it is about by id ends."""
        async with self._turns[actor.uid]:
            ids = frozenset(await ids_of(self._lookup, request.select.ids, Breath()))
        # Those that have not ended, as far as has been looked.
        left = list(ids)
        select = _narrowed(request.select, actor)
        # Before they are told as they stand, or a change in between would be lost.
        listener = Listener()
        keys: list[int | str] = [*ids] or [select.user or ""]
        for key in keys:
            self._listeners.setdefault(key, set()).add(listener)
        try:
            now = self.engine.journal.mark()
            is_known = request.after is not None and request.after <= now
            mark = request.after if request.after is not None and is_known else now
            # At once: who loses the line in what follows can go on from here.
            yield [{"mark": mark}]
            if request.standing or not is_known:
                rows = self._lookup.rows(msg.Status(v=request.v, select=select))
                async for views in self._told(rows, actor):
                    yield views
            listener.is_behind |= mark < now
            while True:
                if listener.is_behind:
                    listener.is_behind, before = False, mark
                    changed, mark = await asyncio.to_thread(
                        read_changed, self.engine.journal.path, after=mark, limit=_PAGE
                    )
                    # There may be another page.
                    listener.is_behind |= mark > before
                else:
                    mark = self.engine.journal.mark()
                    changed = listener.take()
                async for views in self._told(self._concerned(changed, ids, select), actor):
                    yield views
                yield [{"mark": mark}]
                if listener.is_behind or listener.woken.is_set():
                    continue
                while left and self._waiting.has_ended(left[-1]):
                    left.pop()
                if ids and not left:
                    return
                await listener.woken.wait()
        finally:
            for key in keys:
                self._forget(key, listener)

    async def _told(
        self, rows: Iterable[Row | None], actor: st.Actor
    ) -> AsyncGenerator[list[View], None]:
        turn = self._turns[actor.uid]
        left = iter(rows)
        while True:
            async with turn:
                some = list(islice(left, _AT_ONCE))
                views = [{"event": self._lookup.row_view(row, actor)} for row in some if row]
                await asyncio.sleep(0)
            # Not in turn: this may take as long as its reader likes.
            if views:
                yield views
            if not some:
                return

    def _concerned(
        self, changed: Iterable[int], ids: Collection[int], select: Selection
    ) -> Iterator[Row | None]:
        """Of what has changed, what a listener is about, as it stands now; None for what it is not
        about, because that was looked at, too."""
        for job_id in changed:
            array = self._lookup.any_array(job_id)
            if array is None:
                job = self._lookup.any_job(job_id)
                is_asked_for = not ids or job.id in ids or job.array_id in ids
                yield job if is_asked_for and passes(job, select) else None
                continue
            group = self._group(array) if not ids or array.id in ids else None
            yield group if group is not None and passes(group.job, select) else None
            for each in ids:
                if array.has_task(each):
                    yield self._lookup.any_job(each)

    def _group(self, array: Array) -> Group | None:
        """Its tasks without a record of their own, or those that were cancelled as such."""
        roster = self.engine.ledger.arrays.get(array.id)
        if roster is not None and roster.unborn:
            return Group(array, roster.ids())
        return Group(array, array.cancelled) if array.cancelled else None

    def _listened_tasks(self, array_id: int) -> list[int]:
        array = self._lookup.any_array(array_id)
        if array is None:
            return []
        return [key for key in self._listeners if isinstance(key, int) and array.has_task(key)]

    def _forget(self, key: int | str, listener: Listener) -> None:
        listeners = self._listeners[key]
        listeners.discard(listener)
        if not listeners:
            del self._listeners[key]


def _narrowed(select: Selection, actor: st.Actor) -> Selection:
    """To the asker's own jobs, unless others are asked for."""
    if select.ids or select.user or select.everything:
        return select
    return replace(select, user=actor.user)

"""What clients name by the hundred thousand: looked up with pauses."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from drfd.daemon.breath import Breath
from drfd.daemon.lookup import Lookup
from drfd.wire import messages as msg
from drfd.wire.parts import Ref


async def ids_of(lookup: Lookup, refs: Iterable[Ref], breath: Breath) -> list[int]:
    """Each once. Raises Refused for one that there is not."""
    found: dict[int, None] = {}
    for ref in refs:
        found[lookup.id_of(ref)] = None
        await breath.take()
    return list(found)


async def by_ids(lookup: Lookup, request: msg.Status) -> msg.Status:
    """The same, with nothing left to be looked up."""
    ids = await ids_of(lookup, request.select.ids, Breath())
    return replace(request, select=replace(request.select, ids=ids))

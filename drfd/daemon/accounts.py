"""User names, asked from the system off the loop: a slow directory service stalls nobody else."""

from __future__ import annotations

import asyncio
import pwd
import time

from drfd.core.stimuli import Actor

_KEEP_S = 60.0
_WAIT_S = 20.0


class Accounts:
    def __init__(self, admins: frozenset[int]) -> None:
        self._admins = admins
        self._known: dict[int, tuple[float, str]] = {}

    async def actor(self, uid: int) -> Actor:
        return Actor(user=await self._name(uid), uid=uid, is_admin=uid in self._admins)

    async def _name(self, uid: int) -> str:
        """The login name, or the number where there is none."""
        kept = self._known.get(uid)
        if kept is not None and time.monotonic() - kept[0] < _KEEP_S:
            return kept[1]
        try:
            name = await asyncio.wait_for(asyncio.to_thread(_look_up, uid), _WAIT_S)
        except TimeoutError:
            return kept[1] if kept else str(uid)
        self._known[uid] = (time.monotonic(), name)
        return name


def _look_up(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

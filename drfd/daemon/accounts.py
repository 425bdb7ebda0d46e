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
        self._known: dict[int, tuple[float, str | None]] = {}
        #: One question at a time for each uid: hundreds of requests come at once, threads are few.
        self._asking: dict[int, asyncio.Future[str | None]] = {}

    async def actor(self, uid: int) -> Actor:
        """With the number in place of the login name where there is none."""
        name, is_admin = await self._name(uid), uid in self._admins
        # Whoever runs a daemon of his own needs no account: containers have bare uids.
        has_account = name is not None or is_admin
        return Actor(name or str(uid), uid, is_admin=is_admin, has_account=has_account)

    async def _name(self, uid: int) -> str | None:
        kept = self._known.get(uid)
        if kept is not None and time.monotonic() - kept[0] < _KEEP_S:
            return kept[1]
        if uid not in self._asking:
            self._asking[uid] = asyncio.ensure_future(asyncio.to_thread(_look_up, uid))
            self._asking[uid].add_done_callback(lambda _: self._asking.pop(uid))
        try:
            name = await asyncio.wait_for(asyncio.shield(self._asking[uid]), _WAIT_S)
        except TimeoutError:
            return kept[1] if kept else None
        self._known[uid] = (time.monotonic(), name)
        return name


def _look_up(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None

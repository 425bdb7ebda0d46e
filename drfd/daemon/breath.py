"""Long work on the loop, in parts between which others have their turn."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

#: So long a part takes, but for what cannot be cut.
PART_S = 0.005


class Turns(defaultdict[int, asyncio.Lock]):
    """One piece of work at a time for each uid: who asks a hundred times at once waits for himself,
    and nobody else does."""

    def __init__(self) -> None:
        super().__init__(asyncio.Lock)


class Breath:
    """Of one piece of work. What it looks at may be another thing after each breath."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()

    async def take(self) -> None:
        """To be called often: it gives way only when a part is over."""
        if time.monotonic() - self._since_s >= PART_S:
            await asyncio.sleep(0)
            self._since_s = time.monotonic()

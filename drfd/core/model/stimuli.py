"""Times, and users who ask, as inputs of the core have them (see `core.decisions.stimuli`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Now:
    at_s: float
    mono_s: float


@dataclass(frozen=True, slots=True)
class Actor:
    """The user who makes a request, authenticated by the kernel."""

    user: str
    uid: int
    is_admin: bool
    #: Whether the uid has an account; if not, `user` is the number.
    has_account: bool = True


@dataclass(frozen=True, slots=True)
class Heard:
    """Since when launchers take orders, on the monotonic clock; None while one takes none."""

    #: That of the controller's own node, and of all that are not named.
    mono_s: float | None = 0.0
    by_node: Mapping[str, float | None] = field(default_factory=dict)

    def since_mono_s(self, node: str) -> float | None:
        return self.by_node.get(node, self.mono_s)

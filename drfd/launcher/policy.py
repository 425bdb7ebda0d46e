"""For whom jobs may run: ordinary users, and whom the administrator names."""

from __future__ import annotations

from dataclasses import dataclass

#: The uid that stands for "nobody" on every Linux; above `min_uid`, and still a system account.
_NOBODY = 65534


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    #: Uids below this are system accounts …
    min_uid: int
    #: … and are refused, as root is, unless listed here.
    allowed_uids: frozenset[int]

    def refusal(self, uid: int) -> str | None:
        if uid in self.allowed_uids or (uid >= self.min_uid and uid != _NOBODY):
            return None
        return f"jobs of uid {uid} are not allowed: it is root's or a system account's"

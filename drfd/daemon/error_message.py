"""An error as a process that works for the controller answers it."""

from __future__ import annotations

import msgspec

from drfd.common.errors import BY_KIND, DrfdError


class ErrorMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refusal or a failure, with the fields that it has in a reply."""

    kind: str
    code: str
    text: str
    hint: str = ""

    @classmethod
    def of(cls, error: DrfdError) -> ErrorMessage:
        return cls(type(error).__name__, error.code, error.text, error.hint)

    def error(self) -> DrfdError:
        return BY_KIND.get(self.kind, DrfdError)(self.code, self.text, hint=self.hint)

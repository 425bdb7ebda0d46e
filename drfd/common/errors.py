"""The errors of drfd, by who is at fault.

DrfdError
├── Refused         the requester: too big, no such job, bad value        exit 1
│   └── NotPermitted  somebody else's job, or an admin's verb             exit 77
├── Unavailable     the daemon cannot be reached or understood            exit 69
├── ConfigError     the configuration is wrong; names file and key        exit 78
└── HostError       the machine said no: a file, a cgroup, a full disk    exit 1
    └── StillStarting another daemon has begun to start here                exit 75

Anything else that is raised is a bug and is not caught.
`code` is stable and meant for scripts and tests; the words may improve.
"""

from __future__ import annotations


class DrfdError(Exception):
    """An error with one line for people (`text`), a remedy (`hint`), and a stable `code`."""

    exit_code = 1

    def __init__(self, code: str, text: str, *, hint: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.text} ({self.hint})" if self.hint else self.text


class Refused(DrfdError):
    exit_code = 1


class NotPermitted(Refused):
    exit_code = 77


class Unavailable(DrfdError):
    exit_code = 69


class ConfigError(DrfdError):
    exit_code = 78


class HostError(DrfdError):
    exit_code = 1


class StillStarting(HostError):
    """Of a daemon alone: it leaves its place to another one, which is about to answer."""

    exit_code = 75


def printable(text: str) -> str:
    """Return the text in one line without control characters, for an error that quotes it."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def short_of_memory() -> HostError:
    """Return the error that replaces a MemoryError of a request which has changed nothing."""
    text = "the daemon has too little memory for this now, and has not done it"
    return HostError("memory", text, hint="try again in a moment")


#: The kind of an error on the wire → the exception that a client raises for it.
BY_KIND: dict[str, type[DrfdError]] = {
    cls.__name__: cls
    for cls in (Refused, NotPermitted, Unavailable, ConfigError, HostError, StillStarting)
}


def error_of(kind: str, code: str, text: str, hint: str = "") -> DrfdError:
    """Return the error with these fields of a reply."""
    return BY_KIND.get(kind, DrfdError)(code, text, hint=hint)

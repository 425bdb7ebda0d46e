"""The registry of verbs: what the daemon must know of one is declared where it is implemented."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from drfd.protocol.requests import Request

_Function = TypeVar("_Function", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Verb:
    #: Called with the object on which it is declared, the sender, and the request; a stream with
    #: the connection's writer before the sender. Its annotation is the type of the reply.
    answer: Callable[..., Any]
    #: Completes "only an administrator may"; "" for a verb that every user may use.
    admin: str
    #: Returns the verb in the audit log, or None for a request that changes nothing.
    audit: Callable[[Any], str | None]
    #: The name of the lock that a user's requests share, so that one of them is answered at a time;
    #: "" for none.
    lock: str
    #: Whether a request may wait for long, and so holds none of its user's slots.
    waits: bool
    #: The type of the lines of a stream; None for a verb with one reply.
    lines: type | None


#: Filled when the modules of the handlers and of the server are imported.
VERBS: dict[type[Request], Verb] = {}


def verb(
    *requests: type[Request],
    admin: str = "",
    audit: bool | Callable[[Any], str | None] = False,
    lock: str = "",
    waits: bool = False,
    lines: type | None = None,
) -> Callable[[_Function], _Function]:
    """Register a method as what answers such requests. With `audit`, they are logged under the name
    of the verb, or under what `audit` returns for them."""

    def register(answer: _Function) -> _Function:
        for request in requests:
            name = str(request.__struct_config__.tag).replace("_", "-")
            logged = audit if callable(audit) else (lambda _, name=name if audit else None: name)
            VERBS[request] = Verb(answer, admin, logged, lock, waits, lines)
        return answer

    return register

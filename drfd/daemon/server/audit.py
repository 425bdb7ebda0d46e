"""The audit log: one line for every request that changes something, carried out or refused.

It goes to the system log only, which the controller cannot change afterwards, as it could change a
file of its own.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from drfd.common.errors import DrfdError
from drfd.common.indices import joined
from drfd.common.journald import about
from drfd.core.model.job import Actor
from drfd.daemon.handlers.verbs import VERBS
from drfd.protocol.replies import Reply
from drfd.protocol.requests import Ref, Request

log = logging.getLogger("drfd.audit")

#: Jobs by which an entry of the system log can be found, at most; its line names all that have
#: changed.
_MAX_FIELDS = 100
#: Refused references that a line names, at most, for each reason: a request may invent them.
_MAX_REFUSED = 100
_PLAIN = re.compile(r"[\w.@$+-]+", re.ASCII)


def record(actor: Actor, request: Request, result: Reply | DrfdError | None) -> None:
    """Log a request that changes something. `result` is None if the client did not wait for it."""
    verb = VERBS[type(request)].audit(request)
    if verb is None:
        return
    done, refused = _jobs(result)
    words = [f"event=audit verb={verb} uid={actor.uid} user={_word(actor.user)}"]
    if done:
        words.append(f"jobs={ranges(done)}")
    words += [f"refused={_refused(refs)}:{code}" for code, refs in refused.items()]
    words.append(f"result={_result(result)}")
    log.info(" ".join(words), extra=about(jobs=done[:_MAX_FIELDS], user=actor.user))


def ranges(ids: Iterable[int]) -> str:
    """Return ids in short form, such as `1-3,7`."""
    pairs = joined(set(ids))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in pairs)


def _refused(refs: list[Ref]) -> str:
    """Return refused references in short form, such as `1-3,5_7`. Those that were not found are as
    they were asked for. Of many, the first ones and how many there are besides: `1-3,5_7,+900`."""
    named = refs[:_MAX_REFUSED]
    ids = ranges(ref for ref in named if isinstance(ref, int))
    more = f"+{len(refs) - len(named)}" if len(refs) > len(named) else ""
    return ",".join(filter(None, [ids, *(ref for ref in named if isinstance(ref, str)), more]))


def _result(result: Reply | DrfdError | None) -> str:
    if result is None:
        return "unknown"
    return result.code if isinstance(result, DrfdError) else "done"


def _jobs(result: Reply | DrfdError | None) -> tuple[list[int], dict[str, list[Ref]]]:
    """Return the ids of the changed jobs, and the refused references by error code."""
    if result is None or isinstance(result, DrfdError):
        return [], {}
    reply = cast(Mapping[str, Any], result)
    refused: dict[str, list[Ref]] = {}
    for each in reply.get("failed", ()):
        refused.setdefault(each["error"]["code"], []).append(each["id"])
    return [reply["id"]] if "id" in reply else list(reply.get("done", ())), refused


def _word(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name)

"""Who did what: one line in the log for every request that changes something, done or refused.

The log is the one place for it: the journal of the system cannot be changed afterwards by the
controller that writes to it, as a file of the controller's own could.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable

from drfd.core.stimuli import Actor
from drfd.errors import DrfdError
from drfd.journald import about
from drfd.wire import messages as msg
from drfd.wire.parts import Ref
from drfd.wire.views import View

log = logging.getLogger("drfd.audit")

#: An entry of the journal is found by so many jobs at most; its line names them all.
_MAX_FIELDS = 100
_PLAIN = re.compile(r"[\w.@$+-]+", re.ASCII)


def record(actor: Actor, request: msg.AnyRequest, result: View | DrfdError | None) -> None:
    """`result`: the answer; None: the asker did not wait for it."""
    verb = verb_of(request)
    if verb is None:
        return
    done, refused = _jobs(request, result)
    words = [f"event=audit verb={verb} uid={actor.uid} user={_word(actor.user)}"]
    if done:
        words.append(f"jobs={ranges(done)}")
    words += [f"refused={_refused(refs)}:{code}" for code, refs in refused.items()]
    words.append(f"result={_result(result)}")
    log.info(" ".join(words), extra=about(jobs=done[:_MAX_FIELDS], user=actor.user))


def verb_of(request: msg.AnyRequest) -> str | None:
    """None: it only looks."""
    match request:
        case msg.Submit():
            return None if request.dry_run else "submit"
        case msg.Drain():
            return "drain" if request.on else "undrain"
        case msg.Shutdown():
            return "shutdown-kill-jobs" if request.kill_jobs else "shutdown"
        case msg.OnMany() | msg.Reload():
            return type(request).__name__.lower()
        case _:
            return None


def ranges(ids: Iterable[int]) -> str:
    """`1-3,7`."""
    found: list[list[int]] = []
    for number in sorted(set(ids)):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def _refused(refs: list[Ref]) -> str:
    """`1-3,5_7`: those that were not found are as they were asked for."""
    ids = ranges(ref for ref in refs if isinstance(ref, int))
    return ",".join(filter(None, [ids, *(ref for ref in refs if isinstance(ref, str))]))


def _result(result: View | DrfdError | None) -> str:
    if result is None:
        return "unknown"
    return result.code if isinstance(result, DrfdError) else "done"


def _jobs(
    request: msg.AnyRequest, result: View | DrfdError | None
) -> tuple[list[int], dict[str, list[Ref]]]:
    """(jobs that it was done to, refused ones by the reason)."""
    if result is None or isinstance(result, DrfdError):
        return [], {}
    if isinstance(request, msg.Submit):
        return [result["id"]], {}
    refused: dict[str, list[Ref]] = {}
    for each in result.get("failed", []):
        refused.setdefault(each["error"]["code"], []).append(each["id"])
    return list(result.get("done", [])), refused


def _word(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name)

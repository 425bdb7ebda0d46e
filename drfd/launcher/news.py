"""What an attempt file means to the controller, as reports. Pure."""

from __future__ import annotations

from drfd.launcher.attempts import UNKNOWN, Attempt
from drfd.launcher.cut import Cut
from drfd.launcher.protocol import Message


def news_of(
    attempt: Attempt, *, alive: bool, cut: Cut | None, oom: tuple[bool, bool], at_s: float
) -> list[tuple[str, Message]]:
    """(kind, facts) of each report. `alive`: its runner lives. `cut`: when all jobs were ended.
    `oom`: for a runner that died early, whether the kernel killed for memory, and because of the
    job's own limit."""
    reports: list[tuple[str, Message]] = []
    running = attempt.running
    # Another version may have written less: read it with what is there.
    created = UNKNOWN | attempt.created
    is_dated = None not in (created["at_s"], created["mono_s"])
    if running is not None and attempt.failed is None and is_dated:
        up = {
            "at_s": created["at_s"],
            "mono_s": created["mono_s"],
            "cgroup": created["cgroup"],
            "runner_pid": (attempt.runner or {}).get("pid", 0),
        }
        reports.append(("up", up))
    if attempt.failed is not None:
        reports.append(("broke", {"text": attempt.failed.get("text", "it is not known why")}))
    elif attempt.ended is not None and cut is not None and cut.fell_on(attempt):
        reports.append(("ended", _unknown_end((False, False), attempt.ended.get("at_s", at_s))))
    elif attempt.ended is not None:
        least = {"at_s": at_s, "mono_s": None, "exit_code": None, "signal": None}
        reports.append(("ended", least | attempt.ended))
    elif attempt.may_have_run and not alive:
        reports.append(("ended", _unknown_end(oom, at_s)))
    elif not alive:
        # Its runner died before the program was let go: as good as never launched.
        reports.append(("missing", {}))
    return reports


def _unknown_end(oom: tuple[bool, bool], at_s: float) -> Message:
    return {
        "at_s": at_s,
        "mono_s": None,
        "exit_code": None,
        "signal": None,
        "oom_killed": oom[0],
        "over_limit": oom[1],
    }

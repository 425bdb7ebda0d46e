"""What an attempt file means to the controller, as reports. Pure."""

from __future__ import annotations

from drfd.launcher.attempts import Attempt
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
    if running is not None and attempt.failed is None and attempt.created["at_s"] is not None:
        up = {
            "at_s": attempt.created["at_s"],
            "mono_s": attempt.created["mono_s"],
            "cgroup": attempt.created["cgroup"],
            "runner_pid": attempt.runner["pid"] if attempt.runner else 0,
        }
        reports.append(("up", up))
    if attempt.failed is not None:
        reports.append(("broke", {"text": attempt.failed["text"]}))
    elif attempt.ended is not None and cut is not None and cut.fell_on(attempt):
        reports.append(("ended", _unknown_end((False, False), attempt.ended["at_s"])))
    elif attempt.ended is not None:
        reports.append(("ended", attempt.ended))
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

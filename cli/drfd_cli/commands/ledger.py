"""drf ledger: what was promised to those who waited, what they held of it, and why not the rest."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from drfd.common.errors import Refused
from drfd.common.units import parse_duration, short_clock, show_duration
from drfd_cli import output
from drfd_cli.options import MOMENT, connect, prints_result
from drfd_cli.output import Csv, Result, pick

if TYPE_CHECKING:
    from drfd.client.connection import Connection
    from drfd.protocol.replies import (
        LeafView,
        LedgerCheckReply,
        LedgerPastStart,
        LedgerReply,
        LedgerSums,
        StretchView,
    )
    from drfd.sim.audit import Audit

_DEFAULT_SINCE = "30d"
#: Causes of what is missing, with their columns; those that are nothing everywhere are left out.
_CAUSES = {
    "others": "OTHERS", "size": "SIZE", "own_limit": "LIMIT", "outside": "OUTSIDE",
    "drained": "DRAINED", "away": "AWAY",
}  # fmt: skip
_KEYS = (
    *("since", "until", "user", "rows", "total", "leaves", "starts", "pairs", "pairs_more"),
    *("past", "past_more", "hours", "steps_back", "doubtful", "events", "chain", "begin"),
)
_CHECK_KEYS = ("hours", "computed", "events", "gone", "chain", "fault")
_SUMS = ("waited_ms", "kept_part", "promised", "kept", *_CAUSES)
_RULES = {
    "turn": "in turn", "reservation": "with a reservation", "backfill": "beside a reservation",
}  # fmt: skip
#: Milliseconds of waiting below which a row is not shown: each job waits for the next pass.
_SHOWN_MS = 1000
#: Columns to which names are cut.
_NAME = 24
#: Digits of a chain that are shown.
_DIGITS = 16


@click.command("ledger")
@click.option("-u", "--user", help="Only this user (administrators).")
@click.option("--since", type=MOMENT, help="From then on, in whole hours: 2026-03-01, 14:30, 7d.")
@click.option("--until", type=MOMENT, help="Before then.")
@click.option("--why", is_flag=True, help="Also because of whom, and which jobs started first.")
@click.option(
    "--verify", is_flag=True, help="Check all of it against the journal (administrators)."
)
@click.option(
    "--audit",
    is_flag=True,
    help="Simulate the jobs again, for minutes to hours: was anybody envious, worse off "
    "than alone, or better off with lies?",
)
@prints_result(csv="Print a line of values for each line.")
def command(
    user: str | None, since: float | None, until: float | None, why: bool, verify: bool, audit: bool
) -> Result:
    """What was promised to you while your jobs waited, what you held of it, and why you lacked the
    rest; of the last 30 days, unless --since says otherwise. Administrators see everybody's.

    A promise is the entitlement of `drf shares`. It counts while a job of yours could start. What
    was missing is shown as time of the whole machine: half of it for an hour is 30m."""
    if verify:
        if user is not None or since is not None or until is not None or why or audit:
            raise click.UsageError("--verify checks all of it: it goes with --json alone")
        return _verify(connect())
    if audit:
        if user is not None or until is not None or why:
            raise click.UsageError("--audit goes with --since, --json and --csv alone")
        return _audit(time.time() - parse_duration(_DEFAULT_SINCE) if since is None else since)
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since is not before --until")
    if since is None and until is None:
        since = time.time() - parse_duration(_DEFAULT_SINCE)
    asked: dict[str, object] = {"since_s": since, "until_s": until, "user": user}
    reply = connect().request(
        "ledger", **{key: value for key, value in asked.items() if value is not None}
    )
    return Result(
        show=lambda: _show(reply, why=why),
        view=lambda: pick(reply, _KEYS),
        csv=lambda: _csv(reply),
    )


def _show(reply: LedgerReply, *, why: bool) -> None:
    if not reply["hours"]:
        output.say("nothing is known of that time")
        return
    _print_rows(reply)
    for line in _starts_lines(reply):
        output.tell(line)
    if why:
        _print_pairs(reply)
        _print_past(reply)
    about = f"{_count(reply['hours'], 'hour')} from {output.show_time(reply['since'])} on"
    output.tell(f"{about}, events up to {reply['events']}, chain {reply['chain'][:_DIGITS]}")
    if reply["steps_back"]:
        times = _count(reply["steps_back"], "time")
        output.tell(f"the clock was set back {times}: such a step counts as no time")
    if reply["doubtful"]:
        output.tell(
            f"{_count(reply['doubtful'], 'event')} left out: others of these jobs were removed"
        )


def _print_rows(reply: LedgerReply) -> None:
    if reply["total"]["waited_ms"] < _SHOWN_MS:
        output.tell("nobody has waited")
        return
    causes = [
        each for each in _CAUSES
        if each == "others" or reply["total"][each]  # type: ignore[literal-required]  # by name
    ]  # fmt: skip
    has_pools = any(row["pool"] for row in reply["rows"])
    columns: list[output.Column] = [
        "USER", *(["POOL"] if has_pools else []), ("WAITED", "right"), ("PROMISED", "right"),
        ("KEPT", "right"), ("SHORT", "right"), *((_CAUSES[each], "right") for each in causes),
        "LONGEST BELOW",
    ]  # fmt: skip
    rows: list[list[object]] = [
        [
            output.shorten(row["user"], _NAME),
            *([output.shorten(row["pool"] or "-", _NAME)] if has_pools else []),
            *_sums(row, causes),
            _stretch(row["below"]),
        ]
        for row in reply["rows"]
        if row["waited_ms"] >= _SHOWN_MS
    ]
    if len(rows) != 1 or reply["leaves"] != 1:
        of_all = f"all {reply['leaves']}" if reply["leaves"] > 1 else "all"
        rows.append([of_all, *([""] if has_pools else []), *_sums(reply["total"], causes), ""])
    output.print_rows(columns, rows, fixed=("WAITED", "PROMISED", "KEPT", "SHORT"))


def _sums(sums: LedgerSums, causes: list[str]) -> list[object]:
    """Return the time waited, the mean promise, the part of it that was held, and what was missing,
    as times of the whole machine."""
    view: Mapping[str, Any] = sums
    if not sums["waited_ms"]:
        return ["-"] * (4 + len(causes))
    mean = sums["promised"] / (10**9 * sums["waited_ms"])
    kept = sums["kept"] / sums["promised"] if sums["promised"] else 1.0
    return [
        show_duration(sums["waited_ms"] / 1000),
        f"{mean:.0%}",
        f"{kept:.0%}",
        output.show_machine_time(sums["promised"] - sums["kept"]),
        *(output.show_machine_time(view[each]) for each in causes),
    ]


def _stretch(below: StretchView | None) -> str:
    if below is None:
        return "-"
    return f"{show_duration(below['seconds'])} ({short_clock(below['since'])})"


def _starts_lines(reply: LedgerReply) -> Iterator[str]:
    counts = reply["starts"]
    every, past, fitting = (
        sum(each[key] for each in counts) for key in ("all", "past", "past_fitting")
    )
    yield f"{_count(every, 'start')}, {past} of them past somebody who was short"
    if past:
        rules = ", ".join(
            f"{each['past_fitting']} {_RULES.get(each['why'], each['why'])}"
            for each in counts
            if each["past_fitting"]
        )
        line = f"in {fitting} of these the first job of one who was short fitted"
        yield f"{line}: {rules}" if rules else line


def _print_pairs(reply: LedgerReply) -> None:
    if not reply["pairs"]:
        return
    output.tell("")
    rows: list[list[object]] = [
        [
            _leaf(pair),
            "others" if pair["by"] is None else _leaf(pair["by"]),
            output.show_machine_time(pair["amount"]),
        ]
        for pair in reply["pairs"]
    ]
    output.print_rows(["SHORT", "BECAUSE OF", ("TIME", "right")], rows, fixed=("TIME",))
    if reply["pairs_more"]:
        output.tell(f"{reply['pairs_more']} more with less")
    output.tell("whoever held more than promised took what was idle at that time")
    output.tell("")


def _print_past(reply: LedgerReply) -> None:
    if not reply["past"]:
        return
    rows: list[list[object]] = [
        [
            output.show_time(start["at"]),
            start["id"],
            _leaf(start),
            _RULES.get(start["why"], start["why"]),
            "yes" if start["fits"] else "no",
            _short(start),
        ]
        for start in reply["past"]
    ]
    columns: list[output.Column] = ["STARTED", ("ID", "right"), "OF", "RULE", "FITTED", "PAST"]
    output.print_rows(columns, rows, fixed=("STARTED", "ID", "FITTED"))
    if reply["past_more"]:
        output.tell(f"{reply['past_more']} more before")
    output.tell("")


def _short(start: LedgerPastStart) -> str:
    return ", ".join(map(_leaf, start["short"]))


def _leaf(leaf: LeafView) -> str:
    name = leaf["user"] if leaf["pool"] is None else f"{leaf['pool']}/{leaf['user']}"
    return output.shorten(name, _NAME)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _csv(reply: LedgerReply) -> Csv:
    rows: list[Mapping[str, Any]] = [*reply["rows"]]
    return (
        ["user", "pool", *_SUMS, "below_since", "below_seconds"],
        (
            [
                *(row["user"], row["pool"], *(row[name] for name in _SUMS)),
                *((row["below"] or {}).get(name) for name in ("since", "seconds")),
            ]
            for row in rows
        ),
    )


# -- the audit -------------------------------------------------------------------------------------


#: What a false demand was, in words; of a resource: more of it.
_LIES = {"all": "half as much again of everything", "split": "two halves of each job"}
#: Gains below it, in parts of the time, are none: other jobs start in another order by chance.
_LEAST_GAIN = 0.005
#: Users who would have waited less alone, and gains, that are told singly.
_TOLD = 10
#: Seconds of simulation that are announced, and between two words about the progress.
_LONG_S, _TELL_EVERY_S = 60.0, 10.0


def _audit(since_s: float) -> Result:
    from drfd.sim.audit import audit
    from drfd_cli.simulate.trace import past_of

    try:
        work, rules = past_of(since_s, None)
    except Refused as error:
        if error.code != "no-jobs":
            raise
        text = f"no job that ran has ended since {output.show_time(since_s)}"
        raise Refused("no-jobs", text, hint="an earlier time: --since 365d") from None
    telling = Telling(len(work.jobs), shows_all=sys.stderr.isatty())
    found = audit(work.jobs, rules, telling.tell)
    return Result(
        show=lambda: _show_audit(found, since_s),
        view=lambda: _audit_view(found, since_s),
        csv=lambda: (_AUDIT_COLUMNS, _audit_rows(found)),
    )


def _path(leaf: str) -> str:
    from drfd.core.model.job import show_path

    return show_path(leaf)


class Telling:
    """Says how long an audit will take, and on a terminal how far it is. All jobs were simulated
    once when `tell` is called first; how long that took says how long the rest takes."""

    def __init__(self, jobs: int, *, shows_all: bool) -> None:
        self._jobs, self._shows_all = jobs, shows_all
        self._told_s = self._began_s = time.monotonic()
        self._whole_s: float | None = None

    def tell(self, number: int, count: int, left: float) -> None:
        now_s = time.monotonic()
        if self._whole_s is None:
            self._whole_s = now_s - self._began_s
            if self._whole_s * left >= _LONG_S:
                output.say(
                    f"{count} simulations of up to {_count(self._jobs, 'job')} take about "
                    f"{show_duration(self._whole_s * left)}; with a later --since it is less"
                )
                self._told_s = now_s
        elif self._shows_all and now_s - self._told_s >= _TELL_EVERY_S:
            self._told_s = now_s
            left_text = show_duration(self._whole_s * left)
            output.say(f"simulation {number} of {count}, about {left_text} more")


def _audit_view(found: Audit, since_s: float) -> dict[str, object]:
    return {
        "since": since_s,
        "jobs": found.jobs,
        "refused": found.refused,
        "envy": found.envy,
        "alone": [
            {
                "user": _path(each.leaf),
                "jobs": each.jobs,
                "too_large": each.too_large,
                "wait_s": each.together_s,
                "wait_alone_s": each.alone_s,
            }
            for each in found.alone
        ],
        "false_demands": [
            {
                "user": _path(each.leaf),
                "of": each.what,
                "true_s": each.true_s,
                "false_s": each.false_s,
            }
            for each in found.lies
        ],
    }


_AUDIT_COLUMNS = ("user", "test", "as_it_was_s", "otherwise_s")


def _audit_rows(found: Audit) -> Iterator[list[object]]:
    for alone in found.alone:
        yield [_path(alone.leaf), "alone", alone.together_s, alone.alone_s]
    for lie in found.lies:
        yield [_path(lie.leaf), lie.what, lie.true_s, lie.false_s]


def _show_audit(found: Audit, since_s: float) -> None:
    output.tell(
        f"{_count(found.jobs, 'job')} of {_count(len(found.alone), 'user')} since "
        f"{output.show_time(since_s)}, simulated with the present weights"
    )
    if found.refused:
        output.tell(f"{_count(found.refused, 'job')} left out: larger than the machine")
    output.tell(
        f"envy: {found.envy:.1%} of those who waited would have preferred what another one held"
    )
    worse = [each for each in found.alone if each.jobs and each.alone_s < each.together_s]
    output.tell(
        f"alone on a machine of their own, as large as their entitlement, {len(worse)} of "
        f"{_count(len(found.alone), 'user')} would have waited less"
    )
    worse.sort(key=lambda each: (each.alone_s - each.together_s, each.leaf))
    for each in worse[:_TOLD]:
        output.tell(
            f"  {output.shorten(_path(each.leaf), _NAME)}: "
            f"{show_duration(each.together_s)} on average, alone {show_duration(each.alone_s)}"
        )
    gains = [each for each in found.lies if each.gain >= _LEAST_GAIN]
    output.tell(
        f"false demands: in {len(gains)} of {len(found.lies)} simulations, of those who waited "
        "most, the user's own jobs would have ended earlier"
    )
    gains.sort(key=lambda each: (-each.gain, each.leaf, each.what))
    for lie in gains[:_TOLD]:
        what = _LIES.get(lie.what, f"half as much {lie.what} again")
        output.tell(
            f"  {output.shorten(_path(lie.leaf), _NAME)}, {what}: by {lie.gain:.1%} of the "
            "time from submission to end"
        )


# -- the check -------------------------------------------------------------------------------------


def _verify(client: Connection) -> Result:
    reply = client.request("ledger_check")
    while "running_s" in reply:
        if sys.stderr.isatty():
            output.say(f"the check has run for {show_duration(reply['running_s'])}")
        reply = client.request("ledger_check")
    return Result(
        show=lambda: _show_check(reply),
        view=lambda: pick(reply, _CHECK_KEYS),
        csv=lambda: (_CHECK_KEYS, [[*_check_values(reply)]]),
        finish=lambda: 0 if reply["fault"] is None else 1,
    )


def _check_values(reply: LedgerCheckReply) -> Iterator[object]:
    view: Mapping[str, Any] = reply
    for name in _CHECK_KEYS:
        value = view[name]
        yield value["hour"] if name == "fault" and value is not None else value


def _show_check(reply: LedgerCheckReply) -> None:
    fault = reply["fault"]
    if fault is not None:
        when = (
            "" if fault["begin"] is None else f", which begins {output.show_time(fault['begin'])}"
        )
        output.tell(f"hour {fault['hour']}{when}: {fault['text']}")
    output.tell(
        f"{reply['computed']} of {_count(reply['hours'], 'hour')} computed again, "
        f"{_count(reply['events'], 'event')} compared, {reply['gone']} gone with their jobs"
    )
    output.tell(f"chain {reply['chain']}")
    output.tell("all is as it was written" if fault is None else "the account is not what it was")

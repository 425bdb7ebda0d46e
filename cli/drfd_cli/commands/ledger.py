"""drf ledger: what was promised to those who waited, what they held of it, and why not the rest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from drfd.common.units import parse_duration, short_clock, show_duration
from drfd_cli import output
from drfd_cli.options import MOMENT, connect, prints_result
from drfd_cli.output import (
    Column,
    Csv,
    Result,
    counted,
    fields,
    right,
    show_machine_time,
)

if TYPE_CHECKING:
    from drfd.client.connection import Connection
    from drfd.protocol.replies import (
        LeafView,
        LedgerCheckReply,
        LedgerReply,
        StretchView,
    )

_DEFAULT_SINCE = "30d"
#: Causes of what is missing, with their columns; those that are nothing everywhere are left out.
_CAUSES = {
    "others": "OTHERS", "size": "SIZE", "own_limit": "LIMIT", "outside": "OUTSIDE",
    "drained": "DRAINED", "away": "AWAY",
}  # fmt: skip
_SUMS = ("waited_ms", "kept_part", "promised", "kept", *_CAUSES)
_RULES = {
    "turn": "in turn", "reservation": "with a reservation", "backfill": "beside a reservation",
}  # fmt: skip
#: Milliseconds of waiting below which a row is not shown: each job waits for the next pass.
_SHOWN_MS = 1000
#: Columns to which names are cut.
_NAME = 24


@click.command("ledger")
@click.option("-u", "--user", help="Only this user (administrators).")
@click.option("--since", type=MOMENT, help="From then on, in whole hours: 2026-03-01, 14:30, 7d.")
@click.option("--until", type=MOMENT, help="Before then.")
@click.option("--why", is_flag=True, help="Also who held it, and which jobs started first.")
@click.option(
    "--verify", is_flag=True, help="Compute it again from the journal and compare (administrators)."
)
@prints_result(csv="Print a line of values for each line.")
def command(
    user: str | None, since: float | None, until: float | None, why: bool, verify: bool
) -> Result:
    """How much of your entitlement you held while your jobs waited, and why you lacked the rest, in
    the last 30 days (see --since). Administrators see everybody's.

    The entitlement, here PROMISED, is ENTITLED of `drf shares`. It counts while a job of yours
    could start. The missing part is shown as time of the whole machine: half of it for an hour is
    30m."""
    if verify:
        if user is not None or since is not None or until is not None or why:
            raise click.UsageError("--verify checks all of it: it goes with --json alone")
        return _verify(connect())
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since is not before --until")
    if since is None and until is None:
        since = time.time() - parse_duration(_DEFAULT_SINCE)
    asked: dict[str, object] = {"since_s": since, "until_s": until, "user": user}
    given = {key: value for key, value in asked.items() if value is not None}
    reply: LedgerReply = _waited_for(connect(), "ledger", **given)
    return Result(
        show=lambda: _show(reply, why=why),
        view=lambda: reply,
        csv=lambda: _csv(reply),
    )


def _waited_for(client: Connection, op: str, **fields: object) -> Any:
    """Return the reply, however long it takes to read all events of the journal."""
    client.send(op, **fields)
    return client.receive()


def _show(reply: LedgerReply, *, why: bool) -> None:
    if not reply["hours"]:
        output.say("nothing is known of that time")
        return
    _print_rows(reply)
    for line in _starts_lines(reply):
        output.tell(line)
    if why and reply["pairs"]:
        output.tell("")
        output.print_items(_PAIRS, reply["pairs"])
        if reply["pairs_more"]:
            output.tell(f"{reply['pairs_more']} more with less")
        output.tell("whoever held more than promised took what was idle at that time")
        output.tell("")
    if why and reply["past"]:
        output.print_items(_PAST, reply["past"])
        if reply["past_more"]:
            output.tell(f"{reply['past_more']} more before")
        output.tell("")
    about = f"{counted(reply['hours'], 'hour')} from {output.show_time(reply['since'])} on"
    output.tell(f"{about}, events up to {reply['events']}")
    if reply["steps_back"]:
        times = counted(reply["steps_back"], "time")
        output.tell(f"the clock was set back {times}: such a step counts as no time")
    if reply["doubtful"]:
        output.tell(
            f"{counted(reply['doubtful'], 'event')} left out: others of these jobs were removed"
        )


def _print_rows(reply: LedgerReply) -> None:
    total: Any = reply["total"]
    if total["waited_ms"] < _SHOWN_MS:
        output.tell("nobody has waited")
        return
    sums = [
        right("WAITED", lambda sums: show_duration(sums["waited_ms"] / 1000), is_fixed=True),
        right("PROMISED", lambda sums: f"{sums['promised'] / 10**9 / sums['waited_ms']:.0%}",
              is_fixed=True),
        right("KEPT", lambda sums: f"{1 - _short(sums) / (sums['promised'] or 1):.0%}",
              is_fixed=True),
        right("SHORT", lambda sums: show_machine_time(_short(sums)), is_fixed=True),
        *(
            right(title, partial(_missing, cause=cause),
                  is_shown=cause == "others" or bool(total[cause]))
            for cause, title in _CAUSES.items()
        ),
    ]  # fmt: skip
    columns = [
        Column("USER", lambda row: output.shorten(row["user"], _NAME)),
        Column("POOL", lambda row: output.shorten(row["pool"] or "-", _NAME),
               is_shown=any(row["pool"] for row in reply["rows"])),
        *sums,
        Column("LONGEST BELOW", lambda row: _stretch(row["below"])),
    ]  # fmt: skip
    below = [
        {"USER": f"all {reply['leaves']}" if reply["leaves"] > 1 else "all"}
        | {column.title: column.show(total) for column in sums}
    ]
    rows = [row for row in reply["rows"] if row["waited_ms"] >= _SHOWN_MS]
    output.print_items(columns, rows, below=() if len(rows) == reply["leaves"] == 1 else below)


def _short(sums: Any) -> int:
    return int(sums["promised"] - sums["kept"])


def _missing(sums: Any, *, cause: str) -> str:
    return show_machine_time(sums[cause])


def _stretch(below: StretchView | None) -> str:
    if below is None:
        return "-"
    return f"{show_duration(below['seconds'])} ({short_clock(below['since'])})"


def _starts_lines(reply: LedgerReply) -> Iterator[str]:
    counts = reply["starts"]
    every, past, fitting = (
        sum(each[key] for each in counts) for key in ("all", "past", "past_fitting")
    )
    yield f"{counted(every, 'start')}, {past} of them past somebody who was short"
    if past:
        rules = ", ".join(
            f"{each['past_fitting']} {_RULES.get(each['why'], each['why'])}"
            for each in counts
            if each["past_fitting"]
        )
        line = f"in {fitting} of these the first job of one who was short fitted"
        yield f"{line}: {rules}" if rules else line


def _leaf(leaf: LeafView) -> str:
    name = leaf["user"] if leaf["pool"] is None else f"{leaf['pool']}/{leaf['user']}"
    return output.shorten(name, _NAME)


#: Who was short because of whom, and the starts past somebody.
_PAIRS = (
    Column("SHORT", _leaf),
    Column("BECAUSE OF", lambda pair: "others" if pair["by"] is None else _leaf(pair["by"])),
    right("TIME", lambda pair: show_machine_time(pair["amount"]), is_fixed=True),
)
_PAST = (
    Column("STARTED", lambda start: output.show_time(start["at"]), is_fixed=True),
    right("ID", lambda start: start["id"], is_fixed=True),
    Column("OF", _leaf),
    Column("RULE", lambda start: _RULES.get(start["why"], start["why"])),
    Column("FITTED", lambda start: "yes" if start["fits"] else "no", is_fixed=True),
    Column("PAST", lambda start: ", ".join(map(_leaf, start["short"]))),
)


def _csv(reply: LedgerReply) -> Csv:
    below = fields("since", "seconds", of="below", prefix="below_")
    return {**fields("user", "pool", *_SUMS), **below}, reply["rows"]


# -- the check -------------------------------------------------------------------------------------


def _verify(client: Connection) -> Result:
    reply: LedgerCheckReply = _waited_for(client, "ledger_check")
    return Result(
        show=lambda: _show_check(reply),
        view=lambda: reply,
        finish=lambda: 0 if reply["fault"] is None else 1,
    )


def _show_check(reply: LedgerCheckReply) -> None:
    fault = reply["fault"]
    if fault is not None:
        output.tell(f"hour from {output.show_time(fault['begin'])} on: {fault['text']}")
    output.tell(
        f"{reply['compared']} of {counted(reply['hours'], 'hour')} compared with what "
        f"{counted(reply['events'], 'event')} give; {reply['gone']} are gone with their jobs"
    )
    output.tell("all is as it was written" if fault is None else "the account is not what it was")

"""drf submit: queue a command or a script."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import click

from drfd.client.submission import compose
from drfd.environment import as_given, capture, is_secret, not_text
from drfd_cli import output
from drfd_cli.options import (
    ARRAY,
    GroupedHelp,
    as_json,
    condition_options,
    connect,
    demand_options,
)
from drfd_cli.script import directives, read_script


class _SubmitCommand(GroupedHelp):
    """Keeps the arguments as typed: what follows `--` is a command, what does not is a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["drf.args"] = list(args)
        return super().parse_args(ctx, args)


@click.command("submit", cls=_SubmitCommand, context_settings={"allow_interspersed_args": False})
@demand_options
@condition_options
@click.option("--array", type=ARRAY, help="A task for each: 0-99 or 1,3,7-20; %5: 5 at once.")
@click.option("--hold", is_flag=True, help="Not before `drf release`.")
@click.option("--preemptible", is_flag=True, help="It may be stopped for others, and run again.")
@click.option("--dry-run", is_flag=True, help="Only say when it would start, and why.")
@click.option("--notify", metavar="WHEN", help="Tell you of its start,end,fail by mail.")
@click.option("--notify-command", metavar="CMD", help="… by this shell command.")
@click.option("-o", "--output", "stdout", metavar="FILE", help="Its output: %j id, %A_%a task.")
@click.option("-e", "--error", "stderr", metavar="FILE", help="Its errors: %j id, %A_%a task.")
@click.option("-w", "--wait", is_flag=True, help="Wait for its end; exit as it does.")
@click.option("-q", "--quiet", is_flag=True, help="Print the id alone.")
@as_json
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context, /, wait: bool, quiet: bool, as_json: bool, dry_run: bool,
    command: tuple[str, ...], **asked: Any,
) -> int:  # fmt: skip
    """Queue a job: `drf submit [OPTIONS] -- CMD...`, or `drf submit [OPTIONS] script.sh [ARGS]`
    with #DRF lines of options in the script."""
    args: list[str] = ctx.meta["drf.args"]
    script = None if _is_command(ctx, args, command) else read_script(command[0])
    if script is not None and "drf.script" not in ctx.meta:
        # The script's own options come first, so that those of the command line win.
        ctx.meta["drf.script"] = True
        return _again(ctx, [*directives(script, command[0], check=_check_options), *args])
    client = connect()
    if dry_run:
        return _tell_forecast(
            client.request("submit", dry_run=True, **fields(command, script=script, **asked)),
            as_json=as_json,
        )
    reply = client.submit(**fields(command, script=script, **asked))
    job_id, count = reply["id"], reply.get("tasks")
    if count is None:
        what = f"job {job_id}"
    else:
        what = f"array {job_id} of {count} task{'' if count == 1 else 's'}"
        _tell_of_one_file(asked)
    if as_json:
        output.print_json({key: reply[key] for key in ("id", "tasks") if key in reply})
    else:
        click.echo(job_id if quiet else f"submitted {what}")
    if not wait:
        return 0
    sys.stdout.flush()
    try:
        reply = client.wait([job_id], any_one=False, timeout_s=None)
    except KeyboardInterrupt:
        output.say(f"job {job_id} goes on (drf cancel {job_id} stops it)")
        return 130
    if not reply["ended"]:
        output.tell_never(reply["never"][0])
        return output.NEVER_RAN
    ended = reply["ended"][0]
    code = ended["outcome"]["code"]
    # A job that fails says so itself; of an array it is to be said which tasks have.
    if code not in ("COMPLETED", "FAILED") or (code == "FAILED" and "array_tasks" in ended):
        kind = "job" if count is None else "array"
        output.say(f"{kind} {job_id} {output.why_line(ended)}")
    return int(ended["status"])


def _tell_of_one_file(asked: dict[str, Any]) -> None:
    """Where each task would overwrite what the others have written."""
    for option, name in (("-o", "stdout"), ("-e", "stderr")):
        path = asked[name]
        if path and path != "/dev/null" and not re.search("%[aj]", path.replace("%%", "")):
            output.say(f"all tasks write to {path}; {option} with %a in it tells them apart")


def _tell_forecast(forecast: dict[str, Any], *, as_json: bool) -> int:
    start_s, reason = forecast["expected_start_at"], forecast["reason"]
    if as_json:
        output.print_json({"expected_start_at": start_s, "reason": reason})
        return 0
    if reason is None:
        output.tell("it would start now")
        return 0
    if start_s is None:
        output.tell("it would wait; no start is in sight")
    else:
        output.tell(f"it would start about {output.show_when(start_s)}, {output.ESTIMATE}")
    output.tell(
        f"until then it waits: {output.clean(reason['code'])}: {output.clean(reason['text'], 1000)}"
    )
    return 0


def _again(ctx: click.Context, args: list[str]) -> int:
    """Run `submit` once more with other arguments, in the same context."""
    with command.make_context("submit", args, parent=ctx.parent) as inner:
        inner.meta["drf.script"] = True
        status: int = command.invoke(inner)
        return status


def fields(
    argv: tuple[str, ...],
    *,
    export: tuple[str, ...],
    retry: int | None = None,
    retry_on: list[str] | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """The request's fields; what was not said is left to the daemon."""
    if retry_on is not None and retry is None:
        raise click.UsageError("--retry-on says when to try again; --retry N how often")
    env = capture(as_given(os.environ), export)
    _tell_of_secrets(set(os.environ) - set(env), export)
    for bad in not_text(env):
        output.say(f"left out the variable {output.clean(bad)}: it is not UTF-8 text")
        del env[bad]
    return compose(list(argv), env=env, retry=retry, retry_on=retry_on, **asked)


def _tell_of_secrets(left_out: set[str], export: tuple[str, ...]) -> None:
    """To a person, not into the logs of scripts."""
    secrets = sorted(name for name in left_out if is_secret(name))
    if secrets and sys.stderr.isatty():
        output.say(f"left out, as if secret: {', '.join(secrets)} (--export NAME keeps one)")
    for name in export:
        if name not in os.environ:
            output.say(f"--export {name}: there is no such variable")


def _is_command(ctx: click.Context, args: list[str], words: tuple[str, ...]) -> bool:
    """Does `--` stand before the words, and not as the value of an option?"""
    at = len(args) - len(words) - 1
    if at < 0 or args[at] != "--":
        return False
    try:
        ctx.command.make_parser(ctx).parse_args(args[:at])
    except click.UsageError:
        return False
    return True


def _check_options(options: list[str]) -> None:
    """Raise UsageError unless they are options alone, each with a good value."""
    context = command.make_context("submit", [*options, "--", "x"])
    if context.params["command"] != ("x",):
        raise click.UsageError("only options can stand here")

"""Options and argument types that several verbs share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from drfd.client.connection import Connection, choose
from drfd.client.words import Ref, parse_id, parse_ids, parse_past, parse_signal, parse_whole
from drfd.common.errors import ConfigError, Refused
from drfd.common.units import parse_duration
from drfd.protocol.job_options import CONDITIONS, OPTIONS, OTHERS, RESOURCES, Option
from drfd_cli import output, personal, which_job
from drfd_cli.output import Columns, Form, render

F = TypeVar("F", bound=Callable[..., Any])

#: The parameters of a command that together are its `Form`.
FORM = ("as_json", "as_csv", "no_header", "chosen")


if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from drfd.protocol.replies import JobView

    _AnyType = click.ParamType[Any]
else:
    # In older releases of click ParamType is not generic.
    _AnyType = click.ParamType


class QuantityParam(_AnyType):
    """A parameter type whose text is parsed by a function that raises Refused."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str) or (ctx is not None and ctx.resilient_parsing):
            # While words are completed, nothing is looked up, and no daemon started.
            return value
        try:
            return self._read(value)
        except Refused as error:
            hint = f" ({error.hint})" if error.hint else ""
            self.fail(f"{error.text.partition(': ')[2] or error.text}{hint}", param, ctx)


class KeysParam(QuantityParam):
    """A parameter type of names of columns, joined by commas."""

    def __init__(self, known: Columns) -> None:
        super().__init__("KEYS", self._chosen)
        self.known = known

    def _chosen(self, text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in self.known:
                there = f"there is no column {name!r}; there are {', '.join(self.known)}"
                raise Refused("bad-value", f"columns: {there}")
        return names


def _job_line() -> ModuleType:
    # Imported here, because verbs that only show something need none of it.
    from drfd_cli.submission import job_line

    return job_line


DURATION = QuantityParam("TIME", parse_duration)
LINES = QuantityParam("N", partial(parse_whole, bounds=(1, 1000), what="number"))
SIGNAL = QuantityParam("SIGNAL", parse_signal)


def _ids(text: str, *, takes_latest: bool = False) -> list[Ref]:
    form = "write 41, 3-7 or 1,4-6"
    find = partial(which_job.find, connect, form=form, takes_latest=takes_latest)
    return which_job.each_of(text, parse_ids, lambda word: [find(word)])


IDS = QuantityParam("IDS", _ids)
#: Ids for verbs that only read: of several jobs with a name, the latest.
_READ_IDS = QuantityParam("IDS", partial(_ids, takes_latest=True))


def _or_latest(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Return the value of a required argument for ids, or the caller's latest job."""
    value = _flat(ctx, param, value) if param.nargs == -1 else value
    if value not in (None, ()) or ctx.resilient_parsing:
        return value
    if ctx.params.get("group") is not None or ctx.params.get("everything"):
        return value
    found = which_job.latest(connect)
    if found is None:
        raise click.UsageError(f"name the job: {ctx.command_path} 41", ctx)
    return (found,) if param.nargs == -1 else found


def _id(text: str) -> Ref:
    if not which_job.is_name(text):
        return parse_id(text)
    return which_job.find(connect, text, form="write 41, or 41_7 for a task of an array")


_ID = QuantityParam("ID", _id)
job_id = click.argument("job_id", metavar="[ID]", required=False, type=_ID, callback=_or_latest)
escape_option = click.option(
    "--escape", default="~", show_default=True, help="First character of escapes, or none.",
    type=QuantityParam("SIGN", lambda text: _job_line().read_sign(text)),
)  # fmt: skip


def group_option(text: str) -> Callable[[F], F]:
    """Add an option for a group in place of ids: one that is read before them, so that they are not
    missed."""
    return click.option("-g", "--group", is_eager=True, help=text)


def in_group(client: Connection, group: str | None, *, ended: int = 0) -> list[JobView]:
    """Return the rows of `drf status` of the caller's jobs, or those of a group: of the live ones,
    and of so many that ended last."""
    select = {"user": client.request("hello")["user"]} | ({"group": group} if group else {})
    return list(client.jobs("status", select=select, ended=ended))


def all_of(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds several arguments and options to a command, in this order."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def job_ids(*, required: bool, only_read: bool = False) -> Callable[[F], F]:
    """Add the argument for ids and ranges of ids (`3-7,9`): one tuple of ids without duplicates.

    If it is `required` and missing, the caller's latest job is taken, if a person asks. If the jobs
    themselves stay as they are (`only_read`), a name means the latest job of that name.
    """
    return click.argument(
        "ids", metavar="[IDS...]", nargs=-1, required=False, type=_READ_IDS if only_read else IDS,
        callback=_or_latest if required else _flat,
    )  # fmt: skip


def _flat(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Join the lists of all occurrences into one tuple, or return None for an option not given."""
    if isinstance(param, click.Option) and not value:
        return None
    if ctx.resilient_parsing:
        return value
    return tuple(dict.fromkeys(each for part in value for each in part))


#: The values of `--state`: the words of the state column.
STATES = (*output.LIVE, *output.ENDED)


#: The fields that choose jobs, unless they hold one of `_NOTHING`.
_FILTERS = ("user", "name", "group", "states", "everything")
_NOTHING = (None, (), False)


def filter_options(*, states: str, group: Sequence[str] = ("-g", "--group")) -> Callable[[F], F]:
    """Add the options that choose jobs by what they have in common. `states` is the help of the
    option for states, `group` the names of that for a group."""
    return all_of(
        click.option("-u", "--user", help="Jobs of this user."),
        click.option("-n", "--name", help="Jobs of this name, or like `train-*`."),
        click.option(*group, "group", metavar="NAME", help="Jobs of this group (submit --group)."),
        click.option(
            "-s", "--state", "states", metavar="STATE", multiple=True, help=states,
            type=click.Choice(STATES, case_sensitive=False),
        ),
    )  # fmt: skip


def selection(chosen: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of a request that choose jobs, from the values of options: those that are
    given."""
    given = ((name, value) for name, value in chosen.items() if value not in _NOTHING)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given}


def filters_in(chosen: Mapping[str, object]) -> list[str]:
    """Return the fields other than ids by which jobs are chosen."""
    return [name for name in _FILTERS if chosen.get(name) not in _NOTHING]


def refuse_ids_with_filters(chosen: Mapping[str, object]) -> None:
    """Raise UsageError if ids stand beside options that choose jobs: the daemon would act on all
    the ids, also on those that the options were to spare."""
    filters = filters_in(chosen)
    if chosen["ids"] and filters:
        params = click.get_current_context().command.params
        given = [param.opts[-1] for param in params if param.name in filters]
        raise click.UsageError(
            f"{' and '.join(given)} cannot narrow ids: name jobs by their ids, or choose them with "
            "--user, --name, --group, --state"
        )


def _set_colour(context: click.Context, param: click.Parameter, value: str | None) -> None:
    # The option of the verb is evaluated after that of `drf`, and wins.
    if value is not None:
        output.colour = value
    elif context.parent is None:
        # A submission tells of errors; all else works.
        with suppress(ConfigError):
            output.colour = personal.read(os.environ).colour


#: An option of `drf` itself and of every verb that prints in colours.
colour_option = click.option(
    "--color", metavar="WHEN", type=click.Choice(("auto", "always", "never")), expose_value=False,
    callback=_set_colour, help="Colours: auto (on a terminal), always or never.",
)  # fmt: skip


def prints_result(*, columns: Columns | None = None) -> Callable[[F], F]:
    """Add --json to a verb that returns a `Result`, and print the result. With `columns`, it has
    -o, --parsable and --csv. A verb that has printed everything itself returns its exit code
    instead."""

    options = [click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")]
    if columns is not None:
        options += [
            click.option("-o", "--columns", "chosen", type=KeysParam(columns),
                         help="Only these columns (`-o help` lists all)."),
            click.option("--csv/--parsable", "as_csv", default=None,
                         help="Print lines for programs, with commas or tabs."),
            click.option("--no-header", is_flag=True,
                         help="As --parsable, without the line of column names."),
        ]  # fmt: skip

    def add(function: F) -> F:
        @wraps(function)
        def printing(*args: Any, **asked: Any) -> int:
            form = Form(**{name: asked.pop(name) for name in FORM if name in asked})
            result = function(*args, **asked)
            return result if isinstance(result, int) else render(result, form, columns or {})

        return cast(F, all_of(*options)(printing))

    return add


class KnowingOthers(click.Command):
    """A command that knows the options that other programs have in place of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from drfd_cli.habits import unknown_option

            ours = [name for param in self.params for name in param.opts]
            raise click.UsageError(unknown_option(error.option_name, ours), ctx) from None


#: The heading of each parameter in the help.
_HEADINGS = {option.key: option.heading for option in OPTIONS}


class JobCommand(KnowingOthers):
    """A command whose words `submission.job_line` reads; here are its help, which lists the options
    for demand and start conditions under headings, and its completion."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {
            title: [] for title in (RESOURCES, CONDITIONS, OTHERS)
        }
        for param in self.get_params(ctx):
            # Newer releases of click also return records of arguments, which the usage shows.
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                groups[_HEADINGS.get(param.name or "", OTHERS)].append(record)
        if not groups[CONDITIONS]:
            super().format_options(ctx, formatter)
            return
        width = max(len(record[0]) for records in groups.values() for record in records)
        for title, records in groups.items():
            if not records:
                continue
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in records])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        job_line = _job_line()
        try:
            job_line.split(self.name or "", args)
        except job_line.HelpAsked:
            return super().parse_args(ctx, ["--help"])
        except job_line.WrongWords:
            # The reader tells of it.
            pass
        ctx.params = {"words": args}
        return []


def click_option(option: Option, *names: str, about: str = "") -> Callable[[F], F]:
    """Return the decorator that adds an option of the table to a command, with its texts as they
    are; perhaps with other names and another help."""
    if option.kind == "flag":
        return click.option(*option.names, option.key, is_flag=True, help=option.about)
    return click.option(
        *(names or (*option.names, option.key)),
        metavar=option.metavar, multiple=option.many == "each", help=about or option.about,
    )  # fmt: skip


def job_options(verb: str) -> Callable[[F], F]:
    return all_of(*map(click_option, _job_line().rows_of(verb)))


def connect(*, may_start: bool = True) -> Connection:
    """Return a connection to the daemon that the command line names. Unless `may_start` is false,
    a user's own daemon is started if no daemon is running."""
    named = click.get_current_context().find_root().obj
    return choose(named, start=_start_own if may_start else None)


def _start_own(socket_path: Path) -> None:
    from drfd_cli.submission.sending import start_own

    start_own(socket_path)


# -- the options that select ended jobs -------------------------------------------------------

MOMENT = QuantityParam("TIME", parse_past)
#: The arguments and options that select ended jobs.
past_options = all_of(
    job_ids(required=False, only_read=True),
    filter_options(states="Jobs with this end state."),
    click.option("-a", "--all", "everybody", is_flag=True, help="Jobs of all users."),
    click.option("-p", "--pool", help="Jobs of this pool and those below it."),
    click.option("--since", type=MOMENT, help="Jobs ended since: 2026-03-01, 14:30, 7d."),
    click.option("--until", type=MOMENT, help="Jobs ended before."),
)


def past_selection(client: Connection, **asked: Any) -> dict[str, object]:
    """Return the field `past` of a request, from the values of `past_options`. Without a user, ids
    or --all it selects the jobs of the user who asks, or all jobs if that is an administrator.
    Raises UsageError."""
    since_s, until_s, user = asked.pop("since"), asked.pop("until"), asked["user"]
    everybody = asked.pop("everybody")
    if since_s is not None and until_s is not None and since_s >= until_s:
        raise click.UsageError("--since is not before --until")
    if user is not None and everybody:
        raise click.UsageError("--user and --all exclude each other")
    if user is None and not everybody and not asked["ids"]:
        me = client.request("hello")
        user = None if me["admin"] else me["user"]
    return selection({**asked, "user": user, "since_s": since_s, "until_s": until_s})

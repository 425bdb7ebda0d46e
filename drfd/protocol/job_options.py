"""The options of a job: the one list of what can be requested for it.

`drf submit`, `run`, `profile` and `set`, #DRF lines, personal defaults and presets, `drf edit`,
`drf retry`, `drf show`, completion, the manual and the Python client all follow it.
`drfd.client.option_values` reads and shows their values. Nothing slow is imported, because
`drf submit` loads this module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Headings of the help.
RESOURCES, CONDITIONS, OTHERS = "Resources", "When it runs", "Options"
_ALL, _BOTH, _SUBMIT = ("submit", "run", "profile"), ("submit", "run"), ("submit",)
#: The help of `drf set` for an option that it has, if that is the same.
SAME = "same"


class Option:
    """A row of the table."""

    __slots__ = (
        *("names", "flag", "key", "setting", "kind", "field", "metavar", "about", "heading"),
        *("verbs", "is_default", "many", "bounds", "in_set", "is_common"),
    )

    def __init__(
        self, names: str, key: str, kind: str, field: str, metavar: str, about: str, heading: str,
        verbs: Collection[str], *, setting: str = "", is_default: bool = False, many: str = "",
        bounds: tuple[int, int] = (0, 0), in_set: str = "", is_common: bool = False,
    ) -> None:  # fmt: skip
        #: The short spelling, if there is one, and the long one.
        self.names = names.split()
        self.flag = self.names[-1]
        #: The keyword of the Python client, and the name of click's parameter.
        self.key = key
        #: The key in the user's own configuration.
        self.setting = setting or key
        #: What its value is: a key of `drfd.client.option_values.KINDS`.
        self.kind = kind
        #: The field of the request: of one that is an object, the value sets a part.
        self.field = field
        #: Its value in the help; "" for an option without a value.
        self.metavar = metavar
        self.about = about
        self.heading = heading
        self.verbs = verbs
        #: Whether it can stand in the user's own configuration outside presets: what belongs to
        #: one kind of job only would be a trap as a default.
        self.is_default = is_default
        #: How several values are written: "each" with an option of its own, or joined by this sign.
        self.many = many
        #: The least and the greatest whole number.
        self.bounds = bounds
        #: The help in `drf set`, or "" for what cannot be changed any more.
        self.in_set = about if in_set == SAME else in_set
        #: Whether scripts often have an option of that name, too.
        self.is_common = is_common


#: In the order of the help.
OPTIONS = (
    Option(
        "-c --cores", "cores", "cores", "demand", "CORES",
        "CPU cores: 4, 0.5, or a range 2..8.", RESOURCES, _ALL, is_default=True, in_set=SAME,
    ),
    Option(
        "-m --mem", "memory", "memory", "demand", "SIZE",
        "Memory, such as 16G.", RESOURCES, _ALL, is_default=True, in_set=SAME,
    ),
    Option(
        "--io", "io", "io", "demand", "[DISK=]READ[/WRITE]",
        "Disk bandwidth per second, once for each disk.", RESOURCES, _ALL,
        is_default=True, many="each", in_set=SAME,
    ),
    Option(
        "--gres", "gres", "gres", "demand", "NAME[=N]",
        "Countable resources: gpu=2, gpu=1,memory=20G.", RESOURCES, _ALL,
        many="each", in_set="Countable resources; gpu=0 is none.",
    ),
    Option(
        "--node", "node", "text", "node", "NAME",
        "Run on this machine only, of several.", RESOURCES, _ALL, is_common=True,
    ),
    Option(
        "--constraint", "constraint", "features", "features", "FEATURE,...",
        "Only machines with all of these features.", RESOURCES, _ALL, many="each", is_common=True,
    ),
    Option(
        "-t --time", "time", "limit", "time_limit_s", "TIME",
        "Wall time: 90s, 12h, unlimited.", RESOURCES, _ALL,
        is_default=True, in_set="Wall time: 90s, 12h, unlimited; +10m, -10m.",
    ),
    Option(
        "-n --name", "name", "text", "name", "TEXT",
        "Name of the job in lists.", OTHERS, _ALL, in_set="Other name of the job in lists.",
        is_common=True,
    ),
    Option(
        "--comment", "comment", "text", "comment", "TEXT",
        "Comment on the job, for lists and programs.", OTHERS, _BOTH,
        in_set="Other comment on the job; '' for none.",
    ),
    Option(
        "-p --pool", "pool", "pool", "pool", "TEXT",
        "The pool to charge.", RESOURCES, _ALL, is_default=True, in_set=SAME,
    ),
    Option(
        "--priority", "priority", "whole", "priority", "N",
        "Order of your jobs in the pool: higher first.", RESOURCES, _ALL,
        bounds=(-1_000_000, 1_000_000), in_set=SAME,
    ),
    Option(
        "--export", "export", "names", "", "NAMES",
        "Pass these variables although they look secret.", OTHERS, _ALL,
        is_default=True, many="each", is_common=True,
    ),
    Option(
        "--after", "after", "after", "after", "ID[:HOW],...",
        "After jobs have ended :ok (default), :any, :fail.", CONDITIONS, _BOTH,
        many="each", in_set=SAME,
    ),
    Option(
        "--if-never", "if_never", "if_never", "if_never", "WHAT",
        "If --after can never be met: cancel, or keep.", CONDITIONS, _BOTH,
    ),
    Option(
        "--begin", "begin", "begin", "begin_s", "TIME",
        "Not before 18:00, 6pm, now+2h, 2026-11-21T08:00, …", CONDITIONS, _BOTH,
        in_set="Not before 18:00, now+2h, …; '' for now.",
    ),
    Option(
        "-g --group", "group", "group", "group", "NAME[%N]",
        "A group of your jobs; %2: two at a time.", CONDITIONS, _BOTH,
        in_set="Another group of yours; '' for none.", is_common=True,
    ),
    Option(
        "--retry", "retry", "retry", "retry", "N",
        "Run again after a failure, up to N times.", CONDITIONS, _BOTH, bounds=(0, 1000),
    ),
    Option(
        "--retry-on", "retry_on", "outcomes", "retry", "WHAT,...",
        "Retry fail,launch,lost (default),timeout,memory,limit.", CONDITIONS, _BOTH, many=",",
    ),
    Option(
        "--warn", "warn", "warning", "warn", "SIGNAL@TIME",
        "Send a signal before the time limit: USR1@60.", CONDITIONS, _BOTH,
    ),
    Option(
        "--array", "array", "array", "array", "INDICES",
        "A task per index: 0-99, 1,3,7-20; %5: 5 at a time.", CONDITIONS, _SUBMIT,
    ),
    Option("--hold", "hold", "flag", "held", "", "Hold until `drf release`.", CONDITIONS, _SUBMIT),
    Option(
        "--preemptible", "preemptible", "flag", "preemptible", "",
        "May be stopped for other users, and run again.", CONDITIONS, _SUBMIT,
    ),
    Option(
        "--notify", "notify", "events", "notify", "WHEN",
        "Send mail at: start,end,fail.", OTHERS, _SUBMIT, is_default=True, many=",",
    ),
    Option(
        "--notify-command", "notify_command", "command", "notify", "CMD",
        "Run this shell command instead of sending mail.", OTHERS, _SUBMIT, is_default=True,
    ),
    Option(
        "-o --output", "stdout", "file", "stdout", "FILE",
        "File for output and errors: %j id, %A_%a task.", OTHERS, _SUBMIT,
        setting="output", is_default=True, is_common=True,
    ),
    Option(
        "-e --error", "stderr", "file", "stderr", "FILE",
        "Separate file for errors.", OTHERS, _SUBMIT, setting="error", is_common=True,
    ),
    Option(
        "--append", "append", "flag", "append", "",
        "Append to the output file.", OTHERS, _SUBMIT, is_common=True,
    ),
    Option(
        "--output-max", "output_max", "size", "output_max_bytes", "SIZE",
        "Stop the job when its output exceeds SIZE.", OTHERS, _SUBMIT,
        is_default=True,
    ),
)  # fmt: skip

BY_KEY = {option.key: option for option in OPTIONS}


def by_name(options: Iterable[Option]) -> dict[str, Option]:
    """Return options by their spellings."""
    return {name: option for option in options for name in option.names}


def options_of(verb: str) -> dict[str, Option]:
    """Return the options of `submit`, `run` or `profile` by their spellings."""
    return by_name(option for option in OPTIONS if verb in option.verbs)


def of_field(field: str) -> list[Option]:
    """Return the options that set a field of the request, or a part of it."""
    return [option for option in OPTIONS if option.field == field]

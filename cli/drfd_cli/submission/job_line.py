"""A command line that makes a job: its options, its command, and the lines of its script.

The one reader of them, for `drf submit`, `run` and `profile`, `sbatch` and `srun`, #DRF lines,
presets, `drf retry --with` and `drf edit`. Click only has their help, and completes words.

Only modules that Python loads in a millisecond are imported, as scripts wait for each start of
`drf submit`: neither regular expressions nor click.
"""

from __future__ import annotations

import os
import sys
from _collections_abc import Sequence

from drfd.client.option_values import read as read_value
from drfd.common.errors import ConfigError, Refused
from drfd.protocol.job_options import OPTIONS, OTHERS, Option, by_name
from drfd_cli import personal
from drfd_cli.submit_warnings import option_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from drfd.client.connection import Connection
    from drfd_cli.personal import UserSetting
    from drfd_cli.slurm.sbatch_options import Translation

_SUBMIT, _RUN, _BOTH = ("submit",), ("run",), ("submit", "run")


def _control(
    names: str,
    about: str,
    verbs: Sequence[str],
    kind: str = "flag",
    metavar: str = "",
    key: str = "",
) -> Option:
    """Return an option that is no property of a job; its usual key is its long name."""
    key = key or names.rpartition("--")[2].replace("-", "_")
    return Option(names, key, kind, "", metavar, about, OTHERS, verbs)


#: Options of the verbs that are no property of a job.
CONTROLS = (
    _control("--preset", "The options of a preset in your config.toml.", _BOTH, "text", "NAME"),
    _control("--no-warnings", "Print no warnings.", (*_BOTH, "profile")),
    _control("--dry-run", "Submit nothing; print when the job would start.", _SUBMIT),
    _control("--pty", "Give the job a terminal, which `drf attach` shows.", _SUBMIT),
    _control("-w --wait", "Wait for its end; exit with its exit code.", _SUBMIT),
    _control("-q --quiet", "Print only the id.", _SUBMIT),
    _control("-q --quiet", "Do not print why the job waits.", _RUN),
    _control("--wrap", "Run this line with sh: 'CMD | CMD'.", _SUBMIT, "text", "LINE"),
    _control("--ignore-sbatch", "Ignore the #SBATCH lines of the script.", _SUBMIT),
    _control("--json", "Print JSON for programs.", _SUBMIT, key="as_json"),
    _control("--escape", "First character of escapes (~), or none.", _RUN, "sign", "SIGN"),
)
_HELP = ("-h", "--help")
#: The name of a script that was read from there.
STANDARD_INPUT = "stdin"
#: Longest script.
SCRIPT_MAX_BYTES = 512 << 10


class WrongWords(ValueError):
    """Words that are no options or values of the verb; the text says what is wrong."""

    verb = "submit"


class HelpAsked(Exception):
    """The words ask for the help."""


class Words:
    """The words of a command line."""

    def __init__(self) -> None:
        #: Option → the texts of its values, none for a flag; of several occurrences the last
        #: counts, or each.
        self.texts: dict[Option, list[str]] = {}
        #: The command, or a script and its arguments.
        self.argv: list[str] = []
        #: Whether it stands after `--`, so that it is no script.
        self.is_dashed = False

    def add(self, option: Option, text: str | None) -> None:
        before = self.texts.get(option, []) if option.many == "each" else []
        self.texts[option] = [*before, *([] if text is None else [text])]

    def has(self, key: str) -> bool:
        return any(option.key == key for option in self.texts)

    def text_of(self, key: str) -> str | None:
        return next((texts[-1] for option, texts in self.texts.items() if option.key == key), None)


class JobLine:
    """What a command line asks for."""

    def __init__(self, verb: str, values: dict[str, Any], argv: list[str]) -> None:
        self.verb = verb
        #: The values of all options of the verb, by key: None, or False for a flag, if not given.
        self.values = values
        self.argv = argv
        #: The text of the script that `argv` names, if it names one.
        self.script: str | None = None
        #: Personal defaults and settings of a preset that count.
        self.settings: list[UserSetting] = []
        #: What #SBATCH lines ask for.
        self.slurm: Translation | None = None
        #: How values that could mean something else are read.
        self.remarks: list[str] = []


def rows_of(verb: str) -> list[Option]:
    """Return the options of `submit`, `run` or `profile`, in the order of the help."""
    return [option for option in (*OPTIONS, *CONTROLS) if verb in option.verbs]


def split(verb: str, args: Sequence[str]) -> Words:
    """Read the words after the verb. Raises WrongWords; HelpAsked if an option asks for the
    help."""
    known = by_name(rows_of(verb))
    found = Words()
    left = iter(args)
    for word in left:
        if word == "--":
            found.argv, found.is_dashed = [*left], True
        elif word[:1] != "-" or word == "-":
            found.argv = [word, *left]
        elif word.startswith("--"):
            name, sign, text = word.partition("=")
            _add(found, known, name, text if sign else None, left)
        else:
            # Flags may be joined, and an option with its value.
            for at in range(1, len(word)):
                rest = word[at + 1 :]
                if _add(found, known, f"-{word[at]}", rest or None, left):
                    break
    return found


def _add(
    found: Words, known: dict[str, Option], name: str, text: str | None, left: Iterable[str]
) -> bool:
    """Add an option; without a text, its value is the next of the words that are left. Return
    whether it has taken a value."""
    option = known.get(name)
    if option is None:
        if name in _HELP:
            raise HelpAsked
        from drfd_cli.habits import unknown_option

        raise WrongWords(unknown_option(name, known))
    if option.kind == "flag":
        if text is not None and name.startswith("--"):
            raise WrongWords(f"Option '{name}' does not take a value.")
        found.add(option, None)
        return False
    value = next(iter(left), None) if text is None else text
    if value is None:
        raise WrongWords(f"Option '{name}' requires an argument.")
    found.add(option, value)
    return True


def only_options(verb: str, words: Sequence[str]) -> Words:
    """Read words that are options. Raises WrongWords."""
    try:
        found = split(verb, words)
    except HelpAsked:
        found = None
    if found is None or found.argv or found.is_dashed:
        raise WrongWords(f"only options of drf {verb} can stand here")
    return found


def values_of(words: Words, client: Connection) -> dict[str, Any]:
    """Return the values of the options that are given. Raises WrongWords."""
    values: dict[str, Any] = {}
    for option, texts in words.texts.items():
        if option.kind == "flag":
            values[option.key] = True
            continue
        try:
            read = [_value(option, text, client) for text in texts]
        except Refused as error:
            names = " / ".join(f"'{name}'" for name in option.names)
            raise WrongWords(f"Invalid value for {names}: {_fault(error)}") from None
        is_many = option.many == "each"
        values[option.key] = [each for some in read for each in some] if is_many else read[-1]
    return values


def _value(option: Option, text: str, client: Connection) -> Any:
    if option.kind == "sign":
        return read_sign(text)
    try:
        return read_value(option, text)
    except Refused:
        if option.kind != "after":
            raise
    # Names of jobs, and Slurm's words.
    from drfd_cli.which_job import read_after

    return read_after(lambda: client, text)


def read_sign(text: str) -> str:
    if text != "none" and (len(text) != 1 or not text.isascii() or not text.isprintable()):
        raise Refused("bad-value", "one sign such as ~, or none")
    return text


def _fault(error: Refused) -> str:
    """Return what is wrong with a value, without the name of its option."""
    hint = f" ({error.hint})" if error.hint else ""
    return f"{error.text.partition(': ')[2] or error.text}{hint}"


def check_options(words: Sequence[str], client: Connection) -> None:
    """Raise WrongWords unless all words are options of `drf submit` with valid values."""
    values_of(only_options("submit", words), client)


def line_of(verb: str, args: Sequence[str], client: Connection) -> JobLine:
    """Read the words after the verb as they are: without personal defaults, and without a look at
    a script. Raises WrongWords."""
    return _line(verb, split(verb, args), client)


def _line(verb: str, words: Words, client: Connection) -> JobLine:
    values = {each.key: False if each.kind == "flag" else None for each in rows_of(verb)}
    given = values_of(words, client)
    if "retry_on" in given and "retry" not in given:
        raise WrongWords("--retry-on says when to try again; --retry N how often")
    line = JobLine(verb, {**values, **given}, words.argv)
    line.remarks = remarks(words)
    return line


def read(verb: str, args: Sequence[str], client: Connection) -> JobLine:
    """Read the words after the verb, with the options of a script's lines and the user's own
    settings, which lose to what is typed. Raises WrongWords, HelpAsked, Refused and ConfigError."""
    try:
        return _read(verb, args, client)
    except WrongWords as error:
        error.verb = verb
        raise


def _read(verb: str, args: Sequence[str], client: Connection) -> JobLine:
    words, script, slurm = split(verb, args), None, None
    if verb == "submit":
        if not words.is_dashed:
            # What is wrong with them is told before what is wrong with a script.
            values_of(words, client)
        words.argv, script = _program(words)
    elif not words.argv:
        raise WrongWords(f"say what to run: drf {verb} -- COMMAND")
    if script is not None:
        name = words.argv[0]

        def check(options: list[str]) -> None:
            check_options(options, client)

        if "#SBATCH" in script and not words.has("ignore_sbatch"):
            from drfd_cli.slurm.batch_script import lines_of

            slurm = lines_of(script, name, check)
        own = directives(script, name, check)
        words = _joined(only_options(verb, [*([] if slurm is None else slurm.words), *own]), words)
    settings = _settings(verb, words, client) if verb != "profile" else []
    first = only_options(verb, [each.word for each in settings])
    line = _line(verb, _joined(first, words), client)
    line.script, line.slurm, line.settings = script, slurm, settings
    return line


def _joined(first: Words, then: Words) -> Words:
    """Return words with others before them."""
    found = Words()
    found.argv, found.is_dashed = then.argv, then.is_dashed
    for words in (first, then):
        for option, texts in words.texts.items():
            for text in texts or (None,):
                found.add(option, text)
    return found


def _settings(verb: str, words: Words, client: Connection) -> list[UserSetting]:
    """Return the personal defaults, and those of the preset, that count: of an option that the
    words have, only where each occurrence adds something. Raises ConfigError."""
    preset = words.text_of("preset")
    try:
        found = personal.chosen(verb, preset, os.environ)
    except personal.NotOwn as error:
        if preset is not None:
            raise
        say(str(error))
        return []
    options = by_name(rows_of(verb))
    counting: dict[str, UserSetting] = {}
    for setting in found:
        option = options[setting.option]
        if setting.value is not None:
            try:
                _value(option, setting.value, client)
            except Refused as error:
                raise ConfigError("config", f"{setting.place}: {_fault(error)}") from None
        if option.many == "each" or not words.has(option.key):
            key = setting.word if option.many == "each" else setting.option
            counting[key] = setting
    return list(counting.values())


def remarks(words: Words) -> list[str]:
    """Return a line for each time that could mean something else: of a bare number, which is a
    mistake in scripts, too, always (in Slurm it means minutes), otherwise for a person at a
    terminal."""
    text, unclear = (words.text_of("time") or "").strip(), None
    if text.isdecimal() or (":" in text and sys.stderr.isatty()):
        from drfd.common.units import doubt

        unclear = doubt(text)
    found = [f"time: {unclear}" if unclear else None, remark_on_start(words.text_of("begin"))]
    return [each for each in found if each is not None]


def remark_on_start(text: str | None) -> str | None:
    """Return that a time of the day is tomorrow's, for a person at a terminal."""
    if not text or not sys.stderr.isatty():
        return None
    import time

    from drfd.client.words import is_clock, parse_begin

    begin = time.localtime(parse_begin(text))
    if not is_clock(text) or begin.tm_yday == time.localtime().tm_yday:
        return None
    return f"begin: {text.strip()} is tomorrow, {time.strftime('%Y-%m-%d %H:%M:%S', begin)}"


def say(text: str) -> None:
    """Print a message on stderr, in one line."""
    if text.isascii() and text.isprintable() and len(text) < 1000:
        print(f"drf: {text}", file=sys.stderr)
    else:
        from drfd_cli.output import say as say_cleaned

        say_cleaned(text)


# -- scripts -------------------------------------------------------------------------------------


def _program(words: Words) -> tuple[list[str], str | None]:
    """Return the words of the command, and the text of the script that they name, if they do."""
    argv, wrap = words.argv, words.text_of("wrap")
    if wrap is not None:
        if argv:
            raise WrongWords("--wrap and a command exclude each other: give one of them")
        return ["sh", "-c", checked_wrap(wrap)], None
    if argv and words.is_dashed:
        return argv, None
    if argv and argv[0] != "-":
        return argv, read_script(argv[0])
    is_typed = sys.stdin is None or os.isatty(0)
    text = read_standard_input() if argv or not (is_typed or words.is_dashed) else ""
    if not text and not argv:
        raise WrongWords("say what to run: drf submit -- COMMAND")
    if not text:
        raise Refused("no-script", "standard input has no script")
    return [STANDARD_INPUT, *argv[1:]], text


def checked_wrap(line: str) -> str:
    if not line.strip():
        raise WrongWords("--wrap is empty")
    _refuse_returns(line, "--wrap", hint="leave out the carriage returns")
    return line


def read_script(name: str) -> str:
    try:
        with open(name, "rb") as file:
            data = file.read(SCRIPT_MAX_BYTES + 1)
    except OSError as error:
        raise Refused(
            "no-script",
            f"cannot read the script {_clean(name)}: {error.strerror}",
            hint="to run a command, write -- before it: drf submit -- CMD",
        ) from None
    return _script_text(data, name)


def read_standard_input() -> str:
    data = b""
    while len(data) <= SCRIPT_MAX_BYTES and (piece := os.read(0, 1 << 16)):
        data += piece
    return _script_text(data, STANDARD_INPUT)


def _script_text(data: bytes, name: str) -> str:
    """Return the text of a script, with a surrogate for each byte that is not UTF-8. Raises Refused
    for one that cannot be run."""
    if len(data) > SCRIPT_MAX_BYTES:
        text = f"the script {_clean(name)} has more than {SCRIPT_MAX_BYTES} bytes"
        raise Refused("too-long", text)
    if b"\0" in data:
        raise Refused(
            "no-script",
            f"{_clean(name)} is a program, not a script",
            hint=f"drf submit -- {_quoted(name)}",
        )
    if data.startswith(b"\xef\xbb\xbf"):
        raise Refused(
            "bad-value",
            f"the script {_clean(name)} begins with a byte order mark, which hides its first line",
            hint=_sed("1s/^\\xef\\xbb\\xbf//", name),
        )
    script = data.decode(errors="surrogateescape")
    if "\r" in script:
        _refuse_returns(script, f"the script {_clean(name)}", hint=_sed("s/\\r$//", name))
    return script


def _sed(change: str, name: str) -> str:
    is_file = name != STANDARD_INPUT
    return f"sed {'-i ' if is_file else ''}'{change}' {_quoted(name) if is_file else 'FILE'}"


def _quoted(name: str) -> str:
    from shlex import quote

    return quote(name)


def _clean(name: str) -> str:
    from drfd_cli.output import clean

    return clean(name)


def _refuse_returns(script: str, what: str, *, hint: str) -> None:
    """Raise Refused for carriage returns that would be a part of the interpreter's path, or of the
    words of a shell. Other interpreters take lines that end with them."""
    if "\r" not in script:
        return
    import re

    # The first line of a script that a shell runs; without any interpreter it is `sh`.
    is_of_shell = re.match(r"(?!#!)|#![^\n]*(?:/|[ \t])[a-z]*sh(?:[ \t\r\n]|$)", script)
    lines = f"{script}\n"
    if "\r\n" in (lines if is_of_shell else lines[: lines.index("\n") + 1]):
        raise Refused("bad-value", f"{what} has the line ends of Windows", hint=hint)


def directives(script: str, name: str, check: Callable[[list[str]], object]) -> list[str]:
    """Return the options of the #DRF lines before the script's first command. `check` raises
    ValueError for words that cannot stand there. Raises Refused with the line of an error."""
    before = f"{name}, " if name else ""
    words: list[str] = []
    for number, text in option_lines(script, "#DRF"):
        try:
            options = _shell_words(text)
            check(options)
        except ValueError as error:
            raise Refused("bad-value", f"{before}line {number}: {error}") from None
        words += options
    return words


def _shell_words(text: str) -> list[str]:
    """Return the words of a line by a shell's rules. Raises ValueError."""
    if text.isascii() and not any(sign in text for sign in "\"'\\#\v\f"):
        return text.split()
    from shlex import split as split_line

    return split_line(text, comments=True)

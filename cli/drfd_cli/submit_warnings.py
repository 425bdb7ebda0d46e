"""Warnings of what may keep a job from running, printed at its submission.

They are advice: by the time that the job starts, the command or the directory may be there.
Imports must stay few: `drf submit` loads this module.
"""

from __future__ import annotations

import os

from drfd.client.option_values import read as read_value
from drfd.common.errors import Refused
from drfd.payload.environment import DEFAULT_PATH
from drfd.payload.pack import usual_output
from drfd.payload.submitter import output_directory
from drfd.protocol.job_options import OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from drfd.payload.pack import Submission
    from drfd.protocol.job_options import Option


MARKS = ("#DRF", "#SBATCH")
#: What is blank in every locale; Unicode has more.
_BLANKS = " \t\v\f\r"


def option_lines(script: str, mark: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the options of each line with this mark before the first command."""
    for number, line in enumerate(script.split("\n"), 1):
        if line.strip(_BLANKS) and not line.lstrip(_BLANKS).startswith("#"):
            return
        if _is_marked(line, mark):
            yield number, line[len(mark) :].strip(_BLANKS)


def without_effect(script: str) -> Iterator[tuple[int, str, str]]:
    """Yield the number of each option line that is not read, its text, and the reason. What follows
    a here-document may be a part of it, for another script."""
    command = 0
    for number, line in enumerate(script.split("\n"), 1):
        text = line.strip(_BLANKS)
        if any(_is_marked(text, mark) for mark in MARKS):
            if command:
                yield number, text, f"it stands below the first command (line {command})"
            elif text[0] != line[0]:
                yield number, text, "it is indented"
        elif not command and (mark := _nearly(text)):
            yield number, text, f"{mark} begins such lines"
        elif text and text[0] != "#":
            command = command or number
            if "<<" in text:
                return


def _is_marked(line: str, mark: str) -> bool:
    following = line[len(mark) : len(mark) + 1]
    return line.startswith(mark) and not (following.isalnum() or following == "_")


def _nearly(text: str) -> str | None:
    """Return the mark that a comment line was meant to begin with, or None: it differs by case, a
    blank or `!`, or by a letter too many, too few or exchanged, and options follow. A second `#`
    is how people switch such a line off."""
    word, *options = text[1:].lstrip(_BLANKS + "!").split(None, 1)[:2] or [""]
    if text[:1] != "#" or text[1:2] == "#" or not options or len(options[0].split()[0]) < 2:
        return None
    if options[0][0] != "-":
        return None
    found, is_joined = word.upper(), text[1:].startswith(word)
    for mark in MARKS:
        meant = mark[1:]
        if found == meant or (is_joined and _is_like(found, meant)):
            return mark
    return None


def _is_like(word: str, meant: str) -> bool:
    long, short = (word, meant) if len(word) > len(meant) else (meant, word)
    if len(long) > len(short):
        return any(long[:at] + long[at + 1 :] == short for at in range(len(long)))
    return any(
        word == f"{meant[:at]}{meant[at + 1]}{meant[at]}{meant[at + 2 :]}"
        for at in range(len(meant) - 1)
    )


#: Most variables that are named.
_NAMED = 6
#: Options of `drf submit` that a script hardly has by the same name and with the same value.
_LONG_OPTIONS = frozenset(
    ("--preset", *(each.flag for each in OPTIONS if each.metavar and not each.is_common))
)
#: Those of them that have no value.
_FLAGS = frozenset(
    (
        "--dry-run",
        "--wait",
        *(each.flag for each in OPTIONS if not (each.metavar or each.is_common)),
    )
)
#: What begins the lines of options of other batch systems.
_OTHER_MARKS = frozenset(("#PBS", "#BSUB", "#flux:", "#FLUX:", "#$", "#OAR", "#COBALT"))
#: How the names of their variables begin, and some whole names.
_OTHER_VARIABLES = ("PBS_", "SGE_", "LSB_", "OAR_", "COBALT_", "PJM_")
_OTHER_NAMES = frozenset(("NSLOTS", "NHOSTS", "PE_HOSTFILE", "LS_SUBCWD"))
#: Short ones whose value must be an amount, for instance with a unit.
_SHORT_OPTIONS = {
    each.names[0]: each for each in OPTIONS if each.kind in ("cores", "memory", "limit")
}


def warnings_about(request: Submission) -> list[str]:
    """Return a line for each thing that may keep the job of this request from running as its
    submitter means it."""
    argv, env, cwd = request["argv"], request["env"], request["cwd"]
    path, script = env.get("PATH", DEFAULT_PATH), request.get("script")
    if script is None:
        found = [_about_command(argv, path, cwd)]
    else:
        found = [
            about_other_directives(script),
            _about_other_variables(script, env),
            _about_option_lines(script),
        ]
    if request.get("attach") is None:
        found += [*output_warnings(request), _about_directory(request)]
    return [text for text in found if text is not None]


def output_warnings(request: Submission) -> list[str]:
    """Return a line for each output file that cannot be written."""
    usual = f"{usual_output(is_array=request.get('array') is not None)}.out"
    stdout, stderr = request.get("stdout"), request["stderr"]
    # The option is "" if none was given.
    files = [("-o", stdout) if stdout else ("", usual)]
    files += [] if stderr == files[0][1] else [("-e", stderr)]
    found = [_about_output(option, each, request["cwd"]) for option, each in files]
    return [text for text in found if text is not None]


def _about_directory(request: Submission) -> str | None:
    """Return a line about output that goes to another directory than that of the job, or None."""
    cwd = request["cwd"]
    aside = output_directory(cwd, os.environ)
    if not aside or not (request.get("stdout") or "").startswith(aside):
        return None
    place = aside.replace("%%", "%")
    return f"output goes to {place}: anybody may make files in {cwd}; -o FILE names another place"


def about_other_directives(script: str) -> str | None:
    """Return a line about a script that was written for another batch system, or None.

    `script` is its text; `#SBATCH` lines, which are read, are not meant.
    """
    lines = script.split("\n")
    if any(line.startswith(MARKS) for line in lines):
        # The others are of the time before.
        return None
    for line in lines:
        mark = line.split(" ", 1)[0] if line.startswith("#") else ""
        if mark in _OTHER_MARKS:
            return (
                f"its {mark} lines have no effect here; options stand in #DRF or #SBATCH lines, "
                "or before the script"
            )
    return None


def _about_other_variables(script: str, env: Mapping[str, str]) -> str | None:
    """Return a line about variables of another batch system that the script uses as if they were
    set, or None: `cd $PBS_O_WORKDIR` goes to the home directory without a word."""
    if not any(each in script for each in (*_OTHER_VARIABLES, *_OTHER_NAMES)):
        return None
    # Imported here: it is slow to load and seldom needed.
    import re

    lines = [each for each in script.split("\n") if not each.lstrip(_BLANKS).startswith("#")]
    # What has another value in its place, or is asked for whether it is set, may be empty.
    used = re.findall(r"""(-[nz]["' ]*)?\$(\w+|{\w+(?![\w:+-]))""", "\n".join(lines), re.ASCII)
    names = {
        name: None for name in (use.lstrip("{") for is_asked, use in used if not is_asked)
        if (name.startswith(_OTHER_VARIABLES) or name in _OTHER_NAMES)
        and name not in env and f"{name}=" not in script
    }  # fmt: skip
    if not names:
        return None
    more = len(names) - _NAMED
    shown = ", ".join([*names][:_NAMED]) + (f" and {more} more" if more > 0 else "")
    return (
        f"the script uses {shown}, which another batch system sets: here a job begins in the "
        "directory of its submission, and DRF_CORES and DRF_ARRAY_INDEX tell its cores and index"
    )


def _about_option_lines(script: str) -> str | None:
    """Return a line about `#DRF` and `#SBATCH` lines that have no effect, or None."""
    found = list(without_effect(script))
    if not found:
        return None
    number, text, reason = found[0]
    more = f", nor have {len(found) - 1} more" if len(found) > 1 else ""
    return f"line {number} of the script ({text[:60]}) has no effect: {reason}{more}"


def about_script_words(
    script: str,
    argv: Sequence[str],
    *,
    called: str = "drf submit",
) -> str | None:
    """Return a line about options of the command `called` that were written after the script, or
    None.

    An option that the script itself mentions is the script's own. Its option lines mention those
    of the command, which its user may mean to override.
    """
    if "getopt" in script:
        return None
    own = "\n".join(line for line in script.split("\n") if not line.startswith(MARKS))
    name, *words = argv
    for at, word in enumerate(words):
        if word == "--":
            break
        option, _, value = word.partition("=")
        if option in own:
            continue
        following = words[at + 1] if at + 1 < len(words) else ""
        if word in _FLAGS:
            shown = word
        elif option in _LONG_OPTIONS:
            shown = option if following[:1] in ("", "-") else f"{option} {_typed(following)}"
        elif word in _SHORT_OPTIONS and _is_amount(_SHORT_OPTIONS[word], following):
            shown = f"{word} {following}"
        else:
            continue
        shown = f"{option}={_typed(value)}" if value else shown
        return (
            f"{shown} stands after the script and is an argument of it; "
            f"for drf it stands before: {called} {shown} {_typed(name)}"
        )
    return None


def _is_amount(option: Option, value: str) -> bool:
    if not value or (option.kind != "cores" and value.isdecimal()):
        return False
    try:
        read_value(option, value)
    except Refused:
        return False
    return True


def _about_command(argv: Sequence[str], path: str, cwd: str) -> str | None:
    name = argv[0]
    if "/" in name:
        file = os.path.join(cwd, name)
        if os.access(file, os.X_OK) and not os.path.isdir(file):
            return None
        if os.path.isdir(file):
            return f"{name} is a directory, not a command"
        if os.path.exists(file):
            way = f"chmod +x {_typed(name)}, or write its interpreter before it"
            return f"{name} is not executable; {way}"
        return f"there is no file {name}, which the job is to run"
    if name and _is_in(path, name, cwd):
        return None
    return f"there is no command {name} in the job's PATH"


def _typed(*words: str) -> str:
    """Return the words as a shell reads them."""
    # Imported here: it is slow to load and seldom needed.
    from shlex import join

    return join(words)


def _is_in(path: str, name: str, cwd: str) -> bool:
    return any(
        os.access(file, os.X_OK) and not os.path.isdir(file)
        for file in (os.path.join(cwd, directory, name) for directory in path.split(":"))
    )


def _about_output(option: str, pattern: str, cwd: str) -> str | None:
    path = os.path.join(cwd, pattern)
    directory, _, name = path.rpartition("/")
    # What %j and the like stand for is known only later.
    if "%" in directory.replace("%%", ""):
        return None
    directory = directory.replace("%%", "%") or "/"
    shown = f"{option} {pattern}" if option else "the job's output"
    if "%" not in name and os.path.exists(path):
        if os.path.isdir(path):
            return (
                f"{shown} is a directory; name a file in it: {option} "
                f"{_typed(pattern.rstrip('/') + '/%j.out')}"
            )
        return None if os.access(path, os.W_OK) else f"{shown}: you may not write to that file"
    # What is missing below it is made.
    while not os.path.lexists(directory):
        directory = os.path.dirname(directory)
    if not os.path.isdir(directory):
        return f"{shown}: {directory} is no directory"
    if not os.access(directory, os.W_OK | os.X_OK):
        way = "" if option else "; -o FILE names another place"
        return f"{shown}: you may not write to the directory {directory}{way}"
    return None

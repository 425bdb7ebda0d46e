"""The lines of a script that hold options: `#DRF` and `#SBATCH` lines before its first command.

A line ends at a line feed and nowhere else, as for the shell and for Slurm. An option line begins
at the margin, and no letter follows its mark. Imports must stay few: `drf submit` loads this
module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

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
        elif text and text[0] != "#":
            command = command or number
            if "<<" in text:
                return


def _is_marked(line: str, mark: str) -> bool:
    following = line[len(mark) : len(mark) + 1]
    return line.startswith(mark) and not (following.isalnum() or following == "_")

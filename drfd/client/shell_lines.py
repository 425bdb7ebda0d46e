"""Lines for a shell, as in `sh -c LINE`: the name that a job gets from one.

A line is read roughly, without quotes: what is not certain has no name. Imports must stay few:
`drf submit` loads this module for such commands.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "ash", "fish"))
#: Signs between two commands of a line.
_SEPARATORS = dict.fromkeys(map(ord, ";&|()\n"), "\n")
#: Words before a command, and commands that only prepare for the next one.
_PREFIXES = frozenset(
    (
        *("!", "{", "command", "do", "elif", "else", "env", "exec", "if", "nice", "nohup"),
        *("then", "time", "until", "while"),
    )
)
_PREPARATIONS = frozenset(
    (
        *(".", ":", "[", "[[", "cd", "conda", "export", "for", "mkdir", "module", "set"),
        *("shopt", "source", "test", "trap", "true", "ulimit", "umask", "unset"),
    )
)
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-")
_LONGEST = 40


def line_in(argv: Sequence[str]) -> str | None:
    """Return the line of `sh -c LINE`, with any shell and any options before it, or None."""
    if not argv or argv[0].rpartition("/")[2] not in _SHELLS:
        return None
    for at, word in enumerate(argv[1:], 1):
        if not word.startswith("-") or word.startswith("--"):
            return None
        if word.endswith("c"):
            return argv[at + 1] if at + 1 < len(argv) else None
    return None


def commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line, without variables set for it and words such as
    `then`."""
    for part in line.translate(_SEPARATORS).split("\n"):
        words = part.split()
        # Not one by one: a stranger's line may have a million of them.
        first = 0
        while first < len(words) and (words[first] in _PREFIXES or sets_variable(words[first])):
            first += 1
        if first < len(words):
            yield words[first:]


def sets_variable(word: str) -> bool:
    """Return whether a shell takes the word before a command as a variable's value."""
    name, sign, _ = word.partition("=")
    return bool(sign) and name.isidentifier() and name.isascii()


def name_of(argv: Sequence[str]) -> str | None:
    """Return the name of a job that runs a line of a shell: its first command, other than `cd` and
    the like. None if the command is no such line, or the first command is not a plain word."""
    line = line_in(argv)
    if line is None:
        return None
    for words in commands(line):
        if words[0] in _PREPARATIONS:
            continue
        name = words[0].rpartition("/")[2]
        return name if 0 < len(name) <= _LONGEST and _PLAIN.issuperset(name) else None
    return None

"""Decoding of a payload by the job's own process: see `drfd.payload.pack`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

from drfd.payload.pack import FIELDS, MAGIC
from drfd.payload.signs import Signs


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPayload:
    """A decoded payload."""

    argv: tuple[str, ...]
    cwd: str
    umask: int
    #: Output files with %-patterns, as in `output_path`.
    stdout: str
    stderr: str
    env: Mapping[str, str]
    #: The file that is run in place of argv[0].
    script: str | None = None
    #: The path and the first words of the script's interpreter; none to execute the script itself.
    interpreter: tuple[str, ...] = ()
    #: A socket where the submitter hands over its descriptors 0, 1 and 2 (`drf run`).
    attach: str | None = None
    #: The command that notifies the owner of the start or the end.
    notify: tuple[str, ...] = ()


def decode(data: bytes) -> LaunchPayload:
    """Decode a payload. Raises ValueError if it is not an output of `encode`."""
    magic, *fields = data.split(b"\0", FIELDS)
    if magic != MAGIC or len(fields) != FIELDS:
        raise ValueError("it is not what a job is started with")
    umask = _number(fields[0], base=8) & 0o777
    cwd, stdout, stderr, attach = map(_text, fields[1:5])
    *counts, has_script = map(_number, fields[5:10])
    *words, script = fields[10].split(b"\0", sum(counts))
    if len(words) != sum(counts):
        raise ValueError("it is cut short")
    texts = map(_text, words)
    argv, notify, variables, interpreter = (tuple(islice(texts, count)) for count in counts)
    env = [pair.partition("=") for pair in variables]
    if not all(name and sign for name, sign, _ in env):
        raise ValueError("a variable has no name or no value")
    return LaunchPayload(
        argv=argv,
        cwd=cwd,
        umask=umask,
        stdout=stdout,
        stderr=stderr,
        env={name: value for name, _, value in env},
        script=_text(script) if has_script else None,
        interpreter=interpreter,
        attach=attach or None,
        notify=notify,
    )


def arguments(own: bytes) -> list[str]:
    """Return the arguments in the first part of a payload (`drfd.payload.pack.encode`)."""
    return [_text(word) for word in own.split(b"\0")[FIELDS:-1]]


def output_path(pattern: str, cwd: str, signs: Signs) -> str:
    """Return an output path, relative to the cwd, with its %-patterns filled in."""
    path = filled(pattern, dict(zip(_LETTERS[1:], signs, strict=True)))
    return path if path.startswith("/") else f"{cwd.rstrip('/')}/{path}"


def may_be_output(path: str, pattern: str, cwd: str, name: str) -> bool:
    """Return False for a path that no output file with this pattern has, of a job with this name in
    the directory `cwd`. To fill in the signs takes several times as long."""
    return (
        ("%x" not in pattern or "%%" in pattern or name.replace("/", "_") in path)
        and (pattern.startswith("/") or path.startswith(cwd.rstrip("/")))
        and path.endswith(pattern[pattern.rfind("%") + 1 :].lstrip("0123456789")[1:])
    )


def is_named_by_id(pattern: str) -> bool:
    """Return whether an output file is named by the job's id. Others can guess that name, so the
    file must be the user's own."""
    return not {"%j", "%A"}.isdisjoint(signs_in(pattern.rpartition("/")[2]))


def is_own_file(status: os.stat_result) -> bool:
    """Return whether an open file is an ordinary one of this process's user, without another name:
    what else has the name of an output file may have been put there by another user."""
    is_own = status.st_uid == os.getuid() and status.st_nlink == 1
    return is_own and stat.S_ISREG(status.st_mode)


def signs_in(pattern: str) -> list[str]:
    """Return the %-signs in an output pattern, such as %j, without their widths."""
    return [f"%{letter or '%'}" for _, letter in _SIGN.findall(pattern) if letter in _LETTERS]


def filled(pattern: str, signs: Mapping[str, str]) -> str:
    """Return a pattern with the texts of its letters, and a percent sign for %%. A number has
    zeros before it up to the width that stands before its letter, but 10 at most, as in Slurm."""
    return _SIGN.sub(partial(_text_of, signs), pattern)


#: Longest number in a payload.
_MOST_DIGITS = 16
_SIGN = re.compile("%(?:%|([0-9]*)([A-Za-z]))")
_LETTERS = ("", *"jAaxu")
_OF_NUMBERS = "jAaJtns"


def _text_of(signs: Mapping[str, str], found: re.Match[str]) -> str:
    width, letter = found.groups()
    if letter is None:
        return "%"
    text = signs.get(letter)
    if text is None:
        return found[0]
    return text.zfill(min(10, int(width.lstrip("0")[:2] or 0))) if letter in _OF_NUMBERS else text


def _number(digits: bytes, base: int = 10) -> int:
    if not digits.isdigit() or len(digits) > _MOST_DIGITS or int(max(digits)) - 48 >= base:
        raise ValueError("it is not what a job is started with")
    return int(digits, base)


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")

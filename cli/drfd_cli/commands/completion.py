"""What TAB offers in bash, zsh and fish, by click's own completion; drf completion: the scripts for
it, printed or set up for the user.

A shell runs `drf` with the variable `_DRF_COMPLETE`; click finds the parameter at the cursor, which
has the words of this module. An error offers nothing: the user is typing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from drfd.client.words import IF_NEVER, OUTCOMES
from drfd.common.errors import DrfdError, Refused
from drfd_cli import output
from drfd_cli.options import KeysParam

#: The shells, and the file below a prefix such as /usr/local or ~/.local in which each looks.
PLACES = {
    "bash": "share/bash-completion/completions/drf",
    "zsh": "share/zsh/site-functions/_drf",
    "fish": "share/fish/vendor_completions.d/drf.fish",
}
#: Seconds that the daemon may take to answer, and the most jobs that are offered.
_ANSWER_S, _MOST_JOBS = 1, 100
#: The verbs that act on jobs in some states alone.
_MEANT: dict[str, Collection[str]] = {
    "cancel": output.LIVE, "set": output.LIVE, "retry": (*output.ENDED, "array"),
    "hold": ("PENDING",),
    "release": ("HELD",), "resume": ("SUSPENDED",), "edit": output.WAITING,
    **dict.fromkeys(("signal", "suspend", "exec", "attach"), ("RUNNING",)),
}  # fmt: skip
#: What click's scripts lack: a value after `--option=` takes its own place only, also in bash, for
#: which `=` is a word by itself; in fish a description is cut at its first comma otherwise.
_MENDS = {
    "bash": (
        ("local response\n", r"""local response words="${COMP_WORDS[*]:0:COMP_CWORD + 1}"
    words="${words//$'\n='/=}" && words="${words//=$'\n'/=}"
    local ends="${words//[!$'\n']/}"
"""),
        ('"${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD', '"$words" COMP_CWORD=${#ends}'),
    ),
    "zsh": (
        ("local -a response", "local -a response; local option=${(M)words[CURRENT]#--*=}"),
        ('"$key"', '"$option$key"'),
        ("_path_files -f", "compset -P '--*='; _path_files -f"),
    ),
    "fish": (
        ('string split "," $completion', 'string split -m1 "," $completion'),
        ("set -l response", "set -l option (string match -r -- '^--[^=]*=' (commandline -t))"
         "; set -l response"),
        ("echo $metadata[2]", 'echo "$option$metadata[2]"'),
        ("__fish_complete_path $metadata[2]",
         'string replace -r "^" -- "$option" (__fish_complete_path $metadata[2])'),
    ),
}  # fmt: skip
#: Values, each with what it is.
Offered = Iterable[tuple[str, str]]


def script_of(program: click.Command, shell: str) -> str:
    """Return the script that a shell loads."""
    known = get_completion_class(shell)
    assert known is not None
    made = known(program, {}, "drf", "_DRF_COMPLETE")
    # Not `source`, which in bash looks at the version of a bash that may not be the user's.
    script = made.source_template.lstrip() % made.source_vars()
    for old, new in _MENDS[shell]:
        script = script.replace(old, new)
    return script


def offer(verb: str, command: click.Command) -> None:
    """Give the parameters of a verb, by their names, what is completed for them."""
    for param in command.params:
        name = param.name or ""
        if name in _FILES:
            complete: Callable[..., list[CompletionItem]] = _files
        elif name == "name" and "states" not in {each.name for each in command.params}:
            # The name of a new job.
            continue
        elif isinstance(param.type, KeysParam):
            complete = partial(_items, partial(_words, partial(_always, param.type.known)))
        elif name in ("ids", "job_id", "after"):
            complete = partial(_items, partial(_ids, verb if name != "after" else ""))
        elif name in _VALUES:
            complete = partial(_items, partial(_words, _VALUES[name]))
        else:
            continue
        setattr(param, "shell_complete", complete)  # noqa: B010  # over a method, as click does


def _items(
    values: Callable[..., Offered], ctx: click.Context, incomplete: str
) -> list[CompletionItem]:
    """Return what begins as the word at the cursor, or the part of it after the last comma; nothing
    in it acts on a terminal."""
    before, comma, incomplete = incomplete.rpartition(",")
    try:
        found = [(output.clean(value), about) for value, about in values(ctx, incomplete)]
    except (DrfdError, OSError, ValueError):
        return []
    return [
        CompletionItem(f"{before}{comma}{value}", help=output.clean(about))
        for value, about in found
        if value.startswith(incomplete) and value not in before.split(",")
    ]


def _variables(ctx: click.Context) -> Iterable[str]:
    return sorted(os.environ)


def _always(words: Iterable[str], _: click.Context) -> Iterable[str]:
    return words


def _of_daemon(key: str, ctx: click.Context) -> Iterable[str]:
    found: Iterable[str] = _recent(ctx)[key]
    return found


def _words(
    values: Callable[[click.Context], Iterable[str]], ctx: click.Context, incomplete: str
) -> Offered:
    return [(word, "") for word in values(ctx)]


#: Parameters whose values are files, as the words of a command may be.
_FILES = ("command", "stdout", "stderr", "directory", "trace")


def _files(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _recent(ctx: click.Context) -> dict[str, Any]:
    """Return the daemon's reply about the user's latest jobs. No daemon is started for it."""
    import socket

    from drfd.client.connection import choose
    from drfd.common.quick_json import decode
    from drfd_cli.terminal.sockets import connect_in_line

    path = choose(ctx.find_root().params.get("socket"), start=None).path
    with socket.socket(socket.AF_UNIX) as connection:
        connect_in_line(connection, str(path), _ANSWER_S)
        connection.sendall(b'{"op":"recent","v":1,"limit":%d}\n' % _MOST_JOBS)
        reply = decode(connection.makefile("rb").readline())
    if not isinstance(reply, dict) or reply.get("ok") is not True:
        raise ValueError("no answer")
    return reply


def _ids(verb: str, ctx: click.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield the jobs that the verb may be about: by id, or by name if a letter has been typed."""
    meant = _MEANT.get(verb)
    recent, typed = _recent(ctx)["recent"], ctx.params.get("ids") or ()
    found = [each for each in recent if meant is None or each["state"] in meant]
    found = [each for each in found if not {str(each["id"]), each["name"]}.intersection(typed)]
    if not incomplete or incomplete[0].isdigit():
        yield from ((str(each["id"]), f"{each['name']} {each['state']}") for each in found)
        return
    if incomplete[0] == "@":
        yield "@-1", "the latest job"
    names = [each["name"] for each in found]
    # A name is of use only if it means one job; shells insert it without quotes.
    yield from ((name, "") for name in names if names.count(name) == 1 and quote(name) == name)


def _names(ctx: click.Context) -> Iterable[str]:
    names = dict.fromkeys(each["name"] for each in _recent(ctx)["recent"])
    return [name for name in names if quote(name) == name]


def _signals(ctx: click.Context) -> Iterable[str]:
    from signal import Signals

    return sorted(each.name.removeprefix("SIG") for each in Signals)


def _presets(ctx: click.Context) -> Iterable[str]:
    from drfd_cli.personal import read

    return read(os.environ).presets


_VALUES: dict[str, Callable[[click.Context], Iterable[str]]] = {
    "name": _names,
    "pool": partial(_of_daemon, "pools"),
    "group": partial(_of_daemon, "groups"),
    "user": partial(_of_daemon, "users"),
    "gres": partial(_of_daemon, "gres"),
    "preset": _presets,
    "signal": _signals,
    "number": _signals,
    "export": _variables,
    "retry_on": partial(_always, OUTCOMES),
    "if_never": partial(_always, IF_NEVER),
}


#: Loads completions from PLACES by itself, where it is there.
BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")
_MARK = "# completion of drf"


@click.command("completion")
@click.argument("shell", type=click.Choice(tuple(PLACES)), required=False)
@click.option("--install", is_flag=True, help="Install it in your home directory.")
@click.pass_context
def command(context: click.Context, /, shell: str | None, install: bool) -> None:
    """Print the script with which a shell completes verbs, options, jobs, pools, users, resources
    and signals. Without an argument, it is for the shell that the variable SHELL names."""
    if shell is None:
        shell = os.path.basename(os.environ.get("SHELL", ""))
        if shell not in PLACES:
            raise click.UsageError(f"say for which shell: {', '.join(PLACES)}")
    script = script_of(context.find_root().command, shell)
    if not install:
        click.echo(script, nl=False)
        return
    home = os.environ.get("HOME", "")
    if not home.startswith("/"):
        raise Refused("no-home", "the variable HOME names no directory to set it up in")
    file, startup, line = places(shell, Path(home))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script)
    output.tell(f"wrote {file}")
    if startup is not None and _add_line(startup, line):
        output.tell(f"added a line to {startup}")
    output.tell(f"each new {shell} has it")


def places(shell: str, home: Path) -> tuple[Path, Path | None, str]:
    """Return the file for the script, and the startup file with the line that loads it, if the
    shell does not look there by itself."""
    environ = os.environ
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
    if shell == "fish":
        config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        return config / "fish/completions/drf.fish", None, ""
    script = data / PLACES[shell].removeprefix("share/")
    if shell == "bash":
        startup = None if BASH_COMPLETION.exists() else home / ".bashrc"
        return script, startup, f'[ -r "{script}" ] && . "{script}"  {_MARK}'
    startup = Path(environ.get("ZDOTDIR") or home) / ".zshrc"
    begin = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }"
    return script, startup, f'[[ -r "{script}" ]] && {{ {begin}; . "{script}"; }}  {_MARK}'


def _add_line(startup: Path, line: str) -> bool:
    """Append the line to the file unless it has such a line. Return whether it was added."""
    text = startup.read_text(errors="surrogateescape") if startup.exists() else ""
    if _MARK in text:
        return False
    end = "\n" if text and not text.endswith("\n") else ""
    with startup.open("a") as file:
        file.write(f"{end}{line}\n")
    return True

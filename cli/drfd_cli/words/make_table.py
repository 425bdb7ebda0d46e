"""The table of verbs and options for completion, made from the commands themselves."""

from __future__ import annotations

import click

from drfd_cli.words.table import Table

#: The kind of the value of a parameter, by its name.
_KINDS = {
    "pool": "pools", "user": "users", "gres": "gres", "after": "id", "ids": "id", "job_id": "id",
    "signal": "signal", "number": "signal", "export": "variable", "preset": "preset",
    "stdout": "file", "stderr": "file", "socket": "file", "directory": "file", "trace": "file",
    "command": "file", "verb": "verb",
}  # fmt: skip
#: The verbs whose option --name selects jobs.
_SELECTING = ("status", "cancel", "hold", "release", "suspend", "resume", "signal", "set",
              "history", "report")  # fmt: skip


def make_table(program: click.Group) -> Table:
    """Return the table of a program whose verbs have short help texts."""
    context = click.Context(program)
    table: Table = {"": _entry("", program, "")}
    for verb in program.list_commands(context):
        command = program.get_command(context, verb)
        assert command is not None
        table[verb] = _entry(verb, command, command.short_help or "")
    table["help"] = {"about": "the help of a verb", "options": {}, "arguments": ["verb"]}
    return table


def _entry(verb: str, command: click.Command, about: str) -> dict[str, object]:
    options: dict[str, tuple[str, str]] = {}
    arguments = []
    for param in command.params:
        if isinstance(param, click.Option):
            if not param.hidden:
                kind = "" if param.is_flag or param.count else _kind(verb, param)
                for name in (*param.opts, *param.secondary_opts):
                    options[name] = kind, param.help or ""
        else:
            arguments.append(_kind(verb, param))
    options["--help"] = "", "Show this message and exit."
    return {"about": about, "options": options, "arguments": arguments}


def _kind(verb: str, param: click.Parameter) -> str:
    if isinstance(param.type, click.Choice):
        return f"choice:{','.join(map(str, param.type.choices))}"
    if param.name == "name" and verb in _SELECTING:
        return "jobname"
    return _KINDS.get(param.name or "", "value")

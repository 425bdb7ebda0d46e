"""The man pages: drf(1) from the commands themselves, the others from the README."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from drfd_cli.roff import from_markdown, plain, sections, styled
from drfd_cli.top.help import HELP

#: Page → its name line, and the sections of the README in it.
_FROM_README = {
    "drfd.8": ("drfd", "fair batch scheduler: the daemon", ["The daemon", "Administration"]),
    "drfd.toml.5": ("drfd.toml", "configuration of drfd", ["Configuration"]),
}
_SYNOPSIS = {
    "drfd.8": [
        "drfd serve [--config FILE] [--state DIR] [--socket PATH] [--launcher DIR]",
        "drfd launcher --state DIR --controller USER [--holder UNIT]",
        "drfd check-config FILE",
        "drfd calibrate [--config FILE] [--disk NAME] [--path DIR] [--json]",
        "drfd install [--prefix DIR] [--root DIR] [--dry-run]",
        "drfd uninstall [--kill-jobs] [--purge] [--root DIR] [--dry-run]",
    ],
    "drfd.toml.5": ["/etc/drfd/drfd.toml", "/etc/drfd/drfd.d/*.toml", "~/.config/drfd/drfd.toml"],
}
_SEE_ALSO = {
    "drf.1": "drfd(8), drfd.toml(5)",
    "drfd.8": "drf(1), drfd.toml(5), systemctl(1), journalctl(1)",
    "drfd.toml.5": "drf(1), drfd(8)",
}


def pages(cli: click.Group, readme: str, version: str) -> dict[str, str]:
    """File name → page."""
    parts = sections(readme)
    made = {"drf.1": _drf(cli, parts)}
    for page, (name, what, titles) in _FROM_README.items():
        made[page] = _join(
            _head(name, what, _SYNOPSIS[page]),
            *(f'.SH "{plain(title.upper())}"\n' + from_markdown(parts[title]) for title in titles),
        )
    return {
        page: _title(page, version) + body + f".SH SEE ALSO\n{_SEE_ALSO[page]}\n"
        for page, body in made.items()
    }


def _drf(cli: click.Group, parts: dict[str, str]) -> str:
    notes = parts["Commands"].rpartition("|\n")[2]
    return _join(
        _head("drf", "queue, watch and control batch jobs", ["drf [--socket PATH] COMMAND ..."]),
        ".SH DESCRIPTION\n" + from_markdown(cli.help or ""),
        ".SH OPTIONS\n" + _options(cli.params),
        ".SH COMMANDS\n" + "".join(_verbs(cli)),
        '.SH "WHAT A JOB DECLARES"\n' + from_markdown(parts["What a job declares"]),
        '.SH "KEYS OF DRF TOP"\n' + from_markdown("\n".join(["```", *HELP[1:], "```"])),
        ".SH NOTES\n" + from_markdown(notes),
        ".SH EXAMPLES\n" + from_markdown(parts["Five minutes"]),
    )


def _title(page: str, version: str) -> str:
    name, _, section = page.rpartition(".")
    # No date: the same release gives the same page.
    return f'.TH "{plain(name.upper())}" "{section}" "" "drfd {version}" "drfd"\n'


def _head(name: str, what: str, synopsis: Iterable[str]) -> str:
    lines = "\n.br\n".join(plain(line) for line in synopsis)
    return f".SH NAME\n{plain(name)} \\- {plain(what)}\n.SH SYNOPSIS\n{lines}\n"


def _verbs(cli: click.Group) -> Iterator[str]:
    above = click.Context(cli, info_name="drf")
    for verb in cli.list_commands(above):
        command = cli.get_command(above, verb)
        assert command is not None
        context = click.Context(command, info_name=verb, parent=above)
        usage = " ".join(["drf", verb, *command.collect_usage_pieces(context)])
        yield f'.SS "{plain(usage)}"\n{styled(" ".join((command.help or "").split()))}\n'
        yield _options(command.params)


def _options(params: Iterable[click.Parameter]) -> str:
    lines = []
    for param in params:
        if isinstance(param, click.Option) and not param.hidden:
            names = ", ".join([*param.opts, *param.secondary_opts])
            value = "" if param.is_flag else f" {_metavar(param)}"
            lines += [".TP", f"\\fB{plain(names)}\\fR{plain(value)}", styled(param.help or "")]
    return "".join(f"{line}\n" for line in lines)


def _metavar(param: click.Option) -> str:
    context = click.Context(click.Command("drf"))
    try:
        metavar = param.make_metavar(context)
    except TypeError:
        # Older releases of click take no context there.
        metavar = param.make_metavar()  # type: ignore[call-arg]
    return metavar.removesuffix(" RANGE")


def _join(*parts: str) -> str:
    return "".join(part if part.endswith("\n") else f"{part}\n" for part in parts)

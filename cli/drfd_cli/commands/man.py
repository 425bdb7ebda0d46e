"""drf man: the manual of a verb; or man pages and shell completions, written for installers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import metadata
from itertools import takewhile
from pathlib import Path

import click

import drfd
from drfd import __version__
from drfd.common.errors import Refused
from drfd_cli import output
from drfd_cli.top.keys import HELP
from drfd_cli.words.shells import PLACES, SCRIPTS

#: For each page: name, purpose, and the document whose sections it consists of.
_FROM_DOCUMENT = {
    "drfd.8": ("drfd", "fair batch scheduler: the daemon", "administration.md"),
    "drfd.toml.5": ("drfd.toml", "configuration of drfd", "configuration.md"),
}
#: Sections of the guide that belong to a verb, besides its row among the commands.
_SECTIONS = {
    **dict.fromkeys(("submit", "run"), ("What a job declares", "Conditions and retries")),
    "retry": ("Conditions and retries",),
    "wait": ("Exit codes",),
}
#: The documents that the pages are made from: README.md, and files of docs/.
DOCUMENTS = ("README.md", "guide.md", "administration.md", "configuration.md")
_SYNOPSIS = {
    "drfd.8": [
        "drfd serve [--config FILE] [--state DIR] [--socket PATH] [--launcher DIR] [--as-root]",
        "drfd check-config FILE",
        "drfd compact [--state DIR]",
        "drfd calibrate [--config FILE] [--disk NAME] [--path DIR] [--json]",
        "drfd gpus [--json]",
        "drfd slurm-conf [FILE] [--check] [--config FILE] [--dir DIR] [--socket PATH] "
        "[--starts DIR]",
        "drfd install [--prefix DIR] [--root DIR] [--dry-run]",
        "drfd uninstall [--kill-jobs] [--purge] [--root DIR] [--dry-run]",
    ],
    "drfd.toml.5": ["/etc/drfd/drfd.toml", "/etc/drfd/drfd.d/*.toml", "~/.config/drfd/drfd.toml"],
}
_SEE_ALSO = {
    "drf.1": "drf\\-submit(1) and so on for each command, drfd(8), drfd.toml(5)",
    "drfd.8": "drf(1), drfd.toml(5), systemctl(1), journalctl(1)",
    "drfd.toml.5": "drf(1), drfd(8)",
}


def pages(cli: click.Group, documents: Mapping[str, str], version: str) -> dict[str, str]:
    """Return the man pages by file name. `documents` has the text of each of `DOCUMENTS`."""
    made = {"drf.1": _drf(cli, sections(documents["README.md"]), sections(documents["guide.md"]))}
    made |= _verb_pages(cli, sections(documents["guide.md"]))
    for page, (name, what, document) in _FROM_DOCUMENT.items():
        made[page] = _join(
            _head(name, what, _SYNOPSIS[page]),
            *(
                f'.SH "{plain(title.upper())}"\n' + from_markdown(text)
                for title, text in sections(documents[document]).items()
            ),
        )
    return {
        page: _title(page, version)
        + body
        + f".SH SEE ALSO\n{_SEE_ALSO.get(page, 'drf(1), drfd(8)')}\n"
        for page, body in made.items()
    }


def _drf(cli: click.Group, readme: dict[str, str], guide: dict[str, str]) -> str:
    notes = guide["Commands"].rpartition("|\n")[2]
    return _join(
        _head("drf", "queue, watch and control batch jobs", ["drf [--socket PATH] COMMAND ..."]),
        ".SH DESCRIPTION\n" + from_markdown(cli.help or ""),
        ".SH OPTIONS\n" + _options(cli.params),
        ".SH COMMANDS\n" + "".join(_verbs(cli)),
        '.SH "WHAT A JOB DECLARES"\n' + from_markdown(guide["What a job declares"]),
        '.SH "KEYS OF DRF TOP"\n' + from_markdown("\n".join(["```", *HELP[1:], "```"])),
        ".SH NOTES\n" + from_markdown(notes),
        '.SH "EXIT CODES"\n' + from_markdown(guide["Exit codes"]),
        ".SH EXAMPLES\n" + from_markdown(readme["Five minutes"]),
    )


def _title(page: str, version: str) -> str:
    name, _, section = page.rpartition(".")
    # No date: the same release gives the same page.
    return f'.TH "{plain(name.upper())}" "{section}" "" "drfd {version}" "drfd"\n'


def _head(name: str, what: str, synopsis: Iterable[str]) -> str:
    lines = "\n.br\n".join(plain(line) for line in synopsis)
    return f".SH NAME\n{plain(name)} \\- {plain(what)}\n.SH SYNOPSIS\n{lines}\n"


def _verbs(cli: click.Group) -> Iterator[str]:
    for verb, command in _commands(cli):
        yield f'.SS "{plain(_usage(cli, verb, command))}"\n{_about(command)}\n'
        yield _options(command.params)


def _verb_pages(cli: click.Group, guide: dict[str, str]) -> dict[str, str]:
    """Return a page for each verb, by file name."""
    rows = _rows(guide["Commands"])
    made = {}
    for verb, command in _commands(cli):
        of_guide = {title: guide[title] for title in _SECTIONS.get(verb, ())}
        example = (command.epilog or "").removeprefix("Example: ")
        made[f"drf-{verb}.1"] = _join(
            _head(f"drf-{verb}", command.short_help or verb, [_usage(cli, verb, command)]),
            f".SH DESCRIPTION\n{_about(command)}",
            *([f".PP\n{styled(f'It {rows[verb]}.')}"] if verb in rows else []),
            ".SH OPTIONS\n" + _options(command.params),
            *(
                f'.SH "{plain(title.upper())}"\n' + from_markdown(text)
                for title, text in of_guide.items()
            ),
            f".SH EXAMPLE\n.EX\n{plain(example)}\n.EE",
        )
    return made


def _rows(commands: str) -> dict[str, str]:
    """Return what the guide's table of commands says of each verb that has a row of its own."""
    rows = (_cells(line) for line in commands.splitlines() if line.startswith("| `drf "))
    found = {}
    for first, text in ((row[0], "|".join(row[1:])) for row in rows):
        if first.count("`") == 2:
            found[first.strip("`").split()[1]] = text
    return found


def _commands(cli: click.Group) -> Iterator[tuple[str, click.Command]]:
    above = click.Context(cli, info_name="drf")
    for verb in cli.list_commands(above):
        command = cli.get_command(above, verb)
        assert command is not None
        yield verb, command


def _usage(cli: click.Group, verb: str, command: click.Command) -> str:
    context = click.Context(command, info_name=verb, parent=click.Context(cli, info_name="drf"))
    return " ".join(["drf", verb, *command.collect_usage_pieces(context)])


def _about(command: click.Command) -> str:
    return styled(" ".join((command.help or "").split()))


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
        metavar = param.make_metavar()  # type: ignore[call-arg]  # older click takes no context
    return metavar.removesuffix(" RANGE")


def _join(*parts: str) -> str:
    return "".join(part if part.endswith("\n") else f"{part}\n" for part in parts)


_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\([^)]*\)")
_LIST_ITEM = re.compile(r"[-*] ")


def sections(markdown: str) -> dict[str, str]:
    """Return the text below each heading of the second level, by heading."""
    parts = re.split(r"^## (.+)$", _outside_fences(markdown), flags=re.MULTILINE)
    return {
        title: body.replace("\0", "#").strip("\n")
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def from_markdown(text: str) -> str:
    """Return a text in Markdown as roff: paragraphs, lists, tables, code, third-level headings."""
    return "\n".join(_blocks(text.splitlines())) + "\n"


def plain(text: str) -> str:
    """Escape text, so that roff prints it as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def styled(text: str) -> str:
    """Return a line of Markdown as roff, with code and emphasis set bold."""
    found, end = [], 0
    for match in _INLINE.finditer(text):
        found.append(plain(text[end : match.start()]) if end or match.start() else "")
        found.append(f"\\fB{plain(match[1] or match[2] or match[3])}\\fR")
        end = match.end()
    rest = plain(text[end:])
    return "".join(found) + (rest.removeprefix("\\&") if found else rest)


def _outside_fences(markdown: str) -> str:
    """Replace each `#` that begins a line of code by NUL, because it is no heading."""
    pieces = markdown.split("```")
    pieces[1::2] = [re.sub(r"^#", "\0", piece, flags=re.MULTILINE) for piece in pieces[1::2]]
    return "```".join(pieces)


def _blocks(lines: list[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("```"):
            end = lines.index("```", at + 1)
            yield from (".PP", ".RS 4", ".EX", *map(plain, lines[at + 1 : end]), ".EE", ".RE")
            at = end + 1
        elif line.startswith("|"):
            rows = list(takewhile(lambda each: each.startswith("|"), lines[at:]))
            yield from _table(rows)
            at += len(rows)
        elif line.startswith("### "):
            yield f'.SS "{plain(line[4:])}"'
            at += 1
        elif _LIST_ITEM.match(line):
            yield from (".IP \\(bu 2", styled(line[2:]))
            at += 1
        elif not line.strip():
            at += 1
        else:
            prose = list(takewhile(_is_prose, lines[at:]))
            yield from (".PP", *map(styled, prose))
            at += len(prose)


def _is_prose(line: str) -> bool:
    is_special = line.startswith(("|", "```", "#")) or _LIST_ITEM.match(line)
    return bool(line.strip()) and not is_special


def _table(rows: list[str]) -> Iterator[str]:
    """Yield each row as its first cell and, below it, the other cells, headed by their columns if
    there are several."""
    head, _, *body = (_cells(row) for row in rows)
    for first, *others in body:
        yield from (".TP", styled(first) or "\\&")
        if len(others) == 1:
            yield styled(others[0])
        else:
            pairs = zip(head[1:], others, strict=True)
            yield styled("; ".join(f"{name}: {cell}" for name, cell in pairs))


def _cells(row: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", row.strip().strip("|"))
    return [cell.strip().replace("\\|", "|") for cell in cells]


@click.command("man")
@click.argument("verb", metavar="VERB|DIR", required=False)
@click.pass_context
def command(context: click.Context, /, verb: str | None) -> int | None:
    """Show the manual of a verb, of drf itself, of drfd or of drfd.toml; or write all man pages and
    the shell completions below DIR/share, if a directory is named (with a slash, or one that is
    there)."""
    root = context.find_root().command
    assert isinstance(root, click.Group)
    made = pages(root, _documents(), __version__)
    named = {name.rpartition(".")[0].removeprefix("drf-"): name for name in made}
    if verb is None or verb in named:
        return _show(made[named[verb or "drf"]])
    if "/" not in verb and not Path(verb).is_dir():
        raise Refused(
            "no-page", f"there is no manual of {output.clean(verb)}",
            hint="drf --help lists the verbs; to write all pages into a directory: "
            f"drf man ./{verb}",
        )  # fmt: skip
    files = {f"share/man/man{name[-1]}/{name}": text for name, text in made.items()}
    files |= {PLACES[shell]: script for shell, script in SCRIPTS.items()}
    for name, text in files.items():
        file = Path(verb) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return None


def _show(page: str) -> int:
    """Show a page with man(1), and return its exit code."""
    program = shutil.which("man")
    if program is None:
        raise Refused("no-man", "there is no man on this machine", hint="drf VERB --help")
    sys.stdout.flush()
    # A file, because some versions of man read no standard input.
    with tempfile.NamedTemporaryFile("w", prefix="drf-", suffix=".1") as file:
        file.write(page)
        file.flush()
        return subprocess.run([program, "-l", file.name], check=False).returncode


def _documents() -> dict[str, str]:
    """Return the documents that the man pages are made from, by file name.

    An installed package has docs/ inside it, and README.md as its description; a checkout has
    docs/ beside the package.
    """
    package = Path(drfd.__file__).parent
    docs = next(path for path in (package / "docs", package.parent / "docs") if path.is_dir())
    documents = {name: (docs / name).read_text() for name in DOCUMENTS if name != "README.md"}
    return {"README.md": str(metadata("drfd").json["description"]), **documents}

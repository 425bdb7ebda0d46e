"""drf man: the manual of a verb; or man pages and shell completions, written for installers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import takewhile
from pathlib import Path

import click

import drfd
from drfd import __version__
from drfd.common.errors import Refused
from drfd_cli import output
from drfd_cli.commands.completion import PLACES, script_of

#: The name and the purpose of each page, and the document of whose sections it consists.
_FROM_DOCUMENT = {
    "drfd.8": ("drfd", "fair batch scheduler: the daemon", "administration.md"),
    "drfd.toml.5": ("drfd.toml", "configuration of drfd", "configuration.md"),
}
#: The documents that pages are made of, files of docs/.
DOCUMENTS = ("reference.md", "administration.md", "configuration.md")
_SYNOPSIS = {
    "drfd.8": [
        "drfd serve [--config FILE] [--state DIR] [--socket PATH] [--launcher DIR] [--as-root]",
        "drfd check-config FILE",
        "drfd compact [--state DIR]",
        "drfd metrics [FILE] [--socket PATH]",
        "drfd schema config|VERB",
        "drfd calibrate [--config FILE] [--disk NAME] [--path DIR] [--json]",
        "drfd gpus [--json]",
        "drfd slurm-conf [FILE] [--dir DIR] [--socket PATH] [--starts DIR]",
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


def pages(
    cli: click.Group, documents: Mapping[str, str], version: str
) -> dict[str, Callable[[], str]]:
    """Return what makes each man page, by file name: of each verb what its help says, and
    `DOCUMENTS`, whose texts are given, as pages of their own."""
    above = click.Context(cli, info_name="drf", **cli.context_settings)
    made: dict[str, Callable[[], Iterable[str]]] = {
        "drf.1": partial(_drf, above, documents["reference.md"]),
        **{f"drf-{verb}.1": partial(_verb, above, verb) for verb in cli.list_commands(above)},
        **{page: partial(_document, page, documents) for page in _FROM_DOCUMENT},
    }

    def text(page: str) -> str:
        also = _SEE_ALSO.get(page, "drf(1), drfd(8)")
        return "\n".join([_title(page, version), *made[page](), ".SH SEE ALSO", also, ""])

    return {page: partial(text, page) for page in made}


def _drf(above: click.Context, reference: str) -> Iterator[str]:
    yield from _head(
        "drf", "queue, watch and control batch jobs", ["drf [--socket PATH] COMMAND …"]
    )
    yield from _help(above)
    yield from _commands(above, "drf ")
    yield '.SH "EXIT CODES"'
    yield from from_markdown(sections(reference)["Exit codes"])


def _document(page: str, documents: Mapping[str, str]) -> Iterator[str]:
    name, what, document = _FROM_DOCUMENT[page]
    yield from _head(name, what, _SYNOPSIS[page])
    for title, text in sections(documents[document]).items():
        yield f'.SH "{plain(title.upper())}"'
        yield from from_markdown(text)


def _title(page: str, version: str) -> str:
    name, _, section = page.rpartition(".")
    # No date: the same release gives the same page.
    return f'.TH "{plain(name.upper())}" "{section}" "" "drfd {version}" "drfd"'


def _head(name: str, what: str, synopsis: list[str]) -> list[str]:
    lines = "\n.br\n".join(map(plain, synopsis))
    return [".SH NAME", f"{plain(name)} \\- {plain(what)}", ".SH SYNOPSIS", lines]


def _verb(above: click.Context, verb: str) -> Iterator[str]:
    assert isinstance(above.command, click.Group)
    command = above.command.get_command(above, verb)
    assert command is not None
    context = click.Context(command, info_name=verb, parent=above)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from _head(f"drf-{verb}", command.short_help or verb, [usage])
    yield from _help(context)
    yield from _commands(context, "")
    example = (command.epilog or "").removeprefix("Example: ")
    yield from (".SH EXAMPLE", ".EX", plain(example), ".EE")


def _help(context: click.Context) -> Iterator[str]:
    command = context.command
    yield ".SH DESCRIPTION"
    for part in (command.help or "").split("\n\n"):
        # A sign at its begin has click leave the lines as they are.
        is_code = part.startswith("\b")
        lines = [plain(line.strip()) for line in part.splitlines()[1:]]
        yield from (
            (".PP", ".EX", *lines, ".EE") if is_code else (".PP", styled(" ".join(part.split())))
        )
    yield ".SH OPTIONS"
    for param in command.get_params(context):
        # Newer releases of click also return records of arguments, which the synopsis shows.
        record = param.get_help_record(context) if isinstance(param, click.Option) else None
        if record is not None:
            yield from (".TP", f"\\fB{plain(record[0])}\\fR", styled(record[1]))


def _commands(context: click.Context, before: str) -> Iterator[str]:
    """Yield the commands of a group, each with some words before its name."""
    if not isinstance(context.command, click.Group):
        return
    yield ".SH COMMANDS"
    for name in context.command.list_commands(context):
        command = context.command.get_command(context, name)
        assert command is not None
        about = command.short_help or command.get_short_help_str(200)
        yield from (".TP", f"\\fB{plain(before + name)}\\fR", styled(about))


_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\([^)]*\)")
_LIST_ITEM = re.compile(r"[-*] ")


def sections(markdown: str) -> dict[str, str]:
    """Return the text below each heading of the second level, by heading."""
    parts = re.split(r"^## (.+)$", markdown, flags=re.MULTILINE)
    return {title: body.strip("\n") for title, body in zip(parts[1::2], parts[2::2], strict=True)}


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


def from_markdown(text: str) -> Iterator[str]:
    """Yield a text in Markdown as roff: paragraphs, lists, tables, code, third-level headings."""
    at, lines = 0, text.splitlines()
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
        return _show(made[named[verb or "drf"]]())
    if "/" not in verb and not Path(verb).is_dir():
        raise Refused(
            "no-page", f"there is no manual of {output.clean(verb)}",
            hint="drf --help lists the verbs; to write all pages into a directory: "
            f"drf man ./{verb}",
        )  # fmt: skip
    files = {f"share/man/man{name[-1]}/{name}": make() for name, make in made.items()}
    files |= {place: script_of(root, shell) for shell, place in PLACES.items()}
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
    """Return the documents that pages are made of, by file name: an installed package has docs/
    inside it, a checkout beside it."""
    package = Path(drfd.__file__).parent
    docs = next(path for path in (package / "docs", package.parent / "docs") if path.is_dir())
    return {name: (docs / name).read_text() for name in DOCUMENTS}

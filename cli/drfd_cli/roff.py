"""From Markdown, as the README uses it, to the language of man pages: man(7)."""

from __future__ import annotations

import re
from collections.abc import Iterator

_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\([^)]*\)")
_LIST_ITEM = re.compile(r"[-*] ")


def sections(markdown: str) -> dict[str, str]:
    """Heading of the second level → what is below it."""
    parts = re.split(r"^## (.+)$", _outside_fences(markdown), flags=re.MULTILINE)
    return {
        title: body.replace("\0", "#").strip("\n")
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def from_markdown(text: str) -> str:
    """Paragraphs, lists, tables, blocks of code, headings of the third level."""
    return "\n".join(_blocks(text.splitlines())) + "\n"


def plain(text: str) -> str:
    """Text that means nothing to roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def styled(text: str) -> str:
    """A line of Markdown with code and emphasis set bold."""
    found, end = [], 0
    for match in _INLINE.finditer(text):
        found.append(plain(text[end : match.start()]) if end or match.start() else "")
        found.append(f"\\fB{plain(match[1] or match[2] or match[3])}\\fR")
        end = match.end()
    rest = plain(text[end:])
    return "".join(found) + (rest.removeprefix("\\&") if found else rest)


def _outside_fences(markdown: str) -> str:
    """A `#` that begins a line of code is no heading: hide it."""
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
            end = _end(lines, at, "|")
            yield from _table(lines[at:end])
            at = end
        elif line.startswith("### "):
            yield f'.SS "{plain(line[4:])}"'
            at += 1
        elif _LIST_ITEM.match(line):
            yield from (".IP \\(bu 2", styled(line[2:]))
            at += 1
        elif not line.strip():
            at += 1
        else:
            yield ".PP"
            while at < len(lines) and _is_prose(lines[at]):
                yield styled(lines[at])
                at += 1


def _is_prose(line: str) -> bool:
    return (
        bool(line.strip())
        and not line.startswith(("|", "```", "#"))
        and not (_LIST_ITEM.match(line))
    )


def _end(lines: list[str], at: int, start: str) -> int:
    while at < len(lines) and lines[at].startswith(start):
        at += 1
    return at


def _table(rows: list[str]) -> Iterator[str]:
    """Each row under its first cell; the others, if several, by the heads of their columns."""
    head, _, *body = (_cells(row) for row in rows)
    for first, *others in body:
        yield from (".TP", styled(first) or "\\&")
        if len(others) == 1:
            yield styled(others[0])
        else:
            pairs = zip(head[1:], others, strict=True)
            yield styled("; ".join(f"{name}: {cell}" for name, cell in pairs))


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]

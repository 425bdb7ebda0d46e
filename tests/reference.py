"""The generated tables of docs/reference.md: `python -m tests.reference` writes them anew.

Each stands between `<!-- name -->` and `<!-- /name -->`; tests/test_docs.py compares them.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from drfd.core.decisions.outcome import LOSSES, UNKNOWN_LOSS
from drfd.core.explain import waits
from drfd.core.model import job
from drfd.protocol.job_options import OPTIONS, Option
from drfd_cli.commands import history, shares
from drfd_cli.output import Columns
from drfd_cli.tables.columns import JOBS, PAST_JOBS

REFERENCE = Path(__file__).parent.parent / "docs" / "reference.md"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len([*head]) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _option(option: Option) -> tuple[str, ...]:
    verbs = [verb for verb in option.verbs if verb != "submit"] + ["set"] * bool(option.in_set)
    name = f"{', '.join(option.names)} {option.metavar}".strip()
    where = "" if option.is_default else " (presets)"
    return f"`{name}`", ", ".join(verbs), option.about, f"`{option.setting}`{where}"


def _options() -> Iterator[str]:
    head = ("option of `drf submit`", "also of", "meaning", "key")
    return _table(head, map(_option, OPTIONS))


def _columns() -> Iterator[str]:
    found = {
        "status": JOBS,
        "history": {key: each for key, each in PAST_JOBS.items() if key not in JOBS},
        "report": history.REPORT,
        "shares": shares.POOLS,
        "nodes": shares.NODES,
    }

    def keys(columns: Columns, *, for_programs: bool) -> str:
        chosen = (key for key, each in columns.items() if (each.value is not None) == for_programs)
        return f"`{' '.join(chosen)}`"

    rows = (
        (
            f"`drf {verb}`" + (", besides those of status" if verb == "history" else ""),
            keys(columns, for_programs=True),
            keys(columns, for_programs=False),
        )
        for verb, columns in found.items()
    )
    return _table(("command", "keys of columns", "others that -o knows"), rows)


def _classes(base: type) -> Iterator[type]:
    for each in base.__subclasses__():
        yield each
        yield from _classes(each)


def _reasons() -> Iterator[str]:
    found: dict[str, list[str]] = {code: [] for code in get_args(waits.Code)}
    for each in sorted(_classes(waits.Wait), key=lambda each: str(each.__module__)):
        if text := each.__dict__.get("__doc__"):
            found[each.code].append(" ".join(text.split()))  # type: ignore[attr-defined]
    rows = ((f"`{code}`", " ".join(texts)) for code, texts in found.items())
    return _table(("reason", "why the job waits"), rows)


def _outcomes() -> Iterator[str]:
    """Of each outcome the comment above it."""
    source = Path(job.__file__).read_text().partition("class Outcome(")[2].partition("\nclass ")[0]
    found = re.findall(r'((?:^    #: .*\n)+)    (\w+) = "', source, re.MULTILINE)
    rows = ((f"`{name}`", re.sub(r"\s*#: ", " ", text).strip()) for text, name in found)
    return _table(("outcome", "how the job ended"), rows)


def _losses() -> Iterator[str]:
    causes = {**LOSSES, UNKNOWN_LOSS: "none of these is known"}
    return _table(("code", "cause"), ((f"`{code}`", text) for code, text in causes.items()))


BLOCKS: dict[str, Callable[[], Iterator[str]]] = {
    "options": _options,
    "columns": _columns,
    "reasons": _reasons,
    "outcomes": _outcomes,
    "losses": _losses,
}


def written(text: str) -> str:
    """Return the document with each table as the source has it."""

    def block(match: re.Match[str]) -> str:
        return "\n".join((f"<!-- {match[1]} -->", *BLOCKS[match[1]](), f"<!-- /{match[1]} -->"))

    names = "|".join(BLOCKS)
    return re.sub(rf"<!-- ({names}) -->\n.*?<!-- /\1 -->", block, text, flags=re.DOTALL)


def main(path: Any = REFERENCE) -> None:
    path.write_text(written(path.read_text()))


if __name__ == "__main__":
    main()

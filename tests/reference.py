"""The generated tables of docs/reference.md: `python -m tests.reference` writes them anew.

Each stands between `<!-- name -->` and `<!-- /name -->`; tests/test_docs.py compares them.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from drfd.core.decisions.outcome import LOSSES, UNKNOWN_LOSS
from drfd.core.model import job
from drfd.core.scheduling import policies as policies  # its gates have reasons
from drfd.core.scheduling import waits
from drfd.protocol.job_options import OPTIONS

REFERENCE = Path(__file__).parent.parent / "docs" / "reference.md"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len([*head]) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _options() -> Iterator[str]:
    """The keys of options, which have the option's long name unless it is given."""
    for is_default, where in ((True, "your own defaults and presets"), (False, "presets only")):
        found = [
            f"`{each.setting}`"
            + f" (`{each.names[-1]}`)" * (f"--{each.setting.replace('_', '-')}" not in each.names)
            for each in OPTIONS
            if each.is_default == is_default
        ]
        yield f"- {where}: {', '.join(found)}"


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

"""Links and names in documents lead somewhere; the source names only documents that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "drfd/**/*.md") for path in ROOT.glob(pattern)
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = path.parent / name if name else path
        assert there.exists(), f"{path} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings]
            assert anchor in anchors, f"{path} links to {target}"


def test_every_file_and_name_that_a_document_gives_is_there() -> None:
    """`drfd/x.py` or `drfd/x/`, and `Class.method` or `CONSTANT` in either."""
    tops = "drfd|cli|tests|docs|systemd|packaging"
    named = re.compile(rf"(?:`([A-Za-z_.]+)` in )?`((?:{tops})/[\w./-]+)`")
    for path in [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")]:
        for name, file in named.findall(path.read_text()):
            there = ROOT / file
            assert there.exists(), f"{path} names {file}"
            modules = sorted(there.glob("*.py")) if there.is_dir() else [there]
            text = "\n".join(module.read_text() for module in modules if module.suffix == ".py")
            for part in filter(None, name.split(".") if text else ()):
                defined = rf"(?:def|class) {part}\b|^ *{part}(?:: .*)? = "
                assert re.search(defined, text, re.MULTILINE), f"{path} names {name} in {file}"


def test_every_document_that_the_source_names_is_there() -> None:
    for folder in ("drfd", "cli", "tests", "systemd", "packaging"):
        for path in ROOT.joinpath(folder).rglob("*.py"):
            for name in re.findall(r"\bdocs/[\w./-]+\.md\b", path.read_text()):
                assert (ROOT / name).exists(), f"{path} names {name}"

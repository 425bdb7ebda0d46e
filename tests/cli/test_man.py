"""Man pages and completions: made from the commands and the documents, and understood by groff."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from cli.drf import Drf, Finish, Spawn
from drfd_cli.commands.man import DOCUMENTS, from_markdown, pages, plain, sections, styled
from drfd_cli.main import EXAMPLES, VERBS, cli

ROOT = Path(__file__).parents[2]
TEXTS = {
    name: (ROOT / ("" if name == "README.md" else "docs") / name).read_text() for name in DOCUMENTS
}
PAGES = pages(cli, TEXTS, "9.8.7")


def bare(page: str) -> str:
    """What a reader sees, more or less."""
    return re.sub(r"\\f[BR]|\\&", "", page).replace("\\-", "-").replace("\\e", "\\")


# -- the pages -------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_in_the_manual_with_all_its_options(verb: str) -> None:
    page = bare(PAGES["drf.1"])
    start = re.search(rf'^\.SS "drf {verb}\b', page, re.MULTILINE)
    assert start is not None
    part = page[start.start() :].split("\n.SS", 1)[0]
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    for param in command.params:
        if isinstance(param, click.Option):
            assert ", ".join(param.opts) in part
            assert bare(styled(param.help or "")) in part


@pytest.mark.parametrize("name", PAGES)
def test_every_page_says_what_it_is(name: str) -> None:
    page, section = name.rsplit(".", 1)
    lines = bare(PAGES[name]).splitlines()
    assert lines[0] == f'.TH "{page.upper()}" "{section}" "" "drfd 9.8.7" "drfd"'
    assert lines[1] == ".SH NAME"
    assert lines[2].startswith(f"{page} - ")
    assert lines[-2] == ".SH SEE ALSO"


def test_the_configuration_is_in_its_page_line_by_line() -> None:
    page = bare(PAGES["drfd.toml.5"]).splitlines()
    block = sections(TEXTS["configuration.md"])["Keys"].split("```")[1].splitlines()[1:]
    assert len(block) > 30
    assert [line for line in block if line not in page] == []


def test_the_administrators_document_is_in_the_daemons_page() -> None:
    page = bare(PAGES["drfd.8"])
    for word in ("drfd install", "drf shutdown --kill-jobs", "/var/lib/drfd", "event=audit"):
        assert word in page


@pytest.mark.skipif(not shutil.which("groff"), reason="there is no groff here")
@pytest.mark.parametrize("name", PAGES)
def test_groff_has_nothing_to_complain_of(name: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Kutf8", "-Tutf8", "-ww", "-z"],
        input=PAGES[name], capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


# -- from Markdown ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "roff"),
    [
        ("plain words", "plain words"),
        ("`drf -w`", "\\fBdrf \\-w\\fR"),
        ("say **this** aloud", "say \\fBthis\\fR aloud"),
        ("see [the page](http://x/y)", "see \\fBthe page\\fR"),
        (".dot first", "\\&.dot first"),
        ("'quote first", "\\&'quote first"),
        ("back\\slash", "back\\eslash"),
    ],
)
def test_a_line(text: str, roff: str) -> None:
    assert styled(text) == roff


def test_no_text_is_a_request_to_roff() -> None:
    assert plain(".so /etc/passwd") == "\\&.so /etc/passwd"
    assert from_markdown("```sh\n.so /etc/passwd\n```\n").splitlines()[3] == "\\&.so /etc/passwd"


def test_paragraphs_lists_and_headings() -> None:
    text = "One.\nTwo.\n\n- first\n- second\n\n### Part\nThree.\n"
    assert from_markdown(text).splitlines() == [
        *(".PP", "One.", "Two."),
        *(".IP \\(bu 2", "first", ".IP \\(bu 2", "second"),
        *('.SS "Part"', ".PP", "Three."),
    ]


def test_tables_have_a_paragraph_for_each_row() -> None:
    two = "| path | what |\n|---|---|\n| `/etc` | all |\n| `/usr` | more |\n"
    assert from_markdown(two).splitlines() == [
        *(".TP", "\\fB/etc\\fR", "all"),
        *(".TP", "\\fB/usr\\fR", "more"),
    ]
    three = "| option | what | else |\n|---|---|---|\n| `-c` | cores | 1 |\n"
    assert from_markdown(three).splitlines() == [".TP", "\\fB\\-c\\fR", "what: cores; else: 1"]


def test_sections_are_told_by_their_headings_and_not_by_comments_in_code() -> None:
    text = "# Top\n\n## One\n\na\n\n```sh\n## no heading\n```\n\n## Two\n\nb\n"
    assert sections(text) == {"One": "a\n\n```sh\n## no heading\n```", "Two": "b"}


# -- the command -----------------------------------------------------------------------------


def test_all_files_are_where_the_shells_and_man_look(drf: Drf, tmp_path: Path) -> None:
    assert drf("man", tmp_path).code == 0
    found = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert found == [
        "share/bash-completion/completions/drf",
        "share/fish/vendor_completions.d/drf.fish",
        *sorted(["share/man/man1/drf.1", *(f"share/man/man1/drf-{verb}.1" for verb in VERBS)]),
        "share/man/man5/drfd.toml.5",
        "share/man/man8/drfd.8",
        "share/zsh/site-functions/_drf",
    ]
    bash = tmp_path / found[0]
    assert subprocess.run(["bash", "-n", bash], timeout=60).returncode == 0


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_page_of_its_own(verb: str) -> None:
    page = bare(PAGES[f"drf-{verb}.1"])
    assert f"\ndrf-{verb} - {VERBS[verb]}\n" in page
    assert f"\n.SH SYNOPSIS\ndrf {verb}" in page
    assert EXAMPLES[verb] in page
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    for param in command.params:
        if isinstance(param, click.Option):
            assert ", ".join(param.opts) in page


def test_the_page_of_a_verb_has_what_the_guide_says_of_it() -> None:
    page = bare(PAGES["drf-retry.1"])
    assert "It submits ended jobs again as new jobs" in page
    assert "submits an ended job again as a new job, with all that it was submitted with" in page
    assert "It queues a job" in bare(PAGES["drf-submit.1"])


@pytest.mark.parametrize(
    ("words", "page"), [(["wait"], "drf-wait"), ([], "drf"), (["drfd.toml"], "drfd.toml")]
)
def test_a_page_is_shown_by_man(
    drf: Drf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], page: str
) -> None:
    man = tmp_path / "man"
    said = tmp_path / "said"
    man.write_text(f'#!/bin/sh\n{{ echo "$1"; sed -n 3p "$2"; }} >{said}; exit 7\n')
    man.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert drf("man", *words).code == 7
    option, name = bare(said.read_text()).splitlines()
    assert (option, name.partition(" ")[0]) == ("-l", page)


def test_what_is_neither_a_verb_nor_a_directory_is_refused(
    drf: Drf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = drf("man", "sumbit")
    assert (result.code, result.out, [*tmp_path.iterdir()]) == (1, "", [])
    assert result.err == (
        "drf: there is no manual of sumbit (drf --help lists the verbs; to write all pages into a"
        " directory: drf man ./sumbit)\n"
    )


def test_a_verb_completes(spawn: Spawn, finish: Finish) -> None:
    """As the script that bash loads asks for it."""
    env = {"_DRF_COMPLETE": "bash_complete", "COMP_WORDS": "drf su", "COMP_CWORD": "1"}
    result = finish(spawn(env=env | {"LANG": os.environ.get("LANG", "C.UTF-8")}))
    assert result.out.split() == ["plain,submit", "plain,suspend"]

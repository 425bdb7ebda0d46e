"""The help and the manual pages: every verb has both, and no verb loads what it does not need."""

import re
import shlex
import shutil
import subprocess

import click
import pytest

from cli.drf import ROOT, below
from drfd import __version__
from drfd.protocol.job_options import OPTIONS
from drfd_cli.commands.man import DOCUMENTS, from_markdown, pages
from drfd_cli.main import EXAMPLES, VERBS, cli, command_of

TEXTS = {name: (ROOT / "docs" / name).read_text() for name in DOCUMENTS}
PAGES = {name: make() for name, make in pages(cli, TEXTS, "9.8.7").items()}
#: Those with more options than fit a screen, each with its lines besides those of options of a job.
TALL = {"submit": 24, "run": 26, "set": 17, "simulate": 51}


def bare(page: str) -> str:
    """What a reader sees, more or less."""
    return re.sub(r"\\f[BR]|\\&", "", page).replace("\\-", "-").replace("\\e", "\\")


def commands(verb: str) -> list[click.Command]:
    """The verb, and the verbs below it."""
    command = command_of(verb)
    return [command, *below(command).values()]


# -- every verb --------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_help_that_fits_a_screen_an_example_and_a_page(drf, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "80")
    result = drf(verb, "--help")
    lines = result.out.splitlines()
    assert (result.code, result.err, max(map(len, lines)) <= 80) == (0, "", True)
    assert lines[0].startswith(f"Usage: drf {verb} ")
    rows = [each for each in OPTIONS if (each.in_set if verb == "set" else verb in each.verbs)]
    assert len(lines) <= (len(rows) + TALL[verb] if verb in TALL else 23), "an option is a line"
    assert lines[-1].startswith(f"  Example: drf {verb}")
    for part in EXAMPLES[verb].split(" && "):
        _, name, *args = shlex.split(part)
        # Understood, or it raises.
        command_of(name).make_context(name, args)
    page = bare(PAGES[f"drf-{verb}.1"])
    assert f"\ndrf-{verb} - {VERBS[verb]}\n" in page
    assert f"\n.SH SYNOPSIS\ndrf {verb}" in page
    assert EXAMPLES[verb] in page
    own, *below = commands(verb)
    for param in own.params:
        if isinstance(param, click.Option):
            assert param.help and f"\n{param.opts[0]}" in page
    for each in below:
        assert f"\n{each.name}\n" in page
        assert each.help and all(p.help for p in each.params if isinstance(p, click.Option))


def test_the_overview_lists_every_verb_once_with_what_it_does(drf):
    out = drf("--help").out
    width = max(map(len, VERBS)) + 2
    for verb, what in VERBS.items():
        assert out.count(f"  {verb:<{width}}{what}\n") == 1
    assert "  sbatch, srun, salloc, squeue, scancel, sinfo, sacct, seff, scontrol (drf" in out
    assert drf("help").out == out == drf("-h").out
    assert drf("help", "submit").out == drf("submit", "--help").out
    assert drf("help", "sumbit").err == drf("sumbit").err
    assert drf("--version").out == f"drf {__version__}\n"


# -- the pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["drf.1", "drf-submit.1", "drfd.toml.5", "drfd.8"])
def test_every_page_says_what_it_is(name):
    page, section = name.rsplit(".", 1)
    lines = bare(PAGES[name]).splitlines()
    assert lines[0] == f'.TH "{page.upper()}" "{section}" "" "drfd 9.8.7" "drfd"'
    assert lines[1] == ".SH NAME"
    assert lines[2].startswith(f"{page} - ")
    assert lines[-2] == ".SH SEE ALSO"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("groff"), reason="there is no groff here")
@pytest.mark.parametrize("name", PAGES)
def test_groff_has_nothing_to_complain_of(name):
    done = subprocess.run(
        ["groff", "-man", "-Kutf8", "-Tutf8", "-ww", "-z"],
        input=PAGES[name], capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


# -- drf man -----------------------------------------------------------------------------------


def test_all_files_are_where_the_shells_and_man_look(drf, tmp_path):
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
    assert subprocess.run(["bash", "-n", tmp_path / found[0]], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("words", "page"), [(["wait"], "drf-wait"), ([], "drf"), (["drfd.toml"], "drfd.toml")]
)
def test_a_page_is_shown_by_man(drf, tmp_path, monkeypatch, words, page):
    man = tmp_path / "man"
    said = tmp_path / "said"
    man.write_text(f'#!/bin/sh\n{{ echo "$1"; sed -n 3p "$2"; }} >{said}; exit 7\n')
    man.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert drf("man", *words).code == 7
    option, name = bare(said.read_text()).splitlines()
    assert (option, name.partition(" ")[0]) == ("-l", page)


def test_a_table_has_its_columns_named_where_there_are_more_than_two():
    two, three = "|a|b|\n|---|---|\n|`x`|y|\n", "|a|b|c|\n|---|---|---|\n|`x`|y|z|\n"
    assert list(from_markdown(two)) == [".TP", "\\fBx\\fR", "y"]
    assert list(from_markdown(three)) == [".TP", "\\fBx\\fR", "b: y; c: z"]


def test_what_is_neither_a_verb_nor_a_directory_is_refused(drf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = drf("man", "sumbit")
    assert (result.code, result.out, [*tmp_path.iterdir()]) == (1, "", [])
    assert result.err == (
        "drf: there is no manual of sumbit (drf --help lists the verbs; to write all pages into a"
        " directory: drf man ./sumbit)\n"
    )

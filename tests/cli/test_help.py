"""The command line as a whole: every verb is there, and none is slow to start."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from canned import CannedDaemon
from cli.drf import Drf
from drfd_cli.main import EXAMPLES, VERBS, cli

GUIDE = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_the_help_is_a_command_with_help(drf: Drf, verb: str) -> None:
    result = drf(verb, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: drf {verb} ")


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_has_a_help_text(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    assert command.help
    silent = [
        param.opts for param in command.params if isinstance(param, click.Option) and not param.help
    ]
    assert silent == []


def test_the_help_says_what_a_suspended_job_keeps_and_what_it_costs(drf: Drf) -> None:
    """Who suspends a job for the night should not learn it the next morning."""
    suspend, resume = (" ".join(drf(verb, "--help").out.split()) for verb in ("suspend", "resume"))
    assert "keep their memory and give back cores and bandwidth until `drf resume`" in suspend
    assert "Their wall time stands still; cancelled, they get no grace time." in suspend
    assert "as soon as what they gave back is free again" in resume


#: Lines of a screen; these have more options than fit.
TALL = {"submit": 51, "run": 44, "set": 28, "simulate": 48}


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_fits_a_screen_and_ends_with_an_example(
    drf: Drf, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = drf(verb, "--help").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= TALL.get(verb, 23)
    assert lines[-1].startswith(f"  Example: drf {verb}")


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_is_one_that_drf_understands(verb: str) -> None:
    for part in EXAMPLES[verb].split(" && "):
        _, name, *args = shlex.split(part)
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        command.make_context(name, args)


def test_the_overview_lists_every_verb_once_with_what_it_does(drf: Drf) -> None:
    out = drf("--help").out
    width = max(map(len, VERBS)) + 2
    for verb, what in VERBS.items():
        assert out.count(f"  {verb:<{width}}{what}\n") == 1
    assert "  sbatch, srun, squeue, scancel, sinfo, sacct, scontrol (drf slurm-names DIR" in out


ROWS = re.findall(r"^\| `drf (\S+?)([` ].*)$", GUIDE, re.MULTILINE)


@pytest.mark.parametrize(("verb", "row"), ROWS, ids=lambda word: word[:20])
def test_every_option_that_the_guide_names_for_a_verb_is_one_of_it(verb: str, row: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    below = command.commands.values() if isinstance(command, click.Group) else ()
    known = {name for each in (command, *below) for param in each.params for name in param.opts}
    named = set(re.findall(r"`(--?[a-z-]+)", row))
    assert named <= known


def test_the_version_is_the_packages(drf: Drf) -> None:
    from drfd import __version__

    assert drf("--version").out == f"drf, version {__version__}\n"


@pytest.mark.parametrize(
    ("words", "not_needed"),
    [
        (["--help"], ["rich", "msgspec", "asyncio", "sqlite3", "psutil", "subprocess"]),
        (["submit", "--", "true"], ["rich", "msgspec", "asyncio", "sqlite3", "psutil"]),
        (["wait", "1"], ["rich", "msgspec", "asyncio", "sqlite3", "psutil"]),
    ],
    ids=lambda words: words[0],
)
def test_a_verb_imports_only_what_it_needs(
    daemon: CannedDaemon, words: list[str], not_needed: list[str]
) -> None:
    """Scripts submit thousands of jobs: the start of drf is what they wait for."""
    daemon.replies = {"submit": {"id": 1}, "wait": {"done": True, "ended": []}}
    program = (
        "import sys, runpy, atexit\n"
        "from drfd_cli.main import main\n"
        f"sys.argv = ['drf', '--socket', {str(daemon.path)!r}, *{words!r}]\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "click" in loaded
    assert loaded.isdisjoint(not_needed), sorted(loaded & set(not_needed))


def test_the_socket_option_wins_over_the_variable(
    drf: Drf, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRFD_SOCKET", "/nowhere/at/all")
    daemon.replies = {"drain": {"draining": True}}
    assert drf("--socket", daemon.path, "drain").code == 0

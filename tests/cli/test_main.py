"""What all verbs have in common: help and manual pages; and the tool's own failures: one line on
stderr, nothing on stdout, and a documented number."""

import runpy
import shlex
import shutil
import signal
import subprocess
import threading
from importlib import metadata

import click
import pytest

from cli.drf import ROOT, Result, below
from drfd import __version__
from drfd.daemon.main import COMMANDS
from drfd.protocol.job_options import OPTIONS
from drfd_cli.main import EXAMPLES, VERBS, command_of

PAGES = runpy.run_path(str(ROOT / "packaging/man_pages.py"))["pages"]()
#: Those with more options than fit a screen, each with its lines besides those of options of a job.
TALL = {"submit": 24, "run": 26, "set": 17, "simulate": 51}


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
    page = PAGES[f"drf-{verb}.1"]
    assert f"\nsubtitle: {VERBS[verb].text!r}\n" in page
    assert f"\n# Synopsis\n\ndrf {verb}" in page
    assert EXAMPLES[verb] in page
    own, *below = commands(verb)
    for param in own.params:
        if isinstance(param, click.Option):
            assert param.help and f"\n`{param.opts[0]}" in page
    for each in below:
        assert f"\n`drf {verb} {each.name}`\n" in page
        assert each.help and all(p.help for p in each.params if isinstance(p, click.Option))


def test_the_overview_lists_every_verb_once_with_what_it_does(drf):
    out = drf("--help").out
    width = max(map(len, VERBS)) + 2
    for verb, row in VERBS.items():
        assert out.count(f"  {verb:<{width}}{row.text}\n") == 1
    assert (
        "  sbatch, srun, salloc, squeue, scancel, sinfo, sacct, seff, scontrol,\n  sacctmgr, "
        in out
    )
    assert drf("help").out == out == drf("-h").out
    assert drf("help", "submit").out == drf("submit", "--help").out
    assert drf("help", "sumbit").err == drf("sumbit").err
    assert drf("--version").out == f"drf {__version__}\n"


# -- the pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["drf.1", "drf-submit.1", "drfd.toml.5", "drfd.8"])
def test_every_page_says_what_it_is(name):
    page, section = name.rsplit(".", 1)
    head = PAGES[name].splitlines()[:5]
    assert head[1] == f"title: {page}"
    assert head[3:] == [f"manual_section: '{section}'", f"version: drfd {__version__}"]


def test_a_page_has_every_key_and_every_command_of_drfd():
    for key in ("reserve_memory", "half_life", "[[disk]]"):
        assert key in PAGES["drfd.toml.5"]
    for name in COMMANDS:
        assert f"usage: drfd {name} " in PAGES["drfd.8"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("groff"), reason="there is no groff here")
def test_all_files_are_where_man_and_the_shells_look_and_can_be_read():
    """Those that pip has installed."""
    files = {each.name: each for each in metadata.files("drfd") if "share" in each.parts}
    places = {name: str(each).partition("/share/")[2] for name, each in files.items()}
    expected = {
        **{name: f"man/man{name[-1]}/{name}" for name in PAGES},
        "_drf": "zsh/site-functions/_drf",
        "drf": "bash-completion/completions/drf",
        "drf.fish": "fish/vendor_completions.d/drf.fish",
        **{name: f"drfd/{name}" for name in ("alerts.yml", "dashboard.json")},
    }
    origin = metadata.distribution("drfd").read_text("direct_url.json")
    if places != expected and '"editable": true' in (origin or ""):
        pytest.skip("installed to be edited, from an older tree: pip install -e . again")
    assert places == expected
    assert subprocess.run(["bash", "-n", files["drf"].locate()], timeout=60).returncode == 0
    for name in PAGES:
        done = subprocess.run(
            ["groff", "-man", "-t", "-Kutf8", "-Tutf8", "-Wbreak", "-z", files[name].locate()],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")


# -- failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "status", "show 1", "why 1", "cancel 1", "hold 1", "release 1", "shares", "drain",
        "undrain", "shutdown", "doctor", "log 1", "log -f 1", "submit -- true", "run -- true",
    ],
)  # fmt: skip
def test_without_a_daemon_every_verb_says_so_with_69(drf, daemon, words):
    daemon.stop()
    assert drf(*words.split()) == Result(
        69,
        "",
        f"drf: no drfd answers at {daemon.path}: No such file or directory "
        "(is it running? DRFD_SOCKET or --socket name another one)\n",
    )


def test_the_socket_option_wins_over_the_variable(drf, daemon, monkeypatch):
    monkeypatch.setenv("DRFD_SOCKET", "/nowhere/at/all")
    daemon.replies = {"drain": {"draining": True}}
    assert drf("--socket", daemon.path, "drain").code == 0


@pytest.mark.parametrize(
    "words",
    [
        "bogus", "--bogus", "status --bogus", "status 7x", "status 0", "status -1", "show",
        "attach 1 2", "why", "wait", "wait --timeout soon 1", "wait --timeout 0 1", "cancel",
        "log", "log 7x", "submit", "submit -c", "submit -c 0 -- true", "submit -c -1 -- true",
        "submit -c nan -- true", "submit -c 1e999999 -- true", "submit -m 1K -- true",
        "submit -m -1 -- true", "submit --io 1/2/3 -- true", "submit --io fast -- true",
        "submit -t soon -- true", "submit -t 0 -- true", "submit --priority high -- true", "run",
        "run -m lots -- true",
        *(f"submit {option} {'9' * 5000} -- true" for option in ("-c", "-m", "-t", "--io")),
    ],
    ids=lambda words: words[:30],
)  # fmt: skip
def test_a_wrong_command_line_is_2_and_nothing_is_asked(drf, daemon, words):
    result = drf(*words.split())
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert result.err.count("\n") == 1 and len(result.err) < 300
    assert result.err.startswith("drf")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("sumbit -- true", "drf: No such command 'sumbit'. Did you mean 'submit'?\n"),
        ("frobnicate", "drf: No such command 'frobnicate'. drf --help lists them.\n"),
        ("ls", "No such command 'ls'. That is: drf status"),
        ("kill 3", "No such command 'kill'. That is: drf cancel ID"),
        ("condor_q", "No such command 'condor_q'. That is: drf status"),
        ("parallel", "No such command 'parallel'. That is: drf submit -g NAME%N"),
        ("tail 3", "No such command 'tail'. That is: drf log -f ID"),
        ("start 3", "'start'. That is: drf release ID if it is held, drf resume"),
        ("enqueue 3", "No such command 'enqueue'. That is: drf release ID"),
        ("stop 3", "No such command 'stop'. That is: drf cancel ID"),
        ("submit --cpus-per-task=4 x", "No such option --cpus-per-task; here it is: -c"),
        ("submit -J n -- x", "No such option -J; here it is: -n NAME"),
        ("submit -H -- x", "; here it is: --hold"),
        ("run --partition p -- x", "No such option --partition; here it is: -p"),
        ("run -a 1-3 -- x", "No such option '-a'"),
    ],
)
def test_words_of_other_programs_get_ours_as_a_hint(drf, daemon, words, hint):
    result = drf(*words.split())
    assert (result.code, result.out, daemon.requests) == (2, "", [])
    assert hint in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize("words", [["status"], ["status", "--json"]], ids=" ".join)
def test_a_reader_that_has_enough_is_no_failure(spawn, finish, daemon, job, words):
    """`drf status | head -1`, also under `set -o pipefail`."""
    jobs = [job(id=number) for number in range(1, 1000)]
    daemon.replies = {"status": {"jobs": jobs, "counts": {}, "draining": False}}
    process = spawn(*words)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert finish(process) == Result(0, "", "")


@pytest.mark.parametrize(
    ("words", "out", "err"),
    [
        # The line end takes the shell's prompt past the ^C.
        (["wait", "42"], "", "\n"),
        (["submit", "-q", "-w", "--", "true"], "42\n",
         "drf: job 42 goes on (drf cancel 42 stops it)\n"),
    ],
    ids=["wait", "submit -w"],
)  # fmt: skip
def test_an_interrupted_verb_is_130_and_leaves_the_job(spawn, finish, daemon, words, out, err):
    answer = threading.Event()
    daemon.replies = {"submit": {"id": 42}, "wait": lambda request: answer.wait(20) and None}
    process = spawn(*words)
    daemon.asked("wait")
    process.send_signal(signal.SIGINT)
    result = finish(process)
    answer.set()
    assert result == Result(130, out, err)
    assert {request["op"] for request in daemon.requests} <= {"submit", "wait"}

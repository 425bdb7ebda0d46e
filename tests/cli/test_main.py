"""What all verbs have in common: help and manual pages, words for jobs and completion; and the
tool's own failures: one line on stderr, nothing on stdout, and a documented number."""

import io
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.shell_completion import CompletionItem, ShellComplete

from canned import CannedDaemon, Message
from cli.drf import LIGHT_DRF, ROOT, Result, below
from drfd import __version__
from drfd.daemon.main import COMMANDS
from drfd.protocol.job_options import OPTIONS
from drfd_cli import which_job
from drfd_cli.commands import completion
from drfd_cli.commands.completion import PLACES, script_of
from drfd_cli.main import EXAMPLES, VERBS, cli, command_of

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


# -- words for jobs: names, `@-1` and the latest one, and what TAB offers -----------------------


# -- which job ---------------------------------------------------------------------------------

#: Newest first, as the daemon says it.
JOBS: list[Message] = [
    {"id": 43, "name": "eval", "state": "PENDING", "live": True},
    {"id": 42, "name": "train", "state": "RUNNING", "live": True},
    {"id": 41, "name": "train", "state": "FAILED", "live": False},
    {"id": 40, "name": "old", "state": "FAILED", "live": False},
    {"id": 39, "name": "old", "state": "array", "live": False},
    {"id": 38, "name": "eval", "state": "HELD", "live": True},
]


@pytest.fixture
def knowing(daemon, job) -> CannedDaemon:
    def recent(request: Message) -> Message:
        found = [each for each in JOBS if request.get("name") in (None, each["name"])]
        return {"recent": found[: request["limit"]], "pools": [], "users": [], "gres": []}

    batch = {"done": [43], "failed": []}
    daemon.replies = {
        "recent": recent, "show": {"job": job(id=1), "events": []},
        "why": {"job": job(), "notes": [], "advice": None}, "submit": {"id": 50},
        "wait": {"done": True, "ended": []}, "cancel": batch, "hold": batch,
    }  # fmt: skip
    return daemon


@pytest.fixture
def person(monkeypatch):
    monkeypatch.setattr(which_job, "is_person_here", lambda: True)


def asked(daemon: CannedDaemon, op: str) -> Message:
    [found] = [each for each in daemon.requests if each["op"] == op]
    return found


@pytest.mark.parametrize(
    ("word", "ref", "told"),
    [
        # Of one name, the live job is meant; of several, a verb that reads takes the latest.
        ("train", 42, ""), ("@-1", 43, ""), ("@-3", 41, ""), ("@-3_7", "41_7", ""), ("42", 42, ""),
        ("42_7", "42_7", ""), ("old", 40, "drf: job 40 (the latest of 2 named old)\n"),
        ("eval", 43, "drf: job 43 (the latest of 2 named eval)\n"),
    ],
)  # fmt: skip
def test_a_word_means_one_job(drf, knowing, word, ref, told):
    result = drf("why", word)
    assert (result.code, result.err) == (0, told)
    assert asked(knowing, "why")["id"] == ref
    assert drf("wait", word).err == told
    assert asked(knowing, "wait")["ids"] == [ref]


def test_names_are_taken_where_several_ids_are(drf, knowing):
    drf("wait", "train", "3-5", "@-1")
    assert asked(knowing, "wait")["ids"] == [42, 3, 4, 5, 43]
    drf("hold", "train,7-8,@-1,4_[2-3]")
    assert asked(knowing, "hold")["select"]["ids"] == [42, 7, 8, 43, "4_2", "4_3"]
    assert "'a' is not a job id, nor the name of a job of yours" in drf("cancel", "a,c").err
    assert "'train,,5' is not a job id" in drf("cancel", "train,,5").err


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("train", [(42, "ok")]),
        ("@-1:any", [(43, "any")]),
        ("5,6:fail", [(5, "ok"), (6, "fail")]),
        ("train:any,5_2:fail,@-1", [(42, "any"), ("5_2", "fail"), (43, "ok")]),
        (
            "afterok:5:train,afternotok:6,afterany:7_1",
            [(5, "ok"), (42, "ok"), (6, "fail"), ("7_1", "any")],
        ),
    ],
)
def test_conditions_take_them_too(drf, knowing, text, after):
    assert drf("submit", "--after", text, "--", "true").code == 0
    assert [(each["id"], each["want"]) for each in asked(knowing, "submit")["after"]] == after


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("old", "2 jobs are named 'old': 40 (FAILED), 39 (array) (write the id of one)"),
        ("eval", "2 jobs are named 'eval': 43 (PENDING), 38 (HELD) (write the id of one)"),
        ("nix", "'nix' is not a job id, nor the name of a job of yours (write 41,"),
        ("@-7", "@-7 is none of the 6 jobs of yours that are known"),
        ("@-0", "@-0 is none of"), ("@x", "'@x' is not a job"), ("7x", "'7x' is not a job id"),
        ("", "'' is not a job id"),
    ],
)  # fmt: skip
def test_what_means_no_one_job_is_refused_by_a_verb_that_acts(drf, knowing, word, complaint):
    result = drf("hold", word)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert complaint in result.err
    assert {each["op"] for each in knowing.requests} <= {"recent"}


def test_a_person_gets_the_latest_job_and_is_told(drf, knowing, person):
    assert drf("why").err == "drf: job 43 (eval)\n"
    assert asked(knowing, "why")["id"] == 43
    assert drf("wait", "train").err == "drf: job 42 (train)\n"
    knowing.replies["recent"] = {"recent": []}
    assert drf("log") == Result(1, "", "drf: no job of yours is known\n")


@pytest.mark.parametrize(("answer", "is_done"), [("y\n", True), ("n\n", False), ("\n", False)])
@pytest.mark.parametrize("verb", ["cancel", "hold"])
def test_a_change_of_the_latest_job_is_asked_about(
    drf, knowing, person, monkeypatch, verb, answer, is_done
):
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    result = drf(verb)
    assert result.err.startswith(f"drf: job 43 (eval)\n{verb} job 43? ")
    done = [each["select"]["ids"] for each in knowing.requests if each["op"] == verb]
    assert done == ([[43]] if is_done else [])


def test_no_job_that_has_ended_is_to_be_changed(drf, knowing, person, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    ended = [each for each in JOBS if not each["live"]]
    knowing.replies["recent"] = {"recent": [*ended, JOBS[1]]}
    assert drf("cancel").err.startswith("drf: job 42 (train)\ncancel job 42? ")
    knowing.replies["recent"] = {"recent": ended}
    assert drf("cancel") == Result(1, "", "drf: no job of yours waits or runs\n")


def test_a_command_without_a_job_is_for_the_latest_that_runs(drf, knowing, monkeypatch):
    result = drf("exec", "--", "true")
    assert (result.code, knowing.requests) == (2, [])
    assert "name the job: drf exec ID -- CMD" in result.err
    monkeypatch.setattr(which_job, "is_person_here", lambda: True)
    # The answer is about another job, so that nothing is sent.
    result = drf("exec", "--", "true")
    assert result.err.startswith("drf: job 42 (train)\n")
    assert asked(knowing, "show")["id"] == 42
    knowing.replies["recent"] = {"recent": [each for each in JOBS if each["state"] != "RUNNING"]}
    assert drf("exec", "--", "true") == Result(1, "", "drf: no job of yours runs\n")


# -- what is offered ---------------------------------------------------------------------------

RECENT: Message = {
    "recent": [*JOBS[:3], {"id": 39, "name": "bad\x1b[2J", "state": "HELD", "live": True}],
    "pools": ["lab", "lab.vision"], "groups": ["nightly"], "users": ["alice", "bob"],
    "gres": ["gpu", "license"],
}  # fmt: skip


def items(*words: str) -> list[CompletionItem]:
    shell = ShellComplete(cli, {}, "drf", "_DRF_COMPLETE")
    return shell.get_completions([*words[:-1]], words[-1])


@pytest.fixture
def home(tmp_path, monkeypatch, daemon) -> Path:
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DRFD_SOCKET", str(daemon.path))
    daemon.replies = {"recent": RECENT}
    return tmp_path


@pytest.fixture
def offered(home):
    """Completes a command line whose last word is the one at the cursor; the values."""

    def run(*words: str) -> list[str]:
        # A file is for the shell to complete.
        return [":files" if each.type == "file" else each.value for each in items(*words)]

    return run


def test_verbs_and_options_are_offered_with_what_they_do(offered):
    assert {*VERBS, "help"} == {*offered("")}
    found = [(each.value, each.help) for each in items("su")]
    assert found == [("submit", VERBS["submit"].text), ("suspend", VERBS["suspend"].text)]
    assert "--mem" in offered("submit", "--m")
    assert offered("--sock") == ["--socket"]
    assert offered("help", "wai") == ["wait"]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("log ", "43 42 41 39"), ("log 4", "43 42 41"), ("log e", "eval"), ("log t", ""),
        ("log @", "@-1"), ("wait 42 4", "43 41"), ("cancel ", "43 42 39"), ("retry ", "41"),
        ("suspend ", "42"), ("release ", "39"), ("signal USR", "USR1 USR2"), ("signal USR1 ", "42"),
        ("submit --after ", "43 42 41 39"), ("submit -p lab", "lab lab.vision"),
        ("submit --gres ", "gpu license"), ("status -u a", "alice"),
        ("status -s RU", "running"), ("status --state=RU", "running"), ("cancel --name t", "train"),
        ("submit -o x", ":files"), ("submit ", ":files"), ("run make al", ":files"),
        ("submit -- ma", ":files"), ("exec ", "42"), ("submit -n ", ""), ("doctor ", ""),
        ("completion z", "zsh"), ("log train ev", "eval"), ("simulate gen", ":files generate"),
        ("simulate x", ":files"), ("simulate --po", "--policy --pools"),
        ("cancel 42,3", "42,39"), ("submit --retry-on fail,la", "fail,launch"),
        ("submit --if-never ", "cancel keep"), ("cancel -g ", "nightly"),
        ("history -o id,us", "id,user"),
    ],
)  # fmt: skip
def test_each_place_has_its_words(offered, words, values):
    found = [word.casefold() if word.isupper() and "state" in words else word for word in
             offered(*words.split(" "))]  # fmt: skip
    assert found == values.split()


def test_presets_come_from_the_users_own_configuration(offered, home):
    assert offered("submit", "--preset", "") == []
    (home / ".config/drfd").mkdir(parents=True)
    (home / ".config/drfd/config.toml").write_text("[preset.gpu]\ncores = 4\n[preset.big]\n")
    assert offered("submit", "--preset", "") == ["gpu", "big"]


def test_nothing_offered_can_write_to_the_terminal_or_means_something_to_a_shell(home, daemon):
    assert [(each.value, each.help) for each in items("log", "39")] == [("39", "bad?[2J HELD")]
    daemon.replies = {"recent": RECENT | {"recent": [{**JOBS[0], "name": "e;reboot"}]}}
    assert items("log", "e") == items("status", "-n", "") == []


def test_while_a_word_is_completed_nothing_is_looked_up_and_without_a_daemon_nothing_said(
    offered, daemon, monkeypatch, capfd
):
    assert offered("log", "train", "--f") == ["--follow"]
    assert daemon.requests == []
    monkeypatch.setenv("DRFD_SOCKET", "/nowhere/s")
    assert offered("log", "") == []
    assert capfd.readouterr() == ("", "")


# -- the shells --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["su"], ["submit", "suspend"]), (["log", "4"], ["43", "42", "41"]),
        (["cancel", "--state", "=", "runn"], ["running"]),
    ],
)  # fmt: skip
def test_bash(home, words, offered):
    script = (
        f"source /dev/stdin <<'END'\n{script_of(cli, 'bash')}\nEND\n"
        f"COMP_WORDS=(drf {' '.join(words)}); COMP_CWORD={len(words)}\n"
        '_drf_completion drf; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert by_shell(home, "bash", script) == offered


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("fish"), reason="there is no fish here")
def test_fish(home):
    (home / "drf.fish").write_text(script_of(cli, "fish"))
    lines = "cancel --state=runn", f"submit --stdout={home}/drf.f", "submit -p lab."
    script = "; ".join(f"complete -C 'drf {line}'" for line in lines)
    offered = by_shell(home, "fish", f"source {home}/drf.fish; {script}")
    assert offered == ["--state=running", f"--stdout={home}/drf.fish", "lab.vision"]


def by_shell(home: Path, shell: str, script: str) -> list[str]:
    program = home / "bin" / "drf"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{LIGHT_DRF}")
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{program.parent}:/usr/bin:/bin"}
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, env=env,
                          timeout=60)  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("shell", PLACES)
def test_the_script_is_printed_and_set_up_in_the_users_home_once(drf, home, shell, monkeypatch):
    script = drf("completion", shell).out
    assert "_DRF_COMPLETE" in script
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    assert drf("completion").out == script
    monkeypatch.setattr(completion, "BASH_COMPLETION", home / "none")
    startup = {"bash": home / ".bashrc", "zsh": home / ".zshrc"}.get(shell)
    if startup is not None:
        startup.write_text("alias x=y")
    for _ in range(2):
        assert drf("completion", shell, "--install").code == 0
    place = home / ".local" / PLACES[shell]
    if shell == "fish":
        place = home / ".config/fish/completions/drf.fish"
    assert place.read_text() == script
    if startup is not None:
        first, second = startup.read_text().splitlines()
        assert first == "alias x=y"
        assert str(place) in second


def test_a_shell_that_is_not_known_is_asked_for_and_bash_may_look_by_itself(drf, home, monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    result = drf("completion")
    assert (result.code, result.out) == (2, "")
    assert "say for which shell: bash, zsh, fish" in result.err
    monkeypatch.setattr(completion, "BASH_COMPLETION", home)
    assert drf("completion", "bash", "--install").code == 0
    assert not (home / ".bashrc").exists()

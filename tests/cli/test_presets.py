"""What is added to a submission: a user's own defaults and presets, and what is doubted in it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from cli.drf import ROOT
from drfd_cli.commands.top import own_columns
from drfd_cli.main import cli
from drfd_cli.submission.job_line import remark_on_start
from drfd_cli.submit_warnings import about_other_directives, about_script_words, warnings_about

NAMES = """\
memory = "1G"
time = "2h"
output = "logs/"

[preset.gpu]
cores = 4
memory = "16G"
gres = ["gpu=1", "tape"]
preemptible = true
hold = false
notify_command = "true"
notify = ["end", "fail"]

[preset."at night"]
begin = "now"
"""


@pytest.fixture
def home(tmp_path, plain, monkeypatch) -> Path:
    """A home directory, in whose `work` the user is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "work" / "logs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def write(home: Path, text: str) -> Path:
    path = home / ".config" / "drfd" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def script(home: Path, *options: str) -> Path:
    path = home / "job.sh"
    path.write_text("".join(f"{line}\n" for line in ("#!/bin/sh", *options, "true")))
    return path


@pytest.fixture
def request_of(drf, daemon) -> Any:
    def run(*words: object) -> dict[str, Any]:
        daemon.replies = {"submit": {"id": 42}}
        result = drf("submit", *words)
        assert (result.code, result.err) == (0, "")
        request: dict[str, Any] = daemon.requests[-1]
        return request

    return run


# -- defaults and presets ----------------------------------------------------------------------


def test_defaults_lose_to_a_preset_that_to_lines_of_a_script_and_those_to_what_is_typed(
    home, request_of
):
    write(home, NAMES)
    asked = request_of("--", "true")
    assert (asked["demand"], asked["time_limit_s"]) == ({"memory_bytes": 1 << 30}, 7200)
    assert (asked["stdout"], asked["stderr"]) == ("logs/drf-%j.out",) * 2
    assert request_of("--array", "0-3", "--", "true")["stdout"] == "logs/drf-%A_%a.out"
    asked = request_of("-t", "5m", "--preset", "gpu", "--gres", "gpu=2", "--", "true")
    preset = {"cores_milli": 4000, "memory_bytes": 16 << 30}
    assert asked["demand"] == {**preset, "gres": {"gpu": 2, "tape": 1}}
    assert (asked["time_limit_s"], asked["preemptible"], asked.get("held")) == (300, True, None)
    assert asked["notify"] == {"on": ["end", "fail"], "argv": ["sh", "-c", "true"]}
    asked = request_of("-t", "4h", script(home, "#DRF -m 3G -t 3h --preset gpu"))
    assert asked["demand"] == {**preset, "memory_bytes": 3 << 30, "gres": {"gpu": 1, "tape": 1}}
    assert asked["time_limit_s"] == 4 * 3600
    asked = request_of("--preset", "at night", script(home, "#DRF --preset gpu"))
    assert (asked["begin_s"], "cores_milli" in asked["demand"]) == (0, False)


def test_the_directory_of_the_configuration_is_that_of_xdg(home, request_of, monkeypatch):
    write(home, NAMES)
    other = home / "other" / "drfd"
    other.mkdir(parents=True)
    (other / "config.toml").write_text('memory = "5G"\noutput = "~/out-%x"\nwarnings = false\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(other.parent))
    asked = request_of("--", "no-such-command-here")
    assert (asked["demand"], asked["stdout"]) == ({"memory_bytes": 5 << 30}, f"{home}/out-%x")


def test_a_dry_run_says_where_values_come_from(home, drf, daemon):
    path = write(home, NAMES)
    daemon.replies = {"submit": {"expected_start_at": None, "reason": None}}
    result = drf("submit", "--dry-run", "--preset", "gpu", "-t", "1h", "--", "true")
    assert result.err.splitlines() == [
        f"drf: --mem=16G is from {path}, line 7: preset.gpu.memory",
        f"drf: --output=logs/ is from {path}, line 3: output",
        f"drf: --cores=4 is from {path}, line 6: preset.gpu.cores",
        f"drf: --gres=gpu=1 is from {path}, line 8: preset.gpu.gres",
        f"drf: --gres=tape is from {path}, line 8: preset.gpu.gres",
        f"drf: --preemptible is from {path}, line 9: preset.gpu.preemptible",
        f"drf: --notify-command=true is from {path}, line 11: preset.gpu.notify_command",
        f"drf: --notify=end,fail is from {path}, line 12: preset.gpu.notify",
    ]


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("coers = 4", [], ", line 1: coers: unknown key (did you mean cores?)"),
        ("\n[preset.a]\n\nmem = 1", [], "line 4: preset.a.mem: unknown key (did you mean memory?"),
        ("name = 'x'", [], ", line 1: name: unknown key (it can stand in a preset)"),
        ("[presets.gpu]", [], ", line 1: presets: unknown key (did you mean preset?)"),
        ("preset = {a = {zzz = 1}}", [], ": preset.a.zzz: unknown key (known keys: "),
        ("preset.a = 1", [], ": preset: a preset is a table ([preset.gpu] with keys below)"),
        ('\ncores = "many"', [], ", line 2: cores: 'many' is not a number (write 4 or 0.5)"),
        ("memory = 4096", [], ", line 1: memory: memory must be at least 1M (write 4096M for "),
        ("cores = true", [], ", line 1: cores: True is not a text or a number"),
        ("cores = ''", [], ", line 1: cores: '' is not a text or a number"),
        ("io = [1, []]", [], ", line 1: io: [] is not a text or a number"),
        ("warnings = 'no'", [], ", line 1: warnings: 'no' is not true or false"),
        ("columns = 3", [], ', line 1: columns: 3 is not a list of keys (columns = ["group"])'),
        ("colour = 'red'", [], ", line 1: colour: 'red' is not a choice (auto, always or never)"),
        ("cores = ", [], " is not TOML: "),
        (NAMES, ["--preset", "gpus"], "--preset: there is no preset 'gpus' in "),
        (NAMES, ["--preset", "gpus"], "config.toml (did you mean gpu?)"),
        (None, ["--preset", "x"], "config.toml (write [preset.x] there"),
    ],
)
def test_a_bad_file_is_refused_with_the_place_and_the_cure(home, drf, daemon, text, words, told):
    path = home / ".config" / "drfd" / "config.toml"
    if text is not None:
        write(home, text)
    for verb in ("submit", "run"):
        result = drf(verb, *words, "--", "true")
        assert (result.code, result.out, daemon.requests) == (78, "", [])
        assert result.err.count("\n") == 1
        assert told in result.err and str(path) in result.err
    daemon.replies = {"status": {"jobs": [], "counts": {}, "draining": False}}
    assert drf("status").code == drf("submit", "--help").code == 0, "they work all the same"


def test_a_default_that_this_machine_cannot_keep_is_named_with_its_line(home, drf, monkeypatch):
    """Without sendmail, a user was told to write --notify-command, and had written nothing."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("drfd.client.submission.SENDMAIL", ())
    path = write(home, 'memory = "1G"\nnotify = ["fail"]\n')
    result = drf("submit", "--", "true")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"drf: {path}, line 2: notify: there is no way to tell you: ")
    assert drf("submit", "--notify", "end", "--", "true").err.startswith("drf: there is no way")


def test_the_live_view_has_the_columns_that_the_user_likes(home, drf):
    assert own_columns() == []
    write(home, 'columns = ["submitted_at", "priority"]')
    assert own_columns() == ["submitted_at", "priority"]
    write(home, 'columns = ["hue"]')
    for verb in ("top", "web"):
        result = drf(verb)
        assert result.code == 78
        assert "there is no column 'hue' (there are id, name, user, " in result.err


@pytest.mark.parametrize(("colour", "is_coloured"), [("always", True), ("never", False)])
def test_colours_are_as_the_user_likes_them(home, drf, daemon, job, colour, is_coloured):
    write(home, f'colour = "{colour}"')
    reply = {"counts": {"RUNNING": 1}, "draining": False, "jobs": [job()]}
    daemon.replies = {"status": reply}
    assert ("\x1b[" in drf("status").out) == is_coloured
    assert "\x1b[" not in drf("status", "--color", "never").out
    assert "\x1b[" in drf("--color", "always", "status").out


_PROGRAM = """\
import os, sys
sys.argv[0] = "drf"
leave, os._exit = os._exit, lambda code: sys.exit(code)
from drfd_cli.start import main
try:
    main()
finally:
    print(*(name for name in ("click", "tomllib") if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("text", "loaded", "limit_s"),
    [
        (None, "", None),
        ('memory = "1G"\ntime = "2h"\n', "tomllib", 7200),
        ('memory = "1G"\npriority = 1\n', "click tomllib", None),
    ],
)
def test_only_what_is_needed_is_loaded(daemon, home, text, loaded, limit_s):
    if text is not None:
        write(home, text)
    daemon.replies = {"submit": {"id": 42}}
    env = {"DRFD_SOCKET": str(daemon.path), "PATH": "/usr/bin:/bin", "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "submit", "-m", "2G", "--", "true"],
        capture_output=True, text=True, timeout=60, cwd=home, env=env, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.stderr.split("\n")[-2] == loaded
    if "click" in loaded:
        assert (done.returncode, daemon.requests) == (78, []), "no such key"
        return
    [asked] = daemon.requests
    assert (done.returncode, asked["demand"]) == (0, {"memory_bytes": 2 << 30})
    assert asked.get("time_limit_s") == limit_s


def test_a_file_of_another_user_is_ignored_with_a_line(home, drf, daemon, monkeypatch):
    """As with `sudo` that keeps HOME: whose home it is must not choose what root's jobs run."""
    path = write(home, NAMES)
    if os.getuid() == 0:
        os.chown(path, 65534, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    daemon.replies = {"submit": {"id": 42}, "status": {"jobs": [], "ended": []}}
    result = drf("submit", "--", "true")
    assert (result.code, result.err) == (0, f"drf: {path} is not yours, so it is ignored\n")
    request = daemon.requests[-1]
    assert not request.get("demand") and "notify" not in request
    result = drf("submit", "--preset", "gpu", "--", "true")
    assert (result.code, result.out) == (78, "") and f"{path} is not yours" in result.err
    assert ShellComplete(cli, {}, "drf", "_DRF").get_completions(["submit", "--preset"], "") == []


@pytest.mark.skipif(os.getuid() != 0, reason="takes two users")
def test_a_file_in_another_users_home_is_not_ones_own():
    """As after `su`: HOME is the home of before, into which the new user may not look."""
    program = (
        f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'cli')]!r}\n"
        "from drfd_cli import personal\n"
        "import os\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(personal.read({'HOME': sys.argv[1]}).defaults)\n"
    )
    # Pytest's own are below one that other users may not enter.
    with tempfile.TemporaryDirectory() as home:
        path = write(Path(home), 'memory = "1G"\n')
        words = [sys.executable, "-P", "-c", program, home]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"
        # A file that only cannot be read is the caller's own mistake.
        os.chmod(home, 0o755)
        path.chmod(0)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert "cannot read" in done.stderr


# -- what is doubted ---------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path) -> Path:
    """A directory with programs in `bin`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python3", "fit-all"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    for name in ("plain", "a plain"):
        (programs / name).write_text("#!/bin/sh\n")
    (programs / "sub").mkdir()
    return tmp_path


def doubts(place: Path, *argv: str, **more: Any) -> list[str]:
    env = {"PATH": f"/none:{place}/bin"}
    request = {"argv": argv, "env": env, "cwd": str(place), "stderr": "drf-%j.out", **more}
    return warnings_about(request)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["python3", "train.py"], None),
        (["bin/fit-all"], None),
        *(
            ([name], f"there is no command {name} in the job's PATH")
            for name in ("zzz", "plain", "sub", "", "python3 train.py")
        ),
        (["./none"], "there is no file ./none, which the job is to run"),
        (["bin/sub"], "bin/sub is a directory, not a command"),
        (
            ["bin/plain"],
            "bin/plain is not executable; chmod +x bin/plain, or write its interpreter before it",
        ),
        (
            ["bin/a plain"],
            "bin/a plain is not executable; chmod +x 'bin/a plain', or write its "
            "interpreter before it",
        ),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, list) else None,
)
def test_a_command_that_is_not_there(place, argv, told):
    assert doubts(place, *argv) == ([] if told is None else [told])


def test_a_job_without_a_path_has_the_usual_one(place):
    request = {"argv": ["sh"], "env": {}, "cwd": str(place), "stderr": "drf-%j.out"}
    assert warnings_about(request) == []


@pytest.mark.parametrize(
    ("out", "err", "told"),
    [
        (None, "drf-%j.out", None),
        ("%j.log", "%j.log", None),
        ("/dev/null", "/dev/null", None),
        ("bin/%j.log", "bin/%j.log", None),
        # What the directory is called is known only when the job has its id.
        ("run-%j/log", "run-%j/log", None),
        # A directory that is missing is made when the job starts.
        ("logs/deep/%j.log", "logs/deep/%j.log", None),
        (None, "bin/plain/err", "-e bin/plain/err: {}/bin/plain is no directory"),
        ("bin", "bin", "-o bin is a directory; name a file in it: -o bin/%j.out"),
        pytest.param(
            "shut/x", "shut/x", "-o shut/x: you may not write to the directory {}/shut",
            marks=pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere"),
        ),
    ],
)  # fmt: skip
def test_an_output_that_cannot_be_written(place, out, err, told):
    (place / "shut").mkdir(mode=0o555)
    files = {"stderr": err} | ({} if out is None else {"stdout": out})
    assert doubts(place, "python3", **files) == ([] if told is None else [told.format(place)])
    assert doubts(place, "python3", attach="/none", **files) == [], "it goes to a terminal"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("-c 2", "-c 2"), ("x -m 4G", "-m 4G"), ("--mem=4G", "--mem=4G"),
        ("--gres gpu", "--gres gpu"), ("--hold -v", "--hold"), ("-t 2h", "-t 2h"),
        ("--dry-run data.csv", "--dry-run"),
        # Words that scripts have of their own.
        *((words, None) for words in ("-m 4", "-t 5", "-c", "-c x", "-n 3", "-- -c 2")),
        ("--time-limit 2", None),
    ],
)  # fmt: skip
def test_options_after_a_script_are_the_scripts(words, shown):
    told = about_script_words("echo hello\n", ["./my train.sh", *words.split()])
    wanted = (
        f"{shown} stands after the script and is an argument of it; "
        f"for drf it stands before: drf submit {shown} './my train.sh'"
    )
    assert told == (None if shown is None else wanted)
    for knowing in ("while getopts c: x; do", "case $1 in -c) shift"):
        assert about_script_words(knowing, ["x.sh", "-c", "2"]) is None
    for line in ("#DRF --mem 1G", "#SBATCH --mem=1G"):
        told = about_script_words(f"#!/bin/sh\n{line}\n", ["x.sh", "--mem=4G"])
        assert told is not None, "a line of options is no use that the script makes of them"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("#!/bin/sh\n#PBS -l nodes=1\ntrue\n", "its #PBS lines have no effect here"),
        ("#!/bin/sh\n#flux: -n4\ntrue\n", "its #flux: lines have no effect here"),
        ("#!/bin/sh\n# PBS was here\n", None),
    ],
)
def test_lines_for_other_batch_systems_are_told(script, told):
    found = about_other_directives(script)
    assert found is None if told is None else told in str(found)


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("#PBS -l nodes=1\ncd $PBS_O_WORKDIR\nwc $PBS_NODEFILE", "PBS_O_WORKDIR, PBS_NODEFILE"),
        ('#SBATCH -c 2\ncd "${PBS_O_WORKDIR}"', "PBS_O_WORKDIR"),
        ("#$ -t 1-3\nfit $SGE_TASK_ID -j$NSLOTS", "SGE_TASK_ID, NSLOTS"),
        ("fit $LSB_JOBINDEX${PBS_ARRAYID%x}", "LSB_JOBINDEX, PBS_ARRAYID"),
        ('# $PBS_O_WORKDIR\ncd ${PBS_O_WORKDIR:-.}\n[ -n "$PBS_JOBID" ] && echo $PBSX', None),
        ("PBS_O_WORKDIR=$PWD\ncd $PBS_O_WORKDIR", None),
        ("echo $GIVEN $SLURM_JOB_ID $HOME $", None),
    ],
)  # fmt: skip
def test_variables_of_other_batch_systems_are_named(place, script, names):
    """`cd $PBS_O_WORKDIR` goes to the home directory, and the job succeeds there."""
    found = doubts(place, "x.sh", script=f"#!/bin/sh\n{script}\n")
    said = [line for line in found if "another batch system sets" in line]
    assert [line.partition(", which")[0] for line in said] == (
        [] if names is None else [f"the script uses {names}"]
    )


def test_doubts_are_told_after_the_submission_in_harmless_lines(
    drf, daemon, ended, tmp_path, refuse
):
    daemon.replies = {
        "submit": {"id": 42, "expected_start_at": None, "reason": None},
        "wait": {"done": True, "ended": [ended("LAUNCH_FAILED", 125)]},
    }
    told = "drf: there is no command no-such-command in the job's PATH\n"
    for quiet in (["-q"], ["--json"], ["--dry-run"], []):
        result = drf("submit", *quiet, "--", "no-such-command")
        assert (result.code, result.err, "no-such" in result.out) == (0, told, False)
    assert drf("run", "--", "no-such-command").err.startswith(told)
    assert drf("submit", "--no-warnings", "-o", "none/x", "--", "no-such-command").err == ""
    hostile = drf("submit", "--", "no\x1b[31m\nsuch").err
    assert hostile.count("\n") == 1 and "\x1b" not in hostile
    path = tmp_path / "train.sh"
    path.write_text("#!/bin/sh\necho\n")
    assert "for drf it stands before: drf submit -c 2 " in drf("submit", path, "-c", "2").err
    assert "for drf it stands before: sbatch --mem=500 " in drf("sbatch", path, "--mem=500").err
    daemon.replies = {"submit": refuse("Refused", "too-big", "it could never start")}
    result = drf("submit", "--", "no-such-command")
    assert (result.code, result.err) == (1, "drf: it could never start\n"), "a refusal is one line"


def test_a_person_is_told_that_a_time_is_tomorrows(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("drfd.client.words.parse_begin", lambda text: 1_700_000_000)
    told = [str(remark_on_start(word)).partition(",")[0] for word in ("07:00", " 7 am ")]
    assert told == ["begin: 07:00 is tomorrow", "begin: 7 am is tomorrow"]
    for word in ("now+2h", "tomorrow 07:00", "10 min", "2026-11-21T08:00"):
        assert remark_on_start(word) is None

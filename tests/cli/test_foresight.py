"""What will keep a job from running is told at its submission, with the cure."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob, Refuse
from cli.drf import Drf
from drfd_cli.options import parse_start
from drfd_cli.quick_request import amount_of
from drfd_cli.submitting.foresight import about_other_directives, about_script_words, doubts_about


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with programs in `bin`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python3", "fit-all"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    (programs / "plain").write_text("#!/bin/sh\n")
    (programs / "sub").mkdir()
    return tmp_path


def doubts(place: Path, *argv: str, given: tuple[str, ...] = (), **more: Any) -> list[str]:
    env = {"PATH": f"/none:{place}/bin"}
    request = {"argv": argv, "env": env, "cwd": str(place), "stderr": "drf-%j.out", **more}
    return doubts_about(request, {*env, *given})


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["python3", "train.py"], None),
        (["bin/fit-all"], None),
        (["pyhton3", "x"], "there is no command pyhton3 in the job's PATH; did you mean python3?"),
        (["zzz"], "there is no command zzz in the job's PATH"),
        (["plain"], "there is no command plain in the job's PATH"),
        (["sub"], "there is no command sub in the job's PATH"),
        ([""], "there is no command  in the job's PATH"),
        (["./none"], "there is no file ./none, which the job is to run"),
        (["bin/sub"], "bin/sub is a directory, not a command"),
        (
            ["bin/plain"],
            "bin/plain is not executable; chmod +x bin/plain, or write its interpreter before it",
        ),
        (
            ["python3 train.py"],
            "'python3 train.py' is one word, and there is no command of that name; "
            "leave out the quotes: -- python3 train.py",
        ),
        (
            ["./fit --all"],
            "'./fit --all' is one word, and there is no command of that name; "
            "leave out the quotes: -- ./fit --all",
        ),
        (
            ["python3 a | sort"],
            "'python3 a | sort' is one word, and there is no command of that name; "
            "no shell reads it; write -- sh -c before it",
        ),
        (["source", "x"], "source is a word of the shell, not a command: -- bash -c 'source x'"),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, list) else None,
)
def test_a_command_that_is_not_there(place: Path, argv: list[str], told: str | None) -> None:
    assert doubts(place, *argv) == ([] if told is None else [told])


def test_a_job_without_a_path_has_the_usual_one(place: Path) -> None:
    request = {"argv": ["sh"], "env": {}, "cwd": str(place), "stderr": "drf-%j.out"}
    assert doubts_about(request, []) == []


@pytest.mark.parametrize(
    ("first", "told"),
    [
        ("#!/bin/sh", None),
        ("echo", None),
        ("#!", None),
        ("#!/usr/bin/env python3", None),
        ("#! /usr/bin/env -S A=b python3 -u", None),
        ("#!/usr/bin/env /none/x", None),
        ("#!/opt/none/python", "there is no /opt/none/python, which the script's first line names"),
        (
            "#!/usr/bin/env pyhton3",
            "there is no command pyhton3, which the script's first line names, in the PATH; "
            "did you mean python3?",
        ),
    ],
)
def test_an_interpreter_that_is_not_there(place: Path, first: str, told: str | None) -> None:
    found = doubts(place, "job.sh", script=f"{first}\necho\n")
    assert found == ([] if told is None else [told])


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, None),
        ({"stdout": "%j.log", "stderr": "%j.log"}, None),
        ({"stdout": "/dev/null", "stderr": "/dev/null"}, None),
        ({"stdout": "bin/%j.log", "stderr": "bin/%j.log"}, None),
        # What the directory is called is known only when the job has its id.
        ({"stdout": "run-%j/log", "stderr": "run-%j/log"}, None),
        (
            {"stdout": "logs/%j.log", "stderr": "logs/%j.log"},
            "-o logs/%j.log: there is no directory logs; mkdir -p logs",
        ),
        ({"stderr": "100%%/err"}, "-e 100%%/err: there is no directory 100%; mkdir -p 100%"),
        (
            {"stdout": "bin", "stderr": "bin"},
            "-o bin is a directory; name a file in it: -o bin/%j.out",
        ),
        ({"attach": "/none", "stdout": "none/x", "stderr": "none/x"}, None),
    ],
)
def test_an_output_that_cannot_be_written(
    place: Path, files: dict[str, str], told: str | None
) -> None:
    assert doubts(place, "python3", **files) == ([] if told is None else [told])


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_directory_that_the_user_may_not_write_into(place: Path) -> None:
    (place / "shut").mkdir(mode=0o555)
    assert doubts(place, "python3", stdout="shut/x", stderr="shut/x") == [
        f"-o shut/x: you may not write to the directory {place}/shut"
    ]


def test_variables_that_may_be_secret_are_named(place: Path) -> None:
    assert doubts(place, "python3", given=("HF_TOKEN", "A", "WANDB_API_KEY")) == [
        "left out HF_TOKEN, WANDB_API_KEY, which may be secret; --export HF_TOKEN keeps that one"
    ]
    many = tuple(f"K{number}_TOKEN" for number in range(9))
    [told] = doubts(place, "python3", given=many)
    assert "K5_TOKEN and 3 more, which" in told and "K6_TOKEN" not in told


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["-c", "2"], "-c 2"),
        (["x", "-m", "4G"], "-m 4G"),
        (["--mem=4G"], "--mem=4G"),
        (["--gres", "gpu"], "--gres gpu"),
        (["--hold", "-v"], "--hold"),
        (["-t", "2h"], "-t 2h"),
        (["--dry-run", "data.csv"], "--dry-run"),
        # Words that scripts have of their own.
        *((words, None) for words in (["-m", "4"], ["-t", "5"], ["-c"], ["-c", "x"], ["-n", "3"])),
        (["--", "-c", "2"], None),
        (["--time-limit", "2"], None),
    ],
    ids=str,
)
def test_options_after_a_script_are_the_scripts(words: list[str], shown: str | None) -> None:
    told = about_script_words("echo hello\n", ["./train.sh", *words], amount_of)
    wanted = (
        f"{shown} stands after the script and is an argument of it; "
        f"for drf it stands before: drf submit {shown} ./train.sh"
    )
    assert told == (None if shown is None else wanted)


@pytest.mark.parametrize("script", ["while getopts c: x; do", "case $1 in -c) shift"])
def test_a_script_that_knows_the_option_is_left_alone(script: str) -> None:
    assert about_script_words(script, ["x.sh", "-c", "2"], amount_of) is None


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("#!/bin/sh\n#PBS -l nodes=1\ntrue\n", "its #PBS lines have no effect here"),
        ("#!/bin/sh\n#flux: -n4\ntrue\n", "its #flux: lines have no effect here"),
        ("# a job\nexecutable = /bin/true\nqueue 3\n", "a submit description of HTCondor"),
        ("#!/bin/sh\n#SBATCH -c 1\nexecutable=x\nqueue 3\n", None),
        ("#!/bin/sh\n# PBS was here\n", None),
    ],
)
def test_lines_for_other_batch_systems_are_told(script: str, told: str | None) -> None:
    found = about_other_directives(script)
    assert found is None if told is None else told in str(found)


def test_a_number_as_a_name_is_doubted(place: Path) -> None:
    assert doubts(place, "python3", name="4") == [
        "-n 4 is the job's name; for 4 cores: -c 4; for 4 tasks: --array"
    ]


# -- where it is told ---------------------------------------------------------------------------


@pytest.mark.parametrize("quiet", [["-q"], ["--json"], ["--dry-run"], []], ids=str)
def test_it_is_told_on_stderr_after_the_submission(
    drf: Drf, daemon: CannedDaemon, quiet: list[str]
) -> None:
    daemon.replies = {"submit": {"id": 42, "expected_start_at": None, "reason": None}}
    result = drf("submit", *quiet, "--", "no-such-command-here")
    assert (result.code, len(daemon.requests)) == (0, 1)
    assert result.err == "drf: there is no command no-such-command-here in the job's PATH\n"
    assert "no-such" not in result.out


def test_a_switch_turns_it_off(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"submit": {"id": 42}}
    result = drf("submit", "--no-warnings", "-o", "none/x", "--", "no-such-command-here")
    assert (result.code, result.out, result.err) == (0, "submitted job 42\n", "")


def test_a_refusal_is_one_line(drf: Drf, daemon: CannedDaemon, refuse: Refuse) -> None:
    daemon.replies = {"submit": refuse("Refused", "too-big", "it could never start")}
    result = drf("submit", "--", "no-such-command-here")
    assert (result.code, result.err) == (1, "drf: it could never start\n")


def test_a_script_is_told_of_its_words(drf: Drf, daemon: CannedDaemon, tmp_path: Path) -> None:
    daemon.replies = {"submit": {"id": 42}}
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\necho\n")
    result = drf("submit", script, "-c", "2")
    assert (result.code, result.err.count("\n")) == (0, 1)
    assert re.search("-c 2 stands after the script", result.err)


def test_a_text_that_cannot_be_shown_is_made_harmless(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"submit": {"id": 42}}
    result = drf("submit", "--", "no\x1b[31m\nsuch")
    assert result.err.count("\n") == 1 and "\x1b" not in result.err


def test_run_tells_it_too(drf: Drf, daemon: CannedDaemon, ended: MakeJob) -> None:
    daemon.replies = {
        "submit": {"id": 42},
        "wait": {"done": True, "ended": [ended("LAUNCH_FAILED", 125)]},
    }
    result = drf("run", "--", "no-such-command-here")
    assert result.err.startswith("drf: there is no command no-such-command-here in the job's PATH")


def test_set_says_what_its_letter_n_means(drf: Drf) -> None:
    result = drf("set", "-n", "new", "4")
    assert result.code == 2
    assert result.err.endswith("...; -n selects jobs, --rename changes a name\n")


def test_a_word_in_place_of_a_number(drf: Drf) -> None:
    assert "'yes' is not a number" in drf("submit", "--retry", "yes", "--", "true").err
    assert "'5000' is out of range" in drf("submit", "--retry", "5000", "--", "true").err


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("source env/bin/activate && fit", "source"),
        ("cd /tmp; [[ -f x ]] && fit", "[["),
        ("set -euo pipefail; fit | tail", "pipefail"),
        ("fit source", None),
        ("[ -f x ]", None),
    ],
)
def test_a_word_of_bash_in_a_line_for_another_shell_is_told(
    place: Path, line: str, word: str | None
) -> None:
    (place / "bin" / "dash").write_text("")
    (place / "bin" / "dash").chmod(0o755)
    (place / "bin" / "sh").symlink_to("dash")
    (place / "bin" / "bash").write_text("")
    (place / "bin" / "bash").chmod(0o755)
    told = (
        f"{word} is a word of bash, and sh, which is dash here, may not know it: -- bash -c 'LINE'"
    )
    assert doubts(place, "sh", "-c", line) == ([] if word is None else [told])
    assert doubts(place, "bash", "-c", line) == []
    (place / "bin" / "sh").unlink()
    (place / "bin" / "sh").symlink_to("bash")
    assert doubts(place, "sh", "-c", line) == []


def test_a_variable_before_the_command_needs_env(place: Path) -> None:
    told = doubts(place, "FOO=1", "python3", "x")
    assert told == ["FOO=1 sets a variable only in a shell: -- env FOO=1 python3 x"]


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("set", "-J", "fit", "4"), "--rename NAME"),
        (("set", "--job-name", "fit", "4"), "--rename NAME"),
        (("submit", "-J", "fit", "--", "true"), "-n NAME"),
        (("submit", "-H", "--", "true"), "--hold"),
    ],
)
def test_options_of_slurm_are_named_in_the_words_of_the_verb(
    drf: Drf, words: tuple[str, ...], cure: str
) -> None:
    result = drf(*words)
    assert (result.code, f"; here it is: {cure}" in result.err) == (2, True)


def test_a_begin_time_is_taken_away_by_an_empty_one(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies["set"] = {"done": [4], "failed": []}
    assert drf("set", "--begin", "", "4").code == 0
    assert daemon.requests[-1]["begin_s"] == 0
    assert drf("submit", "--begin", "", "--", "true").code == 2


def test_a_person_is_told_that_a_time_is_tomorrows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("drfd_cli.options.parse_begin", lambda text: 1_700_000_000)
    parse_start("07:00")
    parse_start(" 7 am ")
    assert [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "drf: begin: 07:00 is tomorrow",
        "drf: begin: 7 am is tomorrow",
    ]
    for word in ("now+2h", "tomorrow 07:00", "10 min", "2026-11-21T08:00"):
        parse_start(word)
    assert capsys.readouterr().err == ""

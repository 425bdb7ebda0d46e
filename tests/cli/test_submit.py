"""drf submit: what is asked of the daemon, from commands and from scripts."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob, Message, Refuse
from cli.drf import Drf, Finish, Spawn

#: Submits with these words of a command line; the request that it makes, without the environment.
Submitted = Callable[..., Message]
#: Does the same where it is refused; the complaint.
Complaint = Callable[..., str]


@pytest.fixture
def submitted(
    drf: Drf, daemon: CannedDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Submitted:
    """The request that a command line makes, without the environment."""
    monkeypatch.chdir(tmp_path)
    daemon.replies = {"submit": {"id": 7}}

    def run(*args: object) -> Message:
        result = drf("submit", *args)
        assert (result.code, result.err) == (0, "")
        request = daemon.requests.pop()
        assert daemon.requests == []
        assert isinstance(request.pop("env"), dict)
        return request

    return run


@pytest.fixture
def refused(
    drf: Drf, daemon: CannedDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Complaint:
    """The complaint about a command line, of which the daemon has heard nothing."""
    monkeypatch.chdir(tmp_path)

    def run(*args: object, code: int = 1) -> str:
        result = drf("submit", *args)
        assert (result.code, result.out, daemon.requests) == (code, "", [])
        assert result.err.count("\n") == 1
        return result.err

    return run


def plain(tmp_path: Path, *argv: str, **more: Any) -> dict[str, Any]:
    """The request for a command without any option."""
    umask = os.umask(0o077)
    os.umask(umask)
    return {
        "op": "submit",
        "argv": list(argv),
        "cwd": str(tmp_path),
        "demand": {},
        "priority": 0,
        "umask": umask,
        "held": False,
        "preemptible": False,
        # Errors go to the file of the output.
        "stderr": "drf-%j.out",
        **more,
    }


# -- commands ----------------------------------------------------------------------------------


def test_a_group_is_sent_as_it_is_written(submitted: Submitted, tmp_path: Path) -> None:
    assert submitted("-g", "sweep%2", "--", "true")["group"] == "sweep%2"
    script = tmp_path / "x.sh"
    script.write_text("#!/bin/sh\n#DRF --group=sweep\ntrue\n")
    assert submitted(script)["group"] == "sweep"


def test_a_group_that_cannot_be_read_is_refused_with_the_cure(refused: Complaint) -> None:
    told = refused("--group", "sweep%0", "--", "true", code=2)
    assert "after % stands how many may run at once, not '0' (write --group sweep," in told
    assert "--group" in refused("--group", "--", "true", code=2)


def test_what_is_not_said_is_left_to_the_daemon(submitted: Submitted, tmp_path: Path) -> None:
    assert submitted("--", "true") == plain(tmp_path, "true")


def test_everything_that_can_be_said(submitted: Submitted, tmp_path: Path) -> None:
    options = [
        *("-c", "2.5", "-m", "16G", "--io", "200M/50M", "-t", "1h30m", "-n", "train"),
        *("-p", "lab", "--priority", "-3", "--hold", "-o", "%j.out", "-e", "/tmp/%j.err"),
        *("--preemptible", "--append"),
    ]
    assert submitted(*options, "--", "true") == plain(
        tmp_path,
        "true",
        demand={
            "cores_milli": 2500,
            "memory_bytes": 16 << 30,
            "read_bps": 200 << 20,
            "write_bps": 50 << 20,
        },
        time_limit_s=5400,
        name="train",
        pool="lab",
        priority=-3,
        held=True,
        preemptible=True,
        append=True,
        stdout="%j.out",
        stderr="/tmp/%j.err",
    )


def test_things_that_are_counted(submitted: Submitted, tmp_path: Path) -> None:
    """Of one name, the last word counts: the command line comes after a script's own lines."""
    options = ["--gres", "gpu", "--gres", "fpga=2", "--gres", "gpu=3", "--gres", "tape=0"]
    counts = {"gpu": 3, "fpga": 2, "tape": 0}
    assert submitted(*options, "--", "true") == plain(tmp_path, "true", demand={"gres": counts})


@pytest.mark.parametrize(
    "word", ["gpu=", "=1", "gpu=-1", "gpu=1.5", "gpu:2", "gpu=1,", "gpu mem", ""]
)
def test_a_count_that_cannot_be_read_is_refused_with_the_cure(drf: Drf, word: str) -> None:
    result = drf("submit", "--gres", word, "--", "true")
    assert result.code == 2
    assert result.err.endswith("is not NAME=N (write gpu=2, or gpu for one)\n")


def test_a_range_is_sent_as_its_two_ends(submitted: Submitted, tmp_path: Path) -> None:
    demand = {
        "cores_milli": 2000, "cores_max_milli": 8000,
        "read_bps": 50 << 20, "read_max_bps": 200 << 20,
        "write_bps": 50 << 20, "write_max_bps": 200 << 20,
        "disks": {"data": {"read_bps": 1 << 20, "read_max_bps": "all", "write_bps": 1 << 20}},
    }  # fmt: skip
    options = ["-c", "2..8", "--io", "50M..200M", "--io", "data=1M../1M"]
    assert submitted(*options, "--", "true") == plain(tmp_path, "true", demand=demand)


def test_the_last_word_on_cores_counts_as_a_whole(submitted: Submitted) -> None:
    for words, demand in (
        ("-c 2..8 -c 4", {"cores_milli": 4000}),
        ("-c 4 -c 2..", {"cores_milli": 2000, "cores_max_milli": "all"}),
    ):
        assert submitted(*words.split(), "--", "true")["demand"] == demand


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("-c ..8", "'..8' has no lower end, which is what the job holds (write 2..8, "),
        ("-c 8..2", "'8..2' ends below its beginning (write 2..8)"),
        ("-c 0..2", "'0..2' begins with zero, and a job holds some (write 2..8, "),
        ("--io 0..2M", "'0..2M' begins with zero, and a job holds some (write 50M..200M)"),
    ],
)
def test_what_is_no_range_is_refused_with_the_cure(drf: Drf, words: str, error: str) -> None:
    result = drf("submit", *words.split(), "--", "true")
    assert result.code == 2
    assert error in result.err


def test_memory_belongs_to_the_resource_before_it(submitted: Submitted, tmp_path: Path) -> None:
    """Number and memory are two properties of a resource; of each the last word counts."""
    options = ["--gres", "gpu=2,memory=20G,license=1"]
    demand = {"gres": {"gpu": 2, "license": 1}, "gres_memory": {"gpu": 20 << 30}}
    assert submitted(*options, "--", "true") == plain(tmp_path, "true", demand=demand)
    for word, count, memory in (
        ("gpu=1", 1, 20 << 30),
        ("gpu,memory=1.5G", 1, 3 << 29),
        ("gpu=3,memory=0", 3, 0),
    ):
        assert submitted(*options, "--gres", word, "--", "true")["demand"] == {
            "gres": {"gpu": count, "license": 1}, "gres_memory": {"gpu": memory}
        }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("memory=20G", "memory stands after what it is the memory of"),
        ("memory=20G,gpu=1", "memory stands after what it is the memory of"),
        ("gpu=1,memory=20G,memory=30G", "memory is there twice"),
        ("gpu=1,memory", "memory has no size"),
        ("gpu=1,memory=", "memory has no size"),
        ("gpu=1,license=2,memory=20G", "only the memory of a gpu is measured"),
    ],
)
def test_memory_of_nothing_is_refused_with_the_cure(drf: Drf, word: str, fault: str) -> None:
    result = drf("submit", "--gres", word, "--", "true")
    assert result.code == 2
    assert result.err.endswith(f"{word!r}: {fault} (write gpu=1,memory=20G)\n")


def test_what_is_not_kept_of_the_demand_is_said(drf: Drf, daemon: CannedDaemon) -> None:
    note = "the declared memory of a gpu is not watched: no\x1blibrary"
    daemon.replies = {"submit": {"id": 7, "notes": [note]}}
    asks = ("submit", "--gres", "gpu=1,memory=20G")
    result = drf(*asks, "--", "true")
    assert (result.code, result.out) == (0, "submitted job 7\n")
    assert result.err == "drf: the declared memory of a gpu is not watched: no?library\n"
    assert drf(*asks, "--no-warnings", "--", "true").err == ""


def test_a_script_is_named_to_its_job(
    drf: Drf, daemon: CannedDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its whole path; a command names no script, also not that of the job that submits it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRF_SCRIPT", "/another")
    Path("job.sh").write_text("#!/bin/sh\n")
    daemon.replies = {"submit": {"id": 7}}
    drf("submit", "./job.sh")
    assert daemon.requests.pop()["env"]["DRF_SCRIPT"] == str(tmp_path / "job.sh")
    drf("submit", "--", "./job.sh")
    assert "DRF_SCRIPT" not in daemon.requests.pop()["env"]


def test_a_script_may_ask_for_what_is_counted(submitted: Submitted, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#DRF --gres gpu=2 --gres tape\n")
    assert submitted(str(script))["demand"] == {"gres": {"gpu": 2, "tape": 1}}
    assert submitted("--gres", "gpu=0", str(script))["demand"] == {"gres": {"gpu": 0, "tape": 1}}
    script.write_text("#!/bin/sh\n#DRF --gres gpu=1,memory=20G\n")
    assert submitted(str(script))["demand"] == {
        "gres": {"gpu": 1}, "gres_memory": {"gpu": 20 << 30}
    }  # fmt: skip


def test_when_it_starts_and_what_follows_a_bad_end(submitted: Submitted, tmp_path: Path) -> None:
    options = [
        *("--after", "5,6:any", "--after", "7:fail", "--after", "5", "--begin", "now"),
        *("--retry", "3", "--retry-on", "timeout,fail", "--warn", "USR1@2m"),
        *("--if-never", "cancel"),
    ]
    assert submitted(*options, "--", "true") == plain(
        tmp_path,
        "true",
        after=[{"id": 5, "want": "ok"}, {"id": 6, "want": "any"}, {"id": 7, "want": "fail"}],
        begin_s=0,
        retry={"times": 3, "on": ["TIMEOUT", "FAILED"]},
        warn={"signal": 10, "before_s": 120},
        if_never="cancel",
    )


@pytest.mark.parametrize(("word", "sent"), [("yes", "cancel"), ("no", "keep")])
def test_slurms_word_for_a_dependency_that_is_never_met(
    submitted: Submitted, word: str, sent: str
) -> None:
    assert submitted(f"--kill-on-invalid-dep={word}", "--", "true")["if_never"] == sent


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--after", "7x"], "'7x' is not ID or ID:HOW (write 5, 5-9, 5:any or 5:fail)"),
        (["--after", "5:good"], "'5:good' is not ID or ID:HOW"),
        (["--after", "0"], "'0' is not ID"),
        (["--if-never", "maybe"], "'maybe' is neither keep nor cancel"),
        (["--begin", "soon"], "'soon' is not a time (write 18:00,"),
        (["--begin", "1999-01-01"], "'1999-01-01' is over already"),
        (["--retry", "-1"], "'-1' is out of range"),
        (["--retry", "2", "--retry-on", "luck"], "'luck' is unknown (choose from fail,"),
        (["--retry-on", "fail"], "--retry N how often"),
        (["--warn", "USR1"], "'USR1' is not SIGNAL@TIME (write USR1@60 or TERM@5m)"),
        (["--warn", "BOO@60"], "'BOO' is not a signal"),
        (["--warn", "USR1@soon"], "'soon' is not a time"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_bad_conditions_are_told_with_the_cure(
    refused: Complaint, options: list[str], words: str
) -> None:
    assert words in refused(*options, "--", "true", code=2)


def test_long_options_are_the_same(submitted: Submitted) -> None:
    short = submitted("-c", "1", "-m", "1G", "-t", "1h", "-n", "a", "-p", "b", "-o", "c", "-e",
                      "d", "--", "true")  # fmt: skip
    long = submitted("--cores", "1", "--mem", "1G", "--time", "1h", "--name", "a", "--pool", "b",
                     "--output", "c", "--error", "d", "--", "true")  # fmt: skip
    assert short == long


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["-t", "unlimited"], {"time_limit_s": 0}),
        (["-t", "90s"], {"time_limit_s": 90}),
        (["--io", "10M"], {"demand": {"read_bps": 10 << 20, "write_bps": 10 << 20}}),
        (["--io", "0/5M"], {"demand": {"read_bps": 0, "write_bps": 5 << 20}}),
        (
            ["--io", "1M", "--io", "data=2M/3M"],
            {
                "demand": {
                    "read_bps": 1 << 20,
                    "write_bps": 1 << 20,
                    "disks": {"data": {"read_bps": 2 << 20, "write_bps": 3 << 20}},
                }
            },
        ),
        (
            ["--io", "data=1M", "--io", "data=2M"],
            {"demand": {"disks": {"data": {"read_bps": 2 << 20, "write_bps": 2 << 20}}}},
        ),
        (["-c", "0.01"], {"demand": {"cores_milli": 10}}),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_amounts(
    submitted: Submitted, tmp_path: Path, words: list[str], changes: dict[str, Any]
) -> None:
    assert submitted(*words, "--", "true") == plain(tmp_path, "true", **changes)


@pytest.mark.parametrize(
    "argv",
    [
        ["echo", "a b", "c\td"],
        ["sh", "-c", "echo 'x' \"y\" $HOME `id` | cat > /dev/null; exit 3"],
        ["rm", "*", "?", "[a-z]", "~", "{a,b}"],
        ["x", "", " ", ""],
        ["x", "-c", "4", "--mem", "1G", "-q", "--json", "--help"],
        ["x", "--", "y", "--", "--"],
        ["-x"],
        ["--help"],
        ["x", "line\nbreak", "\x1b[31m", "ünïcode", "日本"],
        ["x", "%s", "{0}", "\\n", "a=b", "@file"],
        ["x"] * 5000,
    ],
    ids=lambda argv: " ".join(argv)[:30],
)
def test_what_follows_the_dashes_is_argv_to_the_byte(submitted: Submitted, argv: list[str]) -> None:
    """Promised: never joined through a shell, never looked at."""
    assert submitted("--no-warnings", "--", *argv)["argv"] == argv
    assert submitted("-n", "n", "-q", "--no-warnings", "--", *argv)["argv"] == argv


def test_a_dash_dash_that_is_an_options_value_is_not_the_end_of_options(
    submitted: Submitted,
) -> None:
    assert submitted("-n", "--", "--", "true")["argv"] == ["true"]


def test_the_id_is_printed_in_words_bare_or_as_json(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"submit": {"id": 7}}
    assert drf("submit", "--", "true").out == "submitted job 7\n"
    assert drf("submit", "-q", "--", "true").out == "7\n"
    assert drf("submit", "--json", "--", "true").out == '{"id": 7}\n'


# -- waiting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "talk"),
    [
        ("COMPLETED", 0, ""),
        ("FAILED", 3, "drf: job 42 FAILED: words\n"),
        ("FAILED", 139, "drf: job 42 FAILED: words\n"),
        ("CANCELLED", 125, "drf: job 42 CANCELLED: words\n"),
        ("TIMEOUT", 124, "drf: job 42 TIMEOUT: words\n"),
        ("OUT_OF_MEMORY", 137, "drf: job 42 OUT_OF_MEMORY: words\n"),
        ("LAUNCH_FAILED", 125, "drf: job 42 LAUNCH_FAILED: words\n"),
        ("LOST", 125, "drf: job 42 LOST: words\n"),
    ],
)
def test_submit_and_wait_exits_as_the_job_did_and_tells_how_it_ended(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, code: str, status: int, talk: str
) -> None:
    daemon.replies = {
        "submit": {"id": 42},
        "wait": {"done": True, "ended": [ended(code, status, text="words")]},
    }
    result = drf("submit", "-q", "-w", "--", "true")
    assert (result.code, result.out, result.err) == (status, "42\n", talk)
    assert daemon.requests[1] == {"op": "wait", "ids": [42], "any": False, "timeout_s": None}


def test_the_id_can_be_read_before_the_job_ends(spawn: Spawn, daemon: CannedDaemon) -> None:
    answer = threading.Event()
    daemon.replies = {"submit": {"id": 42}, "wait": lambda request: answer.wait(20) and None}
    process = spawn("submit", "-q", "-w", "--", "true")
    assert process.stdout is not None
    assert process.stdout.readline() == b"42\n"
    answer.set()


# -- a dry run ---------------------------------------------------------------------------------

WHY = {"code": "RESOURCES", "text": "needs 8 cores, 3 free; job 40 (bob) holds 5"}
ESTIMATE = "if running jobs end as estimated and nobody submits anything before"


@pytest.mark.parametrize(
    ("start_s", "reason", "screen"),
    [
        (1_700_000_000.0, None, "it would start now\n"),
        (
            1_700_000_060.0,
            WHY,
            f"it would start about 2023-11-14 22:14, {ESTIMATE}\n"
            f"until then it waits: RESOURCES: {WHY['text']}\n",
        ),
        (
            None,
            {"code": "DRAINING", "text": "launching is stopped"},
            "it would wait; no start is in sight\n"
            "until then it waits: DRAINING: launching is stopped\n",
        ),
    ],
    ids=["now", "later", "not in sight"],
)
def test_a_dry_run_says_when_it_would_start_and_why_not_now(
    drf: Drf,
    daemon: CannedDaemon,
    start_s: float | None,
    reason: dict[str, str] | None,
    screen: str,
) -> None:
    forecast = {"expected_start_at": start_s, "reason": reason}
    daemon.replies = {"submit": forecast}
    result = drf("submit", "--dry-run", "--", "true")
    assert (result.code, result.out, result.err) == (0, screen, "")
    result = drf("submit", "--dry-run", "--json", "--", "true")
    assert (result.code, json.loads(result.out), result.err) == (0, forecast, "")


def test_a_dry_run_without_an_estimate_says_why_there_is_none(
    drf: Drf, daemon: CannedDaemon
) -> None:
    missing = {"code": "forecast-too-long", "text": "the estimate takes more than 30 s"}
    reason = {"code": "RESOURCES", "text": "no room"}
    forecast = {"expected_start_at": None, "reason": reason, "no_estimate": missing}
    daemon.replies = {"submit": forecast}
    result = drf("submit", "--dry-run", "--", "true")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "it would wait; nobody can say for how long: the estimate takes more than 30 s\n"
        "until then it waits: RESOURCES: no room\n"
    )
    result = drf("submit", "--dry-run", "--json", "--", "true")
    assert (result.code, json.loads(result.out), result.err) == (0, forecast, "")
    daemon.replies = {"submit": forecast | {"reason": None}}
    assert drf("submit", "--dry-run", "--", "true").out == (
        "it would be accepted; nobody can say when it would start: "
        "the estimate takes more than 30 s\n"
    )


def test_a_dry_run_asks_for_what_the_submission_would_and_waits_for_nothing(
    submitted: Submitted, daemon: CannedDaemon, tmp_path: Path
) -> None:
    daemon.replies = {"submit": {"expected_start_at": 1.0, "reason": None}}
    options = ["-c", "2", "--hold", "--preemptible", "-w", "-q"]
    assert submitted("--dry-run", *options, "--", "true") == plain(
        tmp_path,
        "true",
        demand={"cores_milli": 2000},
        held=True,
        preemptible=True,
        dry_run=True,
    )


def test_a_script_can_be_tried_with_its_own_options(
    submitted: Submitted, daemon: CannedDaemon, tmp_path: Path
) -> None:
    daemon.replies = {"submit": {"expected_start_at": 1.0, "reason": None}}
    request = submitted("--dry-run", script(tmp_path, "#!/bin/sh\n#DRF -c 4 --preemptible\n"))
    assert (request["demand"], request["preemptible"], request["dry_run"]) == (
        {"cores_milli": 4000},
        True,
        True,
    )


def test_a_dry_run_that_is_refused_is_refused_as_the_submission(
    drf: Drf, daemon: CannedDaemon, refuse: Refuse
) -> None:
    daemon.replies = {"submit": refuse("Refused", "too-big", "it could never start")}
    result = drf("submit", "--dry-run", "--", "true")
    assert (result.code, result.out, result.err) == (1, "", "drf: it could never start\n")


def test_the_reason_in_a_dry_run_is_made_harmless(drf: Drf, daemon: CannedDaemon) -> None:
    """It names other people's jobs."""
    hostile = {"code": "RESOURCES", "text": "\x1b[31m\nforged " + "x" * 5000}
    daemon.replies = {"submit": {"expected_start_at": None, "reason": hostile}}
    out = drf("submit", "--dry-run", "--", "true").out
    assert (out.count("\n"), "\x1b" in out) == (2, False)
    assert len(out) < 1500


# -- what the job takes along ------------------------------------------------------------------

ENV = {"LANG": "C.UTF-8", "KEEP": "ü", "MY_TOKEN": "s", "SSH_TTY": "/dev/pts/1"}


def test_the_environment_goes_along_without_secrets_and_session(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon
) -> None:
    daemon.replies = {"submit": {"id": 7}}
    assert finish(spawn("submit", "--", "true", env=ENV)).code == 0
    expected = {
        "PATH": os.environ["PATH"], "TZ": "UTC", "LANG": "C.UTF-8", "KEEP": "ü",
        "DRFD_SOCKET": str(daemon.path),
    }  # fmt: skip
    assert daemon.requests[-1]["env"] == expected
    assert finish(spawn("submit", "--export", "MY_TOKEN", "--", "true", env=ENV)).code == 0
    assert daemon.requests[-1]["env"] == expected | {"MY_TOKEN": "s"}


def test_a_variable_that_is_not_text_is_left_out_and_said(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon
) -> None:
    daemon.replies = {"submit": {"id": 7}}
    result = finish(spawn("submit", "-q", "--", "true", env=ENV | {"BAD": os.fsdecode(b"\xff")}))
    assert (result.code, result.out) == (0, "7\n")
    assert result.err == (
        "drf: left out the variable BAD: it is not UTF-8 text\n"
        "drf: left out MY_TOKEN, which may be secret; --export MY_TOKEN keeps it\n"
    )
    assert "BAD" not in daemon.requests[-1]["env"]


@pytest.mark.parametrize(
    ("time", "said"),
    [
        ("90", "drf: time: 90 is 90 seconds (90m: minutes)"),
        ("30:00", "drf: time: 30:00 is 30m00s (30h00m: hours)"),
        ("90m", ""),
    ],
)
def test_a_time_that_could_mean_something_else_is_told(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, tmp_path: Path, time: str, said: str
) -> None:
    daemon.replies = {"submit": {"id": 7}}
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n#DRF -t {time}\ntrue\n")
    for words in (["-t", time, "--", "true"], [str(script)]):
        controller, terminal = os.openpty()
        try:
            finish(spawn("submit", "-q", *words, stderr=terminal))
            os.set_blocking(controller, False)
            found = b""
            with suppress(BlockingIOError):
                found = os.read(controller, 4096)
        finally:
            os.close(controller)
            os.close(terminal)
        assert found.decode().strip() == said
        # In scripts, too, where a bare number meant minutes to Slurm.
        elsewhere = said + "\n" if time.isdecimal() else ""
        assert finish(spawn("submit", "-q", *words)).err == elsewhere
        assert finish(spawn("submit", "-q", "--no-warnings", *words)).err == ""


def test_an_argument_that_is_not_text_is_refused(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon
) -> None:
    result = finish(spawn("submit", "--", "echo", os.fsdecode(b"\xff")))
    assert (result.code, result.out, daemon.requests) == (1, "", [])
    assert result.err == "drf: an argument of the command is not UTF-8 text\n"


@pytest.mark.parametrize(
    "words",
    [["-n", os.fsdecode(b"\xff")], ["-o", os.fsdecode(b"\xff")], ["-p", os.fsdecode(b"\xff")]],
    ids=lambda words: words[0],
)
def test_an_option_that_is_not_text_is_refused_in_one_line(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, words: list[str]
) -> None:
    """The daemon could only say at which byte of the message it stopped understanding."""
    result = finish(spawn("submit", *words, "--", "true"))
    assert (result.out, result.err.count("\n"), daemon.requests) == ("", 1, [])
    assert result.code in (1, 2)


def test_the_umask_goes_along(spawn: Spawn, finish: Finish, daemon: CannedDaemon) -> None:
    daemon.replies = {"submit": {"id": 7}}
    finish(spawn("submit", "--", "true", umask=0o027))
    assert daemon.requests[-1]["umask"] == 0o027


def test_a_directory_that_has_vanished_is_refused(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    process = spawn("submit", "--", "true", cwd=gone, preexec_fn=lambda: os.rmdir(gone))
    result = finish(process)
    assert (result.code, daemon.requests) == (1, [])
    assert result.err == ("drf: the current directory cannot be used: No such file or directory\n")


@pytest.mark.skipif(os.getuid() == 0, reason="root may enter every directory")
def test_a_directory_that_may_not_be_entered_is_refused(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, tmp_path: Path
) -> None:
    shut = tmp_path / "shut"
    shut.mkdir()
    process = spawn("submit", "--", "true", cwd=shut, preexec_fn=lambda: os.chmod(shut, 0o600))
    result = finish(process)
    shut.chmod(0o700)
    assert (result.code, daemon.requests) == (1, [])
    assert "you may not enter the current directory" in result.err


# -- scripts -----------------------------------------------------------------------------------


def script(tmp_path: Path, text: str, name: str = "job.sh") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_a_script_goes_along_as_it_is_with_its_arguments(
    submitted: Submitted, tmp_path: Path
) -> None:
    text = "#!/bin/bash\n#DRF -c 4\necho ünïcode $1\n"
    path = script(tmp_path, text)
    assert submitted(path, "a b", "-c", "9", "--") == plain(
        tmp_path,
        path,
        "a b",
        "-c",
        "9",
        "--",
        demand={"cores_milli": 4000},
        name="job.sh",
        script=text,
    )


def test_directives_are_options_with_quotes_and_comments(
    submitted: Submitted, tmp_path: Path
) -> None:
    text = """#!/bin/sh
# a comment
#DRF -c 4 -m 16G   # of the old cluster
#DRF -n 'two words' --export PATH
#PBS --ignored

#DRF -t 2h
"""
    request = submitted(script(tmp_path, text))
    assert request["demand"] == {"cores_milli": 4000, "memory_bytes": 16 << 30}
    assert (request["name"], request["time_limit_s"]) == ("two words", 7200)


def test_the_command_line_wins_over_the_script(submitted: Submitted, tmp_path: Path) -> None:
    path = script(tmp_path, "#!/bin/sh\n#DRF -c 4 -m 16G -n script\n")
    request = submitted("-c", "1", "-n", "mine", path)
    assert request["demand"] == {"cores_milli": 1000, "memory_bytes": 16 << 30}
    assert request["name"] == "mine"


def test_directives_end_at_the_first_command(submitted: Submitted, tmp_path: Path) -> None:
    path = script(tmp_path, "#!/bin/sh\n#DRF -c 4\ntrue\n#DRF -c 8\n")
    assert submitted(path)["demand"] == {"cores_milli": 4000}


@pytest.mark.parametrize(
    "line", ["#DRFX -c 8", "# DRF -c 8", "##DRF -c 8", " #DRF -c 8", "#drf -c 8", "#DRF"]
)
def test_only_lines_that_start_with_the_directive_count(
    submitted: Submitted, tmp_path: Path, line: str
) -> None:
    path = script(tmp_path, f"#!/bin/sh\n#DRF -c 4\n{line}\n")
    assert submitted(path)["demand"] == {"cores_milli": 4000}


@pytest.mark.parametrize("blank", ["\t", "  ", " \t "])
def test_any_blank_may_follow_the_directive(
    submitted: Submitted, tmp_path: Path, blank: str
) -> None:
    """A demand that is silently ignored is the worst kind."""
    path = script(tmp_path, f"#!/bin/sh\n#DRF{blank}-c 4\n")
    assert submitted(path)["demand"] == {"cores_milli": 4000}


def test_a_script_with_foreign_line_ends_has_its_directives_too(
    submitted: Submitted, tmp_path: Path
) -> None:
    path = tmp_path / "dos.sh"
    path.write_bytes(b"# no interpreter\r\n#DRF -n dos\r\n")
    assert submitted(path)["name"] == "dos"


def test_an_empty_script_is_a_script(submitted: Submitted, tmp_path: Path) -> None:
    path = script(tmp_path, "")
    assert submitted(path)["script"] == ""


def test_a_script_of_exactly_the_largest_size_is_taken(
    submitted: Submitted, tmp_path: Path
) -> None:
    path = script(tmp_path, "#" * (512 << 10))
    assert len(submitted(path)["script"]) == 512 << 10


def test_a_command_without_the_dashes_is_pointed_to_them(refused: Complaint) -> None:
    assert refused("no-such-script", "-x") == (
        "drf: cannot read the script no-such-script: No such file or directory "
        "(to run a command, write -- before it: drf submit -- CMD)\n"
    )


def test_a_program_is_not_a_script(refused: Complaint, tmp_path: Path) -> None:
    path = tmp_path / "a.out"
    path.write_bytes(b"\x7fELF\x02\x01\xff\xfe")
    assert refused(path) == (f"drf: {path} is a program, not a script (drf submit -- {path})\n")


def test_a_directory_is_not_a_script(refused: Complaint, tmp_path: Path) -> None:
    assert "Is a directory" in refused(tmp_path)


def test_a_script_that_is_too_long_is_refused(refused: Complaint, tmp_path: Path) -> None:
    path = script(tmp_path, "#" * ((512 << 10) + 1))
    assert refused(path) == f"drf: the script {path} has more than 524288 bytes\n"


def test_an_endless_script_is_refused_without_being_read_to_its_end(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon
) -> None:
    """`drf submit /dev/zero`, or a file of 80 GB by mistake: on a login node, of all places."""
    memory = (1 << 29, 1 << 29)
    process = spawn(
        "submit", "/dev/zero", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, memory)
    )
    result = finish(process)
    assert (result.code, result.out, daemon.requests) == (1, "", [])
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        "#DRF --bogus",
        "#DRF -c many",
        "#DRF -m",
        "#DRF 'open quote",
        "#DRF -c 4 stray",
        "#DRF -- rm -rf /",
    ],
)
def test_a_wrong_directive_names_the_script_and_its_line(
    drf: Drf, daemon: CannedDaemon, tmp_path: Path, line: str
) -> None:
    """Promise 10: one clear line that names the place."""
    daemon.replies = {"submit": {"id": 7}}
    path = script(tmp_path, f"#!/bin/sh\n# first\n{line}\ntrue\n")
    result = drf("submit", path)
    assert (result.out, daemon.requests) == ("", [])
    assert result.code in (1, 2)
    assert result.err.count("\n") == 1
    assert f"{path}, line 3" in result.err


def test_a_hostile_script_name_is_made_harmless(refused: Complaint) -> None:
    said = refused("x\x1b[31m\n" + "y" * 5000)
    assert "\x1b" not in said
    assert len(said) < 500


def test_a_directory_that_is_not_text_is_named(
    spawn: Spawn, finish: Finish, daemon: CannedDaemon, tmp_path: Path
) -> None:
    path = tmp_path / os.fsdecode(b"d\xff")
    path.mkdir()
    result = finish(spawn("submit", "--", "true", cwd=path, env=ENV))
    assert (result.code, result.out, daemon.requests) == (1, "", [])
    assert result.err == f"drf: '{tmp_path}/d?' is not UTF-8 text\n"


def test_a_script_with_the_line_ends_of_windows_is_refused_with_the_cure(
    drf: Drf, daemon: CannedDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_bytes(b"#!/bin/sh\r\n#DRF -c 2\r\necho\r\n")
    result = drf("submit", "job.sh")
    assert (result.code, result.out, daemon.requests) == (1, "", [])
    assert result.err == (
        "drf: the script job.sh has the line ends of Windows (sed -i 's/\\r$//' job.sh)\n"
    )
    subprocess.run(["sed", "-i", r"s/\r$//", "job.sh"], check=True)
    daemon.replies = {"submit": {"id": 7}}
    assert drf("submit", "job.sh").code == 0


def test_a_wish_for_notices_is_sent_along(drf: Drf, daemon: CannedDaemon) -> None:
    daemon.replies = {"submit": {"id": 1}}
    drf("submit", "--notify", "fail", "--notify-command", "touch x", "--", "true")
    drf("submit", "--", "true")
    first, second = daemon.asked("submit", times=2)
    assert first["notify"] == {"on": ["fail"], "argv": ["sh", "-c", "touch x"]}
    assert "notify" not in second


def test_a_wish_for_notices_that_is_refused_is_one_line(drf: Drf, daemon: CannedDaemon) -> None:
    result = drf("submit", "--notify", "sometimes", "--", "true")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert "'sometimes' is none of start, end, fail" in result.err
    assert daemon.requests == []

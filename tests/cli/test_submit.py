"""drf submit: what is asked of the daemon, from commands and from scripts; and that it does without
click."""

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from canned import Message
from drfd.client.connection import Connection
from drfd.client.option_values import read as read_value
from drfd.client.words import parse_after
from drfd.common.errors import Refused
from drfd.common.units import is_endless, parse_cores_range, parse_duration, parse_memory
from drfd.payload.pack import raw
from drfd.protocol.job_options import BY_KEY
from seeds import examples


@pytest.fixture
def submitted(drf, daemon, tmp_path, monkeypatch):
    """Submits with these words; the request that it makes, without the environment."""
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
def refused(drf, daemon, tmp_path, monkeypatch):
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
        "op": "submit", "argv": list(argv), "cwd": str(tmp_path), "demand": {},
        "umask": umask,
        # Errors go to the file of the output.
        "stderr": "drf-%j.out", **more,
    }  # fmt: skip


def script(tmp_path: Path, text: str, name: str = "job.sh") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


# -- commands ----------------------------------------------------------------------------------

M = 1 << 20
TWO_GPUS = "--gres gpu=2,memory=20G,license=1"


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("", {}),
        (
            "-c 2.5 -m 16G --io 200M/50M -t 1h30m -n train -p lab --priority -3 --hold -o %j.out "
            "-e /tmp/%j.err --preemptible --append",
            {"demand": {"cores_milli": 2500, "memory_bytes": 16 << 30, "read_bps": 200 * M,
                        "write_bps": 50 * M},
             "time_limit_s": 5400, "name": "train", "pool": "lab", "priority": -3, "held": True,
             "preemptible": True, "append": True, "stdout": "%j.out", "stderr": "/tmp/%j.err"},
        ),
        (
            "--cores 1 --mem 1G --time 90s --name a --pool b --output c --error d --group sweep%2",
            {"demand": {"cores_milli": 1000, "memory_bytes": 1 << 30}, "time_limit_s": 90,
             "name": "a", "pool": "b", "stdout": "c", "stderr": "d", "group": "sweep%2"},
        ),
        ("-t unlimited -c 0.01", {"time_limit_s": 0, "demand": {"cores_milli": 10}}),
        ("-n --", {"name": "--"}),
        # Disks: all of them, or one by its name, and the last word on each counts.
        ("--io 10M", {"demand": {"read_bps": 10 * M, "write_bps": 10 * M}}),
        ("--io 0/5M", {"demand": {"read_bps": 0, "write_bps": 5 * M}}),
        (
            "--io 1M --io data=1M --io data=2M/3M",
            {"demand": {"read_bps": M, "write_bps": M,
                        "disks": {"data": {"read_bps": 2 * M, "write_bps": 3 * M}}}},
        ),
        # Ranges, of which the last word counts as a whole.
        (
            "-c 2..8 --io 50M --io data=1M/2M",
            {"demand": {
                "cores_milli": 2000, "cores_max_milli": 8000, "read_bps": 50 * M,
                "write_bps": 50 * M, "disks": {"data": {"read_bps": M, "write_bps": 2 * M}}}},
        ),
        ("-c 2..8 -c 4", {"demand": {"cores_milli": 4000}}),
        ("-c 4 -c 2..", {"demand": {"cores_milli": 2000, "cores_max_milli": "all"}}),
        # What is counted, with the memory of what stands before it.
        (
            "--gres gpu --gres fpga=2 --gres gpu=3 --gres tape=0",
            {"demand": {"gres": {"gpu": 3, "fpga": 2, "tape": 0}}},
        ),
        *(
            (
                f"{TWO_GPUS} {word}",
                {"demand": {"gres": {"gpu": count, "license": 1}, "gres_memory": {"gpu": memory}}},
            )
            for word, count, memory in (
                ("", 2, 20 << 30), ("--gres gpu=1", 1, 20 << 30),
                ("--gres gpu,memory=1.5G", 1, 3 << 29), ("--gres gpu=3,memory=0", 3, 0),
            )
        ),
        # When it starts, and what follows a bad end.
        (
            "--after 5,6:any --after 7:fail --after 5 --begin now --retry 3 --retry-on "
            "timeout,fail --warn USR1@2m --if-never cancel",
            {"after": [{"id": 5, "want": "ok"}, {"id": 6, "want": "any"},
                       {"id": 7, "want": "fail"}],
             "begin_s": 0, "retry": {"times": 3, "on": ["TIMEOUT", "FAILED"]},
             "warn": {"signal": 10, "before_s": 120}, "if_never": "cancel"},
        ),
        (
            "--notify fail --notify-command true",
            {"notify": {"on": ["fail"], "argv": ["sh", "-c", "true"]}},
        ),
        ("--array 0-9%2", {"array": "0-9%2", "stderr": "drf-%A_%a.out"}),
        ("--dry-run -c 2 --hold -w -q",
         {"demand": {"cores_milli": 2000}, "held": True, "dry_run": True}),
    ],
    ids=lambda each: each[:30] if isinstance(each, str) else "",
)  # fmt: skip
def test_options_are_sent_and_what_is_not_said_is_left_to_the_daemon(
    submitted, daemon, tmp_path, words, changes
):
    if "--dry-run" in words:
        daemon.replies = {"submit": {"expected_start_at": 1.0, "reason": None}}
    assert submitted(*words.split(), "--", "true") == plain(tmp_path, "true", **changes)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--group", "--group"),
        *(
            (f"--gres {word}", "is not NAME=N (write gpu=2, or gpu for one)\n")
            for word in ("gpu=", "=1", "gpu=-1", "gpu=1.5", "gpu:2", "gpu=1,")
        ),
        *(
            (f"--gres {word}", f"'{word}': memory {fault} (write gpu=1,memory=20G)\n")
            for word, fault in (
                ("memory=20G", "stands after what it is the memory of"),
                ("gpu=1,memory=20G,memory=30G", "is there twice"),
                ("gpu=1,memory", "has no size"), ("gpu=1,memory=", "has no size"),
            )
        ),
        ("--gres gpu=1,license=2,memory=20G", "only the memory of a gpu is measured"),
        ("-c 0..2", "'0..2' begins with zero, and a job holds some (write 2..8, "),
        ("--io 5M..9M/1M", "'5M..9M' is a range, and only cores have ranges (write 5M)"),
        ("--after 7x", "'7x' is not ID or ID:HOW (write 5, 5-9, 5:any or 5:fail)"),
        ("--if-never maybe", "'maybe' is neither keep nor cancel"),
        ("--begin soon", "'soon' is not a time (write 18:00,"),
        ("--begin 1999-01-01", "'1999-01-01' is over already"),
        ("--retry -1", "'-1' is out of range"),
        ("--retry yes", "'yes' is not a number"),
        ("--retry 2 --retry-on luck", "'luck' is unknown (choose from fail,"),
        ("--retry-on fail", "--retry N how often"),
        ("--warn USR1", "'USR1' is not SIGNAL@TIME (write USR1@60 or TERM@5m)"),
        ("--warn BOO@60", "'BOO' is not a signal"),
        ("--warn USR1@soon", "'soon' is not a time"),
        ("--array 5-1", "'5-1' is wrong: the range 5-1 ends before it begins (write 0-99, "),
        ("-c many", "Invalid value for '-c' / '--cores'"),
        ("-m 16Q", "'16Q' is not a size (write 512M, 16G or 1.5T)"),
        ("-m 999999999999T", "'999999999999T' is more than there is in the world\n"),
        (f"-t {10**20}h", f"'{10**20}h' is longer than anything lasts (write 90s, 30m, 2h30m, "),
        ("--wrap true", "--wrap "),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_the_cure(refused, words, told):
    assert told in refused(*words.split(), "--", "true", code=2)


@pytest.mark.parametrize(
    "argv",
    [
        ["echo", "a b", "c\td"],
        ["sh", "-c", "echo 'x' \"y\" $HOME `id` | cat > /dev/null; exit 3"],
        ["rm", "*", "?", "[a-z]", "~", "{a,b}"],
        ["x", "", " ", ""],
        ["x", "-c", "4", "--mem", "1G", "-q", "--json", "--help"],
        ["x", "--", "y", "--", "--"],
        ["--help"],
        ["x", "line\nbreak", "\x1b[31m", "ünïcode", "日本"],
        ["x", "%s", "{0}", "\\n", "a=b", "@file"],
        ["x"] * 5000,
    ],
    ids=lambda argv: " ".join(argv)[:30],
)
def test_what_follows_the_dashes_is_argv_to_the_byte(submitted, argv):
    """Promised: never joined through a shell, never looked at."""
    assert submitted("-n", "n", "-q", "--no-warnings", "--", *argv)["argv"] == argv


@pytest.mark.parametrize(
    ("words", "reply", "out"),
    [
        ("", {"id": 7}, "submitted job 7\n"),
        ("-q", {"id": 7}, "7\n"),
        ("--json", {"id": 7}, '{"id": 7}\n'),
        ("--array 0-99%2", {"id": 42, "tasks": 100}, "submitted array 42 of 100 tasks\n"),
        ("--array 7", {"id": 42, "tasks": 1}, "submitted array 42 of 1 task\n"),
        ("--array 7 -q", {"id": 42, "tasks": 1}, "42\n"),
        ("--array 7 --json", {"id": 42, "tasks": 1}, '{"id": 42, "tasks": 1}\n'),
    ],
)
def test_the_id_is_printed_in_words_bare_or_as_json(drf, daemon, words, reply, out):
    daemon.replies = {"submit": reply}
    assert drf("submit", *words.split(), "--", "true").out == out


def test_what_is_not_kept_of_the_demand_is_said(drf, daemon):
    note = "the declared memory of a gpu is not watched: no\x1blibrary"
    daemon.replies = {"submit": {"id": 7, "notes": [note]}}
    asks = ("submit", "--gres", "gpu=1,memory=20G")
    result = drf(*asks, "--", "true")
    assert (result.code, result.out) == (0, "submitted job 7\n")
    assert result.err == "drf: the declared memory of a gpu is not watched: no?library\n"
    assert drf(*asks, "--no-warnings", "--", "true").err == ""


def test_a_wish_for_notices_that_is_refused_is_one_line(refused):
    assert "'sometimes' is none of start, end, fail" in refused(
        "--notify", "sometimes", "--", "true", code=2
    )


# -- waiting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("COMPLETED", 0), ("FAILED", 3), ("FAILED", 139), ("CANCELLED", 125), ("TIMEOUT", 124),
        ("OUT_OF_MEMORY", 137), ("LAUNCH_FAILED", 125), ("LOST", 125),
    ],
)  # fmt: skip
def test_submit_and_wait_exits_as_the_job_did_and_tells_how_it_ended(
    drf, daemon, ended, code, status
):
    daemon.replies = {
        "submit": {"id": 42},
        "wait": {"done": True, "ended": [ended(code, status, text="words")]},
    }
    result = drf("submit", "-q", "-w", "--", "true")
    talk = f"drf: job 42 {code}: words\n" if status else ""
    assert (result.code, result.out, result.err) == (status, "42\n", talk)
    assert daemon.requests[1] == {"op": "wait", "ids": [42], "any": False, "timeout_s": None}


def test_the_id_can_be_read_before_the_job_ends(spawn, daemon):
    answer = threading.Event()
    daemon.replies = {"submit": {"id": 42}, "wait": lambda request: answer.wait(20) and None}
    process = spawn("submit", "-q", "-w", "--", "true")
    assert process.stdout is not None
    assert process.stdout.readline() == b"42\n"
    answer.set()


# -- a dry run ---------------------------------------------------------------------------------

WHY = {"code": "RESOURCES", "text": "needs 8 cores, 3 free; job 40 (bob) holds 5"}
WAITS = f"until then it waits: RESOURCES: {WHY['text']}\n"
MISSING = {"code": "forecast-too-long", "text": "the estimate takes more than 30 s"}


@pytest.mark.parametrize(
    ("forecast", "screen"),
    [
        ({"expected_start_at": 1_700_000_000.0, "reason": None}, "it would start now\n"),
        (
            {"expected_start_at": 1_700_000_060.0, "reason": WHY},
            "it would start about 2023-11-14 22:14, if running jobs end as estimated and none "
            f"is submitted ahead of it\n{WAITS}",
        ),
        (
            {"expected_start_at": None, "reason": WHY},
            f"it would wait; no start is in sight\n{WAITS}",
        ),
        (
            {"expected_start_at": None, "reason": WHY, "no_estimate": MISSING},
            f"it would wait; nobody can say for how long: {MISSING['text']}\n{WAITS}",
        ),
        (
            {"expected_start_at": None, "reason": None, "no_estimate": MISSING},
            f"it would be accepted; nobody can say when it would start: {MISSING['text']}\n",
        ),
    ],
    ids=["now", "later", "not in sight", "not known", "not known, no reason"],
)
def test_a_dry_run_says_when_it_would_start_and_why_not_now(drf, daemon, forecast, screen):
    daemon.replies = {"submit": forecast}
    result = drf("submit", "--dry-run", "--", "true")
    assert (result.code, result.out, result.err) == (0, screen, "")
    result = drf("submit", "--dry-run", "--json", "--", "true")
    assert (result.code, json.loads(result.out), result.err) == (0, forecast, "")


def test_a_dry_run_that_is_refused_is_refused_as_the_submission(drf, daemon, refuse):
    daemon.replies = {"submit": refuse("Refused", "too-big", "it could never start")}
    result = drf("submit", "--dry-run", "--", "true")
    assert (result.code, result.out, result.err) == (1, "", "drf: it could never start\n")


# -- what the job takes along ------------------------------------------------------------------

ENV = {"LANG": "C.UTF-8", "KEEP": "ü", "MY_TOKEN": "s", "SSH_TTY": "/dev/pts/1"}
BYTE = os.fsdecode(b"\xff")


def test_the_environment_goes_along_without_secrets_and_session(spawn, finish, daemon):
    """The umask goes along, too."""
    daemon.replies = {"submit": {"id": 7}}
    words = ("submit", "-q", "--export", "OTHER,SSH_TTY", "--", "true")
    env = ENV | {"BAD": BYTE, "OTHER": "x", "SSH_TTY": "/t", "DISPLAY": ":1"}
    result = finish(spawn(*words, env=env, umask=0o027))
    assert (result.code, result.out, result.err) == (0, "7\n", "")
    request = daemon.requests[-1]
    assert request["umask"] == 0o027
    assert request["env"] == {
        "PATH": os.environ["PATH"], "TZ": "UTC", "LANG": "C.UTF-8", "KEEP": "ü", "OTHER": "x",
        "SSH_TTY": "/t",
        "BAD": "\U0010ffff", "DRFD_SOCKET": str(daemon.path),
    }  # fmt: skip
    assert finish(spawn("submit", "--export", "MY_TOKEN", "--", "true", env=ENV)).err == ""
    assert daemon.requests[-1]["env"]["MY_TOKEN"] == "s"


@pytest.mark.parametrize(
    ("time", "said"),
    [
        ("90", "drf: time: 90 is 90 seconds (90m: minutes)"),
        ("30:00", "drf: time: 30:00 is 30m00s (30h00m: hours)"),
        ("90m", ""),
    ],
)
@pytest.mark.parametrize("of_script", [False, True])
def test_a_time_that_could_mean_something_else_is_told(
    drf, daemon, tmp_path, monkeypatch, of_script, time, said
):
    """To a person; of a bare number, which meant minutes to Slurm, also to a program."""
    daemon.replies = {"submit": {"id": 7}}
    words = [script(tmp_path, f"#!/bin/sh\n#DRF -t {time}\n")] if of_script else ["-t", time]
    words += [] if of_script else ["--", "true"]
    elsewhere = f"{said}\n" if time.isdecimal() else ""
    assert drf("submit", "-q", *words).err == elsewhere
    assert drf("submit", "-q", "--no-warnings", *words).err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert drf("submit", "-q", *words).err.strip() == said


def test_no_job_gets_a_terminal_whose_output_cannot_be_written(drf, daemon, tmp_path, monkeypatch):
    """It was queued, cancelled at once, and recorded as cancelled by its user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "x").mkdir()
    result = drf("submit", "--pty", "-o", "x", "--", "true")
    assert (result.code, daemon.requests) == (1, [])
    assert result.err == "drf: -o x is a directory; name a file in it: -o x/%j.out\n"


def test_what_is_not_utf8_reaches_the_daemon_byte_by_byte(
    submitted, drf, daemon, tmp_path, monkeypatch
):
    (tmp_path / os.fsdecode(b"d\xff")).mkdir()
    monkeypatch.chdir(tmp_path / os.fsdecode(b"d\xff"))
    Path(BYTE).write_bytes(b"#!/bin/sh\n# f\xfcr\n#DRF -m 64M\n")
    monkeypatch.setenv("V", BYTE)
    result = drf("submit", "-o", BYTE, BYTE, BYTE)
    request = daemon.requests.pop()
    assert (result.code, result.err, request["demand"]) == (0, "", {"memory_bytes": 64 << 20})
    sent = [*request["argv"], request["stdout"], request["env"]["V"]]
    assert [raw(each) for each in sent] == [os.fsencode(BYTE)] * 4
    assert raw(request["script"]) == Path(BYTE).read_bytes()
    assert raw(request["cwd"]) == os.fsencode(os.getcwd())


def test_what_stands_for_a_byte_cannot_be_sent(refused):
    assert "has a character that cannot be sent" in refused("--", "echo", "\U0010ffe9")


@pytest.mark.parametrize(
    ("name", "spoil", "told"),
    [
        ("gone", os.rmdir, "the current directory cannot be used: No such file or directory"),
        pytest.param(
            "shut", lambda path: os.chmod(path, 0o600), "you may not enter the current directory",
            marks=pytest.mark.skipif(os.getuid() == 0, reason="root may enter every directory"),
        ),
    ],
    ids=["gone", "shut"],
)  # fmt: skip
def test_a_directory_that_cannot_be_used_is_refused(
    drf, daemon, tmp_path, monkeypatch, name, spoil, told
):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    if spoil is not None:
        spoil(tmp_path / name)
    result = drf("submit", "--", "true")
    assert (result.code, result.out, daemon.requests) == (1, "", [])
    assert told.format(tmp_path) in result.err


# -- scripts -----------------------------------------------------------------------------------


def test_a_script_goes_along_as_it_is_with_its_arguments_and_its_name(
    drf, daemon, submitted, tmp_path, monkeypatch
):
    text = "#!/bin/bash\n#DRF -c 4\necho ünïcode $1\n"
    path = script(tmp_path, text)
    assert submitted(path, "a b", "--", "-c", "9") == plain(
        tmp_path, path, "a b", "--", "-c", "9", demand={"cores_milli": 4000}, name="job.sh",
        script=text,
    )  # fmt: skip
    assert submitted(script(tmp_path, ""))["script"] == ""
    # It is named to its job by its whole path; a command names none, also not its submitter's.
    monkeypatch.setenv("DRF_SCRIPT", "/another")
    drf("submit", "./job.sh")
    assert daemon.requests.pop()["env"]["DRF_SCRIPT"] == path
    drf("submit", "--", "./job.sh")
    assert "DRF_SCRIPT" not in daemon.requests.pop()["env"]


def test_lines_of_a_script_are_options_with_quotes_and_comments_and_lose_to_typed_ones(
    submitted, tmp_path
):
    path = script(
        tmp_path,
        "#!/bin/sh\n# a comment\n#DRF -c 4 -m 16G   # of the old cluster\n"
        "#DRF -n 'two words' --export PATH\n#PBS --ignored\n\n#DRF --gres gpu=2 --gres tape\n"
        "#DRF -t 2h --array 0-9 -g sweep --preemptible\ntrue\n",
    )
    request = submitted(path)
    gres = {"gres": {"gpu": 2, "tape": 1}}
    assert request["demand"] == {"cores_milli": 4000, "memory_bytes": 16 << 30, **gres}
    assert (request["name"], request["time_limit_s"]) == ("two words", 7200)
    assert (request["array"], request["group"], request["preemptible"]) == ("0-9", "sweep", True)
    request = submitted("-c", "1", "-n", "mine", "--gres", "gpu=0", path)
    gres = {"gres": {"gpu": 0, "tape": 1}}
    assert request["demand"] == {"cores_milli": 1000, "memory_bytes": 16 << 30, **gres}
    assert request["name"] == "mine"


@pytest.mark.parametrize(
    ("line", "cores"),
    [
        *((line, 4000) for line in ("#DRFX -c 8", "# DRF -c 8", "##DRF -c 8", "#drf -c 8", "#DRF")),
        # A demand that is silently ignored is the worst kind.
        *((line, 8000) for line in ("#DRF\t-c 8", "#DRF  -c 8", "#DRF-c 8", "#DRF -c 8\r")),
        # What comes before it: an indented comment, blank lines, and what ends lines elsewhere.
        ("#\udcfc\n#DRF -c 8", 8000),
        *((f"{line}\n#DRF -c 8", 8000) for line in ("  # text", "\t#", " \v", "# a\fb", "#\x85")),
    ],
)  # fmt: skip
def test_only_lines_that_start_with_the_directive_count(submitted, tmp_path, line, cores):
    path = tmp_path / "job"
    path.write_bytes(f"#!/usr/bin/python3\n#DRF -c 4\n{line}\n".encode(errors="surrogateescape"))
    assert submitted("--no-warnings", path)["demand"] == {"cores_milli": cores}


@pytest.mark.parametrize(
    ("lines", "warning"),
    [
        ("set -e\n#DRF -m 1G", "line 3 of the script (#DRF -m 1G) has no effect: it stands below "
         "the first command (line 2)"),
        ("true\n#SBATCH -c 2\n #DRF -c 3", "line 3 of the script (#SBATCH -c 2) has no effect: it "
         "stands below the first command (line 2), nor have 1 more"),
        (" #DRF -m 1G", "line 2 of the script (#DRF -m 1G) has no effect: it is indented"),
        *((f"{line} --mem=1G", f"line 2 of the script ({line} --mem=1G) has no effect: "
           f"{mark} begins such lines")
          for mark, lines in {
              "#SBATCH": ("#SBTACH", "#SBACTH", "#sbatch", "# SBATCH", "#!SBATCH", "#SBATHC",
                          "# sbatch", "#SBTCH", "#SBAATCH"),
              "#DRF": ("#DRFD", "#Drf", "#DFR", "# DRF"),
          }.items() for line in lines),
        ("cat > x.sh << 'EOF'\n#SBATCH -c 2\nEOF", None),
        *((f"{line}\ntrue", None) for line in ("##SBATCH -c 2", "# sbatch runs it", "#drf - queue",
          "# a -c 2", "# SBTACH -c 2", "#", "# drfd")),
    ],
)  # fmt: skip
def test_an_option_line_that_has_no_effect_is_told(drf, daemon, tmp_path, lines, warning):
    daemon.replies = {"submit": {"id": 7}}
    result = drf("submit", script(tmp_path, f"#!/bin/sh\n{lines}\n"))
    assert (result.code, result.err) == (0, "" if warning is None else f"drf: {warning}\n")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"#!/bin/sh\r\n#DRF -c 2\r\n", "has the line ends of Windows (sed -i 's/\\r$//' dos.sh)"),
        (b"# no interpreter\r\n", "has the line ends of Windows (sed -i 's/\\r$//' dos.sh)"),
        (b"#!/usr/bin/env bash\n#DRF -c 2\ncd ..\r\n", "has the line ends of Windows (sed -i "
         "'s/\\r$//' dos.sh)"),
        (b"#!/usr/bin/python3\r\n", "has the line ends of Windows (sed -i 's/\\r$//' dos.sh)"),
        (b"#!/usr/bin/python3\nprint(1)\r\n", None),
        (b"\xef\xbb\xbf#!/bin/sh\n", "begins with a byte order mark, which hides its first line "
         "(sed -i '1s/^\\xef\\xbb\\xbf//' dos.sh)"),
    ],
)  # fmt: skip
def test_a_script_that_windows_has_changed_is_refused_with_the_cure(
    drf, daemon, tmp_path, monkeypatch, data, fault
):
    daemon.replies = {"submit": {"id": 7}}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dos.sh").write_bytes(data)
    result = drf("submit", "dos.sh")
    assert (result.code, result.err) == (
        (0, "") if fault is None else (1, f"drf: the script dos.sh {fault}\n")
    )


def test_what_is_no_script_is_refused_with_the_cure(refused, tmp_path):
    assert refused("no-such-script", "-x") == (
        "drf: cannot read the script no-such-script: No such file or directory "
        "(to run a command, write -- before it: drf submit -- CMD)\n"
    )
    path = tmp_path / "a.out"
    path.write_bytes(b"\x7fELF\x02\x01\x00\xfe")
    assert refused(path) == f"drf: {path} is a program, not a script (drf submit -- {path})\n"
    assert "Is a directory" in refused(tmp_path)
    said = refused("x\x1b[31m\n" + "y" * 5000)
    assert "\x1b" not in said and len(said) < 500


def test_a_script_has_a_largest_size(submitted, drf, daemon, tmp_path):
    path = script(tmp_path, "#" * (512 << 10))
    assert len(submitted(path)["script"]) == 512 << 10
    path = script(tmp_path, "#" * ((512 << 10) + 1))
    assert drf("submit", path).err == f"drf: the script {path} has more than 524288 bytes\n"


def test_an_endless_script_is_refused_without_being_read_to_its_end(spawn, finish, daemon):
    """`drf submit /dev/zero`, or a file of 80 GB by mistake: on a login node, of all places."""
    memory = (1 << 29, 1 << 29)
    process = spawn(
        "submit", "/dev/zero", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, memory)
    )
    result = finish(process)
    assert (result.code, result.out, daemon.requests) == (1, "", [])
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "line", ["--bogus", "-c many", "-m", "'open quote", "-c 4 stray", "-- rm -rf /"]
)
def test_a_wrong_directive_names_the_script_and_its_line(drf, daemon, tmp_path, line):
    """Promise 10: one clear line that names the place."""
    path = script(tmp_path, f"#!/bin/sh\n# first\n#DRF {line}\ntrue\n")
    result = drf("submit", path)
    assert (result.out, daemon.requests, result.err.count("\n")) == ("", [], 1)
    assert result.code in (1, 2)
    assert f"{path}, line 3" in result.err


# -- without click -----------------------------------------------------------------------------

#: Loaded by the whole command line alone.
_LIGHT = (
    "import os, sys\n"
    "sys.argv[0] = 'drf'\n"
    # It does not wait for the end of the interpreter, which would do what follows.
    "os._exit = sys.exit\n"
    "from drfd_cli.start import main\n"
    "try:\n"
    "    main()\n"
    "finally:\n"
    "    print('long' if 'click' in sys.modules else 'short', file=sys.stderr)\n"
)
_WHOLE = _LIGHT.replace("drfd_cli.start", "drfd_cli.main")
#: What `drf submit` loads in no case of its own: each of them takes a tenth of its time, or more.
_HEAVY = {"re", "enum", "collections", "socket", "json", "typing", "pathlib", "signal", "inspect"}


@pytest.fixture
def start(daemon, tmp_path):
    """Run drf; how it ended, and the way that it went."""
    daemon.replies = {"submit": {"id": 42}}
    (tmp_path / "plain.sh").write_text("true\n")
    (tmp_path / "options.sh").write_text("#!/bin/sh\n#DRF -c 2 -m 1G\n#DRF --array=1-3 -q\ntrue\n")

    def run(
        *words: str, env: dict[str, str] | None = None, program: str = _LIGHT
    ) -> tuple[int, str, list[str], str]:
        done = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60,
            cwd=tmp_path, stdin=subprocess.DEVNULL,
            env={"DRFD_SOCKET": str(daemon.path), "PATH": "/usr/bin", **(env or {})},
        )  # fmt: skip
        *talk, way = done.stderr.splitlines()
        return done.returncode, done.stdout, talk, way

    return run


@pytest.mark.parametrize(
    "words",
    [
        ["--", "true"],
        ["-q", "--", "echo", "--", "a b", "ü"],
        ["-c", "0.5", "-m", "64M", "-t", "1h30m", "--", "true"],
        ["--cores", "4", "--mem", "1G", "--time", "unlimited", "--quiet", "--", "true"],
        ["--json", "-q", "--hold", "--preemptible", "--", "true"],
        ["-n", "x y", "-p", "lab.night", "-o", "%j.out", "-e", "/tmp/%j", "--", "true"],
        ["-g", "sweep%2", "--", "sh", "-c", "cd /tmp && FOO=1 ./fit --all | tail"],
        ["--group=sweep", "-n", "own", "--", "/bin/bash", "-lc", "fit"],
        ["--node", "n1", "--pool", "lab", "--append", "--", "true"],
        ["--output", "o", "--error", "e", "--append", "--", "true"],
        ["-c4", "-m16g", "--time=90", "--name=x=y", "-n=z", "--", "true"],
        ["--array", "0-9%2", "--after", "7,8:any", "--after=9:fail", "-o", "%a", "--", "true"],
        ["-c2..8", "-c", "4", "--gres=gpu=1", "--gres", "tape", "--io", "1M/2M", "--", "true"],
        ["-c4", "-c", "2..8", "--io=1M", "--constraint", "a,b", "--priority=3", "--", "true"],
        ["--retry", "2", "--retry-on=fail", "--warn", "USR1@60", "--output-max=1G", "--", "true"],
        ["plain.sh"],
        ["-n", "own", "-c", "3", "./options.sh", "a b", "c"],
    ],
    ids=" ".join,
)
def test_both_ways_ask_for_the_same(start, daemon, words):
    env = {"A": "b", "MY_TOKEN": "x", "LANG": "C.UTF-8"}
    light, whole = (
        start("submit", *words, env=env),
        start("submit", *words, env=env, program=_WHOLE),
    )
    assert (light[3], whole[3]) == ("short", "long")
    assert light[:3] == whole[:3]
    doubt = "drf: time: 90 is 90 seconds (90m: minutes)"
    assert (light[0], light[2]) == (0, [doubt] if "--time=90" in words else [])
    assert "42" in light[1]
    asked, wanted = daemon.requests
    assert asked == wanted


@pytest.mark.parametrize(
    "words",
    [["slurm"], ["quoted"], ["wrong"], ["plain.sh", "-c", "2"], ["nothing.sh"], ["--help"],
     ["-c", "many", "--", "true"], ["--after", "name", "--", "true"], ["--hold=x", "--", "true"],
     ["-qwh", "--", "true"], ["-n"], ["--hold", "--bogus", "--help"]],
    ids=" ".join,
)  # fmt: skip
def test_both_ways_say_the_same_of_other_words(start, daemon, tmp_path, words):
    scripts = {"slurm": "#SBATCH -c 2\n", "quoted": "#DRF -n 'a b'\n", "wrong": "#DRF -c 2 x\n"}
    for name, lines in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}")
    light, whole = start("submit", *words), start("submit", *words, program=_WHOLE)
    assert light[:3] == whole[:3]


@pytest.mark.parametrize(
    ("words", "out"),
    [([], "submitted array 42 of 3 tasks\n"), (["-q"], "42\n"),
     (["--json"], '{"id": 42, "tasks": 3}\n')],
)  # fmt: skip
def test_both_ways_tell_of_an_array_the_same(start, daemon, words, out):
    daemon.replies = {"submit": {"id": 42, "tasks": 3, "notes": ["a note"]}}
    for program in (_LIGHT, _WHOLE):
        told = start("submit", *words, "--array=1-3", "--", "nowhere", program=program)
        doubt = "drf: there is no command nowhere in the job's PATH"
        assert told[:3] == (0, out, ["drf: a note", doubt])


@pytest.mark.parametrize("program", [_LIGHT, _WHOLE], ids=["light", "whole"])
def test_both_ways_say_that_nothing_is_launched(start, daemon, program):
    drain = {"by": "root", "since": time.time(), "reason": "disk swap"}
    daemon.replies = {"submit": {"id": 42, "drain": drain}}
    code, out, (told,), _ = start("submit", "-q", "--", "true", program=program)
    assert (code, out) == (0, "42\n")
    assert told.startswith("drf: draining: no job starts until drf undrain (by root")
    assert told.endswith(": disk swap")
    assert start("submit", "--no-warnings", "--", "true", program=program)[2] == []


@examples(100)
@given(some.text("0123456789KMGTkmgtBisdh:.-+ ٤", max_size=9))
@pytest.mark.parametrize(
    ("key", "parse"),
    [
        ("cores", parse_cores_range),
        ("memory", parse_memory),
        ("time", lambda text: 0 if is_endless(text) else parse_duration(text)),
        ("after", parse_after),
    ],
)
def test_the_usual_forms_are_read_as_the_others_are(key, parse, value):
    def outcome(read: Callable[[str], object]) -> object:
        try:
            return read(value)
        except Refused as error:
            return str(error)

    assert outcome(partial(read_value, BY_KEY[key])) == outcome(parse)


@pytest.mark.parametrize(("cores", "heavy"), [("4", _HEAVY), ("0.5", {"inspect", "datetime"})])
def test_nothing_slow_is_loaded_and_nothing_is_sent_that_python_adds(start, daemon, cores, heavy):
    """Scripts wait for each start of drf. In the C locale, as under cron, Python sets LC_CTYPE."""
    program = _LIGHT.replace("'long' if 'click' in sys.modules else 'short'", "*sys.modules")
    program = program.replace("import os, sys", "import os, sys; before = {*sys.modules}")
    program = program.replace("*sys.modules,", "*{*sys.modules} - before,")
    words = ("-c", cores, "-m", "16G", "-t", "12h", "--", "true")
    code, _, _, loaded = start("submit", *words, program=program)
    assert code == 0
    assert "drfd_cli.submission.sending" in loaded.split()
    assert heavy & set(loaded.split()) == set()
    assert daemon.requests[0]["env"] == {"PATH": "/usr/bin", "DRFD_SOCKET": str(daemon.path)}


def test_a_refusal_is_told_by_the_whole_program(start, daemon, refuse):
    daemon.replies = {"submit": refuse("NotPermitted", "no", "not you", "ask somebody")}
    assert start("submit", "--", "true") == (77, "", ["drf: not you (ask somebody)"], "long")
    daemon.stop()
    code, out, talk, way = start("submit", "--", "true")
    assert (code, out, way, len(talk)) == (69, "", "long", 1)


def test_a_lost_answer_does_not_queue_the_job_twice(start, daemon):
    keys: list[str] = []
    daemon.on_key = keys.append
    daemon.replies = {"submit": [None, None, {"id": 42}]}
    assert start("submit", "-q", "--", "true") == (0, "42\n", [], "short")
    assert (len(keys), len(set(keys))) == (3, 1)
    start("submit", "-q", "--", "true")
    assert len(set(keys)) == 2, "another submission has another key"


def test_where_many_come_at_a_time_it_waits_for_its_turn(tmp_path, monkeypatch):
    """It was turned away, and the whole program took three times as long."""
    path = str(tmp_path / "s")
    monkeypatch.setenv("DRFD_SOCKET", path)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(1)
        crowd = 0
        with pytest.raises(BlockingIOError):
            while True:
                other = stack.enter_context(socket.socket(socket.AF_UNIX))
                other.setblocking(False)
                other.connect(path)
                crowd += 1

        def serve() -> None:
            time.sleep(0.1)
            for _ in range(crowd):
                stack.enter_context(listener.accept()[0])
            connection = stack.enter_context(listener.accept()[0])
            connection.recv(1 << 16)
            connection.sendall(b'{"ok": true, "id": 7}\n')

        server = threading.Thread(target=serve)
        server.start()
        with closing(Connection(path)) as client:
            assert client.submit() == {"id": 7}
        server.join()


# -- where anybody may make files ------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path, monkeypatch) -> Path:
    """The directory of this process, in which anybody may make files."""
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o1777)
    monkeypatch.chdir(tmp_path / "all")
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/my%state")
    return tmp_path / "all"


@pytest.mark.parametrize(
    ("words", "usual"),
    [
        ("submit -- true", "drf-%j.out"),
        ("submit --array 0-1 -- true", "drf-%A_%a.out"),
        # By the complete program.
        ("submit --begin now+1h -- true", "drf-%j.out"),
        ("sbatch --wrap true", "slurm-%j.out"),
    ],
)
def test_output_without_a_name_goes_where_nobody_else_makes_files(
    drf, daemon, tmp_path, shared, words, usual
):
    """Planted files of these names ended each job that was submitted from there."""
    daemon.replies = {"submit": {"id": 7}}
    result = drf(*words.split())
    own = f"{tmp_path}/my%%state/drfd/output/{usual}"
    assert [daemon.requests[-1][key] for key in ("stdout", "stderr")] == [own, own]
    assert result.err == (
        f"drf: output goes to {tmp_path}/my%state/drfd/output/: anybody may make files in "
        f"{shared}; -o FILE names another place\n"
    )


def test_output_with_a_name_goes_there_whoever_may_write(submitted, shared, monkeypatch):
    request = submitted("-o", f"{shared}/x-%j", "--", "true")
    assert (request["stdout"], request["stderr"]) == (f"{shared}/x-%j", f"{shared}/x-%j")
    monkeypatch.chdir(shared)
    # Nobody's own is better.
    monkeypatch.setenv("XDG_STATE_HOME", str(shared))
    assert submitted("--", "true")["stderr"] == "drf-%j.out"

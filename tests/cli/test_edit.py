"""drf edit: a waiting job in the user's editor; nothing changes that the user has not changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon, Message, Refuse
from cli.drf import Drf

FIELDS: Message = {
    "argv": ["sh", "-c", 'echo "a b"'], "cwd": "/home/alice", "umask": 0o27,
    "demand": {"cores_milli": 500, "memory_bytes": 1 << 30, "read_bps": 1 << 20,
               "write_bps": 2 << 20, "gres": {"gpu": 1}, "gres_memory": {"gpu": 20 << 30}},
    "name": "my job", "pool": "lab", "time_limit_s": 0, "priority": -3, "env": {"A": "1"},
    "stdout": "drf-%j.out", "stderr": "drf-%j.out", "retry": {"times": 2, "on": ["TIMEOUT"]},
    "notify": {"on": ["end"], "argv": ["mail"]},
}  # fmt: skip
CONDITIONS: Message = {"after": [{"id": 3, "want": "any"}], "begin_s": 0, "held": False}
TEXT = """\
#DRF -n 'my job'
#DRF -c 0.5
#DRF -m 1G
#DRF -t unlimited
#DRF --gres gpu=1,memory=20G
#DRF --io 1M/2M
#DRF -p lab
#DRF --priority=-3
#DRF -o drf-%j.out
#DRF --retry 2

sh -c 'echo "a b"'
"""
#: Runs drf edit 42 with a sed script, or `cat`, as the editor.
Edit = Callable[..., Any]


@pytest.fixture
def waiting(daemon: CannedDaemon) -> CannedDaemon:
    done = {"done": [42], "failed": []}
    daemon.replies = {
        "submission": {
            "label": "42", "state": "PENDING", "live": True, "submission": FIELDS, "proof": None,
            "conditions": CONDITIONS, "awaited": False,
        },
        "submit": {"id": 50}, "set": done, "hold": done, "release": done, "cancel": done,
    }  # fmt: skip
    return daemon


@pytest.fixture
def edit(drf: Drf, waiting: CannedDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    def run(change: str, *words: object) -> Any:
        script = tmp_path / "change.sed"
        script.write_text(change)
        monkeypatch.setenv("VISUAL", f"sed -i -f '{script}'")
        return drf("edit", *(words or (42,)))

    return run


def told(daemon: CannedDaemon) -> list[Message]:
    return [each for each in daemon.requests if each["op"] not in ("submission", "hello")]


def test_the_file_has_the_options_and_the_command(
    edit: Edit, waiting: CannedDaemon, tmp_path: Path
) -> None:
    result = edit(f"w {tmp_path / 'seen'}")
    head, _, rest = (tmp_path / "seen").read_text().partition("#DRF")
    assert f"#DRF{rest}" == TEXT
    assert all(line.startswith("# ") for line in head.splitlines())
    assert (result.code, told(waiting)) == (0, [])
    assert result.err == "drf: nothing was changed; job 42 stays as it is\n"


def test_a_change_that_means_the_same_is_none(edit: Edit, waiting: CannedDaemon) -> None:
    assert edit("s/-m 1G/--mem 1024M # enough/").code == 0
    assert told(waiting) == []


def test_demand_and_name_change_in_place(edit: Edit, waiting: CannedDaemon) -> None:
    result = edit("s/-m 1G/-m 4G/; s/my job/yours/; /gpu=1/d; s/unlimited/2h/")
    assert result.out == "changed job 42\n"
    without = {"gres": {"gpu": 0}, "gres_memory": {"gpu": 0}}
    demand = {**FIELDS["demand"], "memory_bytes": 4 << 30, **without}
    assert told(waiting) == [
        {"op": "set", "select": {"ids": [42]}, "demand": demand, "name": "yours",
         "time_limit_s": 7200}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "memory"), [("s/memory=20G/memory=30G/", 30 << 30), ("s/,memory=20G//", 0)]
)
def test_the_memory_on_a_gpu_changes_in_place(
    edit: Edit, waiting: CannedDaemon, change: str, memory: int
) -> None:
    assert edit(change).code == 0
    (asked,) = told(waiting)
    assert asked["demand"] == {**FIELDS["demand"], "gres_memory": {"gpu": memory}}


@pytest.mark.parametrize(
    ("change", "cores"), [
        ("s/-c 0.5/-c 2..8/", {"cores_milli": 2000, "cores_max_milli": 8000}),
        ("s/-c 0.5/-c 2../", {"cores_milli": 2000, "cores_max_milli": "all"}),
    ],
)  # fmt: skip
def test_a_figure_becomes_a_range_in_place(
    edit: Edit, waiting: CannedDaemon, change: str, cores: dict[str, object]
) -> None:
    assert edit(change).code == 0
    (asked,) = told(waiting)
    assert asked["demand"] == {**FIELDS["demand"], **cores}


def test_ranges_are_among_the_options_and_become_figures_in_place(
    edit: Edit, waiting: CannedDaemon, tmp_path: Path
) -> None:
    ranges = {"cores_milli": 2000, "cores_max_milli": 8000, "read_max_bps": 1 << 30}
    submission = {**FIELDS, "demand": {**FIELDS["demand"], **ranges}}
    waiting.replies["submission"] = waiting.replies["submission"] | {"submission": submission}
    assert edit(f"w {tmp_path / 'seen'}").code == 0
    lines = (tmp_path / "seen").read_text().splitlines()
    assert "#DRF -c 2..8" in lines
    (io,) = [line for line in lines if "--io" in line]
    assert "..1G/" in io
    assert edit("s/2[.][.]8/2/; s/[.][.]1G//").code == 0
    (asked,) = told(waiting)
    assert asked["demand"] == {**FIELDS["demand"], "cores_milli": 2000}


@pytest.mark.parametrize(
    ("change", "group"), [("s/sweep%2/sweep%4/", "sweep%4"), ("/-g sweep/d", "")]
)
def test_the_group_changes_in_place(
    edit: Edit, waiting: CannedDaemon, change: str, group: str
) -> None:
    waiting.replies["submission"]["submission"] = {**FIELDS, "group": "sweep%2"}
    assert edit("").code == 0
    assert told(waiting) == []
    assert edit(change).out == "changed job 42\n"
    assert told(waiting) == [{"op": "set", "select": {"ids": [42]}, "group": group}]


def test_a_group_that_is_removed_with_more_is_not_in_the_new_job(
    edit: Edit, waiting: CannedDaemon
) -> None:
    waiting.replies["submission"]["submission"] = {**FIELDS, "group": "sweep%2"}
    edit("/-g sweep/d; s/echo/printf/")
    (submitted,) = (each for each in told(waiting) if each["op"] == "submit")
    assert "group" not in submitted


def test_with_another_command_it_is_submitted_anew(edit: Edit, waiting: CannedDaemon) -> None:
    """It is held meanwhile, so that both never run; what the file does not name comes along."""
    result = edit("s/a b/c d/; s/-o .*/-o x.out/; /retry/d; /-p lab/d")
    assert result.out == "submitted job 50 in place of job 42\n"
    hold, submit, cancel = told(waiting)
    select = {"ids": [42]}
    assert (hold, cancel) == ({"op": "hold", "select": select}, {"op": "cancel", "select": select})
    expected = {**FIELDS, **CONDITIONS, "argv": ["sh", "-c", 'echo "c d"'], "stdout": "x.out",
                "stderr": "x.out"}  # fmt: skip
    del expected["retry"], expected["pool"]
    assert submit == {"op": "submit", **expected}


@pytest.mark.parametrize("script", [None, "#!/bin/sh\n"])
def test_an_ended_job_is_submitted_again_with_the_changes(
    edit: Edit, waiting: CannedDaemon, tmp_path: Path, script: str | None
) -> None:
    fields = FIELDS if script is None else {**FIELDS, "script": script}
    waiting.replies["submission"] = {
        "label": "42", "state": "FAILED", "live": False, "submission": fields, "proof": None,
        "again": {"of": 42},
    }  # fmt: skip
    result = edit(f"w {tmp_path / 'seen'}")
    assert (tmp_path / "seen").read_text().startswith("# Job 42 has ended.")
    assert (told(waiting), "drf retry does that" in result.err) == ([], True)
    result = edit("s/a b/c d/; s/-m 1G/-m 4G/; /retry/d")
    assert result.out == "submitted job 50, which is 42 with these changes\n"
    expected = {**fields, "argv": ["sh", "-c", 'echo "c d"'], "again": {"of": 42},
                "demand": {**FIELDS["demand"], "memory_bytes": 4 << 30}}  # fmt: skip
    del expected["retry"]
    assert told(waiting) == [{"op": "submit", **expected}]


def test_lines_within_quotes_are_the_commands_own(edit: Edit, waiting: CannedDaemon) -> None:
    """Comments, empty lines and lines of options in a text of several lines were left out of the
    new command, or taken for options of the job."""
    text = "echo one\n\n# a comment\n#DRF -m 9G\necho three"
    waiting.replies["submission"]["submission"] = {**FIELDS, "argv": ["sh", "-c", text]}
    assert edit("s/-m 1G/-m 1024M/").err.startswith("drf: nothing was changed")
    edit("s/three/four/; s/#DRF -m 1G/#DRF -m 2G/")
    (submit,) = [each for each in told(waiting) if each["op"] == "submit"]
    assert submit["argv"] == ["sh", "-c", text.replace("three", "four")]
    assert submit["demand"]["memory_bytes"] == 2 << 30


def test_if_the_new_one_is_refused_the_old_one_is_as_before(
    edit: Edit, waiting: CannedDaemon, refuse: Refuse
) -> None:
    waiting.replies["submit"] = refuse(text="too big")
    result = edit("s/a b/c d/")
    assert (result.code, result.out, result.err) == (1, "", "drf: too big\n")
    assert [each["op"] for each in told(waiting)] == ["hold", "submit", "release"]


def test_a_held_job_stays_held(edit: Edit, waiting: CannedDaemon, refuse: Refuse) -> None:
    reply = dict(waiting.replies["submission"])  # type: ignore[arg-type]
    waiting.replies["submission"] = {
        **reply, "state": "HELD", "conditions": {**CONDITIONS, "held": True},
    }  # fmt: skip
    edit("s/a b/c d/")
    assert [each["op"] for each in told(waiting)] == ["submit", "cancel"]
    assert told(waiting)[0]["held"] is True


def test_a_job_that_an_administrator_holds_is_not_replaced_by_one_that_is_not(
    edit: Edit, waiting: CannedDaemon, tmp_path: Path
) -> None:
    reply = dict(waiting.replies["submission"])  # type: ignore[arg-type]
    waiting.replies["submission"] = {
        **reply, "state": "HELD", "conditions": {**CONDITIONS, "held": True}, "held_by": "root",
    }  # fmt: skip
    result = edit(f"s/a b/c d/; w {tmp_path / 'seen'}")
    assert (result.code, told(waiting)) == (1, [])
    assert result.err.startswith("drf: job 42 is held by root, and a new job in its place would")
    assert "# root holds this job, so its command stays" in (tmp_path / "seen").read_text()
    assert edit("s/my job/yours/").out == "changed job 42\n"


def test_one_that_has_started_meanwhile_is_left_alone(edit: Edit, waiting: CannedDaemon) -> None:
    error = {"kind": "Refused", "code": "x", "text": "job 42 is RUNNING", "hint": ""}
    waiting.replies["hold"] = {"done": [], "failed": [{"id": 42, "error": error}]}
    result = edit("s/a b/c d/")
    assert (result.code, result.err) == (1, "drf: job 42 is RUNNING\n")
    assert [each["op"] for each in told(waiting)] == ["hold"]
    reply = dict(waiting.replies["submission"])  # type: ignore[arg-type]
    waiting.requests.clear()
    waiting.replies["submission"] = [reply, {**reply, "state": "RUNNING"}]
    result = edit("s/1G/2G/")
    assert "has started meanwhile" in result.err
    assert told(waiting) == []


def test_a_job_that_others_wait_for_keeps_its_id(edit: Edit, waiting: CannedDaemon) -> None:
    reply = dict(waiting.replies["submission"])  # type: ignore[arg-type]
    waiting.replies["submission"] = {**reply, "awaited": True}
    assert "other jobs wait for job 42" in edit("s/a b/c d/").err
    assert told(waiting) == []
    assert edit("s/1G/2G/").code == 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("s/-m 1G/-m 1X/", "line 6: Invalid value for '-m' / '--mem': '1X' is not a size"),
        ("s/-c 0.5/--wait/", "line 5: --wait is no property of a job"),
        ("s/-p lab/-p lab x/", "line 10: only options of drf submit can stand here"),
        ("""s/a b"'/a b/""", "line 15: No closing quotation in the command"),
        ("/^sh/d", "there is no command"),
        ("/-c 0.5/d", "there is no line #DRF -c CORES any more"),
    ],
)
def test_what_cannot_be_read_changes_nothing(
    edit: Edit, waiting: CannedDaemon, change: str, complaint: str
) -> None:
    result = edit(change)
    assert (result.code, result.out, told(waiting)) == (1, "", [])
    assert result.err.count("\n") == 1
    assert complaint in result.err


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"state": "RUNNING"}, "job 42 is RUNNING; only a job that waits or has ended can be"),
        ({"submission": {**FIELDS, "array": "0-3"}}, "42 is of an array"),
        ({"submission": {**FIELDS, "attach": "/x"}}, "job 42 is attached to a terminal"),
    ],
)
def test_what_cannot_be_edited_is_refused_before_the_editor(
    edit: Edit, waiting: CannedDaemon, tmp_path: Path, more: Message, complaint: str
) -> None:
    reply = dict(waiting.replies["submission"])  # type: ignore[arg-type]
    waiting.replies["submission"] = {**reply, **more}
    result = edit(f"w {tmp_path / 'seen'}")
    assert (result.code, told(waiting)) == (1, [])
    assert complaint in result.err
    assert not (tmp_path / "seen").exists()


def test_an_editor_that_fails_changes_nothing(
    drf: Drf, waiting: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "false")
    result = drf("edit", 42)
    assert (result.code, told(waiting)) == (1, [])
    assert "the editor false failed; job 42 stays as it is" in result.err


def test_what_cannot_be_changed_here_is_said_before_the_change(
    edit: Edit, waiting: CannedDaemon, tmp_path: Path
) -> None:
    reply = dict(waiting.replies["submission"])
    reply |= {"awaited": True, "conditions": {**CONDITIONS, "begin_s": 1_700_000_000}}
    notify = {"on": ["end"], "argv": ["mail", "a\nb"]}
    reply["submission"] = {**FIELDS, "notify": notify}
    waiting.replies["submission"] = reply
    assert edit(f"w {tmp_path / 'seen'}").code == 0
    head = (tmp_path / "seen").read_text().partition("#DRF")[0]
    assert "# Other jobs wait for this one, so it keeps its id" in head
    [kept] = [line for line in head.splitlines() if "--after" in line]
    assert kept.startswith("# It keeps --after 3:any, --begin 2023-11-1")
    assert "--notify end, --notify-command " in kept
    assert "--retry-on timeout" in kept
    assert all(line.startswith("# ") for line in head.splitlines())

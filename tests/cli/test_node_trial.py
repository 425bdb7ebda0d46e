"""drf doctor --nodes: what a job on a node has printed, compared with what is so here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob
from cli.drf import Drf
from drfd.client.values import JobInfo
from drfd_cli.commands import node_trial
from drfd_cli.commands.node_trial import NodeTrial

TOKEN = "5c16d984fa084828"
BEGIN_S, END_S = 1000.0, 1003.0
FINE = f"1001.5\n{node_trial._own_name()}\ncounted\n{TOKEN}"


@pytest.fixture
def judge(tmp_path: Path, job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(node_trial, "_ARRIVAL_S", 0.0)
    (tmp_path / "place").mkdir()
    output = tmp_path / "place" / "n1"

    def found(text: str | None, **changes: Any) -> NodeTrial:
        if text is not None:
            output.write_text(text)
        trial = NodeTrial("n1")
        ended = {"ended_at": END_S, "outcome": {"code": "COMPLETED", "text": "exit code 0"}}
        view = job(**{"state": "COMPLETED", **ended, **changes})
        node_trial._judge(trial, JobInfo.of(view), output, TOKEN, (BEGIN_S, END_S))
        return trial

    return found


def test_nothing_is_said_of_a_node_on_which_all_is_the_same(judge: Any) -> None:
    assert judge(FINE) == NodeTrial("n1", 0.0, False)


@pytest.mark.parametrize(
    ("there_s", "ahead_s", "problems"),
    [
        (BEGIN_S - 0.5, -0.5, []),
        (BEGIN_S - 61, -61.0, ["its clock is 61.0 s behind this machine's"]),
        (END_S + 2.25, 2.25, ["its clock is 2.2 s ahead of this machine's"]),
    ],
)
def test_a_clock_outside_the_time_of_the_job_is_another(
    judge: Any, there_s: float, ahead_s: float, problems: list[str]
) -> None:
    assert judge(FINE.replace("1001.5", str(there_s))) == NodeTrial("n1", ahead_s, False, problems)


def test_another_user_and_another_directory_are_named(judge: Any, tmp_path: Path) -> None:
    own = node_trial._own_name()
    (user,) = judge(f"1001.5\nmallory\nkept\n{TOKEN}").problems
    assert user.endswith(f" is mallory there, and {own} here")
    (place,) = judge(f"1001.5\n{own}\ncounted\n").problems
    assert place == f"a job there cannot read what is written in {tmp_path}"
    for text in ("", "no time\nx\nkept\ny", "1001.5\nx\nelse\ny"):
        (place,) = judge(text).problems
        assert place.startswith(f"what a job writes in {tmp_path} there does not arrive here")


def test_a_job_sees_whether_it_is_kept_to_its_disk_rates(judge: Any) -> None:
    assert judge(FINE).keeps_disk_rates is False
    assert judge(FINE.replace("counted", "kept")).keeps_disk_rates is True
    assert judge(FINE.replace("counted", "none")).keeps_disk_rates is None


def test_a_job_that_fails_or_does_not_end_says_why(judge: Any, tmp_path: Path) -> None:
    lost = {"code": "LOST", "text": "Slurm could not start it"}
    (why,) = judge(None, state="LOST", outcome=lost).problems
    assert why == f"a job in {tmp_path} fails there: Slurm could not start it"
    reason = {"code": "RESOURCES", "text": "needs 1 core, 0 free"}
    changes = {"state": "CANCELLED", "started_at": None, "reason": reason}
    (why,) = judge(None, **changes).problems
    assert why == "no job ended there within 1m00s: needs 1 core, 0 free"


def test_without_nodes_of_slurms_it_says_so(
    drf: Drf, daemon: CannedDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    daemon.replies = {
        "doctor": {
            "version": "0.1.0", "enforcement": "none", "controls": {}, "disks": [], "warnings": [],
            "stuck_jobs": [], "cures": [], "launcher": "connected",
        },
        "nodes": {"nodes": [{"name": "", "engine": "local", "state": "up"}]},
    }  # fmt: skip
    done = drf("doctor", "--nodes")
    assert (done.code, done.out.splitlines()[-1]) == (0, "there is no node of Slurm's to try")
    assert [each["op"] for each in daemon.requests] == ["doctor", "nodes"]
    assert [*tmp_path.iterdir()] == []

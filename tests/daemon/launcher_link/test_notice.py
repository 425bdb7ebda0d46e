"""What the launcher is ordered to do so that an owner hears of an end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from drfd.core.model import stimuli as st
from drfd.core.model.job import (
    Array,
    Broken,
    Job,
    JobState,
    Notify,
    Outcome,
    Retry,
    Words,
)
from drfd.daemon.launcher_link.messages import (
    LaunchSettings,
    decode_report,
    never_notice_for,
    notice_for,
    order_for,
    stimulus_for,
)
from drfd.daemon.launcher_link.slurm_variables import with_slurm_variables
from drfd.launcher.protocol import QUOTA, notify_message, read_order
from fakes import now, spec

JOURNAL = "0" * 32

SPEC = replace(spec(name="train"), notify=Notify(("end",), Words.of(["sh", "-c", "tell"])))
JOB = Job(
    id=7,
    spec=SPEC,
    state=JobState.CLEANING,
    attempt=2,
    submitted_at=0.0,
    started_at=100.0,
    ended_at=160.4,
    exit_code=3,
    outcome=Outcome.FAILED,
    outcome_text="exit code 3\0",
)


def launch(job: Job = JOB) -> Any:
    return order_for(job, JOURNAL, LaunchSettings((), 64, QUOTA))


def test_it_survives_the_wire() -> None:
    order = notice_for(JOB, launch())
    assert order is not None
    message = json.loads(json.dumps(notify_message(order)))
    assert message["cmd"] == "notify"
    assert read_order(message) == order


@pytest.mark.parametrize(
    ("on", "outcome", "is_told"),
    [
        (("end",), Outcome.COMPLETED, True),
        (("end",), Outcome.LOST, True),
        (("fail",), Outcome.COMPLETED, False),
        (("fail",), Outcome.CANCELLED, True),
        (("start",), Outcome.FAILED, False),
        (("start", "fail"), Outcome.TIMEOUT, True),
        # It goes back to the queue.
        (("end", "fail"), None, False),
    ],
)
def test_only_such_ends_are_told_of_as_were_asked_for(
    on: tuple[str, ...], outcome: Outcome | None, is_told: bool
) -> None:
    job = replace(JOB, outcome=outcome, spec=replace(SPEC, notify=Notify(on, Words.of(["x"]))))
    assert (notice_for(job, launch(job)) is not None) is is_told
    assert launch(job).tells_start is ("start" in on)


def test_who_asked_for_nothing_is_told_nothing() -> None:
    job = replace(JOB, spec=spec())
    assert notice_for(job, launch(job)) is None
    assert not launch(job).tells_start


def test_what_became_of_it_is_in_the_report_of_the_removal() -> None:
    report = {"report": "removed", "id": 7, "attempt": 2, "notice": "told"}
    assert stimulus_for(decode_report(report), now(), None) == st.AttemptRemoved(
        now(), 7, 2, notice="told"
    )


def test_an_attempt_that_is_tried_again_is_no_end() -> None:
    trying = replace(
        SPEC, notify=Notify(("end",), Words.of(["x"])), retry=Retry(1, (Outcome.FAILED,))
    )
    job = replace(JOB, outcome=Outcome.FAILED, spec=trying)
    assert notice_for(job, launch(job)) is None
    assert notice_for(replace(job, retries=1), launch(job)) is not None


NEVER = replace(
    JOB, state=JobState.PENDING, attempt=0, started_at=None, ended_at=None, exit_code=None,
    outcome=None, outcome_text="", broken=Broken(3, Outcome.TIMEOUT),
)  # fmt: skip


def test_an_array_of_which_no_task_ever_starts_is_named_as_a_whole() -> None:
    array = Array(common=replace(NEVER, array_id=7), spans=((0, 9, 1),), at_once=None)
    order = order_for(array.common, JOURNAL, LaunchSettings((), 64, QUOTA), array)
    order = with_slurm_variables(order, {"DRF_SLURM": "1"})
    told = never_notice_for(array.common, order, 8, "3")
    assert (told.id, told.variables["DRF_JOB_ID"], told.variables["DRF_ARRAY_ID"]) == (8, "7", "7")
    assert told.variables["SLURM_ARRAY_JOB_ID"] == "7"
    assert not {"DRF_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID"} & told.variables.keys()

"""What of a running Slurm's configuration will do for drfd, and how the rest is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from drfd.slurm.files import event_script
from drfd.slurm.settings import Difference, differences, read_config, user_difference

EVENT, GATE = "#!/bin/sh\nsend a datagram\n", "-- the gate\n"
DISKS = "#!/bin/sh\nlimit the rates\n"
GATE_PATH = "/etc/slurm/job_submit.lua"
FILES = {"/etc/slurm/drfd-event": EVENT, "/etc/slurm/drfd-disks": DISKS, GATE_PATH: GATE}

#: As Slurm 22.05 prints it, but for the settings that do not matter.
SHOWN = """\
Configuration data as of 2026-11-23T23:34:53
AccountingStorageEnforce = none
Epilog                  = /bin/true
JobCompLoc              = /etc/slurm/drfd-event
JobCompType             = jobcomp/script
JobRequeue              = 0
JobSubmitPlugins        = lua
MaxJobCount             = 60000
MinJobAge               = 3600 sec
PreemptMode             = OFF
PreemptType             = preempt/none
PriorityType            = priority/basic
ProctrackType           = proctrack/cgroup
Prolog                  = /etc/slurm/drfd-disks
PrologSlurmctld         = /etc/slurm/drfd-event
ReturnToService         = 2
SchedulerParameters     = batch_sched_delay=0,sched_interval=5
SchedulerType           = sched/builtin
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE_MEMORY
SlurmctldHost[0]        = here(127.0.0.1)
TaskPlugin              = task/cgroup

Cgroup Support Configuration:
ConstrainCores          = yes
ConstrainDevices        = yes
ConstrainRAMSpace       = yes

Slurmctld(primary) at here is UP
"""

#: As 24.11 prints the settings that it prints otherwise.
SHOWN_BY_24_11 = {
    "Epilog                  =": "Epilog[0]               =",
    "PreemptType             = preempt/none": "PreemptType             = (null)",
    "PrologSlurmctld         =": "PrologSlurmctld[0]      =",
}


def found(
    files: dict[str, str] | None = None, stuck: tuple[str, ...] = (), **changed: str | None
) -> list[Difference]:
    running: dict[str, str | None] = {**read_config(SHOWN), **changed}
    known = {name: value for name, value in running.items() if value is not None}
    return list(
        differences(
            known,
            FILES if files is None else files,
            scripts={"drfd-event": EVENT, "drfd-disks": DISKS, "job_submit.lua": GATE},
            gate_path=GATE_PATH,
            stuck=stuck,
        )
    )


def test_what_drfd_needs_does_not_differ() -> None:
    assert found() == []


def test_what_drfd_needs_does_not_differ_as_newer_versions_show_it() -> None:
    text = SHOWN
    for shown, newer in SHOWN_BY_24_11.items():
        assert shown in text
        text = text.replace(shown, newer)
    assert found(**read_config(text)) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TaskPlugin", "task/affinity,task/cgroup"),
        ("MinJobAge", "7200 sec"),
        ("Epilog", "/etc/slurm/clean-up"),
        ("JobSubmitPlugins", "require_timelimit,lua"),
        ("SelectTypeParameters", "CR_CORE_MEMORY,CR_ONE_TASK_PER_CORE"),
        (
            "SchedulerParameters",
            "sched_interval=1,default_queue_depth=9,sched_min_interval=0,batch_sched_delay=0",
        ),
    ],
)
def test_more_than_is_needed_will_do(name: str, value: str) -> None:
    assert found(**{name: value}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SchedulerType", "sched/backfill"),
        ("PriorityType", "priority/multifactor"),
        ("PreemptType", "preempt/qos"),
        ("PreemptMode", "GANG,SUSPEND"),
        ("AccountingStorageEnforce", "associations,limits"),
        ("SelectType", "select/linear"),
        ("SelectTypeParameters", "CR_CORE"),
        ("ProctrackType", "proctrack/linuxproc"),
        ("TaskPlugin", "task/affinity"),
        ("JobRequeue", "1"),
        ("MinJobAge", "300 sec"),
        ("MinJobAge", "0 sec"),
        ("MaxJobCount", "10000"),
        ("JobCompType", "jobcomp/none"),
        ("JobSubmitPlugins", "(null)"),
        ("ConstrainCores", "no"),
        ("ConstrainRAMSpace", "no"),
        ("ConstrainDevices", "no"),
        ("SchedulerParameters", "(null)"),
        ("SchedulerParameters", "batch_sched_delay=0"),
        ("SchedulerParameters", "sched_interval=5"),
        ("SchedulerParameters", "batch_sched_delay=0,sched_interval=60"),
        ("SchedulerParameters", "batch_sched_delay=3,sched_interval=5"),
        ("SchedulerParameters", "batch_sched_delay=0,sched_interval=5,sched_min_interval=1000000"),
        ("SchedulerParameters", "defer,batch_sched_delay=0,sched_interval=5"),
    ],
)
def test_each_setting_that_will_not_do_is_named_with_its_value(name: str, value: str) -> None:
    [difference] = found(**{name: value})
    assert (difference.name, difference.found) == (name, value)
    assert difference.needed
    assert difference.why


def test_without_an_epilog_any_program_will_do() -> None:
    [difference] = found(Epilog="(null)")
    assert difference[:3] == ("Epilog", "not set", "any program")


def test_a_difference_is_one_line() -> None:
    assert [str(each) for each in found(MinJobAge="300 sec")] == [
        "MinJobAge is 300 sec, needed: at least 3600 (the end of a job must be there when drfd "
        "asks for it)"
    ]


@pytest.mark.parametrize("value", ["0", "1", None])
def test_what_drfd_works_without_is_advised(value: str | None) -> None:
    [advice] = found(ReturnToService=value)
    assert advice.is_advice
    assert str(advice) == (
        f"ReturnToService is {value or 'not shown'}, advised: 2 (otherwise a node that was down "
        "stays so until an administrator resumes it, though its slurmd is back)"
    )


def test_a_setting_that_this_version_does_not_show_differs() -> None:
    assert [(each.name, each.found) for each in found(ConstrainCores=None)] == [
        ("ConstrainCores", "not shown")
    ]


def test_numbered_settings_of_newer_versions_are_read() -> None:
    assert read_config("Epilog[0] = /a\nEpilog[1] = /b\nX = a=b\nno setting\n") == {
        "Epilog": "/a, /b",
        "X": "a=b",
    }


def test_a_script_may_do_more_than_drfd_needs() -> None:
    own = "#!/bin/bash\n/site/prolog\nsend a datagram\n"
    assert found({"/site": own, **FILES}, PrologSlurmctld="/site") == []


def test_a_script_that_cannot_be_executed_differs_though_another_would_do() -> None:
    assert list(map(str, found(stuck=("PrologSlurmctld", "Epilog")))) == [
        "PrologSlurmctld is /etc/slurm/drfd-event, which Slurm cannot execute, needed: mode 755 "
        "(nothing notes which jobs have started, so that one may run twice)",
        "Epilog is /bin/true, which Slurm cannot execute, needed: mode 755 (Slurm starts no job on "
        "the node, and drains it)",
    ]


def test_a_script_with_other_places_is_told_from_another_one() -> None:
    """As with a comparison to which --socket was not given."""
    texts = [
        event_script(Path(place, "a socket"), Path(place, "starts")) for place in ("/one", "/two")
    ]
    running = {**read_config(SHOWN), "PrologSlurmctld": "/one", "JobCompLoc": "/other"}
    [other, same] = sorted(
        differences(
            running,
            {**FILES, "/one": texts[0], "/other": texts[1].replace("ln -sn", "ln -s")},
            scripts={"drfd-event": texts[1], "drfd-disks": DISKS, "job_submit.lua": GATE},
            gate_path=GATE_PATH,
        )
    )
    assert (other.name, other.found) == ("JobCompLoc", "/other, with another text")
    assert same.found == "/one, with the text for another --socket or --starts"


@pytest.mark.parametrize("shown", ["slurm(64030)", "slurm"])
def test_slurms_user_is_that_of_the_table(shown: str) -> None:
    assert list(user_difference(shown, "slurm")) == []
    [difference] = user_difference(shown, "root")
    assert str(difference) == (
        'SlurmUser is slurm, needed: root, or user = "slurm" in the table [slurm] (drfd takes '
        "notes and news from that user alone, which runs drfd-event)"
    )


def test_scripts_that_are_not_set_not_there_or_others_differ() -> None:
    without = found(
        {"/other": "#!/bin/sh\n"}, PrologSlurmctld="(null)", JobCompLoc="/other", Prolog=""
    )
    event = "a file with what drfd slurm-conf drfd-event prints"
    assert [each[:3] for each in without] == [
        ("PrologSlurmctld", "not set", event),
        ("JobCompLoc", "/other, with another text", event),
        ("Prolog", "not set", "a file with what drfd slurm-conf drfd-disks prints"),
        (
            "job_submit.lua",
            f"{GATE_PATH}, which cannot be read here",
            "a file with what drfd slurm-conf job_submit.lua prints",
        ),
    ]

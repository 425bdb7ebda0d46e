"""The settings of Slurm that drfd needs, each with the reason.

drfd decides which job starts where and when, and hands Slurm a job only when its node has room.
Slurm must then start it at once, exactly once, and keep the record of its end.
"""

from __future__ import annotations

from typing import NamedTuple

SLURM_CONF, CGROUP_CONF = "slurm.conf", "cgroup.conf"
EVENT, DISKS, GATE_FILE = "drfd-event", "drfd-disks", "job_submit.lua"


class Setting(NamedTuple):
    """A setting, and why drfd needs it."""

    name: str
    value: str
    why: str


#: Seconds that an ended job stays in Slurm's list: an event may be lost and drfd be away for long;
#: by default, Slurm forgets ended jobs after five minutes. And jobs that Slurm has records of:
#: those that end at 16 a second stay for so long.
_AGE_S, _RECORDS = 3600, 60_000

#: In the order in which they are printed; the scripts are not among them.
SETTINGS = (
    Setting("SchedulerType", "sched/builtin", "drfd decides which job is next"),
    Setting("PriorityType", "priority/basic", "drfd decides which job is next"),
    Setting(
        "SchedulerParameters",
        "batch_sched_delay=0,sched_interval=5",
        "a job starts as soon as drfd has handed it over, and is soon looked at again if not",
    ),
    Setting("PreemptType", "preempt/none", "drfd decides which job is stopped for another"),
    Setting("PreemptMode", "OFF", "drfd decides which job is stopped for another"),
    Setting("SelectType", "select/cons_tres", "jobs share a node, each with what it declares"),
    Setting("SelectTypeParameters", "CR_Core_Memory", "cores and memory are what drfd counts"),
    Setting("ProctrackType", "proctrack/cgroup", "no process of a job outlives its end"),
    Setting("TaskPlugin", "task/cgroup", "jobs are kept to the resources that they declare"),
    Setting("PrivateData", "jobs", "users would see directories and output files of others' jobs"),
    Setting("JobRequeue", "0", "a job that Slurm started again by itself would run twice"),
    Setting("MinJobAge", str(_AGE_S), "the end of a job must be there when drfd asks for it"),
    Setting(
        "MaxJobCount", str(_RECORDS), f"ended jobs count, too, for the {_AGE_S} s of MinJobAge"
    ),
)
CGROUP_SETTINGS = (
    Setting("ConstrainCores", "yes", "jobs keep to their cores"),
    Setting("ConstrainRAMSpace", "yes", "jobs keep to their memory"),
    Setting("ConstrainDevices", "yes", "jobs reach no GPUs but their own"),
)
_EVENTS_WHY = "tells drfd at once of {} of a job; without it, drfd has to ask again and again"
COMPLETION = Setting("JobCompType", "jobcomp/script", _EVENTS_WHY.format("the end"))
GATE = Setting("JobSubmitPlugins", "lua", "nobody submits jobs past drfd, which it would not count")
#: Settings that name a script.
SCRIPTS = (
    Setting("PrologSlurmctld", EVENT, _EVENTS_WHY.format("the start")),
    Setting("JobCompLoc", EVENT, _EVENTS_WHY.format("the end")),
    Setting("Prolog", DISKS, "keeps jobs to their disk rates on nodes with cgroup v2"),
    Setting("Epilog", DISKS, "without any, the end of a short job is noticed up to a second later"),
)

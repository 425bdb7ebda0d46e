"""The settings of Slurm that drfd needs, each with the reason, and how a running Slurm differs.

drfd decides which job starts where and when, and hands Slurm a job only when its node has room.
Slurm must then start it at once, exactly once, and keep the record of its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: Seconds that an ended job stays in Slurm's list. An event may be lost and drfd be away for long;
#: by default, Slurm forgets ended jobs after five minutes.
_AGE_S = 3600
#: Jobs that Slurm has records of: those that end at 16 a second stay for `_AGE_S`.
_RECORDS = 60_000
#: Seconds between two looks of Slurm's scheduler at jobs that it could not start at once.
_LOOK_S = 5

#: What is shown where a setting has no value.
_NOTHING = ("", "(null)")

SLURM_CONF, CGROUP_CONF = "slurm.conf", "cgroup.conf"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, and why drfd needs it."""

    file: str
    name: str
    #: As it is printed. Empty: Slurm's default serves, and has no word that the file may contain.
    value: str
    why: str
    #: Whether a running Slurm's value, as `scontrol show config` prints it, will do.
    holds: Callable[[str], bool]
    #: What will do, in words.
    needed: str


class Difference(NamedTuple):
    """A setting that is not as drfd needs it."""

    name: str
    found: str
    needed: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} is {self.found}, needed: {self.needed} ({self.why})"


def _exact(name: str, value: str, why: str, *, file: str = SLURM_CONF) -> Setting:
    return Setting(file, name, value, why, lambda found: found.lower() == value.lower(), value)


def _plugin(name: str, value: str, why: str) -> Setting:
    """Return a setting that newer versions show as "(null)" where it means no plugin at all."""
    return Setting(
        SLURM_CONF, name, value, why, lambda found: found.lower() in (value, *_NOTHING), value
    )


def _among(name: str, value: str, why: str) -> Setting:
    """Return a setting with a list of words, which may have others, too."""
    return Setting(
        SLURM_CONF, name, value, why, lambda found: value.lower() in _words(found), f"with {value}"
    )


def _at_least(name: str, least: int, why: str) -> Setting:
    def holds(found: str) -> bool:
        return (_number(found) or 0) >= least

    return Setting(SLURM_CONF, name, str(least), why, holds, f"at least {least}")


def _words(found: str) -> list[str]:
    return [word.strip().lower() for word in found.split(",")]


def _number(found: str) -> int | None:
    """Return the number that a value begins with, such as 300 of "300 sec", or None."""
    digits = re.match(r"\d+", found, re.ASCII)
    return int(digits[0]) if digits else None


def _starts_at_once(found: str) -> bool:
    given = dict(word.partition("=")[::2] for word in _words(found))
    return (
        given.get("batch_sched_delay") == "0"
        and 0 < (_number(given.get("sched_interval", "")) or 0) <= _LOOK_S
        # In microseconds; 2 is the default.
        and (_number(given.get("sched_min_interval", "")) or 0) <= 2
        and not any(word.startswith("defer") for word in given)
    )


_PARAMETERS = f"batch_sched_delay=0,sched_interval={_LOOK_S}"

#: In the order in which they are printed; the scripts are not among them.
SETTINGS = (
    _exact("SchedulerType", "sched/builtin", "drfd decides which job is next"),
    _exact("PriorityType", "priority/basic", "drfd decides which job is next"),
    Setting(
        SLURM_CONF,
        "SchedulerParameters",
        _PARAMETERS,
        "a job starts as soon as drfd has handed it over, and is soon looked at again if not",
        _starts_at_once,
        f"with {_PARAMETERS} (or less), without defer",
    ),
    _plugin("PreemptType", "preempt/none", "drfd decides which job is stopped for another"),
    _exact("PreemptMode", "OFF", "drfd decides which job is stopped for another"),
    Setting(
        SLURM_CONF,
        "AccountingStorageEnforce",
        "",
        "with limits of its own, Slurm would let jobs wait that drfd has admitted",
        lambda found: found.lower() in ("none", *_NOTHING),
        "none, which is the default",
    ),
    _exact("SelectType", "select/cons_tres", "jobs share a node, each with what it declares"),
    _among("SelectTypeParameters", "CR_Core_Memory", "cores and memory are what drfd counts"),
    _exact("ProctrackType", "proctrack/cgroup", "no process of a job outlives its end"),
    _among("TaskPlugin", "task/cgroup", "jobs are kept to the resources that they declare"),
    _exact("JobRequeue", "0", "a job that Slurm started again by itself would run twice"),
    _at_least("MinJobAge", _AGE_S, "the end of a job must be there when drfd asks for it"),
    _at_least("MaxJobCount", _RECORDS, f"ended jobs count, too, for the {_AGE_S} s of MinJobAge"),
    Setting(
        SLURM_CONF,
        "Epilog",
        "/bin/true",
        "without any, the end of a short job is noticed up to a second later",
        lambda found: found not in _NOTHING,
        "any program",
    ),
    _exact("ConstrainCores", "yes", "jobs keep to their cores", file=CGROUP_CONF),
    _exact("ConstrainRAMSpace", "yes", "jobs keep to their memory", file=CGROUP_CONF),
    _exact("ConstrainDevices", "yes", "jobs reach no GPUs but their own", file=CGROUP_CONF),
)

_EVENTS_WHY = "tells drfd at once of {} of a job; without it, drfd has to ask again and again"
#: Settings that name the event script → what else says of them that they are in force, and why.
EVENT_SETTINGS = {
    "PrologSlurmctld": _EVENTS_WHY.format("the start"),
    "JobCompLoc": _EVENTS_WHY.format("the end"),
}
COMPLETION = _exact("JobCompType", "jobcomp/script", _EVENTS_WHY.format("the end"))
GATE = _among("JobSubmitPlugins", "lua", "nobody submits jobs past drfd, which it would not count")


def read_config(text: str) -> dict[str, str]:
    """Return the settings in the output of `scontrol show config`. Of numbered ones, as newer
    versions have them (`Epilog[0]`), it is the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting and not name.startswith(" "):
            found.setdefault(re.sub(r"\[\d+\]$", "", name.strip()), value.strip())
    return found


def differences(
    running: Mapping[str, str], files: Mapping[str, str], *, event: str, gate: str, gate_path: str
) -> Iterator[Difference]:
    """Yield how a running Slurm differs.

    `running` is from `read_config`; `files` has the texts of those files that can be read, by path;
    `event` and `gate` are the texts of the scripts that it needs. A script may do more than that.
    """
    for setting in (*SETTINGS, COMPLETION, GATE):
        found = running.get(setting.name)
        if found is None or not setting.holds(found):
            yield Difference(setting.name, found or "not shown", setting.needed, setting.why)
    scripts = [(name, running.get(name, ""), event, why) for name, why in EVENT_SETTINGS.items()]
    for name, path, wanted, why in [*scripts, ("job_submit.lua", gate_path, gate, GATE.why)]:
        shown = "drfd-event" if wanted == event else name
        needed = f"a file with what drfd slurm-conf {shown} prints"
        if path in _NOTHING:
            yield Difference(name, "not set", needed, why)
        elif path not in files:
            yield Difference(name, f"{path}, which cannot be read here", needed, why)
        elif _body(wanted) not in files[path]:
            yield Difference(name, f"{path}, with another text", needed, why)


def _body(script: str) -> str:
    """Return the text without the line that names the interpreter."""
    return script.partition("\n")[2] if script.startswith("#!") else script

"""The settings of Slurm that drfd needs, each with the reason, and how a running Slurm differs.

drfd decides which job starts where and when, and hands Slurm a job only when its node has room.
Slurm must then start it at once, exactly once, and keep the record of its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: Seconds that an ended job stays in Slurm's list. An event may be lost and drfd be away for long;
#: by default, Slurm forgets ended jobs after five minutes.
_AGE_S = 3600
#: Jobs that Slurm has records of: those that end at 16 a second stay for `_AGE_S`.
_RECORDS = 60_000
#: Seconds between two looks of Slurm's scheduler at jobs that it could not start at once.
_LOOK_S = 5

#: What stands between the values of a setting that newer versions show as several, `Prolog[0]` and
#: `Prolog[1]`.
BETWEEN = ", "
#: What is shown where a setting has no value.
NOTHING = ("", "(null)")

SLURM_CONF, CGROUP_CONF = "slurm.conf", "cgroup.conf"
EVENT, DISKS, GATE_FILE = "drfd-event", "drfd-disks", "job_submit.lua"


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
    #: Whether drfd works without it, too.
    is_advice: bool = False

    def __str__(self) -> str:
        wanted = "advised" if self.is_advice else "needed"
        return f"{self.name} is {self.found}, {wanted}: {self.needed} ({self.why})"


def _exact(name: str, value: str, why: str, *, file: str = SLURM_CONF) -> Setting:
    return Setting(file, name, value, why, lambda found: found.lower() == value.lower(), value)


def _plugin(name: str, value: str, why: str) -> Setting:
    """Return a setting that newer versions show as "(null)" where it means no plugin at all."""
    return Setting(
        SLURM_CONF, name, value, why, lambda found: found.lower() in (value, *NOTHING), value
    )


def _among(name: str, value: str, why: str) -> Setting:
    """Return a setting with a list of words, which may have others, too."""

    def holds(found: str) -> bool:
        return value.lower() in words_of(found)

    return Setting(SLURM_CONF, name, value, why, holds, f"with {value}")


def _at_least(name: str, least: int, why: str) -> Setting:
    def holds(found: str) -> bool:
        return (_number(found) or 0) >= least

    return Setting(SLURM_CONF, name, str(least), why, holds, f"at least {least}")


def words_of(found: str) -> list[str]:
    """Return the words of a setting that is a list, in small letters."""
    return [word.strip().lower() for word in found.split(",")]


def _number(found: str) -> int | None:
    """Return the number that a value begins with, such as 300 of "300 sec", or None."""
    digits = re.match(r"\d+", found, re.ASCII)
    return int(digits[0]) if digits else None


def _starts_at_once(found: str) -> bool:
    given = dict(word.partition("=")[::2] for word in words_of(found))
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
        lambda found: found.lower() in ("none", *NOTHING),
        "none, which is the default",
    ),
    _exact("SelectType", "select/cons_tres", "jobs share a node, each with what it declares"),
    _among("SelectTypeParameters", "CR_Core_Memory", "cores and memory are what drfd counts"),
    _exact("ProctrackType", "proctrack/cgroup", "no process of a job outlives its end"),
    _among("TaskPlugin", "task/cgroup", "jobs are kept to the resources that they declare"),
    _among("PrivateData", "jobs", "users would see directories and output files of others' jobs"),
    _exact("JobRequeue", "0", "a job that Slurm started again by itself would run twice"),
    _at_least("MinJobAge", _AGE_S, "the end of a job must be there when drfd asks for it"),
    _at_least("MaxJobCount", _RECORDS, f"ended jobs count, too, for the {_AGE_S} s of MinJobAge"),
    _exact("ConstrainCores", "yes", "jobs keep to their cores", file=CGROUP_CONF),
    _exact("ConstrainRAMSpace", "yes", "jobs keep to their memory", file=CGROUP_CONF),
    _exact("ConstrainDevices", "yes", "jobs reach no GPUs but their own", file=CGROUP_CONF),
)


class Script(NamedTuple):
    """The script that a setting names, and why."""

    name: str
    why: str
    #: Whether any other will do, too.
    is_replaceable: bool = False


_EVENTS_WHY = "tells drfd at once of {} of a job; without it, drfd has to ask again and again"
#: Settings that name a script → the script.
SCRIPTS = {
    "PrologSlurmctld": Script(EVENT, _EVENTS_WHY.format("the start")),
    "JobCompLoc": Script(EVENT, _EVENTS_WHY.format("the end")),
    "Prolog": Script(DISKS, "keeps jobs to their disk rates on nodes with cgroup v2"),
    "Epilog": Script(
        DISKS,
        "without any, the end of a short job is noticed up to a second later",
        is_replaceable=True,
    ),
}
#: Why Slurm must be able to execute a script.
_STUCK_WHY = {
    EVENT: "nothing notes which jobs have started, so that one may run twice",
    DISKS: "Slurm starts no job on the node, and drains it",
}
COMPLETION = _exact("JobCompType", "jobcomp/script", _EVENTS_WHY.format("the end"))
GATE = _among("JobSubmitPlugins", "lua", "nobody submits jobs past drfd, which it would not count")
#: Advice alone, and left to the site's own slurm.conf: jobs of drfd wait or go elsewhere meanwhile.
RETURN = Setting(
    SLURM_CONF,
    "ReturnToService",
    "2",
    "otherwise a node that was down stays so until an administrator resumes it, though its slurmd "
    "is back",
    lambda found: found == "2",
    "2",
)


def read_config(text: str) -> dict[str, str]:
    """Return the settings in the output of `scontrol show config`. Numbered ones, as newer versions
    have them (`Epilog[0]`), are one with all values."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, is_setting, value = line.partition("=")
        if not is_setting or name.startswith(" "):
            continue
        plain = re.sub(r"\[\d+\]$", "", name.strip())
        if plain == name.strip():
            found.setdefault(plain, value.strip())
        else:
            found[plain] = BETWEEN.join(filter(None, (found.get(plain), value.strip())))
    return found


def differences(
    running: Mapping[str, str],
    files: Mapping[str, str],
    *,
    scripts: Mapping[str, str],
    gate_path: str,
    stuck: Container[str] = (),
) -> Iterator[Difference]:
    """Yield how a running Slurm differs.

    `running` is from `read_config`; `files` has the texts of those files that can be read, by the
    paths or patterns that a setting names; `scripts` has the texts of the scripts that it needs, by
    their names. A script may do more than that. `stuck` has the settings that name a script which
    Slurm cannot execute.
    """
    for setting in (*SETTINGS, COMPLETION, GATE):
        found = running.get(setting.name)
        if found is None or not setting.holds(found):
            yield Difference(setting.name, found or "not shown", setting.needed, setting.why)
    named = {name: (running.get(name, ""), script) for name, script in SCRIPTS.items()}
    named[GATE_FILE] = gate_path, Script(GATE_FILE, GATE.why)
    for name, (path, script) in named.items():
        needed = f"a file with what drfd slurm-conf {script.name} prints"
        if path in NOTHING:
            needed = "any program" if script.is_replaceable else needed
            yield Difference(name, "not set", needed, script.why)
        elif name in stuck:
            yield Difference(
                name, f"{path}, which Slurm cannot execute", "mode 755", _STUCK_WHY[script.name]
            )
        elif script.is_replaceable:
            continue
        elif path not in files:
            yield Difference(name, f"{path}, which cannot be read here", needed, script.why)
        elif _body(scripts[script.name]) not in files[path]:
            yield Difference(name, f"{path}, with another text", needed, script.why)
    found = running.get(RETURN.name)
    if found is None or not RETURN.holds(found):
        yield Difference(
            RETURN.name, found or "not shown", RETURN.needed, RETURN.why, is_advice=True
        )


def _body(script: str) -> str:
    """Return the text without the line that names the interpreter."""
    return script.partition("\n")[2] if script.startswith("#!") else script


def user_difference(found: str, user: str) -> Iterator[Difference]:
    """Yield whether Slurm's user, shown as "slurm(64030)", is not the one in the table [slurm]."""
    name = found.partition("(")[0]
    if name != user:
        yield Difference(
            "SlurmUser",
            name or "not shown",
            f'{user}, or user = "{name or "NAME"}" in the table [slurm]',
            "drfd takes notes and news from that user alone, which runs drfd-event",
        )

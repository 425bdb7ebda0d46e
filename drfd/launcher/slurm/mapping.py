"""What the answers of Slurm's commands mean."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from drfd.common.units import is_number
from drfd.launcher.attempt_files import Key, Record
from drfd.launcher.slurm_root.requests import JOB_FIELDS, NODE_FIELDS

#: Why the end of an attempt is not known: codes of `core.decisions.outcome.LOSSES`.
NODE_FAILED, FORGOTTEN, ENDED_BY_SLURM = "NODE_FAILED", "SLURM_FORGOT", "SLURM_ENDED"
NOT_STARTED = "SLURM_NOT_STARTED"

#: States in which a job holds its resources, or may do so again. COMPLETING is among them.
_STARTED = frozenset(
    ("RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING")
)
_LOST = {"NODE_FAIL": NODE_FAILED, "BOOT_FAIL": NODE_FAILED}
_EXITED = frozenset(("COMPLETED", "FAILED"))
#: Ended by somebody's `scancel`, or by Slurm's own time limit, both of which begin with SIGTERM.
_CANCELLED = "CANCELLED"
_TERMINATED = frozenset((_CANCELLED, "TIMEOUT"))
_OUT_OF_MEMORY = "OUT_OF_MEMORY"
#: What is shown where a job has no node.
_NO_NODES = ("", "(null)", "N/A", "n/a")
_TERM = 15
#: What is shown as the signal of a job that its node could not start → Slurm's number for the cause
#: (ESLURMD_UID_NOT_FOUND and those after it, in slurm_errno.h).
_UNSTARTED = {number & 0x7F: number for number in range(4004, 4032)}
#: States after which no node has a process of the job: all but those of lost nodes.
GONE = frozenset((*_EXITED, *_TERMINATED, _OUT_OF_MEMORY))
#: Seconds after its start, at most, in which a node cancels a job because Slurm's Prolog fails.
_PROLOG_S = 2.0

#: States in which a node starts jobs, perhaps after it has been switched on.
_OPEN = frozenset(("idle", "mixed", "allocated", "completing", "planned", "reserved"))
#: States that last until somebody ends them, also when their cause is gone.
_KEPT = frozenset(("down", "drained", "draining"))
#: How the faults of nodes begin that Slurm does not hear of.
_SILENT = "Slurm says that it does not answer", "Slurm says that it is down"
#: What may follow a state: that the node is switched off or on, is to be rebooted or is in a
#: reservation. With "*" it does not answer.
_MARKS = "~#!%$@^-+"

#: The name of an attempt, and the disk rates that may follow it in a comment, which are at most
#: 2^60 (`drfd.common.units`).
_NAME = re.compile(r"([0-9a-f]{32})\.([1-9][0-9]{0,17})\.([1-9][0-9]{0,17})")
_COMMENT = re.compile(rf"{_NAME.pattern}(?:(?:\.[0-9]{{1,19}}){{2}})?")

_MEBI = 1 << 20


@dataclass(frozen=True, slots=True)
class Name:
    """What drfd calls an attempt in Slurm: the journal that it is from, and its key."""

    journal: str
    key: Key

    def __str__(self) -> str:
        return f"{self.journal}.{self.key[0]}.{self.key[1]}"


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One of drfd's jobs, as Slurm shows it."""

    id: int
    uid: int
    state: str
    #: As wait(2) gives it; or a number of Slurm's, 4021 for example, if there was no program to
    #: wait for.
    wait_status: int
    #: Seconds since 1970 by slurmctld's clock, or None.
    ended_at_s: float | None
    #: Whether it has, or had, a node, as slurmctld knows it.
    has_node: bool
    name: Name
    #: As `ended_at_s`: when it started, as slurmctld knows it.
    started_at_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Return whether it holds nothing any more. A state that is not known here is no end."""
        return self.state in _EXITED | _TERMINATED | _LOST.keys() or self.state in (
            *(_OUT_OF_MEMORY, "PREEMPTED", "DEADLINE", "REVOKED"),
        )

    @property
    def has_started(self) -> bool:
        return self.state in _STARTED

    @property
    def is_cancelled(self) -> bool:
        return self.state == _CANCELLED

    @property
    def is_unplaced(self) -> bool:
        """Return whether Slurm has ended it because no node has what it needs."""
        return self.state == "FAILED" and not self.has_node


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node, as Slurm shows it; also as the controller is told of it (`NodeFacts` there)."""

    cores: int
    memory_bytes: int
    #: Why it starts no jobs; empty if it does.
    fault: str
    #: How many of `cores` Slurm gives out together: the hardware threads of a core, if it counts
    #: them as cores and knows which belong together.
    threads: int = 1

    @property
    def answers(self) -> bool:
        """Return whether Slurm hears of it, as far as it has noticed."""
        return not self.fault.startswith(_SILENT)


def read_name(text: str) -> Name | None:
    """Read what `str` makes of a name; None if it is anything else."""
    return _name_in(_NAME.fullmatch(text))


def read_comment(text: str) -> Name | None:
    """Return the name in the comment of an attempt; None if it is no attempt's."""
    return _name_in(_COMMENT.fullmatch(text))


def _name_in(found: re.Match[str] | None) -> Name | None:
    return None if found is None else Name(found[1], (int(found[2]), int(found[3])))


def read_jobs(text: str) -> list[SlurmJob] | None:
    """Read the answer to `JOBS`. Jobs that are not drfd's are left out. None if an id comes
    twice: somebody has written lines of a list into the name of a job."""
    lines = text.split("\n")
    ids = [line.split("|", 1)[0] for line in lines if line.count("|") >= len(JOB_FIELDS) - 1]
    if len(set(ids)) < len(ids):
        return None
    found = (_read_job(line) for line in lines)
    return [job for job in found if job is not None]


def _read_job(line: str) -> SlurmJob | None:
    fields = line.split("|", len(JOB_FIELDS) - 1)
    if len(fields) != len(JOB_FIELDS):
        return None
    job_id, uid, state, status, started_at, ended_at, nodes, comment = fields
    name, wait_status = read_comment(comment.removesuffix("|")), _wait_status(status)
    if name is None or wait_status is None or not all(map(is_number, (job_id, uid))):
        return None
    return SlurmJob(
        id=int(job_id),
        uid=int(uid),
        # "CANCELLED by 1000"
        state=state.split(" ")[0],
        wait_status=wait_status,
        started_at_s=float(started_at) if is_number(started_at) else None,
        ended_at_s=float(ended_at) if is_number(ended_at) else None,
        has_node=nodes not in _NO_NODES,
        name=name,
    )


def _wait_status(text: str) -> int | None:
    """Read a status as wait(2) gives it, or the two parts of it that newer versions show."""
    return int(text) if is_number(text) else read_parts(text)


def read_parts(text: str) -> int | None:
    """Read the exit code and the signal of a status, as wait(2) gives it: "7:0" and "0:9".

    Of a number of Slurm's for a job that its node could not start, Slurm shows a part alone, which
    looks like a real-time signal: "0:53" of 4021. Programs hardly ever end by those, so it is read
    as that number.
    """
    code, _, number = text.partition(":")
    if not (is_number(code) and is_number(number)):
        return None
    status = int(code) << 8 | int(number) & 0x7F
    return _UNSTARTED.get(status, status)


def read_nodes(text: str) -> dict[str, SlurmNode]:
    """Read the answer to `NODES`, in which a node comes once for each of its partitions."""
    found = {}
    for line in text.splitlines():
        fields = line.split("|", len(NODE_FIELDS) - 1)
        if len(fields) != len(NODE_FIELDS):
            continue
        name, state, cores, mebi, sockets, per_socket, reason = (field.strip() for field in fields)
        if all(map(is_number, (cores, mebi, sockets, per_socket))):
            fault = _fault(name, state, "" if reason == "none" else reason)
            whole = int(sockets) * int(per_socket)
            threads = max(1, int(cores) // whole) if whole else 1
            found[name] = SlurmNode(int(cores), int(mebi) * _MEBI, fault, threads=threads)
    return found


def _fault(name: str, state: str, reason: str) -> str:
    """Return why a node in this state starts no jobs, or nothing if it does."""
    about = f": {reason}" if reason else ""
    if state.endswith("*"):
        return f"{_SILENT[0]} ({state[:-1]}){about}"
    word = state.rstrip(_MARKS)
    if word in _OPEN:
        return ""
    cure = f" (scontrol update NodeName={name} State=RESUME ends that)" if word in _KEPT else ""
    return f"Slurm says that it is {word}{about}{cure}"


def end_of(job: SlurmJob, now_s: float, mono_s: float, began_s: float | None) -> Record:
    """Return the record of the end of a job that is over, as it was seen at `now_s`.

    The state is judged and not the exit code: a job may exit 0 after the kernel has killed a part
    of it for memory."""
    at_s = _end_time(job, now_s, began_s)
    end = noted_end(job.state, job.wait_status, at_s, mono_s)
    if job.is_unplaced or _has_failed_prolog(job):
        end |= {"exit_code": None, "signal": None, "loss": NOT_STARTED}
    return end | {"slurm_id": job.id}


def _has_failed_prolog(job: SlurmJob) -> bool:
    """Return whether the node has cancelled a job because Slurm's Prolog has failed there, or is
    missing. Slurm shows it as any that was cancelled. But it ends at once, and no signal has ended
    it, as one that is cancelled by somebody."""
    if not job.is_cancelled or not job.has_node or job.wait_status != 0:
        return False
    if job.started_at_s is None or job.ended_at_s is None:
        return False
    return job.ended_at_s - job.started_at_s <= _PROLOG_S


def noted_end(state: str, status: int, at_s: float, mono_s: float) -> Record:
    """Return the record of an end in this state, with this status as wait(2) gives it."""
    end, number = _end(at_s, mono_s) | {"state": state}, status & 0x7F
    if _is_unstarted(state, status):
        end["loss"] = NOT_STARTED
    elif state in _EXITED and not number:
        end["exit_code"] = status >> 8 & 0xFF
    elif state in _EXITED | _TERMINATED:
        end["signal"] = number or _TERM
    elif state == _OUT_OF_MEMORY:
        end["oom_killed"] = end["over_limit"] = True
    else:
        end["loss"] = _LOST.get(state, ENDED_BY_SLURM)
    return end


def _is_unstarted(state: str, status: int) -> bool:
    """Return whether the node could not start the job's program. No program ends with a signal and
    an exit code, as Slurm's numbers look."""
    return state == "FAILED" and status & 0x7F != 0 and status >> 8 != 0


def _end_time(job: SlurmJob, now_s: float, began_s: float | None) -> float:
    """Return when the job ended: slurmctld's clock counts if it does not contradict this one's."""
    if job.ended_at_s is not None and (began_s or 0.0) <= job.ended_at_s <= now_s:
        return job.ended_at_s
    return now_s


def forgotten_end(now_s: float, mono_s: float) -> Record:
    """Return the record of the end of an attempt that Slurm does not know any more."""
    return _end(now_s, mono_s) | {"loss": FORGOTTEN}


def _end(at_s: float, mono_s: float) -> Record:
    return {
        "at_s": at_s,
        "mono_s": mono_s,
        "exit_code": None,
        "signal": None,
        "oom_killed": False,
        "over_limit": False,
    }


def choose(jobs: Iterable[SlurmJob]) -> SlurmJob | None:
    """Return which of the jobs with one attempt's name is the attempt.

    Slurm keeps names no more apart than ids. One that has started comes before one that waits, and
    one that is over only counts if there is none that is not; one that was cancelled, perhaps as a
    second start, only if there is no other, and one that never had a node comes last."""

    def rank(job: SlurmJob) -> tuple[bool, bool, bool, bool, int]:
        is_cancelled = job.is_cancelled
        return (job.is_over, not job.has_started, is_cancelled, not job.has_node, job.id)

    return min(jobs, key=rank, default=None)


#: Parts of sbatch's complaints after which the same submission may succeed later.
_PASSING = (
    *("unable to contact", "timed out", "connection refused", "zero bytes", "temporar"),
    *("try again", "resource limit", "max jobs", "maxjobcount", "communication", "connect"),
    *("munge", "credential", "not responding", "down", "unavailable", "not available"),
)


def may_pass(complaint: str) -> bool:
    """Return whether what sbatch complains of may be over later, so that the job has to wait. Of an
    unknown complaint it is not assumed: the job would wait for ever."""
    text = complaint.lower()
    return not text.strip() or any(part in text for part in _PASSING)


#: The name of one of Slurm's commands before its words.
_COMMAND = re.compile(r"(?:sbatch|squeue|sinfo|scancel|scontrol): ")
#: How the advice begins that comes before munge's complaint, mostly for another cause.
_ADVICE = "If munged is up"


def first_line(text: str) -> str:
    """Return the first line that says something, without the name of Slurm's command."""
    for line in text.splitlines():
        words = _COMMAND.sub("", line).removeprefix("error: ").strip()
        if words and not words.startswith(_ADVICE):
            return words[:500]
    return ""

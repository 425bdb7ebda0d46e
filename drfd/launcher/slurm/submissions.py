"""Attempts on their way to Slurm: from the order to what is known of their submission.

An outcome that is unknown is looked up: sbatch may have failed after slurmctld has taken the job.
So no attempt is submitted whose name has not been missing in a list first, and none counts as not
submitted whose name has not been missing in some.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from drfd.common.failpoints import reach
from drfd.common.units import is_number
from drfd.launcher.attempt_files import Key, Record
from drfd.launcher.protocol import LAUNCH, Assignment, encode, message_of
from drfd.launcher.runner.shortage import JOB, MACHINE, Shortage, failure
from drfd.launcher.slurm import mapping
from drfd.launcher.slurm.commands import Answer, Commands
from drfd.launcher.slurm.list_times import ListTimes
from drfd.launcher.slurm_root.requests import SUBMIT
from drfd.linux.sealed import seal

#: How many lists must lack a name before it is submitted after an unknown outcome, and the pause
#: between them: what sbatch has sent may still be on its way.
_LOOKS, _LOOK_PAUSE_S = 2, 2.0
#: Submissions that run at a time.
_AT_ONCE = 8


@dataclass(slots=True)
class _Submission:
    """An attempt that is not known to be submitted."""

    assignment: Assignment
    #: Number of lists that must lack its name first.
    looks: int
    #: The last list that does not count, and when the next may.
    after_list: int
    due_mono_s: float = 0.0
    #: True while sbatch runs.
    runs: bool = False
    #: What is to be recorded if the lists lack its name: sbatch has failed.
    failed: Record | None = None


@dataclass
class Submissions:
    """The attempts that are not known to be submitted."""

    commands: Commands
    times: ListTimes
    #: Gets an attempt that Slurm has taken, and the id of its job.
    on_submitted: Callable[[Key, int], None]
    #: Gets an attempt of which nothing was submitted, and why.
    on_failed: Callable[[Key, Record], None]
    _all: dict[Key, _Submission] = field(default_factory=dict)

    def __contains__(self, key: object) -> bool:
        return key in self._all

    def add(self, key: Key, assignment: Assignment, *, after_list: int, may_be_there: bool) -> None:
        """Submit an attempt when a later list lacks its name; several lists if an earlier launcher
        may have submitted it. The assignment is closed at the end."""
        looks = _LOOKS if may_be_there else 1
        self._all[key] = _Submission(assignment, looks, after_list)

    def runs(self, key: Key) -> bool:
        """Return whether sbatch is running for this attempt."""
        return key in self._all and self._all[key].runs

    def is_doubtful(self, key: Key) -> bool:
        """Return whether Slurm may have a job of this attempt that no list has shown yet."""
        each = self._all.get(key)
        return each is not None and (each.runs or each.failed is not None)

    def end(self, key: Key) -> None:
        """Do nothing more for an attempt."""
        if key in self._all:
            self._all.pop(key).assignment.close()

    def begin(self, fault: str | None) -> None:
        """Run sbatch for those whose names no list has shown. With a fault of Slurm's none is given
        to it."""
        running = sum(each.runs for each in self._all.values())
        for key, each in list(self._all.items()):
            if running >= _AT_ONCE:
                return
            if each.runs or each.looks > 0:
                continue
            if fault is not None:
                self.end(key)
                self.on_failed(key, failure(fault, Shortage(JOB, "slurm")))
                continue
            each.runs = True
            running += 1
            reach("slurm.before-submission")
            try:
                self._submit(key, each.assignment)
            except OSError as error:
                short = Shortage(MACHINE, "processes")
                self._look_again(each, f"sbatch cannot be run: {error.strerror}", short)

    def _submit(self, key: Key, assignment: Assignment) -> None:
        """Have the helper submit an attempt. Raises OSError."""
        order_fd = seal(encode(message_of(LAUNCH, assignment.order)))
        try:
            self.commands.run(
                SUBMIT, partial(self._submitted, key), fds=(order_fd, assignment.payload_fd)
            )
        finally:
            os.close(order_fd)

    def lacks(self, key: Key, number: int) -> Record | None:
        """The list with this number lacks the name of an attempt that is here. Return why it was
        not submitted, if that is sure now: it is not here any more then."""
        each, now = self._all[key], time.monotonic()
        if each.runs or number <= each.after_list or now < each.due_mono_s:
            return None
        each.looks -= 1
        each.after_list, each.due_mono_s = number, now + _LOOK_PAUSE_S
        if each.looks > 0:
            self.times.schedule(_LOOK_PAUSE_S)
            return None
        if each.failed is not None:
            self.end(key)
        return each.failed

    def _submitted(self, key: Key, answer: Answer) -> None:
        reach("slurm.after-submission")
        if not answer.was_run:
            # There is nothing to look for.
            self.end(key)
            self.on_failed(key, _why(answer))
            return
        number = answer.output.strip().split(";")[0]
        if answer.is_good and is_number(number):
            self.on_submitted(key, int(number))
            self.end(key)
            self.times.schedule()
            return
        complaint = mapping.first_line(answer.complaint)
        short = None
        if answer.code is None or mapping.may_pass(answer.complaint):
            # That job alone waits: the controller's own machine goes on.
            short = Shortage(JOB, "slurm")
        text = f"Slurm does not take the job: {complaint or 'no reason'}"
        self._look_again(self._all[key], text, short)

    def _look_again(self, each: _Submission, text: str, short: Shortage | None) -> None:
        each.failed = failure(text, short)
        each.runs, each.looks, each.after_list = False, _LOOKS, self.times.count
        each.due_mono_s = time.monotonic()
        self.times.schedule(_LOOK_PAUSE_S, 2 * _LOOK_PAUSE_S)


def _why(answer: Answer) -> Record:
    """Return the `launch_failed` record of a submission that the helper has not begun."""
    try:
        record: Record = json.loads(answer.complaint)
    except ValueError:
        # What prepares it was killed, or took too long.
        return failure("its submission could not be prepared", Shortage(JOB, "slurm"))
    return record

"""The nodes as Slurm shows them, when Slurm is asked for the list of its jobs (some moments after
each event, and in any case from time to time), and whether only drfd submits jobs to it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG

from drfd.launcher.slurm import mapping
from drfd.launcher.slurm.commands import Answer, Commands
from drfd.launcher.slurm.mapping import SlurmNode
from drfd.launcher.slurm_root.requests import NODES
from drfd.linux.kernel_files import opened
from drfd.slurm.files import gate_script
from drfd.slurm.settings import GATE, GATE_FILE

#: The moments after an event, in seconds: a job passes some states at its start and end.
_AFTER_EVENT_S = (0.0, 0.05, 0.2, 1.0, 3.0)
#: The least pause between two lists.
_LEAST_PAUSE_S = 0.02
#: The most moments that are kept: a burst of events needs no more lists than the pause allows.
_MOST_DUES = 64


@dataclass
class ListTimes:
    """The moments at which lists are due, and the numbers of those that were asked for."""

    #: Seconds after which a list is due without any event.
    poll_s: float
    #: The number of the last list that was asked for; the first has 1.
    count: int = 0
    #: Whether that list has not come yet.
    _is_awaited: bool = False
    _asked_mono_s: float = float("-inf")
    _dues: list[float] = field(default_factory=list)

    def schedule(self, *more_s: float) -> None:
        """Schedule lists because of an event: now, soon, and after so many seconds more."""
        now = time.monotonic()
        dues = {*self._dues, *(now + wait_s for wait_s in (*_AFTER_EVENT_S, *more_s))}
        self._dues = sorted(dues)[:_MOST_DUES]

    def add(self, due_mono_s: float) -> None:
        """Have one more list asked for, at this moment."""
        self._dues = sorted({*self._dues, due_mono_s})

    def pause_s(self) -> float | None:
        """Return the seconds until a list is due, or None while one is awaited."""
        if self._is_awaited:
            return None
        due = min([*self._dues, self._asked_mono_s + self.poll_s])
        return max(0.0, max(due, self._asked_mono_s + _LEAST_PAUSE_S) - time.monotonic())

    def begin(self) -> int | None:
        """Return the number of the list that is to be asked for now, or None if none is due."""
        now, pause_s = time.monotonic(), self.pause_s()
        if pause_s is None or pause_s > 0.0:
            return None
        self._dues = [due for due in self._dues if due > now]
        self._is_awaited, self._asked_mono_s = True, now
        self.count += 1
        return self.count

    def end(self) -> None:
        """The list that was asked for has come, or will not come."""
        self._is_awaited = False


#: Seconds between two looks at the nodes, at most.
_EVERY_S = 5.0
_NOT_ASKED, _NO_ANSWER = "Slurm has not been asked yet", "slurmctld does not answer"
#: Parts of the answer to `NODES`.
_PARTS = 2
#: Bytes that are read of the script at the gate.
_MOST_GATE = 1 << 20
_NO_GATE = (
    "Slurm takes jobs past drfd, whose users can forge what it shows: it needs JobSubmitPlugins=lua"
    " and {} as drfd slurm-conf prints them"
)


@dataclass
class NodeWatch:
    """The nodes as Slurm showed them last."""

    commands: Commands
    times: ListTimes
    #: Called when the nodes have changed, or why none of them starts jobs.
    on_change: Callable[[], None]
    nodes: dict[str, SlurmNode] = field(default_factory=dict)
    #: Why none of them starts jobs, or None.
    all_away: str | None = _NOT_ASKED
    #: Why Slurm is given no jobs although it answers, or None. Any user whose jobs it takes can
    #: write lines into its lists, as names and comments may hold line ends.
    gate_fault: str | None = _NOT_ASKED
    #: Whether slurmctld has been asked for that.
    knows_gate: bool = False
    _due_mono_s: float = 0.0
    _is_asking: bool = False

    def pause_s(self) -> float | None:
        """Return the seconds until the nodes are to be asked for, or None while they are."""
        return None if self._is_asking else max(0.0, self._due_mono_s - time.monotonic())

    def ask(self) -> None:
        """Ask for the nodes, if it is time for that."""
        now = time.monotonic()
        if not self._is_asking and now >= self._due_mono_s:
            self._is_asking = True
            self._due_mono_s = now + min(_EVERY_S, self.times.poll_s)
            self.commands.run(NODES, self._take)

    def note_failure(self, answer: Answer) -> None:
        """slurmctld has not answered a question, or not as it should."""
        complaint = mapping.first_line(answer.complaint)
        self._update(self.nodes, away=f"{_NO_ANSWER}: {complaint}" if complaint else _NO_ANSWER)

    def ask_soon(self) -> None:
        """slurmctld answers again."""
        self._due_mono_s = 0.0

    def answers(self, name: str) -> bool:
        """Return whether slurmctld and this node of its answer."""
        node = self.nodes.get(name)
        return self.all_away is None and node is not None and node.answers

    def _update(self, nodes: dict[str, SlurmNode], *, away: str | None) -> None:
        if (nodes, away) != (self.nodes, self.all_away):
            self.nodes, self.all_away = nodes, away
            self.on_change()

    def _take(self, answer: Answer) -> None:
        self._is_asking = False
        parts = answer.output.split("\0")
        if not answer.is_good or len(parts) != _PARTS + 1:
            self.note_failure(answer)
            return
        listed, settings, _ = parts
        self.knows_gate = True
        self.gate_fault = _gate_fault(_read_config(settings))
        self._update(mapping.read_nodes(listed), away=self.gate_fault)


def _read_config(text: str) -> dict[str, str]:
    """Return the settings that scontrol has printed."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting and not name.startswith(" "):
            found.setdefault(name.strip(), value.strip())
    return found


def _gate_fault(settings: Mapping[str, str]) -> str | None:
    """Return why others than root may submit jobs to Slurm, by its settings, or None."""
    gate = Path(settings.get("SLURM_CONF", "/")).parent / GATE_FILE
    try:
        # Whoever may change slurm.conf, as SlurmUser, may have put anything there.
        with opened(gate, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC) as fd:
            text = os.read(fd, _MOST_GATE) if S_ISREG(os.fstat(fd).st_mode) else b""
            is_there = gate_script() in text.decode()
    except (OSError, UnicodeDecodeError):
        is_there = False
    used = (word.strip().lower() for word in settings.get(GATE.name, "").split(","))
    return None if is_there and GATE.value in used else _NO_GATE.format(gate)

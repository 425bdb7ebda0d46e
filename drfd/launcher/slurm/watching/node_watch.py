"""The nodes as Slurm shows them, and which slurmctld it is that shows them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from drfd.launcher.slurm import mapping
from drfd.launcher.slurm.commands import Answer, Commands
from drfd.launcher.slurm.list_times import ListTimes
from drfd.launcher.slurm.mapping import LIST_ALLOCATED, LIST_NODES, SHOW_CONFIG, SlurmNode
from drfd.launcher.slurm.watching.census import Census
from drfd.launcher.slurm.watching.daemon_process import RunningProcess, running_process
from drfd.slurm.files import gate_script
from drfd.slurm.settings import GATE, GATE_FILE

#: Seconds between two looks at the nodes, at most.
_EVERY_S = 5.0
_NOT_ASKED, _NO_ANSWER = "Slurm has not been asked yet", "slurmctld does not answer"
_NO_GATE = (
    "Slurm takes jobs past drfd, whose users can forge what it shows: it needs JobSubmitPlugins=lua"
    " and {} as drfd slurm-conf prints them"
)


@dataclass
class NodeWatch:
    """The nodes as Slurm showed them last."""

    commands: Commands
    times: ListTimes
    census: Census
    #: The journals whose jobs are this launcher's: what others hold on a node is not free there.
    journals: Set[str]
    #: Called when the nodes have changed, or why none of them starts jobs.
    on_change: Callable[[], None]
    nodes: dict[str, SlurmNode] = field(default_factory=dict)
    #: Why none of them starts jobs, or None.
    all_away: str | None = _NOT_ASKED
    #: Why Slurm is given no jobs although it answers, or None. Any user whose jobs it takes can
    #: write lines into its lists, as names and comments may hold line ends.
    gate_fault: str | None = _NOT_ASKED
    #: slurmctld's, or None as long as it has not been asked.
    _settings: Mapping[str, str] | None = None
    _due_mono_s: float = 0.0
    _is_asking: bool = False
    #: Where slurmctld writes its pid, and which process it was when it was asked.
    _pid_file: str = ""
    _slurm_process: RunningProcess | None = None
    #: Whether it is being asked when it started.
    _asks_config: bool = False

    @property
    def knows_gate(self) -> bool:
        return self._settings is not None

    def pause_s(self) -> float | None:
        """Return the seconds until the nodes are to be asked for, or None while they are."""
        return None if self._is_asking else max(0.0, self._due_mono_s - time.monotonic())

    def ask(self) -> None:
        """Ask for the nodes, if it is time for that."""
        now = time.monotonic()
        if not self._is_asking and now >= self._due_mono_s:
            self._is_asking = True
            self._due_mono_s = now + min(_EVERY_S, self.times.poll_s)
            self.commands.run(LIST_NODES, self._take_nodes)

    def see_away(self, answer: Answer) -> None:
        """slurmctld has not answered a question, or not as it should."""
        complaint = mapping.first_line(answer.complaint)
        self._see(self.nodes, away=f"{_NO_ANSWER}: {complaint}" if complaint else _NO_ANSWER)

    def see_back(self) -> None:
        """slurmctld answers again."""
        self._due_mono_s = 0.0

    def answers(self, name: str) -> bool:
        """Return whether slurmctld and this node of its answer."""
        node = self.nodes.get(name)
        return self.all_away is None and node is not None and node.answers

    def _see(self, nodes: dict[str, SlurmNode], *, away: str | None) -> None:
        if (nodes, away) != (self.nodes, self.all_away):
            self.nodes, self.all_away = nodes, away
            self.on_change()

    def _take_nodes(self, answer: Answer) -> None:
        if not answer.is_good:
            self._is_asking = False
            self.see_away(answer)
            return
        nodes = mapping.read_nodes(answer.output)
        self.commands.run(LIST_ALLOCATED, partial(self._take_allocated, nodes))

    def _take_allocated(self, nodes: dict[str, SlurmNode], answer: Answer) -> None:
        self._is_asking = False
        if not answer.is_good:
            self.see_away(answer)
            return
        nodes = mapping.with_others_jobs(nodes, answer.output, self.journals)
        self._see_gate(nodes)
        self._ask_for_config()

    def _see_gate(self, nodes: dict[str, SlurmNode]) -> None:
        if self._settings is not None:
            self.gate_fault = _gate_fault(self._settings)
        self._see(nodes, away=self.gate_fault)

    def _ask_for_config(self) -> None:
        """Ask when slurmctld started, unless it is seen to be the process that has answered."""
        seen = running_process(self._pid_file, "slurmctld")
        if seen is not None and seen == self._slurm_process and self.gate_fault is None:
            self.census.ask_nodes(self.times.count)
        elif not self._asks_config:
            self._asks_config = True
            self.commands.run(SHOW_CONFIG, partial(self._take_config, seen))

    def _take_config(self, seen: RunningProcess | None, answer: Answer) -> None:
        """See whether slurmctld is another than before, which may have forgotten ends. `seen` was
        its process before the question: an answer of another's is asked for again."""
        self._asks_config = False
        settings = mapping.read_settings(answer.output) if answer.is_good else {}
        found = mapping.read_boot(settings)
        if answer.is_good:
            self._settings = settings
            self._see_gate(self.nodes)
        if found is not None:
            self._slurm_process = seen
            self._pid_file = settings.get(mapping.PID_FILE, "")
            if self.census.see_start(*found, self.times.count):
                self.times.hurry()
        self.census.ask_nodes(self.times.count)


def _gate_fault(settings: Mapping[str, str]) -> str | None:
    """Return why others than root may submit jobs to Slurm, by its settings, or None. Where this
    launcher is not root's, nor is Slurm."""
    gate = Path(settings.get("SLURM_CONF", "/")).parent / GATE_FILE
    if os.getuid() != 0:
        return None
    try:
        is_there = gate_script() in gate.read_text()
    except (OSError, UnicodeDecodeError):
        is_there = False
    is_used = GATE.holds(settings.get(GATE.name, ""))
    return None if is_there and is_used else _NO_GATE.format(gate)

"""What slurmctld and the nodes are asked: which jobs that are shown as running are on their nodes,
and which process a daemon is."""

import selectors
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.launcher.attempt_files import Key
from drfd.launcher.slurm.commands import Commands
from drfd.launcher.slurm.watching.census import Census, Shown
from drfd.launcher.slurm.watching.daemon_process import running_process
from launcher.rig import until

# -- what the nodes are asked, and when ---------------------------------------------------


FIRST, SECOND, OTHER = (1, 1), (2, 1), (3, 1)
SHOWN = {FIRST: Shown(11, "n1"), SECOND: Shown(12, "n1"), OTHER: Shown(13, "n2")}


class Rig:
    """A census with a program `sstat` that knows the steps in a file."""

    def __init__(self, place: Path) -> None:
        self._selector = selectors.DefaultSelector()
        self._place = place
        program = place / "sstat"
        program.write_text(
            f'#!/bin/sh\necho "$*" >>{place}/asked\n'
            f"case $* in *13.batch*) cat {place}/n2 ;; *) cat {place}/n1 ;; esac\n"
            f"cat {place}/complaint >&2\n"
        )
        program.chmod(0o755)
        (place / "asked").touch()
        self.say(n1="11.batch\n12.batch\n", n2="13.batch\n")
        self.absent: list[Key] = []
        self.commands = Commands(self._selector, programs=place, conf=None, most_s=60)
        self.census = Census(self.commands, self.absent.append)
        self.lists = 0

    def say(self, *, n1: str = "", n2: str = "", complaint: str = "") -> None:
        for name, text in (("n1", n1), ("n2", n2), ("complaint", complaint)):
            (self._place / name).write_text(text)

    def show(self, shown: dict[Key, Shown] = SHOWN) -> None:
        self.lists += 1
        self.census.see_list(self.lists, shown)

    def ask(self) -> list[str]:
        """Ask the nodes, and return the jobs of each question once all have been answered."""
        asked = self._place / "asked"
        asked.write_text("")
        self.census.ask_nodes(self.lists)
        while len(self.commands):
            for chosen, _ in self._selector.select(60):
                chosen.data()
        words = "--noheader --parsable2 --format=JobID --jobs="
        lines = asked.read_text().splitlines()
        assert all(line.startswith(words) for line in lines)
        return sorted(line.removeprefix(words) for line in lines)

    def close(self) -> None:
        self._selector.close()


@pytest.fixture
def rig(tmp_path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_each_node_is_asked_for_its_jobs_after_a_start_of_slurmctld(rig):
    rig.show()
    assert rig.ask() == []
    assert rig.census.see_start(1000, 0.0, rig.lists)
    # The list that is there may be of the slurmctld before.
    assert rig.ask() == []
    rig.show()
    assert rig.ask() == ["11.batch,12.batch", "13.batch"]
    assert rig.ask() == []
    assert not rig.census.see_start(1000, 0.0, rig.lists)
    rig.show()
    assert rig.ask() == []
    assert rig.absent == []


def test_a_job_is_absent_when_its_node_lacks_it_and_a_later_list_still_shows_it(rig):
    rig.say(n1="12.batch\n", n2="13.batch\n")
    rig.census.see_start(1000, 0.0, rig.lists)
    rig.show()
    assert rig.ask() == ["11.batch,12.batch", "13.batch"]
    # No list was asked for since: its end may be on its way.
    assert rig.ask() == ["11.batch"]
    assert rig.absent == []
    rig.show()
    assert rig.ask() == ["11.batch"]
    assert rig.absent == [FIRST]
    rig.show()
    assert rig.ask() == []


def test_an_answer_with_a_complaint_says_nothing(rig):
    """As sstat gives it, with exit code 0, of a node that is not reached."""
    complaint = (
        "sstat: error: slurm_job_step_stat: unknown return given from n1: 9001 rc = "
        "Communication connection failure\n"
    )
    rig.say(complaint=complaint)
    rig.census.see_start(1000, 0.0, rig.lists)
    for _ in range(3):
        rig.show()
        assert rig.ask() == ["11.batch,12.batch", "13.batch"]
    assert rig.absent == []
    rig.say(n1="11.batch\n12.batch\n", n2="13.batch\n")
    rig.ask()
    assert rig.ask() == []


def test_another_start_of_slurmctld_begins_it_again(rig):
    rig.say()
    rig.census.see_start(1000, 0.0, rig.lists)
    rig.show()
    rig.ask()
    assert rig.census.see_start(1001, 0.0, rig.lists)
    rig.show()
    rig.ask()
    assert rig.absent == []
    rig.show()
    rig.ask()
    assert sorted(rig.absent) == [FIRST, SECOND, OTHER]


# -- which process a daemon is, by its pid file -------------------------------------------


def begun() -> subprocess.Popen[bytes]:
    """A process that is called sleep by now."""
    process = subprocess.Popen(["sleep", "1000"])
    comm = Path(f"/proc/{process.pid}/comm")
    until("its name", lambda: comm.read_text() == "sleep\n")
    return process


def test_a_process_is_the_same_until_it_ends_and_another_after_that(tmp_path):
    pid_file = tmp_path / "pid"
    first, second = begun(), begun()
    try:
        pid_file.write_text(f"{first.pid}\n")
        found = running_process(str(pid_file), "sleep")
        assert found is not None
        assert found == running_process(str(pid_file), "sleep")
        assert running_process(str(pid_file), "slurmctld") is None
        pid_file.write_text(f"{second.pid}\n")
        other = running_process(str(pid_file), "sleep")
        assert other is not None
        assert other != found
        second.kill()
        # A zombie is no process that answers.
        until("its end", lambda: running_process(str(pid_file), "sleep") is None)
    finally:
        for process in (first, second):
            process.kill()
            process.wait()


def test_of_what_is_no_pid_file_nothing_is_said(tmp_path):
    for text in ("", "0", "-1", "x", "9" * 30, "\xff"):
        (tmp_path / "pid").write_bytes(text.encode("latin-1"))
        assert running_process(str(tmp_path / "pid"), "sleep") is None
    for path in ("", str(tmp_path / "none"), str(tmp_path)):
        assert running_process(path, "sleep") is None

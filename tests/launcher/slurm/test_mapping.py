"""What Slurm's words mean, what it is asked and when, and what its script notes of starts."""

import os
import time
from pathlib import Path

import pytest

from drfd.common.errors import Refused
from drfd.common.units import parse_size
from drfd.launcher.protocol import EVERY_DISK, DiskLimit
from drfd.launcher.slurm import mapping
from drfd.launcher.slurm.mapping import (
    Name,
    SlurmJob,
    SlurmNode,
    choose,
    end_of,
    read_comment,
    read_jobs,
    read_nodes,
)
from drfd.launcher.slurm.node_watch import ListTimes
from drfd.launcher.slurm.start_notes import StartNotes
from drfd.launcher.slurm_root.preparation import without_slurms
from drfd.launcher.slurm_root.words import comment_of, submit_env, submit_words
from fakes import Clock, replace
from launcher.rig import order

JOURNAL = "0" * 31 + "a"
NAME = Name(JOURNAL, (7, 2))


def slurm_job(
    state: str = "RUNNING", number: int = 1, status: int = 0, *, has_node: bool = True
) -> SlurmJob:
    return SlurmJob(number, 1000, state, status, None, has_node, NAME)


def test_a_list_has_drfds_jobs_alone():
    text = (
        f"12|1000|CANCELLED by 1000|15|1795477560|1795477564|n1|{NAME}|\n"
        f"18|1000|CANCELLED|5:0|N/A|1795477564|n1|{NAME}|\n"
        "13|1000|RUNNING|0|1795477560|NONE|n1|a user's | word|\n"
        f"14_1|1000|RUNNING|0|1795477560|NONE|n1|{NAME}|\n"
        f"15|1000|PENDING|0|N/A|N/A||{NAME}x|\n"
        "slurm_load_jobs error\n"
        f"16|1001|PENDING|0|N/A|N/A||{NAME}|\n"
        f"17|1001|PENDING|0|N/A|N/A||a|{NAME}|\n"
    )
    assert read_jobs(text) == [
        SlurmJob(12, 1000, "CANCELLED", 15, 1795477564.0, True, NAME, 1795477560.0),
        SlurmJob(18, 1000, "CANCELLED", 5 << 8, 1795477564.0, True, NAME),
        SlurmJob(16, 1001, "PENDING", 0, None, False, NAME),
    ]


def test_a_list_into_which_somebody_has_written_lines_is_none():
    """A comment may hold line ends."""
    forged = f"x\n12|1000|RUNNING|0|NONE|NONE|n1|{NAME}"
    text = f"12|1000|RUNNING|0|1795477560|NONE|n1||\n13|1001|PENDING|0|N/A|N/A||{forged}||\n"
    assert read_jobs(text) is None


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        *(("0", 0), ("1792", 7 << 8), ("9", 9), ("53", 53), ("4021", 4021)),
        # As 24.11 shows them.
        *(("0:0", 0), ("7:0", 7 << 8), ("0:9", 9), ("0:125", 125), ("0:64", 64), ("0:34", 34)),
        # Nothing else tells the number for a job that could not be started.
        *(("0:53", 4021), ("0:36", 4004), ("0:63", 4031)),
    ],
)
def test_a_status_is_a_number_or_its_parts(shown, status):
    [job] = read_jobs(f"12|1000|FAILED|{shown}|NONE|NONE|n1|{NAME}|\n") or []
    assert job.wait_status == status


@pytest.mark.parametrize("shown", ["", ":", "7:", ":9", "x:0", "0:0:0", "-1:0"])
def test_a_line_without_a_status_is_no_job(shown):
    assert read_jobs(f"12|1000|FAILED|{shown}|NONE|NONE|n1|{NAME}|\n") == []


@pytest.mark.parametrize(
    ("state", "status", "code", "number", "oom", "loss"),
    [
        ("COMPLETED", 0, 0, None, False, None),
        ("FAILED", 7 << 8, 7, None, False, None),
        ("FAILED", 9, None, 9, False, None),
        ("FAILED", 139, None, 11, False, None),
        ("FAILED", 53, None, 53, False, None),
        # The number with which Slurm says that it could not start the program.
        ("FAILED", 4021, None, None, False, "SLURM_NOT_STARTED"),
        ("CANCELLED", 0, None, 15, False, None),
        ("TIMEOUT", 0, None, 15, False, None),
        # A process of it was killed for memory, and the first one has ended well.
        ("OUT_OF_MEMORY", 0, None, None, True, None),
        ("NODE_FAIL", 0, None, None, False, "NODE_FAILED"),
        ("BOOT_FAIL", 0, None, None, False, "NODE_FAILED"),
        ("PREEMPTED", 0, None, None, False, "SLURM_ENDED"),
    ],
)
def test_the_state_tells_how_a_job_ended(state, status, code, number, oom, loss):
    job = slurm_job(state, status=status)
    assert job.is_over
    end = end_of(job, 100.0, 5.0, 50.0)
    assert (end["exit_code"], end["signal"], end["oom_killed"]) == (code, number, oom)
    assert end.get("loss") == loss


@pytest.mark.parametrize(
    ("changed", "loss"),
    [
        ({}, "SLURM_NOT_STARTED"),
        ({"ended_at_s": 61.0}, "SLURM_NOT_STARTED"),
        # Somebody has cancelled these: a program that has run, and one that had no node.
        ({"wait_status": 15}, None),
        ({"ended_at_s": 70.0}, None),
        ({"has_node": False}, None),
        ({"state": "TIMEOUT"}, None),
        ({"started_at_s": None}, None),
    ],
)
def test_a_job_that_ends_at_once_by_no_signal_was_not_started(changed, loss):
    """As Slurm shows one whose Prolog fails on the node."""
    job = replace(slurm_job("CANCELLED"), started_at_s=60.0, ended_at_s=60.0)
    end = end_of(replace(job, **changed), 100.0, 5.0, 50.0)
    assert (end["exit_code"], end["signal"]) == (None, 15 if loss is None else None)
    assert end.get("loss") == loss
    assert end["state"] in mapping.GONE


@pytest.mark.parametrize(
    ("complaint", "line"),
    [
        ("sbatch: error: Batch job submission failed: no\n", "Batch job submission failed: no"),
        ("\nslurm_load_jobs error: refused\nmore\n", "slurm_load_jobs error: refused"),
        (
            "sinfo: error: If munged is up, restart with --num-threads=10\n"
            "sinfo: error: Munge encode failed: Failed to access (Did you start munged?)\n"
            "slurm_load_partitions: Protocol authentication error\n",
            "Munge encode failed: Failed to access (Did you start munged?)",
        ),
        ("", ""),
    ],
)
def test_the_first_line_of_a_complaint_is_told_that_names_a_cause(complaint, line):
    assert mapping.first_line(complaint) == line


@pytest.mark.parametrize("status", [1, 1 << 8])
def test_a_job_that_no_node_has_room_for_was_not_started(status):
    """As Slurm shows one that asks for more than its node has: the number is none of a signal."""
    end = end_of(slurm_job("FAILED", status=status, has_node=False), 100.0, 5.0, 50.0)
    assert (end["exit_code"], end["signal"], end["loss"]) == (None, None, "SLURM_NOT_STARTED")


@pytest.mark.parametrize(("told", "taken"), [(60.0, 60.0), (40.0, 100.0), (200.0, 100.0)])
def test_an_end_outside_the_attempts_life_is_not_believed(told, taken):
    job = replace(slurm_job("COMPLETED"), ended_at_s=told)
    assert end_of(job, 100.0, 5.0, 50.0)["at_s"] == taken


def test_what_slurm_shows_of_its_nodes_is_read():
    text = (
        "n1|idle|4|4000|4|1|none\nsinfo: error\nn1|idle|4|4000|4|1|none\nn2|idle|?|4000|4|1|none\n"
    )
    assert [*read_nodes(text)] == ["n1"]
    env = {"SBATCH_COMMENT": "x", "SLURM_CONF": "/x", "SLURMX": "y"}
    assert without_slurms(env) == {"SLURMX": "y"}


def test_of_several_with_one_name_the_running_one_is_the_attempt_or_one_that_ended_itself():
    over, waits, runs = slurm_job("FAILED", 1), slurm_job("PENDING", 2), slurm_job("RUNNING", 3)
    assert choose([over, waits, runs]) is runs
    assert choose([over]) is over
    assert choose([]) is None
    # slurmctld has forgotten the job, which was submitted again, and remembers one of them. The
    # other was refused at its start.
    refused, ended = slurm_job("CANCELLED", 1), slurm_job("FAILED", 2, 3 << 8)
    assert choose([refused, ended]) is ended
    waited = slurm_job("CANCELLED", 1, has_node=False)
    ran = slurm_job("CANCELLED", 2)
    assert choose([waited, ran]) is ran


def test_an_order_in_sbatchs_words():
    asked = replace(
        order(cwd=Path("/w"), id=7, attempt=2, journal=JOURNAL, empties_output=False),
        node="n1",
        gres=(("gpu", 2), ("tape", 0)),
    )
    limits = replace(asked.limits, cores_milli=1500, memory_bytes=(1 << 20) + 1)
    words = submit_words(
        replace(asked, limits=limits).order,
        partition="p", gid="5", env_fd=9,
    )  # fmt: skip
    assert words[0] == "sbatch"
    assert set(words) >= {
        *(f"--comment={NAME}", "--nodelist=n1", "--cpus-per-task=2", "--mem=2M"),
        *("--gres=gpu:2", "--partition=p", "--open-mode=append"),
        *("--no-requeue", "--parsable", "--export-file=9", "--gid=5"),
    }
    # Everybody can read the words of root's sbatch.
    assert submit_env("/w/50%", "/w/e") == {"SBATCH_OUTPUT": "/w/50%%", "SBATCH_ERROR": "/w/e"}


def test_the_comment_ends_with_the_disk_rates_of_each_disk():
    asked = order(cwd=Path("/w"), id=7, attempt=2, journal=JOURNAL).order

    def comment(*disks: DiskLimit) -> str:
        return comment_of(replace(asked, limits=replace(asked.limits, disks=disks)))

    assert comment() == str(NAME)
    # Of a disk of the controller's own machine.
    assert comment(DiskLimit(device="8:0", read_bps=1, write_bps=1)) == str(NAME)
    rated = comment(DiskLimit(device=EVERY_DISK, read_bps=5_000_000, write_bps=0))
    assert rated == f"{NAME}.5000000.0"
    assert read_comment(rated) == read_comment(str(NAME)) == NAME
    # The highest rate that a job can declare.
    highest = parse_size("1024P")
    with pytest.raises(Refused):
        parse_size("1025P")
    most = DiskLimit(device=EVERY_DISK, read_bps=highest, write_bps=highest)
    assert read_comment(comment(most)) == NAME
    for other in (f"{rated}.1", f"{NAME}.1", f"{NAME}.x.0", f"{NAME}.1.", "a comment"):
        assert read_comment(other) is None


RESUME = " (scontrol update NodeName=n1 State=RESUME ends that)"


@pytest.mark.parametrize(
    ("state", "reason", "fault"),
    [
        ("idle", "none", ""),
        ("mixed", "none", ""),
        ("allocated", "none", ""),
        ("completing", "none", ""),
        # Switched off until there is a job for it.
        ("idle~", "none", ""),
        ("mixed#", "none", ""),
        # The node has a reason of its own for a state that is over.
        ("idle", "was slow", ""),
        ("idle*", "none", "Slurm says that it does not answer (idle)"),
        ("down*", "Not responding", "Slurm says that it does not answer (down): Not responding"),
        ("down", "a|b", f"Slurm says that it is down: a|b{RESUME}"),
        ("drained", "new fan", f"Slurm says that it is drained: new fan{RESUME}"),
        ("draining", "new fan", f"Slurm says that it is draining: new fan{RESUME}"),
        ("maint", "none", "Slurm says that it is maint"),
        ("drained$", "new fan", f"Slurm says that it is drained: new fan{RESUME}"),
        # As 24.11 shows a node that is rebooted, and one that has less than its line says.
        ("reboot", "new kernel", "Slurm says that it is reboot: new kernel"),
        (
            "reboot^",
            "new kernel : reboot issued",
            "Slurm says that it is reboot: new kernel : reboot issued",
        ),
        (
            "inval",
            "Low RealMemory (reported:24105 < 100.00% of configured:2000000)",
            "Slurm says that it is inval: Low RealMemory (reported:24105 < 100.00% of "
            "configured:2000000)",
        ),
        ("something", "none", "Slurm says that it is something"),
    ],
)
def test_a_node_starts_jobs_or_it_is_said_why_not(state, reason, fault):
    node = SlurmNode(cores=4, memory_bytes=4000 << 20, fault=fault)
    assert read_nodes(f"n1|{state}|4|4000|1|4|{reason}\n") == {"n1": node}
    assert node.answers == (not state.startswith("down") and not state.endswith("*"))


# -- times of lists, and notes of starts --------------------------------------------------------


# -- when the list is asked for -----------------------------------------------------------


@pytest.fixture
def clock(clock, monkeypatch) -> Clock:
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def asked(times: ListTimes, clock: Clock, *, seconds: float) -> list[float]:
    """Answer each list at once, and return when they were asked for, in seconds from now on."""
    began, found = clock.now_s, []
    while (pause_s := times.pause_s()) is not None and clock.now_s + pause_s <= began + seconds:
        clock.sleep(pause_s)
        assert times.begin() is not None
        times.end()
        found.append(round(clock.now_s - began, 6))
    clock.now_s = began + seconds
    return found


def test_a_list_is_asked_for_at_times_after_events_and_at_moments_of_its_own(clock):
    times = ListTimes(poll_s=30.0)
    assert asked(times, clock, seconds=100) == [0, 30, 60, 90]
    assert times.count == 4
    times = ListTimes(poll_s=30.0)
    asked(times, clock, seconds=1)
    times.schedule(7.0)
    assert asked(times, clock, seconds=20) == [0, 0.05, 0.2, 1, 3, 7]
    times = ListTimes(poll_s=30.0)
    asked(times, clock, seconds=1)
    times.add(clock.now_s + 5)
    assert asked(times, clock, seconds=20) == [5]


# -- notes of starts ----------------------------------------------------------------------


FIRST, RETRY = Name("a" * 32, (12, 1)), Name("a" * 32, (12, 2))
DAY_S = 24 * 3600.0


@pytest.fixture
def notes(tmp_path) -> StartNotes:
    notes = StartNotes(tmp_path / "started")
    notes.directory.mkdir()
    return notes


def note(notes: StartNotes, name: str, target: str, at_s: float = 0.0) -> None:
    path = notes.directory / name
    path.symlink_to(target)
    os.utime(path, (at_s, at_s), follow_symlinks=False)


def test_nothing_is_known_of_an_attempt_without_a_note_or_without_the_directory(notes, tmp_path):
    assert notes.first_start(FIRST) is None
    assert not notes.is_refused(FIRST, 7)
    assert not notes.is_anothers(FIRST, 7)
    nowhere = StartNotes(tmp_path / "nowhere")
    assert nowhere.first_start(FIRST) is None
    assert not nowhere.is_anothers(FIRST, 7)
    assert not nowhere.close(FIRST)
    nowhere.free_id(FIRST, 7)
    nowhere.forget_old(set())


def test_an_id_that_was_another_attempts_is_known_until_it_is_free(notes):
    note(notes, str(FIRST), "7")
    note(notes, "7", str(FIRST))
    assert not notes.is_anothers(FIRST, 7)
    assert notes.is_anothers(RETRY, 7)
    assert not notes.is_anothers(RETRY, 8)
    notes.free_id(RETRY, 7)
    assert notes.is_anothers(RETRY, 7)
    notes.free_id(FIRST, 7)
    notes.free_id(FIRST, 7)
    assert not notes.is_anothers(RETRY, 7)
    assert notes.first_start(FIRST) == 7


def test_only_an_attempt_that_has_not_started_can_be_kept_from_it(notes):
    # Nothing says that Slurm runs the script.
    assert not notes.close(RETRY)
    note(notes, str(FIRST), "7")
    note(notes, "7", str(FIRST))
    assert not notes.close(FIRST)
    assert notes.close(RETRY)
    assert notes.close(RETRY)
    assert notes.first_start(RETRY) is None
    assert (notes.directory / str(RETRY)).is_symlink()
    # Of those that have ended and gone, there is no id any more.
    notes.free_id(FIRST, 7)
    assert not notes.close(Name("b" * 32, (1, 1)))
    note(notes, f"{FIRST}.ended", "FAILED:3:0")
    assert notes.close(Name("b" * 32, (1, 1)))


@pytest.mark.parametrize("said", ["FAILED", "FAILED:3", "FAILED:x:0", "failed:3:0", "FAILED:3:0:0"])
def test_a_note_of_an_end_that_cannot_be_read_says_nothing(notes, said):
    note(notes, f"{FIRST}.ended", said)
    assert notes.end(FIRST) is None


def test_old_notes_of_unknown_attempts_are_removed(notes):
    note(notes, str(FIRST), "7")
    note(notes, "7", str(FIRST))
    note(notes, f"{FIRST}.8", "refused")
    note(notes, "9", str(RETRY))
    note(notes, str(RETRY), "9")
    note(notes, f"{FIRST}.ended", "FAILED:3:0")
    note(notes, f"{RETRY}.10", "refused")
    note(notes, f"{'b' * 32}.1.1", "11", at_s=DAY_S)
    notes.forget_old({RETRY}, now_s=1.5 * DAY_S)
    left = {path.name for path in notes.directory.iterdir()}
    assert left == {"9", str(RETRY), f"{RETRY}.10", f"{'b' * 32}.1.1"}

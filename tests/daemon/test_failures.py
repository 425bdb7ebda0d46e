"""Why a job could not be started, in words: what is reported, and believed as far as it may be."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drfd.daemon.launcher_link.failures import (
    DIED,
    FailureText,
    StartFailure,
    of_job,
    of_root,
)


def said(step: str, number: int = 0, what: str = "") -> bytes:
    return f"{step}\0{number}\0{what}".encode(errors="surrogateescape")


def told(report: bytes, *, has_space: bool = False) -> FailureText:
    return of_job(report, "ann", has_space)


@pytest.mark.parametrize(
    ("number", "resource"),
    [
        (errno.ENOSPC, "space"),
        (errno.EDQUOT, "quota"),
        (errno.ENFILE, "descriptors"),
        (errno.EMFILE, "descriptors"),
        (errno.ENOMEM, "memory"),
    ],
)
def test_a_job_waits_for_room_for_its_output_and_names_no_path(number, resource):
    record = told(said("output", number, "what the user named"))
    assert record[1:] == ("job", resource)
    assert "what the user named" not in record.text


def test_whose_processes_are_too_many_waits_and_a_full_cpuset_is_no_shortage():
    record = told(said("program", errno.EAGAIN, "x"))
    assert record[1:] == ("job", "processes")
    why = "the machine is short of memory: /tasks: Cannot allocate memory"
    assert of_root(said("cgroup", errno.ENOMEM, "/tasks")) == (why, "machine", "memory")
    text = "it could not be set up: /cpuset/job-1-1/tasks: No space left on device"
    assert of_root(said("cgroup", errno.ENOSPC, "/cpuset/job-1-1/tasks")) == FailureText(text)
    assert of_root((70_000).to_bytes(4, "little")) == FailureText(DIED)


@pytest.mark.parametrize("step", ["cgroup", "limit", "plan", "none", ""])
def test_no_user_can_report_what_only_root_can(step):
    assert told(said(step, errno.ENOMEM, "/tasks")) == FailureText(DIED)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"output", b"output\x00x\x00", b"output\x00-1\x00", b"output\x005000\x00"]
)
def test_what_is_no_report_is_a_death(data):
    assert told(data) == FailureText(DIED)


def test_what_the_runner_itself_has_met_has_its_sentence():
    hung = "entering its directory and opening its output files took longer than 120 s"
    assert of_root(said("hung", 0, "120")) == FailureText(hung)
    unseen = of_root(said("unseen", errno.EACCES)).text
    assert unseen.startswith("--output-max cannot be kept") and "Permission denied" in unseen
    why = "/g/pids.max was set to 9 and reads max"
    assert of_root(said("limit", 0, f"{why}\n")) == FailureText(f"it could not be set up: {why}")
    full = of_root(said("setting", errno.ENOSPC))
    assert full[1:] == ("machine", "space")


@pytest.mark.parametrize(("by_root", "whose"), [(1, "machine"), (0, "job")])
def test_a_record_says_who_reports(by_root, whose):
    lie = said("setting", errno.ENOMEM).hex()
    failed = StartFailure(by_root=by_root, report=lie, has_space=False)
    assert failed.in_words("ann")[1:] == (whose, "memory")


@given(st.binary(max_size=40))
def test_no_bytes_are_a_shortage_of_the_machine(data):
    assert told(data).whose in (None, "job")


SENTENCES = {
    said("directory", errno.ENOENT, "/x"): "ann cannot enter /x: No such file or directory",
    said("output", errno.EACCES, "/x"): "ann cannot write the output file /x: Permission denied",
    said("output", errno.ENXIO, "/dev/x"): (
        "ann cannot write the output file /dev/x: No such device or address"
    ),
    said("pipe", errno.ENXIO, "/x"): "ann cannot write the output file /x: nobody reads this pipe",
    said("attach", errno.ECONNREFUSED): (
        "the terminal that waited for this job is gone ([Errno 111] Connection refused)"
    ),
    said("attach", errno.ETIMEDOUT): "the terminal that waited for this job is gone (timed out)",
    said("another"): "another user listens where its terminal waited, which is gone",
    said("too few"): "the terminal that waited for this job is gone",
    said("terminal", errno.ENOTTY): (
        "its terminal cannot be taken: Inappropriate ioctl for device"
    ),
    said("payload", 0, "it is cut short"): "what it is to run cannot be read: it is cut short",
    said("space", errno.EPERM): "it could not be given a /tmp of its own: Operation not permitted",
    said("regained"): "root's rights could be had back after they were dropped",
    said("keyring", errno.EACCES): "it can have no session keyring of its own: Permission denied",
    said("setting", errno.EPERM): "it could not be set up: Operation not permitted",
    said("program", errno.ENOENT, "x"): "there is no command x in the job's PATH",
    said("program", errno.ENOEXEC, "/x"): (
        "/x is not a program: a script needs a first line such as #!/bin/sh"
    ),
    said("script", errno.ENOENT, "x"): (
        "the script x names an interpreter in its first line that is not there"
    ),
    said("script", errno.EACCES, "x"): "cannot run the script x: Permission denied",
}


@pytest.mark.parametrize("data", SENTENCES, ids=[repr(data) for data in SENTENCES])
def test_each_failure_has_its_sentence(data):
    assert told(data) == FailureText(SENTENCES[data])


SHORTAGES = {
    said("setting", errno.EAGAIN): ("job", "processes"),
    said("setting", errno.ENOMEM): ("job", "memory"),
    said("space", errno.ENOMEM): ("job", "memory"),
    said("output", errno.EDQUOT, "/x"): ("job", "quota"),
    said("program", errno.ENOMEM, "x"): ("job", "memory"),
    said("program", errno.EAGAIN, "x"): ("job", "processes"),
    said("keyring", errno.ENOMEM): ("job", "memory"),
}


@pytest.mark.parametrize("data", SHORTAGES, ids=[repr(data) for data in SHORTAGES])
def test_a_shortage_is_the_jobs(data):
    record = told(data)
    assert record[1:] == SHORTAGES[data]
    assert "/x" not in record.text, "every user can see it"


def test_a_place_of_the_jobs_own_is_a_hint_and_a_text_is_cut_to_what_a_record_takes():
    data = said("directory", errno.ENOENT, "/tmp/x")
    assert told(data, has_space=True).text.endswith(
        "; each job has a /tmp of its own here ([enforcement] private_tmp)"
    )
    assert told(data).text.endswith("No such file or directory")
    assert len(told(said("directory", errno.ENOENT, "é" * 10_000)).text) == 4096

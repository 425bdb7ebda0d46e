"""How what keeps a job's program from beginning is told: a failure, or a shortage, and whose."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drfd.launcher.runner.failures import ExecFailed, StepFailed, describe_in_job
from drfd.launcher.runner.shortage import FIELDS, read_failure
from drfd.launcher.runner.starter import report

# -- shortages ----------------------------------------------------------------------------


def raised(kind: type[Exception], number: int) -> Exception:
    """As it is raised where the kernel has answered so."""
    try:
        raise kind("what the user named") from OSError(number, os.strerror(number))
    except kind as error:
        return error


def facts(record: dict[str, object]) -> tuple[object, ...] | None:
    found = read_failure(record)
    return None if found is None else tuple(found[name] for name in FIELDS)


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
def test_a_job_waits_for_room_for_its_output_and_names_no_path(number: int, resource: str) -> None:
    record = describe_in_job(raised(StepFailed, number))
    assert facts(record) == ("job", resource, errno.errorcode[number])
    assert "what the user named" not in record["text"]


def test_whose_processes_are_too_many_waits_and_a_full_cpuset_is_no_shortage() -> None:
    record = describe_in_job(raised(ExecFailed, errno.EAGAIN))
    assert facts(record) == ("user", "processes", "EAGAIN")
    assert report.of_root(said("cgroup", errno.ENOMEM, "/tasks")) == {
        "text": "the machine is short of memory: /tasks: Cannot allocate memory",
        "shortage": {"whose": "machine", "resource": "memory", "errno": "ENOMEM"},
    }
    text = "it could not be set up: /cpuset/job-1-1/tasks: No space left on device"
    assert report.of_root(said("cgroup", errno.ENOSPC, "/cpuset/job-1-1/tasks")) == {"text": text}
    assert report.of_root((70_000).to_bytes(4, "little")) == DIED


# -- what the compiled program reports is told in words, and believed as far as it may be -----


DIED = {"text": "the job's process died before exec"}


def job(place: str | None = None) -> dict[str, object]:
    """The first record of its attempt."""
    return {"user": "ann"} if place is None else {"user": "ann", "space": place}


def said(step: str, number: int = 0, what: str = "") -> bytes:
    return f"{step}\0{number}\0{what}".encode(errors="surrogateescape")


@pytest.mark.parametrize("step", ["cgroup", "plan", "none", ""])
def test_no_user_can_report_what_only_root_can(step: str) -> None:
    assert report.of_job(said(step, errno.ENOMEM, "/tasks"), job()) == DIED


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"output", b"output\x00x\x00", b"output\x00-1\x00", b"output\x005000\x00"]
)
def test_what_is_no_report_is_a_death(data: bytes) -> None:
    assert report.of_job(data, job()) == DIED


def test_what_the_runner_itself_has_met_has_its_sentence() -> None:
    hung = "entering its directory and opening its output files took longer than 120 s"
    assert report.of_root(said("hung", 0, "120")) == {"text": hung}
    unseen = report.of_root(said("unseen", errno.EACCES))["text"]
    assert unseen.startswith("--output-max cannot be kept") and "Permission denied" in unseen
    full = report.of_root(said("setting", errno.ENOSPC))
    assert facts(full) == ("machine", "space", "ENOSPC")


def test_a_record_says_who_reports() -> None:
    lie = said("setting", errno.ENOMEM).hex()
    for by_root, whose in ((1, "machine"), (0, "job")):
        found = report.failure_of({"by_root": by_root, "report": lie}, job())
        assert found["shortage"]["whose"] == whose


@given(st.binary(max_size=40))
def test_no_bytes_are_a_shortage_of_the_machine(data: bytes) -> None:
    record = report.of_job(data, job())
    assert record.get("shortage", {"whose": "job"})["whose"] in ("job", "user")


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
def test_each_failure_has_its_sentence(data: bytes) -> None:
    assert report.of_job(data, job()) == {"text": SENTENCES[data]}


SHORTAGES = {
    said("setting", errno.EAGAIN): ("user", "processes", "EAGAIN"),
    said("setting", errno.ENOMEM): ("job", "memory", "ENOMEM"),
    said("space", errno.ENOMEM): ("job", "memory", "ENOMEM"),
    said("output", errno.EDQUOT, "/x"): ("job", "quota", "EDQUOT"),
    said("program", errno.ENOMEM, "x"): ("job", "memory", "ENOMEM"),
    said("program", errno.EAGAIN, "x"): ("user", "processes", "EAGAIN"),
    said("keyring", errno.ENOMEM): ("job", "memory", "ENOMEM"),
}


@pytest.mark.parametrize("data", SHORTAGES, ids=[repr(data) for data in SHORTAGES])
def test_a_shortage_is_the_users_or_the_jobs(data: bytes) -> None:
    record = report.of_job(data, job())
    assert tuple(record["shortage"].values()) == SHORTAGES[data]
    assert "/x" not in record["text"], "every user can see it"


def test_a_place_of_the_jobs_own_is_a_hint_and_a_text_is_cut_to_what_a_record_takes() -> None:
    data = said("directory", errno.ENOENT, "/tmp/x")
    assert report.of_job(data, job("/private/1"))["text"].endswith(
        "; each job has a /tmp of its own here ([enforcement] private_tmp)"
    )
    assert report.of_job(data, job())["text"].endswith("No such file or directory")
    assert len(report.of_job(said("directory", errno.ENOENT, "é" * 10_000), job())["text"]) == 4096

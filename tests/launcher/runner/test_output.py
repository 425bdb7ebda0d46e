"""How much a job has written to its output files; and how what keeps its program from beginning is
told: a failure in the words of either way, or a shortage, and whose."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.protocol import Assignment
from drfd.launcher.runner import output_limit
from drfd.launcher.runner.child import JobStart
from drfd.launcher.runner.failures import ExecFailed, StepFailed, describe_in_job
from drfd.launcher.runner.output_limit import OutputLimit
from drfd.launcher.runner.shortage import FIELDS, read_failure
from drfd.launcher.runner.starter import report
from drfd.linux.syscalls import KnownStatus, known_status
from launcher.rig import order


def opened(path: Path, text: str = "") -> int:
    path.write_text(text)
    return os.open(path, os.O_WRONLY | os.O_APPEND)


def test_what_is_written_since_the_start_counts_in_both_files(tmp_path: Path) -> None:
    out, err = opened(tmp_path / "out", "before"), opened(tmp_path / "err")
    limit = OutputLimit((os.dup(out), os.dup(err)), 10)
    os.write(out, b"12345")
    os.write(err, b"12345")
    assert limit.exceeded() is None
    os.write(err, b"6")
    assert limit.exceeded() == 11
    limit.close()
    for fd in (out, err):
        os.close(fd)


def test_pipes_and_devices_have_no_limit() -> None:
    out, into = os.pipe()
    null = os.open("/dev/null", os.O_WRONLY)
    limit = OutputLimit((into, null), 1)
    assert limit.exceeded() is None
    limit.close()
    # They are closed.
    assert os.read(out, 1) == b""
    os.close(out)


def test_of_a_file_whose_size_is_hidden_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a FUSE mount, which only its user may look into."""
    seen = []

    def status(fd: int) -> KnownStatus:
        seen.append(fd)
        if len(seen) > 1:
            raise PermissionError(errno.EACCES, "Permission denied")
        return known_status(fd)

    monkeypatch.setattr(output_limit, "known_status", status)
    fds = opened(tmp_path / "out"), opened(tmp_path / "err")
    with pytest.raises(PermissionError):
        OutputLimit(fds, 10)
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


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
    assert report.of_entry(said("cgroup", errno.ENOMEM, "/tasks")) == {
        "text": "the machine is short of memory: /tasks: Cannot allocate memory",
        "shortage": {"whose": "machine", "resource": "memory", "errno": "ENOMEM"},
    }
    text = "it could not be set up: /cpuset/job-1-1/tasks: No space left on device"
    assert report.of_entry(said("cgroup", errno.ENOSPC, "/cpuset/job-1-1/tasks")) == {"text": text}
    assert report.of_entry((70_000).to_bytes(4, "little")) == DIED


# -- what the compiled program reports is told in the same words, and believed as far -----


ANN = pwd.struct_passwd(("ann", "", 1000, 1000, "", "/", "/bin/sh"))
DIED = {"text": "the job's process died before exec"}


def job(place: str | None = None) -> JobStart:
    return JobStart(
        Assignment(order(cwd=Path("/")).order, -1), ANN, [], Unconfined("a test"),
        entry_fd=-1, entry_out=-1, report_fd=-1, go_fd=-1, go_in=-1, has_quota=False, place=place,
    )  # fmt: skip


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

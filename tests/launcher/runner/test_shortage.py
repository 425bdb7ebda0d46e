"""Which of the kernel's answers before a job's program begins are a shortage, and whose."""

from __future__ import annotations

import errno
import os

import pytest

from drfd.launcher.runner.failures import ExecFailed, StepFailed, describe, describe_in_job
from drfd.launcher.runner.shortage import FIELDS, read_failure


def failed(kind: type[Exception], number: int) -> Exception:
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
    record = describe_in_job(failed(StepFailed, number))
    assert facts(record) == ("job", resource, errno.errorcode[number])
    assert "what the user named" not in record["text"]


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EACCES, errno.ENOENT])
def test_what_would_not_pass_is_a_failure(number: int) -> None:
    assert facts(describe_in_job(failed(StepFailed, number))) is None


def test_whose_processes_are_too_many_waits_for_them() -> None:
    record = describe_in_job(failed(ExecFailed, errno.EAGAIN))
    assert facts(record) == ("user", "processes", "EAGAIN")


@pytest.mark.parametrize("number", [errno.ENFILE, errno.EDQUOT, errno.ENOSPC])
def test_what_a_runner_lacks_is_the_machines(number: int) -> None:
    record = describe(OSError(number, os.strerror(number)))
    found = facts(record)
    assert found is not None
    assert (found[0], found[2]) == ("machine", errno.errorcode[number])

"""What the %-signs in the names of output files stand for."""

from __future__ import annotations

#: What %j, %A, %a, %x and %u stand for.
Signs = tuple[str, str, str, str, str]


def output_signs(*, job_id: int, array_id: int = 0, index: int = 0, name: str, user: str) -> Signs:
    """Return what the signs in patterns of output files stand for: %j the job id, %A the array id
    (the job id if `array_id` is 0, for a job in no array), %a the index (0 in no array), %x the
    name and %u the user."""
    # A slash in a name would be another directory.
    names = name.replace("/", "_"), user.replace("/", "_")
    return str(job_id), str(array_id or job_id), str(index), *names

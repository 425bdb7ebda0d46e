"""drf exec: what it sends."""

from __future__ import annotations

from canned import CannedDaemon, MakeJob
from cli.drf import Drf


def test_no_command_is_sent_for_another_job_than_the_one_that_was_named(
    drf: Drf, daemon: CannedDaemon, job: MakeJob
) -> None:
    """The user would sign it, whichever job the controller would like it to run in."""
    daemon.replies = {"show": {"job": job(id=43, state="RUNNING")}}
    result = drf("exec", "42", "--", "true")
    assert (result.code, result.out) == (1, "")
    assert result.err == "drf: the daemon answered about job 43, not 42\n"
    assert [each["op"] for each in daemon.requests] == ["show"]

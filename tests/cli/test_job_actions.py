"""The verbs that act on selected jobs ask before they act on much, or on what is others'."""

from __future__ import annotations

import io
import sys

import pytest

from canned import CannedDaemon, MakeJob
from cli.drf import Drf


class Keyboard(io.StringIO):
    """A terminal at which somebody types these lines."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("users", "question"),
    [
        (["ann", "ann"], None),
        (["ann", "bob", "bob"], "cancel 3 jobs, 2 of other users?"),
        (["bob"], "cancel 1 job, 1 of other users?"),
        (["ann"] * 6, "cancel 6 jobs?"),
    ],
)
def test_jobs_of_other_users_are_asked_about(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch,
    users: list[str], question: str | None,
) -> None:  # fmt: skip
    jobs = [job(id=number, user=user) for number, user in enumerate(users, 1)]
    daemon.replies = {
        "hello": {"user": "ann", "admin": True},
        "status": {"jobs": jobs, "counts": {}, "draining": False, "gres": [], "after": None},
        "cancel": {"done": [each["id"] for each in jobs], "failed": []},
    }
    monkeypatch.setattr(sys, "stdin", Keyboard("n\n"))
    result = drf("cancel", "--name", "x*")
    cancelled = any(request["op"] == "cancel" for request in daemon.requests)
    assert cancelled == (question is None)
    assert question is None or question in result.err


@pytest.mark.parametrize(("typed", "is_done"), [("x\nyes\n", True), ("maybe\nn\n", False)])
def test_an_answer_that_is_none_is_told_with_the_cure(
    drf: Drf, daemon: CannedDaemon, job: MakeJob, monkeypatch: pytest.MonkeyPatch,
    typed: str, is_done: bool,
) -> None:  # fmt: skip
    jobs = [job(id=number) for number in range(1, 8)]
    daemon.replies = {
        "hello": {"user": "alice", "admin": False},
        "status": {"jobs": jobs, "counts": {}, "draining": False, "gres": [], "after": None},
        "cancel": {"done": [each["id"] for each in jobs], "failed": []},
    }
    monkeypatch.setattr(sys, "stdin", Keyboard(typed))
    result = drf("cancel", "--name", "x*")
    assert any(request["op"] == "cancel" for request in daemon.requests) is is_done
    word = typed.partition("\n")[0]
    assert f"drf: {word!r} is neither y (yes) nor n (no)\n" in result.err
    assert "Error" not in result.err

"""The client in Python's own types, against a daemon that says what the test wants to hear."""

from __future__ import annotations

import pytest

from canned import CannedDaemon
from drfd.client.client import connect


def test_each_job_gets_the_variables_that_the_program_has_at_its_submission(
    daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.replies["submit"] = {"ok": True, "id": 1}
    with connect(daemon.path) as client:
        for value, export in (("1", ()), ("1", ()), ("2", ()), ("2", ("MY_TOKEN",))):
            monkeypatch.setenv("SEED", value)
            monkeypatch.setenv("MY_TOKEN", "secret")
            client.submit(["true"], export=export)
    found = [asked["env"] for asked in daemon.asked("submit", times=4)]
    assert [env["SEED"] for env in found] == ["1", "1", "2", "2"]
    assert ["MY_TOKEN" in env for env in found] == [False, False, False, True]


def test_groups_are_sent_as_they_are_given(daemon: CannedDaemon) -> None:
    daemon.replies["submit"] = {"ok": True, "id": 1}
    daemon.replies["set"] = {"ok": True, "done": [1], "failed": []}
    daemon.replies["status"] = {"ok": True, "jobs": [], "counts": {}, "draining": False}
    with connect(daemon.path) as client:
        client.submit(["true"], group="sweep%2")
        client.set(1, group="")
        assert client.status(group="sweep") == []
    (submitted,) = daemon.asked("submit")
    (changed,) = daemon.asked("set")
    (listed,) = daemon.asked("status")
    assert (submitted["group"], changed["group"]) == ("sweep%2", "")
    assert listed["select"] == {"group": "sweep"}


def test_a_range_is_sent_as_its_two_ends(daemon: CannedDaemon) -> None:
    daemon.replies["submit"] = {"ok": True, "id": 1}
    daemon.replies["set"] = {"ok": True, "done": [1], "failed": []}
    with connect(daemon.path) as client:
        client.submit(["true"], cores="2..8", io=["50M..200M/20M", "data=1M.."])
        client.set(1, cores="2..")
        client.set(1, cores=2)
    (submitted,) = daemon.asked("submit")
    assert submitted["demand"] == {
        "cores_milli": 2000, "cores_max_milli": 8000,
        "read_bps": 50 << 20, "read_max_bps": 200 << 20, "write_bps": 20 << 20,
        "disks": {"data": {"read_bps": 1 << 20, "read_max_bps": "all",
                           "write_bps": 1 << 20, "write_max_bps": "all"}},
    }  # fmt: skip
    assert [each["demand"] for each in daemon.asked("set")] == [
        {"cores_milli": 2000, "cores_max_milli": "all"},
        {"cores_milli": 2000},
    ]


def test_the_memory_on_each_gpu_is_sent_in_bytes(daemon: CannedDaemon) -> None:
    daemon.replies["submit"] = {"ok": True, "id": 1}
    daemon.replies["set"] = {"ok": True, "done": [1], "failed": []}
    with connect(daemon.path) as client:
        client.submit(["true"], gres={"gpu": 2}, gres_memory={"gpu": "20G"})
        client.set(1, gres_memory={"gpu": 0})
    (submitted,) = daemon.asked("submit")
    (changed,) = daemon.asked("set")
    assert submitted["demand"] == {"gres": {"gpu": 2}, "gres_memory": {"gpu": 20 << 30}}
    assert changed["demand"] == {"gres_memory": {"gpu": 0}}

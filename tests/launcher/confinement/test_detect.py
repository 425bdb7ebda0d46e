"""Which confinement is chosen, by what is mounted and what is allowed; in trees of plain files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drfd.launcher.confinement import detect
from drfd.launcher.confinement.cgroup_v1 import USED
from drfd.launcher.confinement.detect import DelegationFailed, choose

GROUP = "drfd/x"


def mounted(kind: str, place: Path, options: str) -> str:
    return f"32 31 0:29 / {place} rw,relatime - {kind} {kind} rw,{options}\n"


@pytest.fixture
def v1(tmp_path: Path) -> str:
    """Lines of mountinfo with all controllers of version 1."""
    for name in USED:
        (tmp_path / name).mkdir()
    return "".join(mounted("cgroup", tmp_path / name, name) for name in USED)


@pytest.fixture
def v2(tmp_path: Path) -> str:
    """A line of mountinfo with a version 2 that has all controllers."""
    return unified(tmp_path / "unified", "cpuset cpu io memory pids")


def unified(place: Path, controllers: str) -> str:
    place.mkdir()
    (place / "cgroup.controllers").write_text(controllers)
    return mounted("cgroup2", place, "nsdelegate")


@pytest.fixture
def no_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "has_systemd", lambda: False)


@pytest.fixture
def silent_systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is there, and its programs are not."""
    monkeypatch.setattr(detect, "has_systemd", lambda: True)
    monkeypatch.setenv("PATH", str(tmp_path))


def why(mountinfo: str, delegated_unit: str | None = None) -> str:
    place = choose(GROUP, delegated_unit, mountinfo)
    assert place.kind == "none"
    return place.controls()["memory"].partition("twice; ")[2]


@pytest.mark.usefixtures("no_systemd")
def test_version_1_alone_is_used(v1: str, tmp_path: Path) -> None:
    place = choose(GROUP, None, v1)
    assert place.kind == "cgroup-v1"
    assert (tmp_path / "memory" / GROUP).is_dir()


def test_on_a_hybrid_machine_version_1_has_the_controllers(v1: str, tmp_path: Path) -> None:
    """With systemd or without; a holder is for version 2."""
    mountinfo = v1 + unified(tmp_path / "unified", "")
    assert choose(GROUP, "drfd-jobs.service", mountinfo).kind == "cgroup-v1"


@pytest.mark.usefixtures("no_systemd")
def test_a_machine_with_nothing_has_all_reasons(tmp_path: Path) -> None:
    assert why("") == (
        "no cgroup v2 is mounted; no cgroup v1 controller cpu, memory, pids, freezer is mounted"
    )
    hybrid = mounted("cgroup", tmp_path, "cpu") + unified(tmp_path / "unified", "cpu io")
    assert why(hybrid) == (
        "cgroup v2 has no controller memory, pids; "
        "no cgroup v1 controller memory, pids, freezer is mounted"
    )


@pytest.mark.usefixtures("no_systemd")
def test_a_tree_that_is_closed_to_us_is_named(v1: str, tmp_path: Path) -> None:
    (tmp_path / "pids/drfd").write_text("in the way")
    who = "root" if os.getuid() == 0 else f"uid {os.getuid()}"
    assert why(v1) == (f"no cgroup v2 is mounted; cannot make cgroups as {who}: Not a directory")


@pytest.mark.usefixtures("no_systemd")
def test_where_version_2_is_alone_version_1_is_not_spoken_of(v2: str, tmp_path: Path) -> None:
    """A plain file can be no cgroup: that it has no subtree_control stands for a refusal."""
    (tmp_path / "unified/cgroup.subtree_control").mkdir()
    assert why(v2) == f"{tmp_path}/unified/cgroup.subtree_control: Is a directory"


@pytest.mark.usefixtures("silent_systemd")
def test_with_systemd_nothing_is_made_below_the_root(v2: str, tmp_path: Path) -> None:
    """Its rule, whether it answers or not."""
    # An ordinary user's manager is not even asked unless it lingers.
    reason = "No such file or directory" if os.getuid() == 0 else "loginctl enable-linger"
    assert reason in why(v2)
    assert [path.name for path in (tmp_path / "unified").iterdir()] == ["cgroup.controllers"]


@pytest.mark.usefixtures("silent_systemd")
def test_a_holder_that_fails_is_no_reason_to_run_jobs_elsewhere(v2: str) -> None:
    with pytest.raises(DelegationFailed, match="systemctl: No such file"):
        choose(GROUP, "drfd-jobs.service", v2)


@pytest.mark.usefixtures("silent_systemd")
def test_who_cannot_move_into_a_users_manager_stays(v2: str, v1: str) -> None:
    """And `choose` says why."""
    detect.move_to_users_manager(v2)
    detect.move_to_users_manager(v1)

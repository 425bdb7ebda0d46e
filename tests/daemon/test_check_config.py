"""`drfd check-config`: one line, and an exit code that a script can use."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from drfd.daemon.config import Config, load
from drfd.daemon.handlers.doctor import cures
from drfd.daemon.main import _install_context, _late_changes, main
from drfd.daemon.metrics.publication import open_outlets

Captured = pytest.CaptureFixture[str]


def check(path: Path) -> int:
    try:
        main(["check-config", str(path)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_a_good_file_is_good(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "drfd.toml"
    path.write_text("[capacity]\ncores = 1\n")
    assert check(path) == 0
    assert capsys.readouterr() == (f"{path} is good\n", "")


def test_limits_by_hour_are_shown_as_they_are_now(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "drfd.toml"
    text = "[gres]\ngpu = [0]\n[pools.lab]\nlimit = {gpu = 1}\n"
    path.write_text(text + '[[pools.lab.hours]]\nwhen = "Mon-Sun"\nlimit = {cores = 0}\n')
    assert check(path) == 0
    assert capsys.readouterr().out == f"{path} is good\nlimit of lab: 0 cores, 1 gpu\n"
    path.write_text(text + '[[pools.lab.hours]]\nwhen = "12:00-13:00"\nlimit = {cores = 2}\n')
    assert check(path) == 0
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith("limit of lab: ")
    assert " until " in line
    assert "2 cores, 1 gpu" in line


def test_doubtful_users_and_bounds_are_warned_of(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "drfd.toml"
    path.write_text(
        """
        [capacity]
        cores = 1
        [pools.lab]
        users = ["root", "drfd-ghost", "@wheel", "*"]
        guarantee = {cores = 1}
        limit = {cores = 0.5}
        [users.drfd-nobdy]
        guarantee = {cores = 0.5}
        """
    )
    assert check(path) == 0
    told = capsys.readouterr()
    assert told.out == f"{path} is good\n"
    assert told.err.splitlines() == [
        "drfd: warning: pools.lab.users: '*', '@wheel' can be no user's name: write the names of "
        "users, without groups or patterns; a pool without users takes anybody's jobs",
        "drfd: warning: pools.lab.users: there is no user 'drfd-ghost' on this machine",
        "drfd: warning: users: there is no user 'drfd-nobdy' on this machine",
        "drfd: warning: pools.lab: its guarantee is 1 core, but its limit 0.5 cores: it never gets "
        "more than its limit",
        "drfd: warning: the guarantees of pools and users add up to 1.5 cores, but the machine has "
        "1 core: not all of them can be kept at once",
    ]


def test_a_mistake_is_one_line_and_78(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "drfd.toml"
    path.write_text("[capacity]\ncors = 4\n")
    assert check(path) == 78
    assert capsys.readouterr() == (
        "",
        f"drfd: {path}: capacity.cors: unknown key (did you mean cores?)\n",
    )


def test_a_file_that_does_not_exist_is_78(tmp_path: Path, capsys: Captured) -> None:
    assert check(tmp_path / "none.toml") == 78
    assert capsys.readouterr().err == f"drfd: there is no configuration file {tmp_path}/none.toml\n"


def test_no_file_at_all_is_a_usage_error(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as end:
        main(["check-config"])
    assert end.value.code == 2
    assert capsys.readouterr().out == ""


def test_devices_that_are_not_there_are_named(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "drfd.toml"
    nodes = ["/dev/full", f"{tmp_path}/none", str(path)]
    path.write_text(f"[gres.fpga]\ndevices = {nodes}\n")
    main(["check-config", str(path)])
    warnings = [
        f"drfd: warning: gres.fpga.devices: fpga 1: {tmp_path}/none: No such file or directory",
        f"drfd: warning: gres.fpga.devices: fpga 2: {path}: it is no device node",
    ]
    assert [line for line in capsys.readouterr().err.splitlines() if "fpga" in line] == warnings


def test_a_reload_tells_of_changes_that_need_a_restart(tmp_path: Path) -> None:
    def config(text: str) -> Config:
        path = tmp_path / "drfd.toml"
        path.write_text(text)
        return load(path)

    before = config("")
    now = config('[daemon]\nsystem_users = ["www-data"]\n[enforcement]\nno_new_privs = true\n')
    assert list(_late_changes(before, before)) == []
    assert list(_late_changes(before, now)) == [
        "daemon.system_users has changed: that takes a restart of drfd and its launcher",
        "enforcement.no_new_privs has changed: that takes a restart of drfd and its launcher",
    ]
    nodes = '[nodes.a]\nengine = "local"\n[nodes.b]\nengine = "slurm"\ncores = 1\nmemory = "1G"\n'
    users = '[daemon]\nsystem_users = ["www-data"]\n'
    assert list(_late_changes(config(nodes), config(nodes + users))) == [
        "daemon.system_users has changed: that takes a restart of drfd and its launchers"
    ]
    assert list(_late_changes(before, config("[metrics]\nport = 9477\n"))) == [
        "[metrics] has changed: that takes a restart of drfd"
    ]
    before = config("[gres]\ngpu = [0]\n[gres.fpga]\ndevices = ['/dev/a']\n")
    now = config("[gres.card]\ndevices = ['/dev/b']\n[gres.gpu]\ninstances = [0]\nhide = 'all'\n")
    takes = "has changed: that takes a restart of drfd and its launcher"
    assert list(_late_changes(before, now)) == [
        f"gres.card.devices {takes}; until then none is given out",
        f"gres.fpga.devices {takes}; until then they are given out as before",
        f"gres.gpu.hide {takes}",
    ]
    assert list(_late_changes(config("[gres]\ngpu = 'auto'\n"), config("[gres]\ngpu = [0]\n"))) == [
        "gres.gpu is a list now: GPUs that are not in it stay hidden from jobs until a restart of "
        "drfd and its launcher"
    ]


def test_metrics_without_their_library_are_warned_of(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "drfd.toml"
    path.write_text("[metrics]\nport = 9477\n")
    assert check(path) == 0
    assert "metrics" not in capsys.readouterr().err
    # As importlib says of a package that is not there.
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert check(path) == 0
    [line] = [each for each in capsys.readouterr().err.splitlines() if "metrics" in each]
    assert line == (
        "drfd: warning: metrics: no metrics are given, because the Python package "
        "prometheus-client is not installed: pip install 'drfd[metrics]' in drfd's environment, "
        "then restart drfd"
    )
    assert open_outlets(load(path).metrics, tmp_path / "drfd.sock", is_open=False).tcp is None
    path.write_text("[metrics]\nusers = 5\n")
    assert check(path) == 0
    assert "metrics" not in capsys.readouterr().err, "nothing is asked of the library"


@pytest.mark.parametrize(("owner", "told"), [(0, "after a reboot"), (1000, "for you alone")])
def test_a_daemon_that_root_has_started_is_roots_whatever_user_it_runs_as(
    owner: int, told: str
) -> None:
    install = _install_context(owner, is_system=False, is_service=False)
    found = cures(install, has_launcher=True, enforcement="cgroup-v2", guessed=[], lacks_pins=False)
    assert [told in line for line in found if "daemon" in line] == [True]

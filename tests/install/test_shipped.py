"""The files in `systemd/`: what the services rely on is said there, and nothing leaks into jobs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from drfd.common import paths
from drfd.daemon.config import Config, parse
from drfd.install import plan
from drfd.install.probe import shipped

ROOT = Path(__file__).parent.parent.parent
FILES = shipped()
#: What belongs to a process, so that jobs would inherit it from the launcher. Its mask, core limit
#: and keyring are not among these: each job has its own, set for it.
SANDBOX = re.compile(
    r"^(Private|Protect|Restrict(?!Prevent)|SystemCall|NoNewPrivileges|Lock|MemoryDeny|Capability"
    r"|Ambient|Limit(?!CORE)|Nice|CPU|IO|Environment|User|Group|DynamicUser|Root|ReadOnly|Inaccess)"
)
#: What works by cgroup, so that jobs would have it from the unit that they live in.
BY_CGROUP = re.compile(r"^(IPAddress|Device|PrivateDevices|Memory(?!Deny)|CPU|IO|Socket(Bind)?)")


def options(unit: str) -> dict[str, list[str]]:
    """Option → its values, of all sections."""
    found: dict[str, list[str]] = {}
    text = FILES[unit].replace("\\\n", " ")
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_all_that_is_shipped_is_installed() -> None:
    assert set(FILES) == {*plan.UNITS, plan.SLURM_LAUNCHER, "sysusers.conf", "drfd.toml"}


def test_the_launcher_has_nothing_that_its_jobs_must_not_have() -> None:
    leaking = [name for name in options("drfd-launcher.service") if SANDBOX.match(name)]
    assert leaking == []
    assert options("drfd-launcher.service")["IgnoreSIGPIPE"] == ["no"]


def test_the_launcher_of_slurms_nodes_begins_after_the_one_that_makes_the_secret() -> None:
    unit = options("drfd-slurm-launcher.service")
    assert "drfd-launcher.service" in unit["After"][0].split()
    assert [name for name in unit if SANDBOX.match(name)] == []
    (command,) = unit["ExecStart"]
    assert f"--state {paths.SYSTEM_SLURM_SOCKET.parent} --keys /var/lib/drfd/launcher" in command
    assert unit["StateDirectory"] == ["drfd/slurm-launcher"]
    assert paths.SYSTEM_SLURM_STARTS.parent == paths.SYSTEM_SLURM_SOCKET.parent


def test_the_unit_of_the_jobs_has_nothing_that_reaches_them_by_their_cgroup() -> None:
    """Its sandbox is for the process that keeps it alive."""
    unit = options("drfd-jobs.service")
    assert [name for name in unit if BY_CGROUP.match(name)] == []
    assert unit["ExecStop"][0].startswith("+-"), "the end of the jobs is written in any case"


@pytest.mark.parametrize("unit", ["drfd.slice", "drfd-jobs.service"])
def test_what_holds_the_jobs_refuses_to_be_stopped_by_hand(unit: str) -> None:
    """The slice did not, and stopping it ended all jobs."""
    assert options(unit)["RefuseManualStop"] == ["yes"]


def test_as_long_as_there_is_a_controller_there_is_a_launcher() -> None:
    """When all jobs had been stopped from outside, it stayed away, and nobody learnt of it."""
    assert options("drfd.service")["Upholds"] == ["drfd-launcher.service"]


def test_stopping_the_launcher_leaves_its_runners() -> None:
    unit = options("drfd-launcher.service")
    assert unit["KillMode"] == ["process"]
    assert unit["OOMPolicy"] == ["continue"]


def test_the_jobs_unit_is_left_alone_by_all_but_a_shutdown() -> None:
    unit = options("drfd-jobs.service")
    assert unit["RefuseManualStop"] == ["yes"]
    assert unit["Delegate"] == ["yes"]
    assert unit["ExitType"] == ["cgroup"], "the death of the keeper must not end the jobs"
    assert unit["OOMPolicy"] == ["continue"], "nor must the death of one job for memory"
    for service in ("drfd.service", "drfd-launcher.service"):
        relations = {*options(service)} & {"PartOf", "BindsTo", "Conflicts", "PropagatesStopTo"}
        assert relations == set()


@pytest.mark.parametrize(
    "unit", ["drfd.service", "drfd-launcher.service", "drfd-slurm-launcher.service"]
)
def test_a_wrong_configuration_is_not_tried_again_and_all_else_is_for_ever(unit: str) -> None:
    assert options(unit)["RestartPreventExitStatus"] == ["78"]
    assert options(unit)["StartLimitIntervalSec"] == ["0"]


def test_an_end_that_was_asked_for_is_an_end() -> None:
    """`drf shutdown` exits 0."""
    assert options("drfd.service")["Restart"] == ["on-failure"]


def test_the_controller_has_no_rights() -> None:
    unit = options("drfd.service")
    assert (unit["User"], unit["CapabilityBoundingSet"]) == (["drfd"], [""])
    assert unit["NoNewPrivileges"] == ["yes"]
    assert "PrivateUsers" not in unit, "it would not see who is at the other end of a socket"


def test_the_death_of_the_process_that_looks_ahead_is_not_the_controllers() -> None:
    """It is the first that the kernel kills for memory, and systemd would stop the service."""
    assert options("drfd.service")["OOMPolicy"] == ["continue"]


def test_every_mark_is_one_that_is_filled_in() -> None:
    marks = {mark for text in FILES.values() for mark in re.findall(r"@\w+@", text)}
    assert marks == {"@PYTHON@", "@STOP_S@", "@LAUNCHER_MEMORY@", "@LAUNCHER_TASKS@"}


def test_paths_in_the_units_are_those_of_the_code() -> None:
    """A unit says them once more, since it cannot ask."""
    assert options("drfd.service")["StateDirectory"] == ["drfd/controller"]
    assert options("drfd-launcher.service")["StateDirectory"] == ["drfd/launcher"]
    assert (plan.STATE, plan.RUN) == ("/var/lib/drfd", "/run/drfd")
    assert "/var/lib/drfd/launcher/jobs-stopped" in options("drfd-jobs.service")["ExecStop"][0]


# -- drfd.toml ---------------------------------------------------------------------------------

#: As an administrator would make them hold: a key with nothing before it but the sign.
UNCOMMENTED = re.sub(r"^#(?=\w)", "", FILES["drfd.toml"], flags=re.MULTILINE)


def test_the_default_configuration_is_nothing_but_defaults() -> None:
    assert parse(tomllib.loads(FILES["drfd.toml"]), "drfd.toml") == Config()
    assert FILES["drfd.toml"] != UNCOMMENTED
    assert parse(tomllib.loads(UNCOMMENTED), "drfd.toml") == Config()


def test_the_default_configuration_names_every_key() -> None:
    keys = set()
    for name in ("config", "cluster"):
        source = (ROOT / "drfd" / "daemon" / f"{name}.py").read_text()
        keys |= set(re.findall(r'\.(?:take|table|tables)\("(\w+)"', source)) - {"user"}
    missing = {key for key in keys if not re.search(rf"\b{key}\b", FILES["drfd.toml"])}
    assert missing == set()

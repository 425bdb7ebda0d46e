"""Debian's package on a system: installed, upgraded with a job running, rebooted and purged.

`packaged.py` does that in the guest, over three boots, and these tests look at what it has seen. In
another guest Debian 12 gets the Python of Debian 13.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import debian_build
from drfd import __version__
from vm.packaged import NOT_NEEDED
from vm.rig import PYTHON_VERSION, SUITE, Guest

pytestmark = pytest.mark.vm

HERE = Path(__file__).parent
NEWER_SUFFIX = ".post1"
BROKEN_SUFFIX = f"{NEWER_SUFFIX}+broken"
NEWER = f"{__version__}{NEWER_SUFFIX}"
DEBS = "/srv/debs"
Facts = dict[str, dict[str, Any]]

RUNS = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}
GONE = {"LoadState": "not-found", "ActiveState": "inactive", "MainPID": "0", "UnitFileState": ""}


@pytest.fixture(scope="module")
def debs(newer: Path, place: Path) -> Path:
    """The package, that of the next version, and one that its own script refuses to install."""
    if shutil.which("dpkg-deb") is None:
        pytest.fail("no dpkg-deb (Debian's package dpkg)")
    made = place / "debs"
    (wheel,) = newer.glob("drfd-*.whl")
    script = debian_build.load()
    wheels = script.fetch_wheels(wheel, place / "of-others", script.PYTHONS)
    build("--output", made, "--wheels", wheels)
    newer_deb = build("--output", made, "--wheels", wheels, "--wheel", wheel)
    arch = newer_deb.stem.rpartition("_")[2]
    broken = made / f"drfd_{__version__}{BROKEN_SUFFIX}_{arch}.deb"
    tree = place / "broken"
    subprocess.run(["dpkg-deb", "--raw-extract", newer_deb, tree], check=True)
    (tree / "DEBIAN/preinst").write_text("#!/bin/sh\necho no such luck >&2\nexit 1\n")
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {NEWER}", f"Version: {NEWER}+broken"))
    command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, broken]
    subprocess.run(command, check=True, capture_output=True)
    return made


def build(*words: object) -> Path:
    argv = [sys.executable, debian_build.SCRIPT, *words]
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def life(guest: Guest, debs: Path, notes: list[str]) -> Facts:
    """What it has seen in the guest."""
    versions = [f"{__version__}{suffix}" for suffix in ("", NEWER_SUFFIX, BROKEN_SUFFIX)]
    names = [package_of(debs, version).name for version in versions]
    done = guest.run(
        ["python3", "/srv/packaged.py", "life", *(f"{DEBS}/{name}" for name in names)],
        timeout_s=5400,
        copy={debs: DEBS, HERE / "packaged.py": "/srv/packaged.py"},
    ).check()
    facts: Facts = json.loads(done.stdout)
    took_s = facts["purged"]["at"] - facts["before"]["at"]
    notes.append(f"the life of Debian's package, to its purge: {took_s:.0f} s")
    return facts


def package_of(debs: Path, version: str) -> Path:
    (deb,) = debs.glob(f"drfd_{version}_*.deb")
    return deb


def states(facts: dict[str, Any]) -> list[dict[str, str]]:
    """Of each service, all but its process."""
    return [
        {name: value for name, value in service.items() if name != "MainPID"}
        for service in facts["services"].values()
    ]


def pids(facts: dict[str, Any]) -> dict[str, str]:
    return {name: service["MainPID"] for name, service in facts["services"].items()}


def running(facts: dict[str, Any]) -> list[object]:
    """The attempt and the services with their processes: the same while nothing starts anew."""
    return [facts["job"], facts["services"]]


def test_an_installation_by_drfd_install_is_in_the_way(life: Facts) -> None:
    step = life["in the way"]
    assert step["status"] != 0
    assert "/etc/systemd/system/drfd.service is there, from drfd install" in step["said"]
    assert step["is"] == "in ", "wanted, and nothing of it is there"


def test_installed_it_runs_and_starts_at_boot(life: Facts) -> None:
    step = life["installed"]
    assert step["status"] == 0, step["said"]
    assert states(step) == [RUNS] * 3
    assert step["doctor"] == {
        "version": __version__, "enforcement": "cgroup-v2", "launcher": "connected",
    }  # fmt: skip
    system = f"/usr/bin/python{PYTHON_VERSION}"
    assert step["programs"] == {"drfd": system, "drfd-launcher": system}


def test_installed_without_systemd_it_runs_from_the_next_boot_on(life: Facts) -> None:
    step = life["without systemd"]
    assert (step["status"], step["is"]) == (0, f"ii {__version__}"), step["said"]
    assert states(step) == [{**RUNS, "ActiveState": "inactive"}] * 3
    assert states(life["booted"]) == [RUNS] * 3
    assert life["booted"]["doctor"] == life["installed"]["doctor"]


def test_it_is_not_removed_while_a_job_runs(life: Facts) -> None:
    step = life["not removed"]
    assert step["status"] != 0
    assert "drfd: jobs are not over yet (1): wait for them" in step["said"]
    assert step["is"] == f"ii {__version__}"
    assert step["services"] == life["with a job"]["services"]


def test_with_a_wrong_configuration_an_upgrade_waits_for_another(life: Facts) -> None:
    """It names the key, and what ran before runs on."""
    step = life["not configured"]
    assert step["status"] != 0
    assert "grace" in step["said"]
    assert step["is"] == f"iF {NEWER}"
    assert running(step) == running(life["with a job"])


def test_a_job_runs_on_through_an_upgrade(life: Facts) -> None:
    before, after = life["with a job"], life["upgraded"]
    assert (after["status"], after["is"]) == (0, f"ii {NEWER}"), after["said"]
    assert before["job"]["is in it"]
    assert after["job"] == before["job"]
    assert states(after) == [RUNS] * 3
    assert after["doctor"] == {**life["installed"]["doctor"], "version": NEWER}
    kept = {name for name, pid in pids(before).items() if pids(after)[name] == pid}
    assert kept == {"drfd-jobs"}
    assert life["ended"] == {"wait": 7, "output": f"{before['job']['pid']}\n"}


def test_an_upgrade_takes_up_what_the_configuration_says_of_the_units(life: Facts) -> None:
    """The grace time of 47 s, and some."""
    assert life["upgraded"]["stop"] == "52s"


def test_an_upgrade_that_dpkg_gives_up_changes_nothing(life: Facts) -> None:
    step = life["given up"]
    assert step["status"] != 0
    assert "no such luck" in step["said"]
    assert step["is"] == f"ii {NEWER}"
    assert running(step) == running(life["upgraded"])


def test_dpkg_reconfigure_does_what_the_configuration_asks_for(life: Facts) -> None:
    same, other = life["reconfigured"], life["changed"]
    assert (same["status"], other["status"]) == (0, 0), same["said"] + other["said"]
    assert same["services"] == life["upgraded"]["services"]
    assert other["stop"] == "53s"
    assert running(other) == running(life["upgraded"])


def test_after_a_reboot_it_goes_on_with_its_queue(life: Facts) -> None:
    rebooted = life["rebooted"]
    assert states(rebooted) == [RUNS] * 3
    assert rebooted["doctor"] == life["upgraded"]["doctor"]
    assert rebooted["held"] == "HELD"


def test_removed_it_keeps_configuration_and_state_alone(life: Facts) -> None:
    step = life["removed"]
    assert (step["status"], step["is"]) == (0, f"rc {NEWER}"), step["said"]
    assert [service["LoadState"] for service in step["services"].values()] == ["not-found"] * 3
    left = set(step["files"]) - set(life["before"]["files"])
    kept = ("/etc/drfd", "/var/lib/drfd", "/var/lib/dpkg/info/drfd.")
    wanted = "/etc/systemd/system/multi-user.target.wants/"
    helper = "/var/lib/systemd/deb-systemd-helper-"
    others = {path for path in left if not path.startswith((*kept, helper))}
    assert others <= {f"{wanted}{name}.service" for name in pids(life["installed"])}
    assert {"/etc/drfd/drfd.toml", "/var/lib/drfd/controller/journal.sqlite"} <= left
    assert not [path for path in left if "drfd-slurm" in path]


def test_installed_again_it_goes_on_with_configuration_and_queue(life: Facts) -> None:
    """It runs at once, and the service that was disabled is so still."""
    again, held = life["again"], life["with a job"]["held"]
    assert again["status"] == 0, again["said"]
    assert 'grace = "48s"' in again["config"]
    jobs, launcher, daemon = (
        again["services"][name] for name in ("drfd-jobs", "drfd-launcher", "drfd")
    )
    assert launcher["UnitFileState"] == "disabled"
    assert {**jobs, **RUNS} == jobs and {**daemon, **RUNS} == daemon
    assert (again["wait"], again["next"]) == (0, held + 1)


@pytest.mark.parametrize("when", ["purged", "purged at once"])
def test_purged_it_leaves_nothing(life: Facts, when: str) -> None:
    step = life[when]
    assert step["status"] == 0, step["said"]
    assert set(step["files"]) ^ set(life["before"]["files"]) == set()
    assert list(step["services"].values()) == [GONE] * 3
    assert (step["accounts"], step["left"]) == (["", ""], [])


# -- the Python of the next release ------------------------------------------------------------

#: apt's, for a system that is not this one: where it has what, with @PLACE@.
APT = """
Dir::Etc::sourcelist "@PLACE@/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::State "@PLACE@/state";
Dir::State::status "@PLACE@/status";
Dir::Cache "@PLACE@/cache";
APT::Architecture "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Debug::NoLocking "true";
"""


@pytest.fixture(scope="module")
def repository(guest: Guest, place: Path) -> Path:
    """All packages by which the guest gets Debian 13's Python, from where this machine has its own.

    Among them are its C library and base-files, which says which release this is.
    """
    for program in ("apt-get", "dpkg-scanpackages"):
        if shutil.which(program) is None:
            pytest.fail(f"no {program} (Debian's packages apt and dpkg-dev)")
    home = place / "apt"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (home / name).mkdir(parents=True)
    (home / "status").write_text(
        guest.run("cat /var/lib/dpkg/status", timeout_s=600).check().stdout
    )
    found = tell("apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian")
    source = f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {found.split()[0]}"
    (home / "sources.list").write_text(f"{source} trixie main\n")
    config = home / "apt.conf"
    config.write_text(APT.replace("@PLACE@", str(home)))
    tell("apt-get", "-c", config, "-q", "update")
    tell("apt-get", "-c", config, "-q", "-y", "--download-only", "install", "python3",
         *(f"{name}-" for name in NOT_NEEDED))  # fmt: skip
    archives = home / "cache/archives"
    index = tell("dpkg-scanpackages", ".", cwd=archives)
    (archives / "Packages").write_text(index)
    return archives


def tell(*words: object, **options: Any) -> str:
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(SUITE != "bookworm", reason="what Debian 13 becomes is not released")
def test_a_job_runs_on_while_debian_12_gets_the_python_of_13(
    guest: Guest, debs: Path, repository: Path
) -> None:
    """The other Python runs the daemons then, and after a reboot."""
    deb = package_of(debs, __version__).name
    done = guest.run(
        ["python3", "/srv/packaged.py", "python", f"{DEBS}/{deb}", "/srv/repository"],
        timeout_s=3600,
        copy={
            debs: DEBS, repository: "/srv/repository", HERE / "packaged.py": "/srv/packaged.py",
        },
    ).check()  # fmt: skip
    facts: Facts = json.loads(done.stdout)
    before, after = facts["with a job"], facts["upgraded"]
    assert (after["status"], after["is"]) == (0, f"ii {__version__}"), after["said"]
    assert after["release"].startswith("13")
    assert after["job"] == before["job"]
    assert states(after) == [RUNS] * 3
    assert pids(after)["drfd-jobs"] == pids(before)["drfd-jobs"]
    assert set(before["programs"].values()) == {"/usr/bin/python3.11"}
    assert set(after["programs"].values()) == {"/usr/bin/python3.13"}
    assert (facts["ended"]["wait"], facts["ended"]["output"]) == (7, f"{before['job']['pid']}\n")
    booted = facts["booted"]
    assert (states(booted), booted["wait"]) == ([RUNS] * 3, 0)
    assert set(booted["programs"].values()) == {"/usr/bin/python3.13"}
    purged = facts["purged"]
    assert (purged["status"], purged["files"], purged["left"]) == (0, [], []), purged["said"]

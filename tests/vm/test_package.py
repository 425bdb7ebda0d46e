"""Debian's package on a system: installed, upgraded with a job running, rebooted and purged.

`packaged.py` tells the stories in guests, over several boots; each of their claims is a test here.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from debian_build import build_package
from drfd import __version__
from vm import packaged
from vm.packaged import BROKEN_SUFFIX, NEWER_SUFFIX, NOT_NEEDED
from vm.rig import SUITE, Finished, Guest

pytestmark = pytest.mark.vm

DEBS = "/srv/debs"
#: What a story makes true, boot after boot.
CLAIMS = {
    story: [claim.__name__ for boot in boots for claim in boot]
    for story, boots in packaged.STORIES.items()
}


@pytest.fixture(scope="module")
def debs(place) -> Path:
    """The package, that of the next version, and one that its own script refuses to install."""
    if shutil.which("dh") is None:
        pytest.fail("no dh (Debian's package debhelper)")
    made = place / "debs"
    made.mkdir()
    for suffix in ("", NEWER_SUFFIX):
        newer_deb = build_package(place / f"package{suffix}", suffix)
        shutil.copy(newer_deb, made)
    arch = newer_deb.stem.rpartition("_")[2]
    broken = made / f"drfd_{__version__}{BROKEN_SUFFIX}_{arch}.deb"
    tree = place / "broken"
    subprocess.run(["dpkg-deb", "--raw-extract", newer_deb, tree], check=True)
    (tree / "DEBIAN/preinst").write_text("#!/bin/sh\necho no such luck >&2\nexit 1\n")
    control = tree / "DEBIAN/control"
    version = f"Version: {__version__}"
    control.write_text(
        control.read_text().replace(f"{version}{NEWER_SUFFIX}", f"{version}{BROKEN_SUFFIX}")
    )
    command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, broken]
    subprocess.run(command, check=True, capture_output=True)
    return made


def package_of(debs: Path, version: str) -> Path:
    (deb,) = debs.glob(f"drfd_{version}_*.deb")
    return deb


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
def repository(guest, place) -> Path:
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


@pytest.fixture(scope="module")
def life(guest, debs) -> Finished:
    suffixes = ("", NEWER_SUFFIX, BROKEN_SUFFIX)
    names = [f"{DEBS}/{package_of(debs, __version__ + suffix).name}" for suffix in suffixes]
    return told(guest, {debs: DEBS}, "life", *names)


@pytest.fixture(scope="module")
def python(guest, debs, repository) -> Finished:
    if SUITE != "bookworm":
        pytest.skip("what Debian 13 becomes is not released")
    copy = {debs: DEBS, repository: "/srv/repository"}
    deb = f"{DEBS}/{package_of(debs, __version__).name}"
    return told(guest, copy, "python", deb, "/srv/repository")


def told(guest: Guest, copy: dict[Path, str], story: str, *files: str) -> Finished:
    """How a story has ended in the guest."""
    return guest.run(
        ["python3", "/srv/packaged.py", story, __version__, *files],
        timeout_s=5400,
        copy={**copy, Path(packaged.__file__): "/srv/packaged.py"},
    )


@pytest.mark.parametrize(
    ("story", "number"),
    [
        pytest.param(story, number, id=f"{story}-{claim}")
        for story, claims in CLAIMS.items()
        for number, claim in enumerate(claims)
    ],
)
def test_of_debians_package_it_is_true_that(story, number, request):
    done: Finished = request.getfixturevalue(story)
    held = json.loads(done.stdout or "[]")
    said = "\n".join(done.stderr.splitlines()[-80:])
    assert held[: number + 1] == CLAIMS[story][: number + 1], said

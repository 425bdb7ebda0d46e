"""The guest, made once for all tests that boot it; where it cannot be had, they skip and say why.

With DRFD_VM=required, as in continuous integration, what is missing is a failure.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from debian_build import copy_source
from vm.rig import PYTHON_VERSION, ROOT, SCRIPTS, SUITE, Guest

#: Some of the programs are not in an ordinary user's path.
_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
#: What the scripts need → the Debian package that it is in; `build-image` would install it.
_PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "sfdisk": "fdisk",
}
#: What is to be said at the end of all tests.
_NOTES = pytest.StashKey[list[str]]()

INSTALL = """
python3 -m venv --without-pip /opt/drfd
pip --python /opt/drfd/bin/python install -q 'drfd[test]'
"""


@pytest.fixture(scope="session")
def image():
    """The image that `run-in-vm` boots, built if need be."""
    missing = _missing_program()
    if missing is not None:
        _give_up(missing)
    if _build_image("--check").returncode == 0:
        return
    if platform.freedesktop_os_release().get("ID") != "debian":
        _give_up("no image of the guest, and not Debian, which could build it")
    if os.getuid() != 0:
        _give_up("no image of the guest, and not root, who could build it")
    done = _build_image()
    if done.returncode != 0:
        _give_up(f"tests/vm/guest/build-image failed: {_last_line(done.stderr)}")


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """For what is large and is not worth keeping when the tests are over."""
    with tempfile.TemporaryDirectory(prefix="drfd-vm-") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def wheels(place) -> Path:
    """The project, its tests' needs, and all that these depend on, for the guest's Python."""
    ours = place / "ours"
    # One of them comes as source without pyproject.toml, which pip itself can build only where the
    # package `wheel` is installed.
    _pip("wheel", "--use-pep517", "-w", ours, f"{ROOT}[test]")
    if platform.python_version_tuple()[:2] == tuple(PYTHON_VERSION.split(".")):
        return ours
    # What is made for no Python in particular is as good there; the rest is to be had ready-made.
    for wheel in ours.iterdir():
        # drfd's own may hold a program for this machine, which is for every Python, too.
        if "-none-any." not in wheel.name and "-py3-none-" not in wheel.name:
            wheel.unlink()
    made = place / "wheels"
    (drfd,) = ours.glob("drfd-*.whl")
    _pip("download", "-d", made, "--find-links", ours, "--python-version", PYTHON_VERSION,
         "--only-binary=:all:", f"{drfd}[test]")  # fmt: skip
    return made


@pytest.fixture(scope="session")
def newer(place) -> Path:
    """A wheel of the next version of the project, to upgrade to."""
    source, made = place / "source", place / "newer"
    copy_source(source, ".post1")
    words = ["-m", "pip", "wheel", "-q", "--no-deps", "-w", str(made), str(source)]
    subprocess.run([sys.executable, *words], check=True, stderr=subprocess.DEVNULL)
    return made


@pytest.fixture(scope="session")
def guest(image, notes) -> Guest:
    """As the image has been built."""
    return Guest(notes)


@pytest.fixture(scope="session")
def drfd_guest(guest, wheels, place, notes) -> Guest:
    """The project and its tests' needs are installed in /opt/drfd, from wheels."""
    disk = place / "installed.qcow2"
    guest.run(INSTALL, timeout_s=3600, wheels=wheels, disk=disk).check()
    return Guest(notes, disk)


@pytest.fixture(scope="session")
def notes(request) -> list[str]:
    """Lines to be shown at the end, also when everything has passed."""
    return request.config.stash.setdefault(_NOTES, [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for note in config.stash.get(_NOTES, []):
        terminalreporter.write_line(f"{SUITE} guest: {note}")


def _missing_program() -> str | None:
    if platform.machine() != "x86_64":
        return "not an x86-64 machine"
    for program, package in _PACKAGES.items():
        if shutil.which(program, path=_PATH) is None:
            return f"no {program} (Debian's package {package})"
    return None


def _build_image(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPTS / "build-image"), "--suite", SUITE, *words]
    env = {**os.environ, "PATH": _PATH}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def _pip(command: str, *words: object) -> None:
    argv = [sys.executable, "-m", "pip", command, "-q", *map(str, words)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        _give_up(f"pip makes no wheels for Python {PYTHON_VERSION}: {_last_line(done.stderr)}")


def _give_up(reason: str) -> NoReturn:
    if os.environ.get("DRFD_VM") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it does not say why"])[-1]

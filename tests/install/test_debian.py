"""Debian's package: what `dpkg-buildpackage` makes of `debian/`, with what pip fetches.

Its life on a system is in `tests/vm/test_package.py`. With DRFD_DEBIAN=required, as in continuous
integration, a program of Debian's that is missing is a failure.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from debian_build import ROOT, build_package
from drfd import __version__
from drfd.install.command import PACKAGED, UNITS
from drfd_cli.main import VERBS

SCRIPTS = sorted((ROOT / "debian").glob("drfd.p*"))

#: All that is in the package, but for its Python packages.
FILES = {
    "etc/drfd/drfd.toml",
    "usr/bin/drf",
    "usr/bin/drfd",
    "usr/lib/drfd/bin/python",
    "usr/lib/drfd/pyvenv.cfg",
    *(f"lib/systemd/system/{unit}" for unit in UNITS),
    "usr/lib/sysusers.d/drfd.conf",
    "usr/share/bash-completion/completions/drf",
    "usr/share/doc/drfd/changelog.gz",
    "usr/share/doc/drfd/copyright",
    *(f"usr/share/drfd/{name}" for name in ("alerts.yml", "dashboard.json")),
    "usr/share/fish/vendor_completions.d/drf.fish",
    "usr/share/lintian/overrides/drfd",
    *(f"usr/share/man/man1/drf-{verb}.1.gz" for verb in VERBS),
    "usr/share/man/man1/drf.1.gz",
    "usr/share/man/man5/drfd.toml.5.gz",
    "usr/share/man/man8/drfd.8.gz",
    "usr/share/zsh/vendor-completions/_drf",
}


def need(program: str, of: str) -> None:
    if shutil.which(program) is None:
        if os.environ.get("DRFD_DEBIAN") == "required":
            pytest.fail(f"no {program} (Debian's package {of})")
        pytest.skip(f"no {program} (Debian's package {of})")


@pytest.fixture(scope="module")
def deb(tmp_path_factory) -> Path:
    need("dh", "debhelper")
    return build_package(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def tree(deb, tmp_path_factory) -> Path:
    """What is in the package, with what is for dpkg in DEBIAN."""
    place = tmp_path_factory.mktemp("tree")
    subprocess.run(["dpkg-deb", "--raw-extract", deb, place], check=True)
    return place


@pytest.mark.slow
def test_it_holds_what_drfd_install_makes_and_an_environment_for_each_python(tree):
    found = {str(path.relative_to(tree)) for path in tree.rglob("*") if not path.is_dir()}
    ours = {path for path in found if not path.startswith("DEBIAN/")}
    packages = {path for path in ours if "/site-packages/" in path}
    assert ours - packages == FILES
    for python in ("3.11", "3.13"):
        place = tree / f"usr/lib/drfd/lib/python{python}/site-packages"
        tops = {path.name.lower() for path in place.iterdir()}
        assert {"drfd", "drfd_cli", "click", "prometheus_client", "pynvml.py", "uvicorn"} <= tops
        assert not tops & {"bin", "example.py"}, "every program would find it"
        (compiled,) = place.glob("msgspec/_core.*.so")
        assert f"cpython-{python.replace('.', '')}-" in compiled.name


@pytest.mark.slow
def test_the_environment_finds_its_packages_and_no_others(tree):
    """By Debian's Python; postinst compiles what it finds there."""
    (tree / "usr/bin/python3").symlink_to("/usr/bin/python3")
    say = "import sys, sysconfig, drfd; print(sys.prefix, sysconfig.get_path('purelib'), drfd)"
    done = subprocess.run(
        [tree / "usr/lib/drfd/bin/python", "-I", "-B", "-c", say],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    prefix, packages, *_ = done.stdout.split()
    assert prefix == str(tree / "usr/lib/drfd")
    assert packages.startswith(f"{prefix}/lib/python3.")
    assert f"'{packages}/drfd/__init__.py'" in done.stdout


@pytest.mark.slow
def test_all_belongs_to_root_and_everybody_can_read_it(deb):
    """Whatever the mask of who has built it, and who that was."""
    done = subprocess.run(
        ["dpkg-deb", "--contents", deb], capture_output=True, text=True, check=True
    )
    kinds = {tuple(line.split()[:2]) for line in done.stdout.splitlines()}
    modes = {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x", "lrwxrwxrwx"}
    assert kinds == {(mode, "root/root") for mode in modes}


@pytest.mark.slow
def test_only_the_configuration_is_a_conffile_and_units_run_the_packages_python(tree):
    """It is that of `drfd install`, so that dpkg asks nothing after a move from there."""
    assert (tree / "DEBIAN/conffiles").read_text() == "/etc/drfd/drfd.toml\n"
    for name in ("drfd.toml", *UNITS):
        place = "etc/drfd" if name == "drfd.toml" else "lib/systemd/system"
        text = (ROOT / "systemd" / name).read_text().replace("@PYTHON@", f"{PACKAGED}/bin/python")
        assert (tree / place / name).read_text() == text


@pytest.mark.slow
def test_what_holds_the_jobs_is_enabled_and_never_started_stopped_or_restarted(tree):
    scripts = {path.name: path.read_text() for path in (tree / "DEBIAN").glob("p*")}
    assert set(scripts) == {path.name.removeprefix("drfd.") for path in SCRIPTS}
    acting = [
        line.split()
        for name in ("preinst", "postinst", "prerm")
        for line in scripts[name].splitlines()
        if "deb-systemd-invoke" in line or "systemctl" in line
    ]
    assert acting and not [words for words in acting if "jobs" in " ".join(words)]
    assert "was-enabled 'drfd-jobs.service'" in scripts["postinst"]
    assert "systemctl stop drfd-jobs.service" in scripts["postrm"].partition("purge)")[0]


@pytest.mark.slow
def test_lintian_finds_no_fault(deb):
    need("lintian", "lintian")
    done = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error,warning", deb],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_are_ones_that_every_shell_reads(path):
    done = subprocess.run(["sh", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    text = path.read_text()
    assert text.startswith("#!/bin/sh\n")
    assert "\nset -e\n" in text and "\n#DEBHELPER#\n" in text


def test_its_version_is_drfds():
    head = (ROOT / "debian/changelog").read_text().partition("\n")[0]
    assert re.fullmatch(rf"drfd \({re.escape(__version__)}\) unstable; urgency=medium", head)

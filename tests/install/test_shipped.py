"""What is shipped: the files in `systemd/`, where what the services rely on is said, and Debian's
package, whose life on a system is in `tests/vm/test_package.py`.

With DRFD_DEBIAN=required, as in continuous integration, a program of Debian's that is missing is a
failure.
"""

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from config_reference import shipped
from debian_build import ROOT, build_package
from drfd import __version__
from drfd.common import paths
from drfd.daemon.config import Config, parse
from drfd.daemon.tools import STOP_S
from drfd.install.command import PACKAGED, RUN, STATE, UNITS
from drfd_cli.main import VERBS

FILES = {path.name: path.read_text() for path in (ROOT / "systemd").iterdir()}
#: What belongs to a process, so that jobs would inherit it from the launcher. Its mask, core limit
#: and keyring are not among these: each job has its own, set for it.
SANDBOX = re.compile(
    r"^(Private|Protect|Restrict(?!Prevent)|SystemCall|NoNewPrivileges|Lock|MemoryDeny|Capability"
    r"|Ambient|Limit(?!CORE)|Nice|CPU|IO|User|Group|DynamicUser|Root|ReadOnly|Inaccess)"
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


def test_all_that_is_shipped_is_installed():
    assert set(FILES) == {*UNITS, "sysusers.conf", "drfd.toml"}


#: What runs jobs, or sbatch, from which Slurm takes resource limits for them.
LAUNCHERS = ("drfd-launcher.service", "drfd-slurm-root.service")
#: What units say, and why.
SAID: dict[str, dict[str, str]] = {
    # What holds the jobs is left alone by all but a shutdown: the slice did not refuse to be
    # stopped by hand, and that ended all jobs.
    "drfd.slice": {"RefuseManualStop": "yes"},
    "drfd-jobs.service": {
        "RefuseManualStop": "yes",
        "Delegate": "yes",
        # The death of the keeper must not end the jobs, nor must that of one job for memory.
        "ExitType": "cgroup",
        "OOMPolicy": "continue",
    },
    "drfd.service": {
        # A wrong configuration is not tried again, and all else is for ever.
        "RestartPreventExitStatus": "78",
        "StartLimitIntervalSec": "0",
        # As long as there is a controller there is a launcher: when all jobs had been stopped from
        # outside, it stayed away, and nobody learnt of it.
        "Upholds": "drfd-launcher.service",
        # An end that was asked for is an end: `drf shutdown` exits 0.
        "Restart": "on-failure",
        # The controller has no rights.
        "User": "drfd",
        "CapabilityBoundingSet": "",
        "NoNewPrivileges": "yes",
        # The process that looks ahead is the first that the kernel kills for memory, and systemd
        # would stop the service.
        "OOMPolicy": "continue",
        "StateDirectory": "drfd/controller",
    },
    "drfd-launcher.service": {
        "RestartPreventExitStatus": "78",
        "StartLimitIntervalSec": "0",
        "IgnoreSIGPIPE": "no",
        # Stopping it leaves its runners.
        "KillMode": "process",
        "OOMPolicy": "continue",
        "StateDirectory": "drfd/launcher",
    },
    "drfd-slurm-root.service": {
        "RestartPreventExitStatus": "78",
        "StartLimitIntervalSec": "0",
        "StateDirectory": "drfd/slurm-launcher",
        "MemoryMax": "25%",
    },
    "drfd-slurm-launcher.service": {
        "StartLimitIntervalSec": "0",
        "Restart": "always",
        "Wants": "drfd-slurm-root.service",
        "After": "drfd-slurm-root.service",
        "MemoryMax": "25%",
        # It has no rights: what needs root's is done by its helper.
        "User": "drfd-slurm",
        "CapabilityBoundingSet": "",
        "NoNewPrivileges": "yes",
        "ReadWritePaths": "-/var/lib/drfd/slurm-launcher",
    },
}


@pytest.mark.parametrize(
    ("unit", "name", "value"),
    [(unit, name, value) for unit, said in SAID.items() for name, value in said.items()],
)
def test_what_the_services_rely_on_is_said(unit, name, value):
    assert options(unit)[name] == [value]


@pytest.mark.parametrize("unit", LAUNCHERS)
def test_launchers_have_nothing_that_jobs_must_not_have(unit):
    assert [name for name in options(unit) if SANDBOX.match(name)] == []


def test_the_unit_of_the_jobs_has_nothing_that_reaches_them_by_their_cgroup():
    """Its sandbox is for the process that keeps it alive; and no other unit takes it along."""
    unit = options("drfd-jobs.service")
    assert [name for name in unit if BY_CGROUP.match(name)] == []
    assert unit["ExecStop"][0].startswith("+-"), "the end of the jobs is written in any case"
    assert "/var/lib/drfd/launcher/jobs-stopped" in unit["ExecStop"][0]
    for service in ("drfd.service", "drfd-launcher.service"):
        relations = {*options(service)} & {"PartOf", "BindsTo", "Conflicts", "PropagatesStopTo"}
        assert relations == set()


def test_the_controller_sees_who_is_at_the_other_end_of_a_socket():
    assert "PrivateUsers" not in options("drfd.service")


def test_the_root_helper_of_slurms_nodes_begins_after_the_launcher_that_makes_the_secret():
    unit = options("drfd-slurm-root.service")
    assert "drfd-launcher.service" in unit["After"][0].split()
    (command,) = unit["ExecStart"]
    assert f"--state {paths.SYSTEM_SLURM_SOCKET.parent} --keys /var/lib/drfd/launcher" in command
    assert paths.SYSTEM_SLURM_STARTS.parent == paths.SYSTEM_SLURM_SOCKET.parent
    # A unit says paths once more, since it cannot ask.
    assert (STATE, RUN) == ("/var/lib/drfd", "/run/drfd")


@pytest.mark.parametrize(
    ("config", "has_slurm"),
    [
        ('[nodes.n1]\nengine = "slurm"\n', True),
        ("nodes = {n1 = {cores = 2, engine='slurm'}}\n", True),
        ('nodes = {n1 = {"engine"="slurm"}}\n', True),
        ('[nodes.head]\nengine = "local"\n[slurm]\nuser = "slurm"\n', False),
        (FILES["drfd.toml"], False),
    ],
)
def test_the_launcher_of_slurms_nodes_runs_only_where_some_are_configured(
    tmp_path, config, has_slurm
):
    (tmp_path / "drfd.d").mkdir()
    (tmp_path / "drfd.d/nodes.toml").write_text(config)
    (condition,) = options("drfd-slurm-launcher.service")["ExecCondition"]
    assert options("drfd-slurm-root.service")["ExecCondition"] == [condition]
    assert condition.endswith(" /etc/drfd")
    words = [*shlex.split(condition)[:-1], str(tmp_path)]
    assert (subprocess.run(words, check=False).returncode == 0) is has_slurm
    for name in ("Wants", "After"):
        assert "drfd-slurm-launcher.service" in options("drfd.service")[name][0].split()


def test_every_mark_is_one_that_is_filled_in():
    marks = {mark for text in FILES.values() for mark in re.findall(r"@\w+@", text)}
    assert marks == {"@PYTHON@"}
    assert options("drfd-jobs.service")["TimeoutStopSec"] == [f"{STOP_S}s"]


# -- drfd.toml ---------------------------------------------------------------------------------

#: As an administrator would make them hold: a key with nothing before it but the sign.
UNCOMMENTED = re.sub(r"^#(?=\w)", "", FILES["drfd.toml"], flags=re.MULTILINE)


def test_the_default_configuration_is_nothing_but_defaults():
    assert parse(tomllib.loads(FILES["drfd.toml"]), "drfd.toml") == Config()
    assert FILES["drfd.toml"] != UNCOMMENTED
    assert parse(tomllib.loads(UNCOMMENTED), "drfd.toml") == Config()


def test_the_default_configuration_is_written_from_the_declared_keys():
    assert FILES["drfd.toml"] == shipped(), "run python -m tests.config_reference"


# -- Debian's package: what dpkg-buildpackage makes of debian/, with what pip fetches -----------


SCRIPTS = sorted((ROOT / "debian").glob("drfd.p*"))

#: All that is in the package, but for its Python packages.
PACKED = {
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
    assert ours - packages == PACKED
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

"""Debian's package: what it holds, and that the same sources and wheels give the same bytes.

Its life on a system is in `tests/vm/test_package.py`. With DRFD_DEBIAN=required, as in continuous
integration, a program of Debian's that is missing is a failure.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import debian_build
from debian_build import SCRIPT
from drfd import __version__
from drfd.daemon.config import Config, parse
from drfd.install import package, plan
from drfd_cli.main import VERBS

ROOT = Path(__file__).parents[2]
#: What drfd depends on, as it is installed beside these tests.
OTHERS = ("anyio", "cgroupspy", "click", "h11", "idna", "markdown-it-py", "mdurl", "msgspec",
          "nvidia-ml-py", "prometheus-client", "psutil", "pygments", "rich", "starlette",
          "typing-extensions", "uvicorn")  # fmt: skip
RUNNING = ".".join(map(str, sys.version_info[:2]))
UNITS = "usr/lib/systemd/system"

#: All that is in the package, but for its Python packages.
FILES = {
    "etc/drfd/drfd.toml",
    "usr/bin/drf",
    "usr/bin/drfd",
    "usr/lib/drfd/bin/drf",
    "usr/lib/drfd/bin/drfd",
    "usr/lib/drfd/bin/python",
    f"usr/lib/drfd/lib/python{RUNNING}/site-packages",
    "usr/lib/drfd/pyvenv.cfg",
    *(f"{UNITS}/{unit}" for unit in package.UNITS),
    "usr/lib/sysusers.d/drfd.conf",
    "usr/share/bash-completion/completions/drf",
    "usr/share/doc/drfd/CHANGELOG.md.gz",
    "usr/share/doc/drfd/changelog.gz",
    "usr/share/doc/drfd/copyright",
    "usr/share/fish/vendor_completions.d/drf.fish",
    "usr/share/lintian/overrides/drfd",
    *(f"usr/share/man/man1/drf-{verb}.1.gz" for verb in VERBS),
    "usr/share/man/man1/drf.1.gz",
    "usr/share/man/man5/drfd.toml.5.gz",
    "usr/share/man/man8/drfd.8.gz",
    "usr/share/zsh/vendor-completions/_drf",
}


script = debian_build.load()


def need(program: str, of: str) -> None:
    if shutil.which(program) is None:
        if os.environ.get("DRFD_DEBIAN") == "required":
            pytest.fail(f"no {program} (Debian's package {of})")
        pytest.skip(f"no {program} (Debian's package {of})")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels of drfd, as in the checkout, and of what is installed: nothing is fetched."""
    place = tmp_path_factory.mktemp("wheels")
    for name in OTHERS:
        repack(metadata.distribution(name), place)
    info = f"drfd-{__version__}.dist-info"
    with zipfile.ZipFile(place / f"drfd-{__version__}-py3-none-any.whl", "w") as archive:
        for source, target in (
            ("drfd", "drfd"),
            ("cli/drfd_cli", "drfd_cli"),
            ("docs", "drfd/docs"),
            ("systemd", "drfd/install/systemd"),
        ):
            for path in sorted((ROOT / source).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, f"{target}/{path.relative_to(ROOT / source)}")
        archive.write(ROOT / "LICENSE", f"{info}/licenses/LICENSE")
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.4\nName: drfd\nVersion: {__version__}\n"
            f"License-Expression: MIT\n\n{(ROOT / 'README.md').read_text()}",
        )
        archive.writestr(f"{info}/RECORD", "drfd/__init__.py,,\n")
    return place


def repack(found: metadata.Distribution, place: Path) -> None:
    tags = re.findall(r"(?m)^Tag: (.+)$", found.read_text("WHEEL") or "")
    stem = f"{found.name.replace('-', '_')}-{found.version}"
    with zipfile.ZipFile(place / f"{stem}-{(tags or ['py3-none-any'])[0]}.whl", "w") as archive:
        for file in found.files or ():
            path = Path(str(file.locate()))
            is_its_own = ".." not in file.parts and ".egg-info" not in str(file)
            if is_its_own and "__pycache__" not in file.parts and path.is_file():
                archive.write(path, str(file))
        if not tags:
            # An old pip has installed it without making a wheel.
            archive.writestr(f"{stem}.dist-info/METADATA", found.read_text("PKG-INFO") or "")


def build(wheels: Path, output: Path) -> Path:
    (wheel,) = wheels.glob("drfd-*.whl")
    words = ["--wheel", wheel, "--wheels", wheels, "--python", RUNNING, "--output", output]
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1790000000"}
    done = subprocess.run(
        [sys.executable, SCRIPT, *words],
        env=env, umask=0o077, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def deb(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("dpkg-deb", "dpkg")
    return build(wheels, tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def tree(deb: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is in the package, with what is for dpkg in DEBIAN."""
    place = tmp_path_factory.mktemp("tree")
    subprocess.run(["dpkg-deb", "--raw-extract", deb, place], check=True)
    return place


def files(tree: Path) -> Iterator[Path]:
    for path in sorted(tree.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(tree)


@pytest.mark.slow
def test_it_holds_what_drfd_install_would_make_and_its_environment(tree: Path) -> None:
    found = {str(path) for path in files(tree) if path.parts[0] != "DEBIAN"}
    packages = {path for path in found if path.startswith("usr/lib/drfd/packages/")}
    assert found - packages == FILES
    tops = {path.split("/")[4].lower() for path in packages}
    assert {"drfd", "drfd_cli", "click", "msgspec", "prometheus_client", "pynvml.py"} <= tops
    assert "example.py" not in tops, "every program would find it"


@pytest.mark.slow
def test_all_belongs_to_root_everybody_can_read_it_and_has_its_sum(deb: Path, tree: Path) -> None:
    """Whatever the mask of who has built it, and who that was."""
    done = subprocess.run(
        ["dpkg-deb", "--contents", deb], capture_output=True, text=True, check=True
    )
    kinds = {tuple(line.split()[:2]) for line in done.stdout.splitlines()}
    modes = {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x", "lrwxrwxrwx"}
    assert kinds == {(mode, "root/root") for mode in modes}
    sums = (tree / "DEBIAN/md5sums").read_text().splitlines()
    assert dict(reversed(line.split("  ")) for line in sums) == {
        str(path): hashlib.md5((tree / path).read_bytes()).hexdigest()
        for path in files(tree)
        if path.parts[0] != "DEBIAN" and not (tree / path).is_symlink()
    }


@pytest.mark.slow
def test_the_configuration_alone_is_the_administrators(tree: Path) -> None:
    """It is that of `drfd install`, so that dpkg asks nothing after a move from there."""
    assert (tree / "DEBIAN/conffiles").read_text() == "/etc/drfd/drfd.toml\n"
    config = (tree / "etc/drfd/drfd.toml").read_text()
    assert config == (ROOT / "systemd/drfd.toml").read_text()
    assert parse(tomllib.loads(config), "drfd.toml") == Config()


@pytest.mark.slow
def test_the_units_run_the_packages_python_with_the_usual_grace_time(tree: Path) -> None:
    units = {unit: (tree / UNITS / unit).read_text() for unit in package.UNITS}
    assert re.findall(r"@[A-Z_]+@", "".join(units.values())) == []
    for unit in ("drfd.service", "drfd-launcher.service", "drfd-slurm-launcher.service"):
        assert "\nExecStart=/usr/lib/drfd/bin/python -I -m drfd.daemon " in units[unit]
    usual = plan.unit_fills("", grace_s=Config().grace_s, has_cgroups=True)["@STOP_S@"]
    assert f"\nTimeoutStopSec={usual}\n" in units["drfd-jobs.service"]
    assert not any(path.name in package.UNITS for path in (tree / "etc").rglob("*"))


@pytest.mark.slow
def test_the_environment_finds_its_packages_and_no_others(tree: Path, tmp_path: Path) -> None:
    """By links of the package alone, as it is unpacked: nothing is made at the installation."""
    home = tmp_path / "usr/lib/drfd"
    shutil.copytree(tree / "usr/lib/drfd", home, symlinks=True)
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/python3").symlink_to(python)
    config = (home / "pyvenv.cfg").read_text()
    assert "home = /usr/bin\n" in config
    (home / "pyvenv.cfg").write_text(config.replace("/usr/bin", str(python.parent)))
    say = "import sys, drfd, msgspec, psutil; print(sys.prefix, drfd.__file__, msgspec.__file__)"
    done = subprocess.run(
        [home / "bin/python", "-I", "-B", "-c", say],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    places = [home / f"lib/python{RUNNING}/site-packages/{name}" for name in ("drfd", "msgspec")]
    assert done.stdout.split() == [str(home), *(f"{place}/__init__.py" for place in places)]


@pytest.mark.slow
def test_the_same_sources_and_wheels_give_the_same_package(
    deb: Path, wheels: Path, tmp_path: Path
) -> None:
    assert build(wheels, tmp_path).read_bytes() == deb.read_bytes()


@pytest.mark.slow
def test_lintian_finds_no_fault(deb: Path) -> None:
    need("lintian", "lintian")
    done = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error,warning", deb],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
def test_licenses_of_all_that_comes_along_and_a_changelog_are_as_debian_reads_them(
    tree: Path,
) -> None:
    text = (tree / "usr/share/doc/drfd/copyright").read_text()
    heads = dict(re.findall(r"(?m)^([\w.-]+) [\w.]+: (.+)\n=+$", text))
    assert {name.lower().replace("_", "-") for name in heads} == {"drfd", *OTHERS}
    assert "no statement" not in heads.values()
    assert "Permission is hereby granted" in text
    text = gzip.decompress((tree / "usr/share/doc/drfd/changelog.gz").read_bytes()).decode()
    assert text.startswith(f"drfd ({__version__}) unstable; urgency=medium\n")
    assert text.endswith("  Mon, 21 Sep 2026 14:13:20 +0000\n")


@pytest.mark.parametrize(
    "path", sorted((SCRIPT.parent / "scripts").iterdir()), ids=lambda p: p.name
)
def test_the_scripts_are_ones_that_every_shell_reads(path: Path) -> None:
    done = subprocess.run(["sh", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert path.read_text().startswith("#!/bin/sh\n")
    assert "\nset -e\n" in path.read_text()


# -- the script, by itself ---------------------------------------------------------------------


def test_a_python_between_two_that_the_package_is_for_is_none_for_it() -> None:
    found = list(script.dependencies(["3.11", "3.13"]))
    assert found[:3] == [
        "python3 (>= 3.11~)",
        "python3 (<< 3.12~) | python3 (>= 3.13~)",
        "python3 (<< 3.14~)",
    ]
    assert list(script.dependencies(["3.11"]))[:2] == ["python3 (>= 3.11~)", "python3 (<< 3.12~)"]


@pytest.mark.parametrize(
    ("version", "debian"),
    [("0.1.0", "0.1.0"), ("0.1.0.post1", "0.1.0.post1"), ("1.0rc1", "1.0~rc1"),
     ("1.0.dev3", "1.0~dev3"), ("1.0a1", "1.0~a1")],
)  # fmt: skip
def test_a_version_sorts_as_the_wheels(tmp_path: Path, version: str, debian: str) -> None:
    (tmp_path / f"drfd-{version}.dist-info").mkdir()
    assert script.version_of(tmp_path) == debian


def make_wheel(path: Path, contents: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in contents.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFREG | (0o755 if name == "m/run" else 0o644)) << 16
            archive.writestr(entry, text)
    return path


def test_wheels_of_one_package_for_two_pythons_become_one_directory(tmp_path: Path) -> None:
    into = tmp_path / "packages"
    for number in ("311", "313"):
        contents = {
            "m/__init__.py": "",
            f"m/_core.cpython-{number}.so": number,
            "m/run": "#!/bin/sh\n",
            "m-1.dist-info/RECORD": f"m/__init__.py,,\nm/_core.cpython-{number}.so,,\n",
        }
        script.unpack(make_wheel(tmp_path / f"m-1-cp{number}.whl", contents), into)
    assert [str(path) for path in files(into)] == [
        "m/__init__.py",
        "m/_core.cpython-311.so",
        "m/_core.cpython-313.so",
        "m/run",
        "m-1.dist-info/RECORD",
    ]
    assert (into / "m-1.dist-info/RECORD").read_text() == (
        "m/__init__.py,,\nm/_core.cpython-311.so,,\nm/_core.cpython-313.so,,\n"
    )
    assert stat.S_IMODE((into / "m/run").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ({"m/__init__.py": "other"}, "m/__init__.py of m-2.whl differs"),
        ({"m-2.data/scripts/m": ""}, "no file of a package"),
        ({"../m.py": ""}, "no file of a package"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], contents: dict[str, str], words: str
) -> None:
    into = tmp_path / "packages"
    script.unpack(make_wheel(tmp_path / "m-1.whl", {"m/__init__.py": ""}), into)
    with pytest.raises(SystemExit):
        script.unpack(make_wheel(tmp_path / "m-2.whl", contents), into)
    assert words in capsys.readouterr().err
    assert not (tmp_path / "m.py").exists()


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["m-1-cp311-cp311-x.whl", "m-1-cp313-cp313-x.whl", "a-1-py3-none-any.whl"], ""),
        (["p-1-cp36-abi3-x.whl"], ""),
        (["m-1-cp311-cp311-x.whl"], "cp313"),
        (["m-1-cp311-cp311-x.whl", "m-1-cp312-cp312-x.whl"], "cp312, cp313"),
    ],
)
def test_each_compiled_module_must_be_there_for_each_python(
    capsys: pytest.CaptureFixture[str], names: list[str], missing: str
) -> None:
    if not missing:
        script.check_pythons(names, ["3.11", "3.13"])
        return
    with pytest.raises(SystemExit):
        script.check_pythons(names, ["3.11", "3.13"])
    said = capsys.readouterr().err
    assert said == (
        "build.py: m 1: the wheels are not those for Python 3.11 and 3.13 " + f"({missing})\n"
    )


def test_the_usual_grace_time_is_the_configurations() -> None:
    assert Config().grace_s == package.GRACE_S


def test_who_builds_it_may_name_an_address(monkeypatch: Any) -> None:
    monkeypatch.setenv("DEBFULLNAME", "Ann Example")
    monkeypatch.setenv("DEBEMAIL", "ann@example.org")
    assert script.maintainer() == "Ann Example <ann@example.org>"

"""Build Debian's package of drfd, from its wheel and the wheels of what it depends on.

    python packaging/debian/build.py [--output DIR] [--wheel FILE] [--wheels DIR] [--python X.Y]...

One package serves Debian 12 and 13. Its Python environment, /usr/lib/drfd, is made of files of the
package alone: `bin/python` is Debian's Python, which finds its packages in lib/pythonX.Y, and these
directories are links to one, as the names of compiled modules say which Python they are for. So
nothing is fetched or made at the installation, and another Python of Debian's is no other package.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from email.parser import HeaderParser
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import NoReturn

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from drfd.install import package, plan  # noqa: E402  # of the checkout that this script is in

#: The Pythons of Debian 12 and 13.
PYTHONS = ("3.11", "3.13")
MAINTAINER = "the drfd authors <drfd@localhost.localdomain>"
#: What drfd can do with packages that it does not need: GPUs of NVIDIA's, metrics, and drf web.
EXTRAS = "gpu,metrics,web"
#: What is in a wheel beside its packages, and would be found by every program.
STRAY = frozenset({"example.py"})
#: The same file in the wheels of several Pythons, one with other lines than the other.
MERGED = frozenset({"WHEEL", "RECORD"})

DESCRIPTION = """\
Description: fair, enforced, explained batch jobs for one workstation
 drfd queues the batch jobs of several users of one machine and starts them by
 Dominant Resource Fairness over cores, memory, disk bandwidth and GPUs. It
 enforces what a job declares with cgroups, and says why a job waits.
 .
 The package brings its Python packages along, below /usr/lib/drfd, because
 Debian 12 has some of them in older versions or not at all.
"""

PROGRAM = """\
#!{python} -I
import sys

from {module} import main

sys.exit(main())
"""
PROGRAMS = {"drf": "drfd_cli.start", "drfd": "drfd.daemon.main"}

#: Directory that `drf man` writes to → where Debian has such files.
PLACES = {"share/zsh/site-functions": "share/zsh/vendor-completions"}


def main() -> None:
    options = parse()
    if shutil.which("dpkg-deb") is None:
        fail("no dpkg-deb (Debian's package dpkg)")
    running = ".".join(platform.python_version_tuple()[:2])
    if running not in options.python:
        fail(f"Python {running} runs this, and the package is for {' and '.join(options.python)}")
    # Also for the wheel that is built here, and for dpkg-deb.
    os.environ["SOURCE_DATE_EPOCH"] = epoch()
    # Every user must be able to read what is packed, whatever mask we were started with.
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="drfd-debian-") as name:
        work = Path(name)
        wheel = options.wheel or build_wheel(work / "wheel")
        wheels = options.wheels or fetch_wheels(wheel, work / "wheels", options.python)
        tree = work / "tree"
        tree.mkdir()
        lay_out(tree, wheel, sorted(wheels.glob("*.whl")), options.python)
        options.output.mkdir(parents=True, exist_ok=True)
        print(pack(tree, options.output))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--output", type=Path, default=Path("dist"), metavar="DIR", help="default: dist"
    )
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="drfd, if it is not to be built")
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="wheels of what it depends on, if they are not to be fetched, "
        f"for Python {' and '.join(PYTHONS)}",
    )
    parser.add_argument(
        "--python",
        action="append",
        metavar="X.Y",
        help=f"a Python that it is for; can be repeated (default {' and '.join(PYTHONS)})",
    )
    options = parser.parse_args()
    options.python = sorted(options.python or PYTHONS, key=minor)
    return options


def minor(python: str) -> int:
    match = re.fullmatch(r"3\.(\d+)", python)
    if match is None:
        fail(f"--python {python}: it is named as 3.13")
    return int(match[1])


def fail(why: str) -> NoReturn:
    print(f"build.py: {why}", file=sys.stderr)
    sys.exit(1)


def epoch() -> str:
    """Return the time that the package says of its files: the same sources give the same one."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is not None:
        return given
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout.strip()
    return str(int(ROOT.joinpath("CHANGELOG.md").stat().st_mtime))


# -- wheels -------------------------------------------------------------------------------------


def build_wheel(into: Path) -> Path:
    pip("wheel", "--use-pep517", "--no-deps", "-w", into, ROOT)
    (wheel,) = into.glob("drfd-*.whl")
    return wheel


def fetch_wheels(wheel: Path, into: Path, pythons: Sequence[str]) -> Path:
    """Fetch the wheels of all that drfd depends on, that of its extras included."""
    ours = into / "ours"
    # Some come as source alone, and are built.
    pip("wheel", "--use-pep517", "-w", ours, f"{wheel.resolve()}[{EXTRAS}]")
    versions = into / "versions.txt"
    versions.write_text("".join(f"{name}=={version}\n" for name, version in names_in(ours)))
    for python in pythons:
        pip(
            *("download", "-d", into, "--find-links", ours, "--python-version", python),
            *("--only-binary=:all:", "--constraint", versions, f"{wheel.resolve()}[{EXTRAS}]"),
        )
    return into


def names_in(wheels: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(wheels.glob("*.whl")):
        name, version, *_ = path.name.split("-")
        if name != "drfd":
            yield name, version


def pip(command: str, *words: object) -> None:
    argv = [sys.executable, "-m", "pip", command, "-q", "--disable-pip-version-check"]
    done = subprocess.run([*argv, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["it does not say why"]
        fail(f"pip {command} failed: {said[-1]}")


def unpack(wheel: Path, into: Path) -> None:
    """Unpack a wheel. Wheels of one version for several Pythons become one directory."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            name = PurePosixPath(entry.filename)
            if entry.is_dir() or entry.filename in STRAY:
                continue
            if name.parts[0].endswith(".data") or name.is_absolute() or ".." in name.parts:
                fail(f"{wheel.name} has {name}, which is no file of a package")
            target = into / name
            data = archive.read(entry)
            if target.exists() and target.read_bytes() != data:
                if name.name not in MERGED or not name.parts[0].endswith(".dist-info"):
                    fail(f"{name} of {wheel.name} differs from that of another wheel")
                lines = target.read_text().splitlines()
                lines += [line for line in data.decode().splitlines() if line not in lines]
                data = "".join(f"{line}\n" for line in lines).encode()
            is_program = bool(entry.external_attr >> 16 & stat.S_IXUSR) and target.suffix != ".so"
            write(target, data, 0o755 if is_program else 0o644)


# -- the files ----------------------------------------------------------------------------------


def lay_out(tree: Path, wheel: Path, wheels: Iterable[Path], pythons: Sequence[str]) -> None:
    home = below(tree, package.ENVIRONMENT)
    packages = home / "packages"
    others = [each for each in wheels if not each.name.startswith("drfd-")]
    check_pythons([each.name for each in others], pythons)
    for each in (wheel, *others):
        unpack(each, packages)
    write(
        home / "pyvenv.cfg",
        b"home = /usr/bin\ninclude-system-site-packages = false\n",
    )
    link(home / "bin/python", "../../../bin/python3")
    for python in pythons:
        link(home / f"lib/python{python}/site-packages", "../../packages")
    for name, module in PROGRAMS.items():
        text = PROGRAM.format(python=package.PYTHON, module=module)
        write(home / "bin" / name, text.encode(), 0o755)
        link(tree / "usr/bin" / name, f"../lib/drfd/bin/{name}")
    add_service_files(tree)
    add_manual(tree, packages)
    add_documents(tree, packages)
    add_control(tree, packages, pythons)


def check_pythons(wheels: Iterable[str], pythons: Sequence[str]) -> None:
    """Fail unless each package that is compiled for a Python is there for each of these."""
    numbers = {f"cp{python.replace('.', '')}" for python in pythons}
    found: dict[str, set[str]] = {}
    for wheel in wheels:
        name, version, *_, python, abi, _ = wheel.removesuffix(".whl").split("-")
        if abi not in ("none", "abi3"):
            found.setdefault(f"{name} {version}", set()).add(python)
    for name, has in found.items():
        if has != numbers:
            wrong = ", ".join(sorted(has ^ numbers))
            fail(f"{name}: the wheels are not those for Python {' and '.join(pythons)} ({wrong})")


def add_service_files(tree: Path) -> None:
    shipped = {
        path.name: path.read_text() for path in (ROOT / "systemd").iterdir() if path.is_file()
    }
    fills = plan.unit_fills(package.PYTHON, grace_s=package.GRACE_S, has_cgroups=True)
    for unit in package.UNITS:
        text = plan.filled(shipped[unit], fills)
        write(below(tree, f"{package.UNIT_DIRECTORY}/{unit}"), text.encode())
    write(tree / "usr/lib/sysusers.d/drfd.conf", shipped["sysusers.conf"].encode())
    # The same as by `drfd install`, so that dpkg asks nothing after a move from there.
    write(below(tree, plan.CONFIG), shipped["drfd.toml"].encode())


def add_manual(tree: Path, packages: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="drfd-manual-") as place:
        command = [sys.executable, "-P", "-m", "drfd_cli", "man", place]
        env = {**os.environ, "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            fail(f"the man pages cannot be made: {done.stderr.strip()}")
        for path in sorted(Path(place).rglob("*")):
            if path.is_file():
                name = path.relative_to(place)
                folder = PLACES.get(str(name.parent), str(name.parent))
                target = tree / "usr" / folder / name.name
                if name.is_relative_to("share/man"):
                    compress(target, path.read_bytes())
                else:
                    write(target, path.read_bytes())


def add_documents(tree: Path, packages: Path) -> None:
    documents = tree / "usr/share/doc/drfd"
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(int(epoch())))
    changelog = (
        f"drfd ({version_of(packages)}) unstable; urgency=medium\n\n"
        "  * See CHANGELOG.md.gz for what has changed.\n\n"
        f" -- {maintainer()}  {date}\n"
    )
    compress(documents / "changelog", changelog.encode())
    compress(documents / "CHANGELOG.md", ROOT.joinpath("CHANGELOG.md").read_bytes())
    write(documents / "copyright", copyright_text(packages).encode())
    overrides = (HERE / "lintian-overrides").read_bytes()
    write(tree / "usr/share/lintian/overrides/drfd", overrides)


def copyright_text(packages: Path) -> str:
    """Return the licenses of drfd and of each package that comes along, as each states its own."""
    parts = []
    for info in sorted(packages.glob("*.dist-info"), key=lambda path: path.name.lower()):
        fields = HeaderParser().parsestr((info / "METADATA").read_text())
        texts = [
            license_text(path.read_text(errors="replace").strip())
            for path in sorted(info.rglob("*"))
            if re.match(r"LICEN[CS]E|COPYING|AUTHORS|NOTICE", path.name, re.IGNORECASE)
            and path.is_file()
        ]
        kinds = [kind for kind in (fields["License-Expression"], fields["License"]) if kind]
        classes = [each for each in fields.get_all("Classifier", []) if "License ::" in each]
        stated = (kinds or [each.rpartition("::")[2].strip() for each in classes] or [""])[0]
        # Some packages have the whole text there.
        stated = stated.strip().splitlines()[0] if stated else "no statement"
        author = fields["Author"] or fields["Author-email"] or fields["Maintainer-email"] or ""
        head = f"{fields['Name']} {fields['Version']}: {stated}"
        about = [f"Author: {author.splitlines()[0]}"] if author else []
        parts.append("\n\n".join([f"{head}\n{'=' * len(head)}", *about, *texts]))
    intro = "drfd, in /usr/lib/drfd/packages together with the Python packages that it uses."
    return (
        "\n\n\n".join([intro, *sorted(parts, key=lambda part: not part.startswith("drfd "))]) + "\n"
    )


def license_text(text: str) -> str:
    """Return a license, or where every Debian has it."""
    if "Apache License" in text and "TERMS AND CONDITIONS FOR USE" in text:
        return "The Apache License, Version 2.0, is in /usr/share/common-licenses/Apache-2.0."
    return text


# -- the package --------------------------------------------------------------------------------


def add_control(tree: Path, packages: Path, pythons: Sequence[str]) -> None:
    control = tree / "DEBIAN"
    for path in sorted((HERE / "scripts").iterdir()):
        write(control / path.name, path.read_bytes(), 0o755)
    # When Debian's Python has been replaced, the services are restarted with the new one.
    programs = ["/usr/bin/python3", *(f"/usr/bin/python{python}" for python in pythons)]
    triggers = "".join(f"interest-noawait {program}\n" for program in programs)
    write(control / "triggers", triggers.encode())
    files = [
        path
        for path in sorted(tree.rglob("*"))
        if not path.is_relative_to(control) and path.is_file() and not path.is_symlink()
    ]
    sums = [f"{md5(path)}  {path.relative_to(tree)}\n" for path in files]
    write(control / "md5sums", "".join(sums).encode())
    write(control / "conffiles", f"{plan.CONFIG}\n".encode())
    size_kib = sum(-(-path.stat().st_size // 1024) for path in files)
    fields = {
        "Package": "drfd",
        "Version": version_of(packages),
        "Architecture": architecture(),
        "Maintainer": maintainer(),
        "Installed-Size": str(size_kib),
        "Depends": ", ".join(dependencies(pythons)),
        "Section": "admin",
        "Priority": "optional",
    }
    text = "".join(f"{name}: {value}\n" for name, value in fields.items()) + DESCRIPTION
    write(control / "control", text.encode())


def dependencies(pythons: Sequence[str]) -> Iterator[str]:
    """Return what the package needs. Between two of its Pythons there may be one without it."""
    minors = [minor(python) for python in pythons]
    yield f"python3 (>= 3.{minors[0]}~)"
    for before, after in pairwise(minors):
        if after != before + 1:
            yield f"python3 (<< 3.{before + 1}~) | python3 (>= 3.{after}~)"
    yield f"python3 (<< 3.{minors[-1] + 1}~)"
    # The program that starts jobs may be compiled here.
    libc = os.confstr("CS_GNU_LIBC_VERSION") or "glibc 2.36"
    yield f"libc6 (>= {libc.removeprefix('glibc ')})"
    yield "systemd (>= 252)"
    yield "init-system-helpers (>= 1.54~)"
    yield "passwd"


def version_of(packages: Path) -> str:
    (info,) = packages.glob("drfd-*.dist-info")
    version = info.name.removeprefix("drfd-").removesuffix(".dist-info")
    # A version before the release sorts before it.
    return re.sub(r"(?<=\d)\.?(a|b|rc|dev)(?=\d)", r"~\1", version)


def architecture() -> str:
    done = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def maintainer() -> str:
    name, address = os.environ.get("DEBFULLNAME"), os.environ.get("DEBEMAIL")
    return f"{name} <{address}>" if name and address else MAINTAINER


def pack(tree: Path, output: Path) -> Path:
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"dpkg-deb failed: {done.stderr.strip()}")
    fields = HeaderParser().parsestr((tree / "DEBIAN/control").read_text())
    return output / f"drfd_{fields['Version']}_{fields['Architecture']}.deb"


def below(tree: Path, path: str) -> Path:
    return Path(f"{tree}{path}")


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def compress(path: Path, data: bytes) -> None:
    write(path.with_name(f"{path.name}.gz"), gzip.compress(data, 9, mtime=0))


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    main()

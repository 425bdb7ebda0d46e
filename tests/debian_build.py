"""Copies of the project's sources, of this or a later version, and Debian's package of them."""

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Where the project says which version it is.
_VERSIONS = {
    "pyproject.toml": r'(?m)^(version = "[0-9.]+)(")$',
    "drfd/__init__.py": r'(?m)^(__version__ = "[0-9.]+)(")$',
    "debian/changelog": r"\A(drfd \([0-9.]+)(\))",
}


def copy_source(to: Path, suffix: str = "") -> None:
    """Copy what the project is built from; the suffix is added to its version."""
    to.mkdir(parents=True)
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, to)
    for name in ("drfd", "cli", "docs", "packaging", "systemd", "debian"):
        # Python puts files there and renames them, also for what runs beside this.
        compiled = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, to / name, ignore=compiled)
    for name, pattern in _VERSIONS.items():
        text, count = re.subn(pattern, rf"\g<1>{suffix}\g<2>", (to / name).read_text())
        assert count == 1
        (to / name).write_text(text)


def build_package(place: Path, suffix: str = "") -> Path:
    """Build the package as an administrator does, with a mask that no file of it may keep."""
    source = place / "source"
    copy_source(source, suffix)
    done = subprocess.run(
        ["dpkg-buildpackage", "-b", "-us", "-uc"],
        cwd=source,
        umask=0o077, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    (deb,) = place.glob("drfd_*.deb")
    return deb

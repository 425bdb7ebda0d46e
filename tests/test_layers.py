"""Imports point strictly down; each third-party package has one room."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted([*ROOT.joinpath("drfd").rglob("*.py"), *ROOT.joinpath("cli").rglob("*.py")])

#: Room → rooms it may import, besides itself and the ground floor.
ALLOWED = {
    "core": set(),
    "wire": {"core"},
    "journal": {"core"},
    "host": {"core"},
    "launcher": {"core"},
    "sim": {"core"},
    "install": set(),
    "client": {"wire"},
    "daemon": {"core", "wire", "journal", "host", "launcher", "install"},
    "cli": {"client", "core", "wire", "sim"},
}
#: Modules directly below drfd/: anyone may use them, and they use only each other.
GROUND = {"errors", "units", "indices", "failpoints", "paths", "peer", "service", "journald"}
GROUND |= {"environment", "toml_table"}

#: Third-party package → rooms that may import it.
PACKAGES = {
    "psutil": {"host"},
    "cgroupspy": {"launcher"},
    "sqlite3": {"journal"},
    "msgspec": {"wire", "journal", "daemon"},
    "click": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"cli"},
}
#: What pure code must not touch.
IMPURE = {"os", "time", "random", "socket", "subprocess", "datetime", "pathlib", "asyncio", "io"}


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "cli":
        return "cli"
    return parts[1] if len(parts) > 2 else "ground"


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    here = room(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "drfd_cli":
            assert here == "cli", f"{path} imports {name}"
        if parts[0] == "drfd" and len(parts) > 1 and parts[1] != "__version__":
            there = parts[1]
            if there in GROUND:
                continue
            assert here != "ground", f"{path} imports {name}"
            assert there == here or there in ALLOWED[here], f"{path} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_third_party_packages_stay_in_their_rooms(path: Path) -> None:
    for name in imports(path):
        top = name.split(".")[0]
        assert room(path) in PACKAGES.get(top, {room(path)}), f"{path} imports {name}"
        assert room(path) != "core" or top not in IMPURE, f"{path} imports {name}"


def test_the_daemon_sees_only_the_launchers_protocol() -> None:
    for path in MODULES:
        if room(path) == "daemon":
            for name in imports(path):
                if name.startswith("drfd.launcher"):
                    assert name.startswith("drfd.launcher.protocol"), f"{path} imports {name}"


def test_no_module_is_longer_than_a_screenful_of_screens() -> None:
    """300 lines are the ceiling; a longer module wants to be two."""
    long = {
        str(path.relative_to(ROOT)): count
        for path in MODULES
        if (count := len(path.read_text().splitlines())) > 300
    }
    assert not long


def test_the_command_line_starts_light() -> None:
    """Nothing heavy is imported to queue a job; rich only where a table is drawn."""
    heavy = {"rich", "psutil", "msgspec", "asyncio", "sqlite3", "drfd.core", "drfd.daemon"}
    heavy |= {"drfd.sim", "matplotlib"}
    program = (
        "import sys, drfd_cli.main, drfd_cli.commands.submit, drfd_cli.commands.status;"
        "import drfd_cli.commands.simulate;"
        f"print(*sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")

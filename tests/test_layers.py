"""Imports point strictly down; each third-party package has one room."""

import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(path for base in ("drfd", "cli") for path in (ROOT / base).rglob("*.py"))

#: Room → rooms it may import, besides itself and the ground floor.
ALLOWED = {
    "core": set(),
    "protocol": {"core"},
    "journal": {"core", "protocol"},
    "host": {"core"},
    "launcher": {"slurm"},
    "sim": {"core"},
    "install": set(),
    "slurm": set(),
    "client": {"protocol"},
    "futures": {"client", "protocol"},
    "daemon": {
        *("client", "core", "protocol", "journal", "host", "launcher", "install", "slurm"),
    },
    "cli": {"client", "core", "protocol", "sim", "slurm"},
    "experiments": {"client", "core", "protocol", "sim", "slurm", "cli"},
}
#: Rooms that anyone may use; they use only each other.
GROUND = {"common", "linux", "payload", "devices"}

#: Below a room with rooms of its own: the package or module → which others of them it may import.
INSIDE: dict[str, dict[str, set[str]]] = {
    "drfd.core": {
        "model": set(),
        "usage": set(),
        "ledger": {"model"},
        "fairness": {"model"},
        "scheduling": {"model", "ledger", "fairness"},
        "decisions": {"model", "ledger", "fairness", "scheduling"},
        "explain": {"model", "ledger", "fairness", "scheduling", "decisions"},
    },
    "drfd_cli": {
        "output": set(),
        "habits": set(),
        "submit_warnings": set(),
        "personal": set(),
        "tables": {"output"},
        "charts": {"output"},
        "trace_view": {"output", "charts", "tables"},
        "slurm": {"output", "submit_warnings", "tables"},
        "terminal": {"output"},
        "which_job": {"output"},
        "submission": {
            *("personal", "submit_warnings", "output", "habits", "which_job", "slurm", "terminal"),
            # What few submissions need is in the module of the verb.
            "commands.submit",
        },
        "options": {"output", "habits", "which_job", "personal", "submission"},
        "demo_workload": set(),
        "start": {"submission", "slurm", "main.main", "main.leave"},
        "main": {"options", "output", "habits", "commands.completion", "submission", "start"},
        # Lines that a verb prints about a job, a node or an output, and the live view shows.
        "top": {
            *("terminal", "output", "tables", "charts", "commands.log"),
            *("commands.job_actions", "commands.retry", "commands.shares", "commands.show"),
        },
        "web": {"output", "tables", "top", "commands.log"},
        "commands": {
            "web",
            *("output", "tables", "charts", "options", "which_job", "terminal", "top"),
            *("habits", "trace_view", "slurm", "submit_warnings", "personal"),
            "submission",
        },
        "__main__": {"start"},
    },
}
#: Others with rooms of their own, folders and modules: no two of these import each other.
ORDERED = (
    *("drfd.core.scheduling", "drfd.daemon", "drfd.launcher", "drfd.launcher.slurm_root"),
    *("drfd.launcher.slurm", "drfd.journal", "drfd.sim", "drfd_experiments"),
)
#: A folder with more modules than this wants rooms. The verbs are a list by nature.
MOST_MODULES, LISTS = 12, {"cli/drfd_cli/commands"}

#: Third-party package → rooms that may import it.
PACKAGES = {
    "psutil": {"host"},
    "cgroupspy": {"launcher"},
    "hatchling": {"launcher"},
    "pynvml": {"launcher"},
    "sqlite3": {"journal"},
    "msgspec": {"core", "protocol", "journal", "daemon", "launcher", "experiments"},
    "prometheus_client": {"daemon"},
    "cloudpickle": {"futures"},
    "click": {"cli", "experiments"},
    "rich": {"cli", "experiments"},
    "starlette": {"cli"},
    "uvicorn": {"cli"},
}
#: Rooms of pure code, and what it must not touch.
PURE = {"core"}
IMPURE = {"os", "time", "random", "socket", "subprocess", "datetime", "pathlib", "asyncio", "io"}
CLOCKS = {"drfd.common.units.clock_time", "drfd.common.units.short_clock"}


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "cli":
        return parts[1].removeprefix("drfd_")
    return parts[1] if len(parts) > 2 else "ground"


#: An import, also one of a program in a text. ast would take seconds for all modules.
IMPORT = re.compile(r"^ *(?:from ([\w.]+) )?import (\([^)]*\)|[^\n(]+)$", re.MULTILINE)


@cache
def imports(path: Path) -> list[str]:
    return [
        f"{module}.{name}" if module else name
        for module, names in IMPORT.findall(re.sub("#.*", "", path.read_text()))
        for name in re.findall(r"([\w.]+)(?: as \w+)?", names)
    ]


@cache
def module_of(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[1:] if parts[0] == "cli" else parts).removesuffix(".__init__")


def may_import(path: Path, name: str) -> bool:
    """Whether the module's room may use the room of what it imports."""
    here, parts = room(path), name.split(".")
    if parts[0] in ("drfd_cli", "drfd_experiments"):
        return here in ("experiments", parts[0].removeprefix("drfd_"))
    if parts[0] != "drfd" or len(parts) == 1 or parts[1] in {"__version__", *GROUND}:
        return True
    return here not in GROUND and (parts[1] == here or parts[1] in ALLOWED[here])


def may_import_inside(path: Path, name: str) -> bool:
    """The same of the rooms within its room."""
    for above, allowed in INSIDE.items():
        if module_of(path).startswith(f"{above}.") and name.startswith(f"{above}."):
            here = module_of(path).removeprefix(f"{above}.").split(".")[0]
            there = name.removeprefix(f"{above}.").split(".")
            if not {there[0], ".".join(there[:2])} & {here, *allowed[here]}:
                return False
    return True


def is_at_home(path: Path, name: str) -> bool:
    """Whether third-party packages stay in their rooms, and pure code stays pure."""
    here, top = room(path), name.split(".")[0]
    if here in PURE and (top in IMPURE or name in CLOCKS):
        return False
    return here in PACKAGES.get(top, {here})


def is_the_launchers_interface(path: Path, name: str) -> bool:
    """All that the daemon may see of the launcher."""
    is_launchers = name.startswith("drfd.launcher") and room(path) == "daemon"
    seen = ("protocol", "settings", "gpu_meter.reading", "runner.shortage")
    return not is_launchers or name.startswith(tuple(f"drfd.launcher.{each}" for each in seen))


@pytest.mark.parametrize(
    "rule", [may_import, may_import_inside, is_at_home, is_the_launchers_interface]
)
def test_every_import_keeps_the_rules(rule):
    offenders = [
        f"{module_of(path)} imports {name}"
        for path in MODULES
        for name in imports(path)
        if not rule(path, name)
    ]
    assert offenders == []


@pytest.mark.parametrize("above", INSIDE)
def test_what_is_said_of_the_inside_of_a_room_is_true(above):
    """No name is listed that is not there, and no two may import each other: listed in an order in
    which each has only names before it, but for what is named to the module."""
    there = {
        module_of(path).removeprefix(f"{above}.").split(".")[0]
        for path in MODULES
        if module_of(path).startswith(f"{above}.")
    }
    assert set(INSIDE[above]) == there
    before: set[str] = set()
    for name, allowed in INSIDE[above].items():
        assert {each for each in allowed if "." not in each} <= before, name
        before.add(name)


@pytest.mark.parametrize("above", ORDERED)
def test_the_rooms_of_a_room_have_an_order_in_which_each_imports_from_those_before(above):
    imported: dict[str, set[str]] = {}
    for path in MODULES:
        if module_of(path).startswith(f"{above}."):
            names = [module_of(path), *imports(path)]
            parts = [name.split(".") for name in names if name.startswith(f"{above}.")]
            here, *theirs = [each[above.count(".") + 1] for each in parts]
            imported.setdefault(here, set()).update({*theirs} - {here})
    # It raises CycleError with those of which none is first.
    assert len([*TopologicalSorter(imported).static_order()]) > 2


def test_no_folder_has_more_than_a_dozen_modules():
    counts = Counter(
        str(path.parent.relative_to(ROOT)) for path in MODULES if path.name != "__init__.py"
    )
    crowded = {folder for folder, count in counts.items() if count > MOST_MODULES}
    assert crowded == LISTS


#: The constants that a line of a module gives values, at its left margin.
CONSTANTS = re.compile(r"^((?:_?[A-Z][A-Z0-9_]*(?:, )?)+)(?:: .+?)? = ", re.MULTILINE)


def test_no_module_gives_a_constant_two_values():
    """Merged modules did: the tables of one took the widths of the other."""
    for path in MODULES:
        names = Counter(", ".join(CONSTANTS.findall(path.read_text())).split(", "))
        twice = [name for name, count in names.items() if name and count > 1]
        assert not twice, f"{path} gives {', '.join(twice)} two values"


def test_ctypes_is_used_in_one_module_alone():
    """A wrong signature or an unchecked result there is found by reading one file."""
    users = [path for path in MODULES if "ctypes" in {one.split(".")[0] for one in imports(path)}]
    assert users == [ROOT / "drfd" / "linux" / "syscalls.py"]


def test_the_command_line_starts_light():
    """Nothing heavy is imported to queue a job; rich only where a table is drawn."""
    heavy = {"rich", "psutil", "msgspec", "asyncio", "sqlite3", "drfd.core", "drfd.daemon"}
    heavy |= {"drfd.sim", "starlette", "uvicorn"}
    program = (
        "import sys, drfd_cli.main, drfd_cli.commands.submit, drfd_cli.commands.status;"
        "import drfd_cli.commands.simulate, drfd_cli.commands.web;"
        f"print(*sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


@pytest.mark.parametrize("unit", ["drfd-launcher", "drfd-slurm-launcher", "drfd-slurm-root"])
def test_a_launcher_loads_nothing_of_the_controllers(unit):
    """Root runs all of it: the standard library, what reads orders and cgroups, and what is written
    for it."""
    text = (ROOT / "systemd" / f"{unit}.service").read_text()
    [line] = re.findall("^ExecStart=@PYTHON@ -I -m (.*)$", text, re.MULTILINE)
    program = (
        "import sys, runpy; before = set(sys.modules); sys.argv += ['--help']\n"
        "try: runpy.run_module(sys.argv[1], run_name='__main__')\n"
        "except SystemExit: print('', *(set(sys.modules) - before))"
    )
    command = [sys.executable, "-I", "-c", program, *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    is_slurms = "slurm" in unit
    servers = {"drfd.launcher.server", "drfd.launcher.slurm.server"}.intersection(loaded)
    assert servers <= {f"{line.split()[0]}.server"}, "not that of another"
    own = {name.split(".")[1] for name in loaded if name.startswith("drfd.")}
    assert own <= {"launcher", *GROUND, *(["slurm"] * is_slurms)}
    foreign = {name.split(".")[0] for name in loaded} - sys.stdlib_module_names
    orders = {"msgspec", "typing_extensions"}
    assert foreign - orders == {"drfd", *(["cgroupspy"] * (not is_slurms))}

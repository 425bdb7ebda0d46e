"""Mutation test: `python -m tests.mutants [PACKAGE ...] [--count 300] [--json FILE]`.

For each package a seeded list of mutants: copies of the source with one small change inside a
function, such as `<` for `<=`. A mutant is killed if a quick test fails with it. A mutant that
survives is equivalent to the source, or shows a behaviour that no quick test checks.

The quick tests run once to record which test executes which line. Then each mutant is tried in a
fork of this process: the code objects of the changed function are replaced in memory, and the tests
that execute the changed line run, the fastest first, until one fails or takes too long. Code that
runs only while a module is imported, or only in another program, is not mutated.

Before and after a change of tests alone the list is the same: `--json before.json` stores the
results, and `--against before.json` fails if a mutant that was killed survives.
"""

import argparse
import ast
import ctypes
import gc
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

import coverage
import psutil
import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).resolve().parent.parent

#: Package → its sources, and the folders of the tests that may kill its mutants.
PACKAGES = {
    "core": ("drfd/core", "core daemon"),
    "sim": ("drfd/sim cli/drfd_experiments", "sim experiments cli"),
    "journal": ("drfd/journal", "journal daemon"),
    "daemon": ("drfd/daemon", "daemon"),
    "client": ("drfd/client drfd/common drfd/protocol", "client common protocol cli daemon"),
    "launcher": ("drfd/launcher drfd/linux drfd/payload", "launcher linux payload"),
    "machine": ("drfd/devices drfd/host drfd/install drfd/slurm", "devices host install slurm"),
    "cli": ("cli/drfd_cli", "cli"),
}  # fmt: skip

#: By prctl(2), what a child leaves behind becomes a child of this process.
PR_SET_CHILD_SUBREAPER = 36
#: A test that takes this much longer than without a mutant has found it, in seconds.
PATIENCE_S = 10.0

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


class Mutant(NamedTuple):
    """A change of the source: `at` counts the places of the file that can be changed."""

    path: str
    at: int
    line: int
    change: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change} (#{self.at})"


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what the node can become."""
    match node:
        case ast.Compare(left, [op], right) if type(op) in _COMPARED:
            yield ast.Compare(left, [_COMPARED[type(op)]()], right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.BinOp(left, op, right) if type(op) in _COMPUTED:
            yield ast.BinOp(left, _COMPUTED[type(op)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield ast.Constant(value + 1)
        case ast.If(test, body, orelse):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
            yield ast.If(ast.Constant(True), body, orelse)
        case ast.Return(value) if value is not None and not _is_none(value):
            # What goes stays in dead code: a function whose closure differs cannot be replaced.
            yield ast.Return(ast.IfExp(ast.Constant(True), ast.Constant(None), value))
        case ast.Expr(ast.Call()):
            yield ast.If(ast.Constant(False), [node], [])


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


class _Changer(ast.NodeTransformer):
    """Counts the places inside functions that can be changed, and changes one of them."""

    def __init__(self, path: str, chosen: int = -1) -> None:
        self.path, self.chosen = path, chosen
        self.found: list[Mutant] = []
        self._in_function = False

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # Neither decorators nor annotations nor defaults: they run with the module.
            before, self._in_function = self._in_function, True
            node.body = [self.visit(statement) for statement in node.body]  # type: ignore[misc]
            self._in_function = before
            return node
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                node.value = self.visit(node.value)  # type: ignore[assignment]
            return node
        if self._in_function:
            for new in _changed(node):
                at = len(self.found)
                change = f"{_head(node)} becomes {_head(new)}"
                # `if (` and its condition on the lines below: only these are executed.
                line = getattr(getattr(node, "test", node), "lineno", 0)
                self.found.append(Mutant(self.path, at, line, change))
                if at == self.chosen:
                    self.generic_visit(node)
                    return ast.fix_missing_locations(ast.copy_location(new, node))
        return self.generic_visit(node)


def _head(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node)).split("\n")[0][:70]


def mutants_of(sources: list[str], count: int, seed: int) -> list[Mutant]:
    """Return the same `count` mutants of the source files for the same source and seed."""
    found: list[Mutant] = []
    for source in sources:
        for path in sorted((ROOT / source).rglob("*.py")):
            changer = _Changer(str(path.relative_to(ROOT)))
            changer.visit(ast.parse(path.read_text()))
            found += changer.found
    chosen = random.Random(seed).sample(found, min(count, len(found)))
    return sorted(chosen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def put_in_force(mutant: Mutant, functions: list[FunctionType]) -> bool:
    """Replace the code of those functions that the mutant changes; False if there are none."""
    path = str(ROOT / mutant.path)
    tree = _Changer(mutant.path, mutant.at).visit(ast.parse(Path(path).read_text()))
    assert isinstance(tree, ast.Module)
    new = {
        (code.co_qualname, code.co_firstlineno): code
        for code in _codes(compile(tree, path, "exec", dont_inherit=True))
    }
    done = False
    for function in functions:
        old = function.__code__
        code = new.get((old.co_qualname, old.co_firstlineno), old)
        if code != old and code.co_freevars == old.co_freevars:
            function.__code__ = code
            done = True
    return done


def _functions() -> dict[str, list[FunctionType]]:
    """Return the functions that are loaded, by the path of their source."""
    found: dict[str, list[FunctionType]] = defaultdict(list)
    gc.unfreeze()  # what a test has frozen is not told
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType):
            found[thing.__code__.co_filename].append(thing)
    return found


#: Mutants with the numbers of the tests that may kill them, the fastest first.
Chosen = list[tuple[Mutant, list[int]]]


class Mutation:
    """The plugin that runs the tests once, and then for each mutant those that can kill it."""

    def __init__(self, sources: list[str], mutants: list[Mutant], jobs: int, limit_s: float):
        self._sources, self._mutants = [str(ROOT / source) for source in sources], mutants
        self._jobs, self._limit_s = jobs, limit_s
        #: Mutant → the test that kills it, or None.
        self.killers: dict[str, str | None] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        # Loaded after pytest's own start. As many examples as the quick tests; no shrinking.
        from hypothesis import Phase, settings

        quick = settings.get_profile("quick")
        settings.register_profile("mutants", quick, phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        measured = coverage.Coverage(data_file=None, config_file=False, source=self._sources)
        took_s: dict[int, float] = {}
        measured.start()
        items = session.items
        for at, item in enumerate(items):
            measured.switch_context(str(at))
            began_s = time.monotonic()
            reports = runtestprotocol(item, items[at + 1] if at + 1 < len(items) else None, False)
            if any(report.failed for report in reports):
                print(f"\nfails without any mutant, and is left out: {item.nodeid}")
            elif all(report.passed for report in reports):
                took_s[at] = time.monotonic() - began_s
        measured.stop()
        data = measured.get_data()
        by_line: dict[str, dict[int, list[str]]] = {}
        chosen: Chosen = []
        for mutant in self._mutants:
            if mutant.path not in by_line:
                by_line[mutant.path] = data.contexts_by_lineno(str(ROOT / mutant.path))
            contexts = by_line[mutant.path].get(mutant.line, [])
            tests = sorted((int(at) for at in contexts if at), key=lambda at: took_s.get(at, 0.0))
            chosen.append((mutant, [at for at in tests if at in took_s]))
        self._try_all(chosen, items, took_s)
        return True

    def _try_all(self, chosen: Chosen, items: list[pytest.Item], took_s: dict[int, float]) -> None:
        """Divide the mutants among some processes, which write a line of JSON about each."""
        self._functions = _functions()
        gc.freeze()  # forks would copy what the collector touches
        readers = []
        for job in range(self._jobs):
            reader, writer = os.pipe()
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
                for mutant, tests in chosen[job :: self._jobs]:
                    killer = self._killer(mutant, tests, items, took_s, writer)
                    os.write(writer, (json.dumps([str(mutant), killer]) + "\n").encode())
                os._exit(0)
            os.close(writer)
            readers.append(reader)
        for reader in readers:
            with os.fdopen(reader) as lines:
                self.killers |= dict(map(json.loads, lines))
            os.wait()

    def _killer(
        self,
        mutant: Mutant,
        tests: list[int],
        items: list[pytest.Item],
        took_s: dict[int, float],
        results: int,
    ) -> str | None:
        """Return the test that fails with the mutant, or None; the tests run in a fork."""
        reader, writer = os.pipe()
        place = Path(tempfile.mkdtemp(prefix="drfd-mutant-"))
        child = os.fork()
        if child == 0:
            # A mutant must not start a daemon in the user's own directories.
            for name in ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
                os.environ[name] = str(place)
            items[0].config._tmp_path_factory._basetemp = place  # type: ignore[attr-defined]
            os.close(reader)
            os.close(results)  # a process that a test leaves behind must not keep it open
            if put_in_force(mutant, self._functions[str(ROOT / mutant.path)]):
                for at in tests:
                    os.write(writer, f"{at}\n".encode())
                    if any(report.failed for report in runtestprotocol(items[at], None, False)):
                        os._exit(1)
            os._exit(0)
        os.close(writer)
        at, deadline_s = -1, time.monotonic() + self._limit_s
        while True:
            # All tests together may take `limit_s`; a single one not much longer than before.
            within_s = PATIENCE_S + 10 * took_s.get(at, 0.0)
            ready, _, _ = select.select([reader], [], [], within_s)
            told = os.read(reader, 65536) if ready else b""
            if told:
                at = int(told.split()[-1])
            if not told or time.monotonic() > deadline_s:
                break
        os.close(reader)
        if not ready or told:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        for left in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                left.kill()
                left.wait()
        shutil.rmtree(place, ignore_errors=True)
        if told or status == 0:  # out of time with no test failed, or all passed
            return None
        return items[at].nodeid


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=" ".join(PACKAGES))
    parser.add_argument("--count", type=int, default=300, help="of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=60, help="seconds for all tests of a mutant")
    parser.add_argument("--json", type=Path, help="store the test that kills each mutant")
    parser.add_argument("--against", type=Path, help="results of --json, to be as good as")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.packages if name not in PACKAGES]:
        parser.error(f"no package {unknown[0]}; there are: {' '.join(PACKAGES)}")
    os.chdir(ROOT)
    killers: dict[str, dict[str, str | None]] = {}
    for name in chosen.packages or PACKAGES:
        sources, tests = (words.split() for words in PACKAGES[name])
        mutants = mutants_of(sources, chosen.count, chosen.seed)
        # Each package in a process of its own: the modules of tests of one are not loaded twice.
        killers[name] = _in_fork(sources, tests, mutants, chosen.jobs, chosen.limit)
        alive = [mutant for mutant, killer in killers[name].items() if killer is None]
        print(f"\n{name}: {len(mutants) - len(alive)} of {len(mutants)} mutants killed", flush=True)
        for mutant in alive:
            print(f"  survives: {mutant}")
    if chosen.json:
        chosen.json.write_text(json.dumps(killers, indent=1))
    lost: dict[str, list[str]] = defaultdict(list)
    if chosen.against:
        for name, before in json.loads(chosen.against.read_text()).items():
            for mutant, killer in before.items():
                if killer and name in killers and not killers[name].get(mutant, killer):
                    lost[name].append(f"{mutant}, killed before by {killer}")
        for name, lines in lost.items():
            print(f"{name}: {len(lines)} killed before and not any more:", *lines, sep="\n  ")
    return 1 if lost else 0


def _in_fork(
    sources: list[str], tests: list[str], mutants: list[Mutant], jobs: int, limit_s: float
) -> dict[str, str | None]:
    with tempfile.TemporaryDirectory(prefix="drfd-mutants-") as place:
        results = Path(place, "results")
        child = os.fork()
        if child == 0:
            plugin = Mutation(sources, mutants, jobs, limit_s)
            pytest.main(
                [*(f"tests/{name}" for name in tests), "-q", "-p", "no:cacheprovider",
                 f"--basetemp={place}/tmp", "-m", "not slow and not system and not vm"],
                plugins=[plugin],
            )  # fmt: skip
            sys.stdout.flush()
            results.write_text(json.dumps(plugin.killers))
            os._exit(0)
        os.waitpid(child, 0)
        found: dict[str, str | None] = json.loads(results.read_text())
        return {str(mutant): found.get(str(mutant)) for mutant in mutants}


if __name__ == "__main__":
    sys.exit(main())

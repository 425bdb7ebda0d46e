"""`python -m tests.compare REV [--histories N] [--seed S] [--only a|b|c]`, from the root.

Compares what the tree at REV does with what the present one does:

    a   random histories (`histories`): the starts in their order, replies, states and reason codes
        of all jobs before each step, how all have ended
    b   the JSON of the reading commands after a fixed history (`readings`), field by field
    c   the help of each command, and the text of the reading commands after that history

Each kind of difference is printed once, with the first example and the number of cases; the status
is 1 if one is not explained in `explained.toml`. Two runs print the same: all times are virtual,
and all chance comes from the number of a history.

Both trees are driven as clients, the command line and the launcher do it; nothing of them is
imported here. `driver.py`, which runs a daemon of either tree, is the only file that must follow
the present tree. REV is run by its own `tests/compare/driver.py`; if it is older than that, by
`baseline.py`, the driver as it was when it first had to change, and until then by `driver.py`.
"""

import argparse
import difflib
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby, zip_longest
from pathlib import Path
from signal import SIGTERM, signal
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
HERE = TESTS / "compare"
sys.path[:0] = [str(TESTS), str(HERE)]

import histories  # noqa: E402
import readings  # noqa: E402

#: After so many histories progress is told.
_TOLD = 200
#: What differs between two runs of one tree: fields of JSON; and texts, with what stands for them.
_NATURAL_FIELDS = re.compile(r"\.chain$|\.pressure\b")
_NATURAL = [
    (re.compile(r"\S*/drfd-compare-\w+/(old|new)\b"), "/DIR"),
    (re.compile(r"\bchain [0-9a-f]{16}"), "chain X"),
    (re.compile(r"^( (?:cores|memory|read|write) .*?)(?: +\d+%)? *$", re.M), r"\1"),
]
#: The clock of commands, which stands where the daemon's stands.
_CLOCK = """
import os
if "DRFD_COMPARE_NOW" in os.environ:
    import time
    time.time = lambda: float(os.environ["DRFD_COMPARE_NOW"])
"""
Texts = dict[str, list[str]]


class Tree:
    """A tree, with an environment of Python in which no other tree can be imported."""

    def __init__(self, root: Path, place: Path, driver: Path) -> None:
        self.place, self.driver = place, driver
        self.now_s = 0.0
        venv.create(place, symlinks=True)
        self.python = place / "bin/python"
        site = next(place.glob("lib/python*/site-packages"))
        # The files *.pth in these, which may name other trees, have no effect here.
        others = {*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        packages = [each for each in sorted(others) if each.endswith("-packages")]
        lines = [str(root), f"{root}/cli", *packages, "import drfd_compare_clock"]
        (site / "tree.pth").write_text("\n".join(lines) + "\n")
        (site / "drfd_compare_clock.py").write_text(_CLOCK)
        for name, module in (("drf", "drfd_cli.start"), ("drfd", "drfd.daemon.main")):
            (place / "bin" / name).write_text(
                f"#!{self.python}\nfrom {module} import main\nmain()\n"
            )
            (place / "bin" / name).chmod(0o755)
        for name in ("tmp", "drfd"):
            (place / name).mkdir()
        self.environment = {
            "PATH": f"{place}/bin:/usr/bin:/bin", "HOME": str(place), "TMPDIR": f"{place}/tmp",
            "TZ": "UTC", "LANG": "C.UTF-8", "TERM": "dumb", "COLUMNS": "120", "LINES": "50",
            "DRFD_SOCKET": f"{place}/drfd/world/drfd.sock",
        }  # fmt: skip

    @contextmanager
    def driven(self, *words: str, tell: str = "") -> Iterator[Iterator[Any]]:
        """While its driver runs: what it prints, after it has been told this."""
        errors = self.place / "errors"
        with errors.open("w") as written:
            process = subprocess.Popen(
                [self.python, self.driver, TESTS, *words], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=written, env=self.environment, pipesize=1 << 20,
            )  # fmt: skip

        def lines() -> Iterator[Any]:
            yield from map(json.loads, process.stdout)
            raise SystemExit(f"{self.driver} has ended:\n{errors.read_text()[-3000:]}")

        try:
            process.stdin.write(tell.encode())
            process.stdin.flush()
            yield lines()
        finally:
            process.kill()
            process.communicate()

    def run(self, words: str, caller: str = "root") -> tuple[str, str]:
        """What a command prints; what it says besides, and how it exits."""
        (self.place / "drfd/caller").write_text(caller)
        done = subprocess.run(
            words.split(), capture_output=True, text=True, stdin=subprocess.DEVNULL,
            env={**self.environment, "DRFD_COMPARE_NOW": str(self.now_s)}, cwd=self.place,
        )  # fmt: skip
        said = [done.stdout, f"{done.stderr}exit {done.returncode}"]
        for pattern, word in _NATURAL:
            said = [pattern.sub(word, each) for each in said]
        return said[0], said[1]

    def lines(self, words: str, caller: str = "root") -> list[str]:
        """What it prints, but for how wide columns are and the lines that are drawn."""
        lines = (" ".join(each.split()) for each in "".join(self.run(words, caller)).split("\n"))
        return [each for each in lines if each.strip("─ ")]


class Findings:
    """Differences by their kind."""

    def __init__(self) -> None:
        self._explained = tomllib.loads((HERE / "explained.toml").read_text())["explained"]
        #: First example and number of cases.
        self._kinds: dict[str, tuple[str, int]] = {}

    def why(self, kind: str) -> str | None:
        return next((e["why"] for e in self._explained if re.search(e["pattern"], kind)), None)

    def add(self, kind: str, example: str) -> None:
        first, count = self._kinds.get(kind, (example, 0))
        self._kinds[kind] = first, count + 1

    def print(self) -> int:
        """Return how many kinds are not explained."""
        for kind, (example, count) in self._kinds.items():
            print(f"{kind}\n    {count} times, first {example}")
            print(f"    explained: {self.why(kind)}\n" if self.why(kind) else "", end="")
        left = sum(self.why(kind) is None for kind in self._kinds)
        print(f"{len(self._kinds)} kinds of differences, {left} of them not explained")
        return left


def compare_histories(old: Tree, new: Tree, findings: Findings, first: int, count: int) -> None:
    tell = f"{first} {first + count}\n"
    with old.driven("histories", tell=tell) as olds, new.driven("histories", tell=tell) as news:
        for seed, was, now in zip(range(first, first + count), olds, news, strict=False):
            compare_traces(seed, was, now, findings)
            if (seed + 1 - first) % _TOLD == 0:
                print(f"{seed + 1 - first} histories", file=sys.stderr, flush=True)


def compare_traces(seed: int, was: list[Any], now: list[Any], findings: Findings) -> None:
    """Up to the first difference that is not explained: those behind it may be its effects. Who
    starts before whom in one turn is told by no clock."""
    was, now = in_turns(was), in_turns(now)
    about = "history" if without_reasons(was) != without_reasons(now) else "reasons in history"
    named = f"a {about} {seed}"
    if "reservation = true" in histories.configuration(seed):
        named += " with reservations"
    for at, pair in enumerate(zip_longest(was, now, fillvalue=["nothing", ""])):
        if pair[0] != pair[1]:
            before, after = (re.sub(r"\d+([., ]+\d+)*", "N", ": ".join(each)) for each in pair)
            kind = f"a {before} → {after}" if findings.why(named) is None else named
            findings.add(kind, f"in {named[2:]} after {was[max(0, at - 2) : at]}: {pair}")
            if kind == named or findings.why(kind) is None or pair[0][0] != pair[1][0]:
                return


def in_turns(trace: list[Any]) -> list[Any]:
    """What is recorded, with starts that nothing comes between in the order of their ids."""
    runs = groupby(trace, lambda record: record[0] == "start")
    return [each for is_start, run in runs for each in (sorted(run) if is_start else run)]


def without_reasons(trace: list[Any]) -> list[Any]:
    """What is recorded, and of waiting jobs their states alone."""
    kept: list[Any] = []
    states: dict[str, str] = {}
    for name, text in trace:
        state = re.sub(r"^PENDING \w+", "PENDING", text)
        if not name.startswith("job ") or states.get(name) != state:
            kept.append([name, state])
            states[name] = state
    return kept


def compare_readings(old: Tree, new: Tree, findings: Findings, parts: str) -> None:
    def read(tree: Tree) -> tuple[dict[str, Any], Texts]:
        with tree.driven("serve", str(tree.place / "drfd/world")) as said:
            tree.now_s, _ = next(said)
            return (
                read_json(tree) if "b" in parts else {},
                read_helps(tree) | read_texts(tree) if "c" in parts else {},
            )

    with ThreadPoolExecutor() as pool:
        (jsons, texts), (new_jsons, new_texts) = pool.map(read, (old, new))
    for name, was in jsons.items():
        for path, example in differences(was, new_jsons[name]):
            findings.add(f"b {re.sub(' [0-9]+', ' N', name)} {path}", f"in {name}: {example}")
    for name in texts | new_texts:
        page = re.sub(" [0-9]+", " N", name)
        for line in difflib.ndiff(texts.get(name, []), new_texts.get(name, [])):
            if line[0] in "+-":
                findings.add(f"c {page}: {line}", f"in {name}")


def read_json(tree: Tree) -> dict[str, Any]:
    found = {}
    for caller, words in readings.JSON:
        text, more = tree.run(f"drf {words} --json", caller)
        found[f"{words} of {caller}"] = {"json": json.loads(text or "null"), "more": more}
    return found


def read_texts(tree: Tree) -> Texts:
    both = (*readings.JSON, *readings.TEXT)
    return {f"{words} of {caller}": tree.lines(f"drf {words}", caller) for caller, words in both}


def read_helps(tree: Tree) -> Texts:
    """The help of the two programs and of each command that it names."""
    found = {}
    for program in ("drf", "drfd"):
        found[program] = tree.lines(f"{program} --help")
        verbs = re.findall(r"^ {2,4}([a-z][\w-]*) {2,}\S", tree.run(f"{program} --help")[0], re.M)
        for verb in sorted(verbs) + (readings.SLURM if program == "drf" else []):
            found[f"{program} {verb} --help"] = tree.lines(f"{program} {verb} --help")
    return found


def differences(was: Any, now: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The fields that differ, places in lists left out, and how."""
    if isinstance(was, dict) and isinstance(now, dict):
        for name in was | now:
            if name in was and name in now:
                yield from differences(was[name], now[name], f"{path}.{name}")
            else:
                what = "has gone" if name in was else "is new"
                yield f"{path}.{name} {what}", repr((was | now)[name])
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for each, other in zip(was, now, strict=True):
            yield from differences(each, other, f"{path}[]")
    elif was != now and not _NATURAL_FIELDS.search(path):
        yield path, f"{was!r} → {now!r}"


@contextmanager
def trees(rev: str) -> Iterator[tuple[Tree, Tree]]:
    """The tree at REV, in a worktree that does not stay, and the present one."""
    with tempfile.TemporaryDirectory(prefix="drfd-compare-") as directory:
        place, git = Path(directory), ["git", "-C", str(TESTS), "worktree"]
        root = place / "rev"
        subprocess.run([*git, "add", "--quiet", "--detach", root, rev], check=True)
        try:
            drivers = [root / "tests/compare/driver.py", HERE / "baseline.py", HERE / "driver.py"]
            driver = next(each for each in drivers if each.exists())
            yield (
                Tree(root, place / "old", driver),
                Tree(TESTS.parent, place / "new", HERE / "driver.py"),
            )
        finally:
            subprocess.run([*git, "remove", "--force", root], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.compare", None, __doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rev", metavar="REV")
    parser.add_argument("--histories", type=int, default=2000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the first history")
    parser.add_argument("--only", choices="abc", default="abc")
    chosen = parser.parse_args()
    signal(SIGTERM, lambda number, _: sys.exit(128 + number))
    findings = Findings()
    with trees(chosen.rev) as (old, new):
        if chosen.only != "a":
            compare_readings(old, new, findings, chosen.only)
        if "a" in chosen.only:
            compare_histories(old, new, findings, chosen.seed, chosen.histories)
    return min(1, findings.print())


if __name__ == "__main__":
    sys.exit(main())

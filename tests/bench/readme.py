"""The README's figures: `python -m tests.bench.readme`, as root, from the repository's root.

It measures them, prints them, and writes them into README.md with the commit that was measured: the
last one that changed drfd or its command line. tests/test_docs.py says when they are too old.
"""

import os
import platform
import subprocess
from pathlib import Path

from tests.bench.place import Chosen, Figure, options_of
from tests.bench.speed import BENCHMARKS

README = Path(__file__).parents[2] / "README.md"
#: What is measured.
SOURCE = ("drfd", "cli")
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"


def git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=README.parent, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def main() -> None:
    parser = options_of("tests.bench.readme", __doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each (5)")
    chosen = Chosen(parser.parse_args().runs, jobs=2000)
    if git("status", "--porcelain", "--", *SOURCE):
        raise SystemExit(f"commit what has changed in {' and '.join(SOURCE)} first")
    commit = git("log", "-1", "--format=%h", "--abbrev=12", "--", *SOURCE)
    found, kind, load = dict[str, list[Figure]](), "", os.getloadavg()[0]
    for name in ("cold", "slots", "client", "run"):
        benchmark = BENCHMARKS[name]
        place = benchmark.make()
        try:
            place.start()
            kind = place.instance._ask("doctor")["enforcement"]
            found[name] = [*benchmark.measure(place, chosen)]
        finally:
            place.destroy()
    text = section(found, commit, kind, load)
    print(text)
    before, _, rest = README.read_text().partition(BEGIN)
    README.write_text(f"{before}{BEGIN}{text}{END}{rest.partition(END)[2]}")


def section(found: dict[str, list[Figure]], commit: str, kind: str, load: float) -> str:
    """What stands between the two marks. `load` is the one before the measurement."""
    (start,) = (each for each in found["cold"] if each.what.startswith("start 1 s after"))
    single, together = found["client"]
    slots, run = found["slots"][0], found["run"][0]
    late = start.what.partition("95 %: ")[2].rstrip(")")
    rows = {
        "from a submission to the job's first instruction, after a second without any": (
            f"{start.value:.1f} ms (95 %: {late})"
        ),
        "jobs that do nothing, with two slots": f"{slots.value:,.0f} a second",
        "submissions from Python, one by one and together": (
            f"{single.value:,.0f} and {together.value:,.0f} a second"
        ),
        "`drf run -- true`": f"{run.value:.0f} ms; Python alone takes {run.baseline:.0f}",
    }
    where = f"{len(os.sched_getaffinity(0))} processors, {kind}, Python {platform.python_version()}"
    if load >= 1:
        where += f", beside a load of {load:.0f}"
    lines = [
        f"Measured by `python -m tests.bench.readme` at commit {commit} ({where}; "
        "[all figures](tests/bench/RESULTS.md)):",
        *("", "| | |", "|---|---|"),
        *(f"| {what} | {value} |" for what, value in rows.items()),
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()

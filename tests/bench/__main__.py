"""How fast drfd is here: `python -m tests.bench [--only NAME]`, from the repository's root.

Each line is the median of several runs, with its multiple of a baseline taken in the same run:
B is a loop in C that does for each job what only the kernel can do (baseline.c); as root with the
same cgroups as the jobs. A C compiler is needed. Figures of runs are in RESULTS.md, with what each
benchmark measures.
"""

from tests.bench.place import Chosen, Figure, options_of
from tests.bench.speed import BENCHMARKS


def main() -> None:
    parser = options_of("tests.bench", __doc__)
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="may be repeated")
    parser.add_argument("--runs", type=int, default=5, help="of each (5)")
    parser.add_argument("--jobs", type=int, default=2000, help="in a run of many (2,000)")
    chosen = parser.parse_args()
    print(f"{'':<46}{'median':>12}  {'of baseline':<26}aim", flush=True)
    for name in chosen.only or BENCHMARKS:
        benchmark = BENCHMARKS[name]
        place = benchmark.make()
        try:
            place.start()
            for figure in benchmark.measure(place, Chosen(chosen.runs, chosen.jobs)):
                print(line(figure), flush=True)
        finally:
            place.destroy()


def line(figure: Figure) -> str:
    value = f"{figure.value:,.1f} {figure.unit}"
    ratio = f"{figure.value / figure.baseline:.2f} of {figure.baseline_what}"
    is_met = {True: " ✓", False: " ✗", None: ""}[figure.is_met]
    return f"{figure.what:<46}{value:>12}  {ratio:<26}{figure.aim}{is_met}".rstrip()


if __name__ == "__main__":
    main()

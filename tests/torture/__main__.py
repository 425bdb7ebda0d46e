"""`python -m tests.torture [--runs N] [--seed S] [--steps N] [--stop]`, from the repository's root.

Tries N runs from seed S on. Of those that fail it says the seed and what is wrong; with one run
(`--runs 1`) it leaves out of it what does not matter and tells the rest, step by step.
"""

import argparse
import logging
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torture.life import STEPS, attempt, kind_of, script, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run")
    parser.add_argument("--stop", action="store_true", help="at the first that fails")
    chosen = parser.parse_args()
    logging.disable(logging.ERROR)
    if chosen.runs == 1:
        return tell_one(chosen.seed, chosen.steps)
    began_s = time.monotonic()
    found: Counter[str] = Counter()
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        ending = attempt(seed, script(seed, chosen.steps))
        if isinstance(ending, Exception):
            kind = kind_of(ending)
            found[kind] += 1
            if found[kind] == 1:
                again = f"python -m tests.torture --runs 1 --seed {seed} --steps {chosen.steps}"
                print(f"seed {seed}: {kind}\n    {str(ending)[:500]}\n    {again}", flush=True)
            if chosen.stop:
                break
    took_s = time.monotonic() - began_s
    print(f"{chosen.runs} runs in {took_s:.0f} s, {found.total()} failed")
    for kind, count in found.most_common():
        print(f"{count:6} {kind}")
    return 1 if found else 0


def tell_one(seed: int, count: int) -> int:
    steps = script(seed, count)
    ending = attempt(seed, steps)
    if not isinstance(ending, Exception):
        print(f"seed {seed}: all is well")
        return 0
    fewer = shrink(seed, steps, ending)
    shrunk = attempt(seed, fewer, print)
    print(f"\nseed {seed}: {len(fewer)} of {len(steps)} steps suffice\n{shrunk}")
    return 1


if __name__ == "__main__":
    sys.exit(main())

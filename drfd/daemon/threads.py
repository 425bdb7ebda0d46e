"""Variables that tell programs how many threads to start.

Most start one for each CPU of the machine, which is too many for a job that declares fewer: under
a quota they stand in each other's way. Few look at quotas.
"""

from __future__ import annotations

from collections.abc import Mapping

_OPENMP = "OMP_NUM_THREADS"

#: These follow OMP_NUM_THREADS where they are not set, so they yield to a submitter who sets that.
_AFTER_OPENMP = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
#: Each read by one runtime alone. Left out: VECLIB_MAXIMUM_THREADS (macOS only), JAVA_TOOL_OPTIONS
#: (prints a line into the job's output), and the JVM and .NET look at quotas by themselves.
_ALONE = (
    "NUMBA_NUM_THREADS",
    "JULIA_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "GOMAXPROCS",
    # os.cpu_count() and what takes its default from it, from Python 3.13 on.
    "PYTHON_CPU_COUNT",
)


def thread_counts(cores_milli: int, env: Mapping[str, str]) -> dict[str, str]:
    """As many threads as whole cores, at least one; not for what `env`, the submitter's, sets."""
    names = [_OPENMP, *_ALONE]
    if _OPENMP not in env:
        names += _AFTER_OPENMP
    count = str(max(1, cores_milli // 1000))
    return {name: count for name in names if name not in env}

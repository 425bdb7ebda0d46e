"""How many threads programs are told to start."""

from __future__ import annotations

import pytest

from drfd.daemon.threads import thread_counts


@pytest.mark.parametrize(
    ("cores_milli", "count"),
    [(0, "1"), (1, "1"), (999, "1"), (1999, "1"), (2000, "2"), (64000, "64")],
)
def test_there_is_a_thread_for_each_whole_core_and_at_least_one(
    cores_milli: int, count: str
) -> None:
    assert set(thread_counts(cores_milli, {}).values()) == {count}


def test_the_usual_libraries_and_runtimes_are_told() -> None:
    found = thread_counts(4000, {})
    for library in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR", "NUMBA", "JULIA", "RAYON"):
        assert found[f"{library}_NUM_THREADS"] == "4"
    assert found["GOMAXPROCS"] == found["PYTHON_CPU_COUNT"] == "4"


def test_what_the_submitter_has_set_is_left_alone_even_if_it_is_empty() -> None:
    found = thread_counts(4000, {"GOMAXPROCS": "1", "RAYON_NUM_THREADS": ""})
    assert "GOMAXPROCS" not in found and "RAYON_NUM_THREADS" not in found
    assert found["OMP_NUM_THREADS"] == "4"


def test_who_sets_openmp_means_the_libraries_that_follow_it_too() -> None:
    """MKL_NUM_THREADS, say, would win over it."""
    found = thread_counts(4000, {"OMP_NUM_THREADS": "2"})
    assert not {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}.intersection(found)
    assert found["JULIA_NUM_THREADS"] == "4"

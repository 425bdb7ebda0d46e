"""The DRF paper's experiments, smaller: what the paper says of each holds."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from drfd.common.errors import Refused
from drfd.sim.cluster import SWAP_COST
from drfd.sim.figures import Cell, Figure
from drfd.sim.paper import facebook, macro, sharing, worked

#: Of the paper's 48 nodes.
FEW = 12
HALF = 24


def column(figure: Figure, name: str, table: int = 0) -> list[Cell]:
    found = figure.tables[table]
    at = [each.name for each in found.columns].index(name)
    return [row[at] for row in found.rows]


def test_table_1_step_by_step() -> None:
    figure = worked.table1()
    assert column(figure, "SERVED") == ["B", "A", "A", "B", "A"]
    third = 1 / 3
    assert column(figure, "A DOMINANT") == pytest.approx([0, 2 / 9, 4 / 9, 4 / 9, 2 / 3])
    assert column(figure, "B DOMINANT") == pytest.approx([third, third, third, 2 / 3, 2 / 3])
    assert column(figure, "CPU USED") == pytest.approx([3 / 9, 4 / 9, 5 / 9, 8 / 9, 1])
    assert column(figure, "MEM USED") == pytest.approx([1 / 18, 5 / 18, 9 / 18, 10 / 18, 14 / 18])


def test_the_worked_figures_have_the_papers_tasks() -> None:
    tasks = column(worked.figure4(), "TASKS")
    assert tasks == pytest.approx([3, 2, 63 / 25, 54 / 25, 45 / 11, 18 / 11])
    assert column(worked.figure5(), "TASKS") == pytest.approx([6, 12, 5, 15])
    honest, lying = (column(worked.figure6(), "TASKS", table) for table in (0, 1))
    assert honest == pytest.approx([100 / 31, 1500 / 31, 25 / 6, 100 / 3])
    assert lying == pytest.approx([25 / 6, 100 / 3, 25 / 6, 100 / 3])
    three, two = (column(worked.figure7(), "TASKS", table) for table in (0, 1))
    assert three == pytest.approx([11.3, 5.4, 3.1, 400 / 33, 100 / 33, 100 / 33], abs=0.06)
    assert two == pytest.approx([23.8, 4.8, 20, 5], abs=0.06)


@pytest.mark.slow
def test_figure_8_shares_are_the_papers_in_each_phase() -> None:
    figure = sharing.figure8(1, nodes=FEW, phase_s=60)
    first, second, third = zip(*[iter(column(figure, "DOMINANT"))] * 2, strict=True)
    assert first == pytest.approx((0.714, 0.75), abs=0.03)
    assert second == pytest.approx((0.5, 0.5), abs=0.04)
    assert third == pytest.approx((0.43, 0.43), abs=0.06), "fragmented"
    ideal = column(figure, "IF CUT")
    assert ideal == pytest.approx([0.741, 0.741, 0.5, 0.5, 0.5, 0.5], abs=0.001)
    assert [panel.title for panel in figure.panels] == ["CPU", "Memory", "Dominant share"]
    assert len(figure.panels[0].curves["job 1"]) == 180


@pytest.fixture(scope="module")
def macro_results() -> dict[str, macro.MacroResult]:
    return {each.way.name: each for each in macro.results(1, SWAP_COST, HALF, macro.RUN_S)}


@pytest.mark.slow
def test_figures_9_to_12_slots_are_worse_than_drf_for_everybody(
    macro_results: dict[str, macro.MacroResult],
) -> None:
    drf = macro_results["DRF"]
    for count in (3, 4, 5, 6):
        slots = macro_results[f"{count} slots"]
        for kind in (macro.LARGE, macro.SMALL):
            assert slots.jobs(kind) < drf.jobs(kind)
            best, theirs = drf.response_s(kind), slots.response_s(kind)
            assert best is not None and theirs is not None
            assert theirs > best


@pytest.mark.slow
def test_figure_9_counts_are_near_the_papers(macro_results: dict[str, macro.MacroResult]) -> None:
    large = {name: each.jobs(macro.LARGE) for name, each in macro_results.items()}
    assert large["DRF"] == pytest.approx(35, abs=5)
    assert large["3 slots"] == pytest.approx(33, abs=6)
    assert large["6 slots"] == pytest.approx(8, abs=4)
    assert large["3 slots"] > large["5 slots"] > large["6 slots"]
    assert large["CPU-fair"] < 0.85 * large["DRF"], "the CPUs alone do not tell"


@pytest.mark.slow
def test_only_who_looks_at_memory_keeps_within_it(
    macro_results: dict[str, macro.MacroResult],
) -> None:
    over = {name: each.outcome.overcommitted for name, each in macro_results.items()}
    assert over["DRF"] == over["3 slots"] == 0
    assert min(over["4 slots"], over["5 slots"], over["6 slots"], over["CPU-fair"]) > 0.2


@pytest.mark.slow
def test_without_a_cost_of_swapping_more_slots_are_better() -> None:
    """The model of contention is all that speaks against overcommitting."""
    free = {each.way.name: each.jobs(macro.LARGE) for each in macro.results(1, 0, FEW, 200)}
    assert free["4 slots"] > free["3 slots"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [9, 10, 11, 12])
def test_each_macro_figure_shows_its_own_measure(number: int) -> None:
    figure = macro.figure(number, 1, SWAP_COST, nodes=HALF)
    (panel,) = figure.panels
    name = {9: "LARGE JOBS", 10: "SMALL JOBS", 11: "LARGE TAKE", 12: "SMALL TAKE"}[number]
    assert [y for _, y in panel.curves["simulated"]] == column(figure, name)
    assert ("the paper" in panel.curves) == (number == 9)


@pytest.fixture(scope="module")
def hour() -> facebook.Load:
    return facebook.generated(1, hours=1)


@pytest.mark.slow
def test_figure_13_drf_uses_more_than_slots(hour: facebook.Load) -> None:
    figure = facebook.figure13(hour, 1, 6)
    for name in ("CPU", "MEM"):
        drf, slots = column(figure, name)
        assert drf > slots  # type: ignore[operator]
    drf_s, slots_s = column(figure, "ALL DONE")
    assert drf_s < slots_s  # type: ignore[operator]
    assert any("GENERATED" in line for line in figure.about)
    assert any("SYNTHETIC" in line for line in figure.about)


@pytest.mark.slow
def test_figure_14_jobs_end_sooner_under_drf(hour: facebook.Load) -> None:
    saved = column(facebook.figure14(hour, 1, 6), "SHORTER BY")
    assert min(saved) > -0.05  # type: ignore[type-var,operator]
    assert max(saved) > 0.3  # type: ignore[type-var,operator]


def test_a_swim_sample_is_read_in_either_form() -> None:
    ours = "job,submit_s,input_bytes,shuffle_bytes,output_bytes\njob0,23,410483,0,2513586060\n"
    theirs = "job0\t23\t23\t410483\t0\t2513586060\n"
    assert facebook.read_swim(ours, "x").jobs == facebook.read_swim(theirs, "x").jobs == ((23, 2),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "x: has no jobs"),
        ("a,1,2,3,4\nb,1,2,3\n", "x, line 2: is no job of a SWIM sample"),
        ("a,1,2,-3,4\n", "x, line 1: is no job of a SWIM sample"),
    ],
)
def test_a_bad_sample_is_refused_by_line(text: str, words: str) -> None:
    with pytest.raises(Refused) as caught:
        facebook.read_swim(text, "x")
    assert caught.value.text == words


@pytest.mark.skipif("DRFD_TRACES" not in os.environ, reason="no DRFD_TRACES")
@pytest.mark.parametrize(("name", "jobs"), [("swim-fb2009-0", 5894), ("swim-fb2009-1", 6638)])
def test_the_published_samples_are_read_whole(name: str, jobs: int) -> None:
    text = gzip.decompress(Path(os.environ["DRFD_TRACES"], f"{name}.csv.gz").read_bytes())
    load = facebook.read_swim(text.decode(), name)
    assert len(load.jobs) == jobs
    assert f"{jobs} jobs of the SWIM sample {name}" in load.label

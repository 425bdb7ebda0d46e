"""Pressure figures, as kernels write them, or do not."""

from __future__ import annotations

from pathlib import Path

from drfd.host.pressure import read_pressure

LINE = "avg10={} avg60=0.50 avg300=0.10 total=123\n"


def test_each_resource_has_its_last_ten_seconds(tmp_path: Path) -> None:
    for number, name in enumerate(["cpu", "memory", "io"]):
        text = f"some {LINE.format(f'{number}.25')}full {LINE.format('0.00')}"
        (tmp_path / name).write_text(text)
    assert read_pressure(tmp_path) == {
        "cpu": {"some": 0.25, "full": 0.0},
        "memory": {"some": 1.25, "full": 0.0},
        "io": {"some": 2.25, "full": 0.0},
    }


def test_what_a_kernel_does_not_say_is_null(tmp_path: Path) -> None:
    """Before 5.13 there is no "full" of the processor (accounting/psi.rst)."""
    (tmp_path / "cpu").write_text(f"some {LINE.format('3.00')}")
    (tmp_path / "memory").write_text("some avg10=x\nfull\n")
    nothing = {"some": None, "full": None}
    assert read_pressure(tmp_path) == {
        "cpu": {"some": 3.0, "full": None},
        "memory": nothing,
        "io": nothing,
    }


def test_a_kernel_without_pressure_has_none(tmp_path: Path) -> None:
    assert read_pressure(tmp_path / "nowhere") is None


def test_this_kernels_own_is_read_or_absent() -> None:
    found = read_pressure()
    if found is not None:
        figures = [each for kinds in found.values() for each in kinds.values()]
        assert len(figures) == 6
        assert all(each is None or 0 <= each <= 100 for each in figures)

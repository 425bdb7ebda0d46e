"""Tables on narrow screens lose no reason."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from rich.cells import cell_len

from drfd.sim.figures import Panel
from drfd_cli import charts, output

WHY = "RESOURCES: needs 8 cores, 3 free; job 40 (bob) holds 5 until 14:05 at the latest"
COLUMNS: list[output.Column] = [
    ("ID", "right"), "NAME", "USER", "STATE", ("CORES", "right"), ("MEM", "right"), "GRES",
    ("TIME", "right"), "WHY",
]  # fmt: skip
ROW = ["12345_[1-99]", "a-training-run", "alexandra", "PENDING", "16", "120G", "gpu:2,licence:1"]


@pytest.mark.parametrize("width", [80, 90, 100, 120, 200])
def test_every_word_of_the_last_column_is_there_beside_countables(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    output.print_rows(COLUMNS, [[*ROW, "12h30m", WHY]], fixed=("ID", "STATE"), last_width=16)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(lines).split()[-4:] == ["14:05", "at", "the", "latest"]
    for word in (*WHY.split(), ROW[0], "PENDING", "120G", "12h30m"):
        assert any(word in line for line in lines), word


#: Seven letters each: as one sign and as a letter with its mark, and signs that take two columns.
ACCENTED, MARKED, WIDE = "\u00e9t\u00e9-job", "e\u0301te\u0301-job", "\u6f22\u5b57-job"


def test_a_mark_takes_no_column_of_its_own() -> None:
    """Names with marks were cut though there was room for them, and others were not cut enough."""
    assert output.shorten(MARKED, 7) == MARKED
    assert output.shorten("e\u0301" * 24, 24) == "e\u0301" * 24
    for text in ("e\u0301" * 30, "\u6f22" * 30, "\u6f22\u0301a" * 30):
        cut = output.shorten(text, 24)
        assert cut.endswith("…") and 23 <= cell_len(cut) <= 24


def test_the_columns_of_a_long_list_stand_below_each_other_whatever_signs_are_in_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = (ACCENTED, MARKED, WIDE, "plain")
    output.print_pages(["NAME", ("SIZE", "right"), "USER"], [[(each, each, "x") for each in names]])
    heading, *rows = capsys.readouterr().out.splitlines()
    ends = {cell_len(line[: line.index(" x")]) for line in rows}
    assert ends == {heading.index("USER") - 1}


def test_bars_begin_below_each_other_whatever_signs_are_in_their_names() -> None:
    names = (ACCENTED, MARKED, WIDE, "plain")
    curves = {"done": [(float(at), 1.0) for at in range(len(names))]}
    drawn = charts.draw(Panel(title="t", x="", y="", names=names, curves=curves))
    bars = drawn.splitlines()[1:]
    assert len(bars) == len(names)
    assert len({cell_len(line[: line.index("│")]) for line in bars}) == 1


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_command_of_several_lines_is_one_that_a_shell_reads_as_it_was() -> None:
    argv = ["bash", "-c", "for i in 1 2\ndo\techo 'it\\'s $i'\ndone \x1b[0m \u202e\u0085", "a b"]
    line = output.shell_line(argv)
    assert line == output.clean(line)
    assert line.startswith("bash -c $'for i in 1 2\\ndo\\techo \\'it")
    told = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], env={"LC_ALL": "C.UTF-8"}, capture_output=True
    )
    assert told.stdout.decode().split("\0")[:-1] == argv

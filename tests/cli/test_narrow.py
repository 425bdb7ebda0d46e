"""Tables on narrow screens lose no reason."""

from __future__ import annotations

import pytest

from drfd_cli import output

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

"""drf simulate paper: for people, for programs, and as pictures."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cli.drf import Drf

#: Each test computes a figure of the paper.
pytestmark = pytest.mark.slow


def test_without_a_name_the_experiments_are_listed(drf: Drf) -> None:
    lines = drf("simulate", "paper").screen.splitlines()
    assert [line.split()[0] for line in lines[3:]] == [
        "table1", *(f"fig{number}" for number in range(4, 15))
    ]  # fmt: skip


def test_people_see_the_papers_table(drf: Drf) -> None:
    screen = drf("simulate", "paper", "table1").screen
    rows = [line.split()[0] for line in screen.splitlines() if line.endswith("%")]
    assert rows == ["B", "A", "A", "B", "A"]
    assert "The paper: B A A B A" in screen


def test_a_chart_shows_which_share_is_larger(drf: Drf) -> None:
    lines = drf("simulate", "paper", "fig8", "--nodes", 8).screen.splitlines()
    chart = lines[lines.index("CPU") :][:15]
    first = [line[7:20] for line in chart]
    (high,), (low,) = ([n for n, row in enumerate(first) if row == sign * 13] for sign in "+o")
    assert high < low, "job 2 has more CPUs in the first phase"
    assert chart[-1].strip() == "o job 1   + job 2   = several"


def test_programs_get_every_number_and_the_same_twice(drf: Drf) -> None:
    first, again = (drf("simulate", "paper", "fig8", "--nodes", 8, "--json").out for _ in range(2))
    assert first == again
    (figure,) = json.loads(first)["experiments"]
    assert figure["name"] == "fig8"
    assert len(figure["panels"][2]["curves"]["job 1"]) == 360
    columns = [each["name"] for each in figure["tables"][0]["columns"]]
    assert figure["tables"][0]["rows"][0][columns.index("DOMINANT")] == pytest.approx(
        0.71, abs=0.02
    )


def test_an_svg_is_the_same_byte_for_byte(drf: Drf, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = []
    for name in ("one.svg", "two.svg"):
        assert drf("simulate", "paper", "fig8", "--nodes", 4, "--plot", tmp_path / name).code == 0
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
    root = ElementTree.fromstring(pictures[0])
    assert root.tag.endswith("}svg")
    words = {"".join(each.itertext()).strip() for each in root.iter() if each.tag.endswith("}text")}
    assert {"CPU", "Memory", "Dominant share", "job 1", "job 2", "seconds"} <= words


def test_a_png_is_a_png(drf: Drf, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "four.PNG"
    assert drf("simulate", "paper", "fig4", "--plot", path).code == 0
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fig99",), "there is no experiment fig99 (did you mean fig9?)"),
        (("fig4", "--plot", "a.pdf"), "--plot a.pdf: unknown kind of picture (.svg or .png)"),
        (("fig4", "--plot", "/no/a.svg"), "--plot /no/a.svg: there is no such directory"),
        (("fig4", "fig5", "--plot", "a.svg"), "--plot draws one experiment (name a single one)"),
        (("table1", "--plot", "a.svg"), "table1 has nothing to be drawn"),
        (("fig13", "--trace", "/no/t"), "/no/t: cannot be read: No such file or directory"),
        (("fig8", "--trace", "x"), "--trace is for fig13 and fig14"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    drf: Drf, arguments: tuple[str, ...], words: str
) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    result = drf("simulate", "paper", *arguments)
    assert (result.code, result.out, result.err) == (1, "", f"drf: {words}\n")


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "matplotlib").mkdir()
    program = (
        "import sys; from importlib.machinery import PathFinder\n"
        "class Hidden(PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, *rest):\n"
        "        return None if name == 'matplotlib' else super().find_spec(name, *rest)\n"
        "sys.meta_path = [each for each in sys.meta_path if each is not PathFinder] + [Hidden]\n"
        "sys.argv = ['drf', 'simulate', 'paper', 'fig4', '--plot', 'x.svg']\n"
        "from drfd_cli.main import main; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    words = "drf: --plot needs matplotlib, which is not installed (pip install 'drfd[plot]')\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)


def test_a_trace_is_used_and_named(drf: Drf, tmp_path: Path) -> None:
    path = tmp_path / "sample.csv.gz"
    rows = "".join(f"job{at},{at * 10},1,0,{at % 7}000000000\n" for at in range(40))
    path.write_bytes(gzip.compress(f"job,submit_s,input_bytes,a,b\n{rows}".encode()))
    result = drf("simulate", "paper", "fig14", "--trace", path)
    assert result.code == 0
    assert "40 jobs of the SWIM sample" in " ".join(result.out.split())
    path.write_bytes(path.read_bytes()[:50])
    assert drf("simulate", "paper", "fig14", "--trace", path).err == (
        f"drf: {path}: cannot be read: is damaged\n"
    )

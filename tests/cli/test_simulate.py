"""drf simulate: what is printed, for people and for programs, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from canned import CannedDaemon
from cli.drf import Drf

#: The example of the DRF paper, as in docs/simulator.md.
PAPER = """{"capacity": {"cpu": 9, "mem": 18},
 "users": [{"name": "A", "demand": {"cpu": 1, "mem": 4}},
           {"name": "B", "demand": {"cpu": 3, "mem": 1}}],
 "policy": "drf", "mode": "discrete"}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "paper.json"
    path.write_text(PAPER)
    return path


def test_programs_get_one_object_with_plain_numbers(drf: Drf, spec: Path) -> None:
    result = drf("simulate", "alloc", spec, "--json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == {
        "tasks": {"A": 3, "B": 2},
        "shares": {"A": {"cpu": 1 / 3, "mem": 2 / 3}, "B": {"cpu": 2 / 3, "mem": 1 / 9}},
        "dominant_share": {"A": 2 / 3, "B": 2 / 3},
        "dominant_resource": {"A": "mem", "B": "cpu"},
        "order": ["B", "A", "A", "B", "A"],
    }
    assert '"tasks": {"A": 3, "B": 2}' in result.out, "whole numbers are written as such"


def test_what_the_manual_shows_is_what_comes_out(drf: Drf, spec: Path) -> None:
    manual = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    assert PAPER in manual
    assert f"--json\n{drf('simulate', 'alloc', spec, '--json').out}```" in manual


def test_people_get_a_table_and_the_order(drf: Drf, spec: Path) -> None:
    assert drf("simulate", "alloc", spec).screen == "\n".join(
        [
            "",
            " USER       TASKS   DOMINANT    SHARE           cpu           mem",
            " ────────────────────────────────────────────────────────────────",
            " A              3   mem        66.7 %    3 (33.3 %)   12 (66.7 %)",
            " B              2   cpu        66.7 %    6 (66.7 %)    2 (11.1 %)",
            " together                               9 (100.0 %)   14 (77.8 %)",
            "",
            "order  B A A B A",
        ]
    )


def test_tasks_that_can_be_cut_have_no_order(drf: Drf, spec: Path) -> None:
    spec.write_text(PAPER.replace("discrete", "continuous").replace('"drf"', '"asset"'))
    found = json.loads(drf("simulate", "alloc", spec, "--json").out)
    assert (found["tasks"], found["order"]) == ({"A": 2.52, "B": 2.16}, [])
    shown = drf("simulate", "alloc", spec)
    assert "2.52" in shown.out and "order" not in shown.out


def test_a_dash_is_standard_input(drf: Drf, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(PAPER.encode())

    monkeypatch.setattr("sys.stdin", Stdin())
    assert json.loads(drf("simulate", "alloc", "-", "--json").out)["tasks"] == {"A": 3, "B": 2}


def test_a_mark_at_the_beginning_of_the_file_does_no_harm(drf: Drf, spec: Path) -> None:
    spec.write_text(PAPER, encoding="utf-8-sig")
    assert drf("simulate", "alloc", spec).code == 0


def test_no_daemon_is_asked(drf: Drf, daemon: CannedDaemon, spec: Path) -> None:
    drf("simulate", "alloc", spec)
    assert daemon.connections == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"capacity": {"cpu": 9}, "usrs": []}', "usrs: unknown key (did you mean users?)"),
        (b"nonsense", "is not JSON: line 1, column 1: Expecting value"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b" " * (4 << 20) + b" ", "is too long (4M are the most)"),
        (
            b'{"capacity": {"cpu": 9}, "users": [{"name": "A", "demand": {"mem": 1}}]}',
            "users[0].demand.mem: unknown key (known keys: cpu)",
        ),
        (
            b'{"capacity": {"cpu": 1e9}, "users": [{"name": "A", "demand": {"cpu": 1}}]}',
            "the machine has room for more than 200000 tasks (ask for larger tasks, or for "
            '"mode": "continuous")',
        ),
    ],
)
def test_a_bad_problem_is_refused_in_one_line_that_names_the_file(
    drf: Drf, spec: Path, text: bytes, said: str
) -> None:
    spec.write_bytes(text)
    result = drf("simulate", "alloc", spec, "--json")
    assert (result.code, result.out) == (1, "")
    assert result.err == f"drf: {spec}: {said}\n"


def test_a_file_that_is_not_there_is_refused_in_one_line(drf: Drf, tmp_path: Path) -> None:
    missing = drf("simulate", "alloc", tmp_path / "none.json")
    assert (missing.code, missing.out) == (1, "")
    assert missing.err == f"drf: {tmp_path}/none.json: cannot be read: No such file or directory\n"
    assert "Is a directory" in drf("simulate", "alloc", tmp_path).err


@pytest.mark.parametrize(
    "words", [["alloc"], ["alloc", "a", "b"], ["alloc", "a", "--jsn"], ["allok", "a"]]
)
def test_what_is_typed_wrongly_is_usage(drf: Drf, words: list[str]) -> None:
    result = drf("simulate", *words)
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1


def test_hostile_names_are_shown_harmlessly(drf: Drf, spec: Path) -> None:
    spec.write_text(PAPER.replace('"A"', '"\\u001b[2J\\ud800[red]"'))
    result = drf("simulate", "alloc", spec)
    assert result.code == 0
    assert "\x1b" not in result.out and "?[2J?[red]" in result.out
    assert drf("simulate", "alloc", spec, "--json").code == 0

"""The comparison of trees finds nothing where there is nothing, and one line where there is one."""

import pytest

from compare.__main__ import (
    HERE,
    TESTS,
    Findings,
    Tree,
    compare_histories,
    compare_traces,
    differences,
    without_reasons,
)


@pytest.mark.slow
def test_a_tree_does_the_same_twice(tmp_path, capsys):
    old, new = (Tree(TESTS.parent, tmp_path / name, HERE / "driver.py") for name in ("old", "new"))
    findings = Findings()
    compare_histories(old, new, findings, 0, 10)
    assert findings.print() == 0, capsys.readouterr().out


def test_another_order_of_starts_is_a_difference(capsys):
    findings = Findings()
    was = [["start", "1.1"], ["start", "2.1"], ["job 3", "PENDING LIMIT 0"], ["start", "3.1"]]
    compare_traces(4, was, [was[1], was[0], *was[2:]], findings)
    assert findings.print() == 0, "in one turn"
    compare_traces(4, was, [was[0], was[3], was[2], was[1]], findings)
    assert findings.print() == 1
    assert "a start: N → start: N\n    1 times, first in history 4" in capsys.readouterr().out


def test_what_differs_in_reasons_alone_has_the_same_starts_and_states():
    was = [["job 1", "PENDING LIMIT 0"], ["job 1", "PENDING QUOTA 0"], ["start", "1.1"]]
    now = [["job 1", "PENDING QUOTA 0"], ["start", "1.1"]]
    kept = [["job 1", "PENDING 0"], ["start", "1.1"]]
    assert without_reasons(was) == without_reasons(now) == kept
    later = [*now, ["job 1", "HELD  0"], now[0]]
    assert without_reasons(later)[2:] == [["job 1", "HELD  0"], ["job 1", "PENDING 0"]]


def test_a_field_that_has_gone_is_named():
    was = {"jobs": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]}
    now = {"jobs": [{"id": 1}, {"id": 3, "name": "b"}]}
    assert list(differences(was, now)) == [
        (".jobs[].name has gone", "'a'"),
        (".jobs[].id", "2 → 3"),
    ]

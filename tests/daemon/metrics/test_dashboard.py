"""The shipped dashboard: figures of several machines side by side."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from drfd.daemon.metrics.printing import shipped_file

TARGETS: list[dict[str, Any]] = [
    target
    for panel in json.loads(shipped_file("dashboard"))["panels"]
    for target in panel["targets"]
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["expr"])
def test_each_line_names_its_machine(target: dict[str, Any]) -> None:
    assert "{{instance}}" in target["legendFormat"]
    for labels in re.findall(r"\bby \(([^)]*)\)", target["expr"]):
        assert "instance" in labels.split(", "), "the sum is over all machines"

"""The GPUs of the machine that runs the tests, if any, against what others say of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from drfd.devices.gpus import Gpu, find_gpus
from drfd.devices.nodes import node_at
from drfd.devices.roster import Roster

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpus() -> tuple[Gpu, ...]:
    found = find_gpus()
    if not found:
        pytest.skip("this machine has no GPU with a driver for computing")
    return found


def test_every_node_of_a_gpu_is_a_node_in_dev(gpus: tuple[Gpu, ...]) -> None:
    """Those of MIG capabilities are made when they are needed first."""
    paths = [path for path in Path("/dev").rglob("*") if path.is_char_device()]
    there = {node_at(path) for path in paths}
    for gpu in gpus:
        if not gpu.fault and ":" not in gpu.name:
            assert gpu.nodes <= there


def test_nvidia_smi_lists_the_same_gpus_in_the_same_order(gpus: tuple[Gpu, ...]) -> None:
    if shutil.which("nvidia-smi") is None or any(":" in gpu.name or gpu.fault for gpu in gpus):
        pytest.skip("nvidia-smi is not here, or lists something else: slices, or lost GPUs")
    said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    uuids = re.findall(r"^GPU \d+: .*\(UUID: (GPU-[0-9a-f-]+)\)", said, re.MULTILINE)
    assert [gpu.uuid for gpu in find_gpus() if gpu.vendor == "nvidia"] == uuids


def test_all_are_the_same_when_they_are_looked_up_again(gpus: tuple[Gpu, ...]) -> None:
    roster = Roster()
    assert roster.look_up() == roster.look_up()
    assert [gpu.nodes for gpu in roster.look_up()] == [gpu.nodes for gpu in gpus]

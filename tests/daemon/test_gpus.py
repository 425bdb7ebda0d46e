"""`drfd gpus`: the GPUs of the machine, and lines that can be put into the configuration."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from drfd.daemon import main as main_module
from drfd.daemon.config import load
from drfd.daemon.countable import instances_of
from drfd.daemon.main import main
from drfd.devices.displays import Display, other_displays
from drfd.devices.gpus import find_gpus
from tests.gpu_machines import unfold

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The /proc and /sys of another machine, below which the command looks."""
    monkeypatch.setattr(main_module, "find_gpus", partial(find_gpus, tmp_path))
    monkeypatch.setattr(main_module, "other_displays", partial(other_displays, root=tmp_path))
    return tmp_path


def run(*words: str) -> int:
    try:
        main(["gpus", *words])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_table_has_what_the_machine_has(root: Path, capsys: Captured) -> None:
    """Nothing is printed in columns that would be empty, nor at the ends of lines."""
    unfold("two-nvidia-desktop", root)
    assert run() == 0
    said = capsys.readouterr()
    first, second = "c7b57be0-94ff-d352-a59b-d0ee00aeed43", "d6de6afc-bdfe-75c4-5273-0544439153fc"
    assert said.out.splitlines() == [
        f"GPU  VENDOR  MODEL            UUID{' ' * 38}PCI ADDRESS   NODES",
        f"0    NVIDIA  Quadro RTX 4000  GPU-{first}  0000:06:00.0  195:0 226:1 226:128",
        f"1    NVIDIA  Quadro RTX 4000  GPU-{second}  0000:07:00.0  195:1 226:2 226:129",
        "",
        "[gres]",
        'gpu = "auto"              # now: gpu = [0, 1]',
    ]
    assert said.err == ""


def test_links_and_memory_nodes_are_shown(root: Path, capsys: Captured) -> None:
    unfold("two-amd-linked", root)
    assert run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("PCI ADDRESS   NUMA  NODES          LINKS")
    assert lines[1].endswith("0000:43:00.0  0     226:2 226:129  1")


@pytest.mark.parametrize(
    ("machine", "instances"),
    [
        ("eight-nvidia-two-memory-nodes", tuple("01234567")),
        ("mig-on-one-of-two", ("0:1:0", "0:1:1", "0:3:0", "1")),
        ("fallen-off-the-bus", ("0", "2")),
        ("mixed", ("0", "1", "3")),
    ],
)
def test_the_lines_are_a_configuration_and_so_is_the_list_behind_them(
    root: Path, capsys: Captured, machine: str, instances: tuple[str, ...]
) -> None:
    """Both mean the same GPUs, and the list stays as it is when a GPU is added."""
    unfold(machine, root)
    assert run() == 0
    lines = capsys.readouterr().out.partition("\n\n")[2]
    file = root / "drfd.toml"
    for text in (lines, f"[gres]\n{lines.partition('# now: ')[2]}"):
        file.write_text(text)
        countables = load(file).countables
        assert [each.name for each in countables] == ["gpu"]
        assert instances_of(countables, find_gpus(root)) == (("gpu", instances),)


def test_there_are_no_lines_where_auto_would_find_nothing(root: Path, capsys: Captured) -> None:
    unfold("dangling", root)
    assert run() == 0
    said = capsys.readouterr()
    assert "gres" not in said.out
    assert said.err == (
        'drfd: none of them is for gpu = "auto"; those without a fault may be listed by number\n'
    )


def test_a_gpu_that_cannot_be_used_says_why(root: Path, capsys: Captured) -> None:
    unfold("fallen-off-the-bus", root)
    assert run() == 0
    line = capsys.readouterr().out.splitlines()[2]
    assert line.startswith("1    NVIDIA")
    assert line.endswith("0000:1b:00.0/information is empty: the driver does not reach the GPU")


def test_a_machine_without_gpus_is_told_what_was_looked_at(root: Path, capsys: Captured) -> None:
    unfold("no-gpu", root)
    assert run() == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        "drfd: no GPU found (looked at /proc/driver/nvidia/gpus, "
        "/sys/class/kfd/kfd/topology/nodes, /sys/class/drm)\n",
    )


def test_a_graphics_device_with_another_driver_is_named(root: Path, capsys: Captured) -> None:
    unfold("driver-without-gpu", root)
    for address, vendor, kind in (
        ("0000:01:00.0", "0x10de", "0x030000"),
        ("0000:01:00.1", "0x10de", "0x040300"),
        ("0000:02:00.0", "0x1002", "0x038000"),
        ("0000:04:00.0", "0x1a03", "0x030000"),
    ):
        device = root / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    (root / "sys/bus/pci/devices/0000:01:00.0/driver").symlink_to("../../drivers/nouveau")
    assert other_displays((), root) == (
        Display("0000:01:00.0", "nvidia", "nouveau", "nvidia"),
        Display("0000:02:00.0", "amd", "", "amdgpu, with KFD"),
    )
    assert run() == 1
    assert capsys.readouterr().err.splitlines()[:2] == [
        "drfd: the graphics device of NVIDIA at 0000:01:00.0 has the driver nouveau; "
        "jobs could use it with the driver nvidia",
        "drfd: the graphics device of AMD at 0000:02:00.0 has no driver; "
        "jobs could use it with the driver amdgpu, with KFD",
    ]


def test_programs_get_all_that_is_known(root: Path, capsys: Captured) -> None:
    unfold("two-amd-linked", root)
    assert run("--json") == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert json.loads(said.out)["gpus"][1] == {
        "name": "1",
        "vendor": "amd",
        "model": "AMD INSTINCT MI210",
        "uuid": "GPU-1901ead3a2ecd4a6",
        "pci": "0000:63:00.0",
        "numa_node": 0,
        "nodes": ["c 226:1", "c 226:128"],
        "links": ["0"],
        "integrated": False,
        "fault": None,
    }


def test_an_empty_list_is_an_answer_to_a_program(root: Path, capsys: Captured) -> None:
    unfold("no-gpu", root)
    assert run("--json") == 0
    assert json.loads(capsys.readouterr().out) == {"gpus": []}


def test_a_list_that_cannot_be_read_is_one_line(root: Path, capsys: Captured) -> None:
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/gpus").symlink_to("gpus")
    assert run() == 1
    error = capsys.readouterr().err
    assert error.startswith(f"drfd: cannot read {root}/proc/driver/nvidia/gpus: Too many")
    assert error.count("\n") == 1

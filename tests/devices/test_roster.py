"""GPUs that are looked up again: what changes in them, and what does not; and nobody who wants to
read a driver's files hangs where that hangs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.devices import driver_files
from drfd.devices.driver_files import read_each
from drfd.devices.gpu import GpuFault
from drfd.devices.gpus import Gpu, GpuLost, find_gpus, gpus_named
from drfd.devices.roster import Roster
from drfd.devices.roster_file import RosterFile, numbers_of
from drfd.linux.device_nodes import show_node
from tests.gpu_machines import unfold

NVIDIA = "proc/driver/nvidia"


def nodes(gpu: Gpu) -> str:
    return " ".join(sorted(show_node(node).removeprefix("c ") for node in gpu.nodes))


def faults(gpus: tuple[Gpu, ...]) -> dict[str, str]:
    return {gpu.name: gpu.fault for gpu in gpus}


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def bind_anew(root: Path, bus: str) -> None:
    """Do to the tree what a driver that is loaded again does to sysfs."""
    link = root / f"sys/bus/pci/devices/0000:{bus}:00.0/driver"
    new = link.with_name("new")
    new.symlink_to(link.readlink())
    # The old inode is in use until the new one has its own.
    new.replace(link)


@pytest.fixture
def desktop(tmp_path: Path) -> Path:
    return unfold("two-nvidia-desktop", tmp_path)


@pytest.fixture
def divided(tmp_path: Path) -> Path:
    return unfold("mig-on-one-of-two", tmp_path)


def test_a_reloaded_driver_gives_out_other_minors(desktop: Path) -> None:
    roster = Roster(desktop)
    before = roster.look_up()
    first, second = (desktop / f"{NVIDIA}/gpus/0000:{bus}:00.0/information" for bus in ("06", "07"))
    change(first, "Device Minor: \t 0", "Device Minor: \t 1")
    change(second, "Device Minor: \t 1", "Device Minor: \t 0")
    change(first, "GPU-c7b57be0", "GPU-????????")
    assert roster.look_up() == before, "files are not read again before the driver is"
    for bus in ("06", "07"):
        bind_anew(desktop, bus)
    now = roster.look_up()
    assert [nodes(gpu) for gpu in now] == ["195:1 226:1 226:128", "195:0 226:129 226:2"]
    assert [gpu.uuid for gpu in now] == [gpu.uuid for gpu in before], "it is known from before"
    assert faults(now) == {"0": "", "1": ""}


def test_a_gpu_that_has_gone_does_not_leave_its_number_to_the_next(desktop: Path) -> None:
    """The next may be in use by another job under its own number."""
    roster = Roster(desktop)
    before = roster.look_up()
    shutil.rmtree(desktop / f"{NVIDIA}/gpus/0000:06:00.0")
    gone, stays = roster.look_up()
    assert (gone.name, gone.nodes) == ("0", before[0].nodes)
    assert gone.fault == "it is no longer there (nvidia, PCI address 0000:06:00.0)"
    assert (stays.name, nodes(stays), stays.fault) == ("1", "195:1 226:129 226:2", "")
    with pytest.raises(GpuLost, match="GPU 0: it is no longer there"):
        gpus_named(["0"], (gone, stays))


def test_gpus_are_known_while_their_driver_is_not_loaded(desktop: Path) -> None:
    """Else a job that starts meanwhile could open all of them afterwards."""
    roster = Roster(desktop)
    before = roster.look_up()
    (desktop / NVIDIA).rename(desktop / "away")
    meanwhile = roster.look_up()
    assert [gpu.nodes for gpu in meanwhile] == [gpu.nodes for gpu in before]
    assert all(gpu.fault for gpu in meanwhile)
    (desktop / "away").rename(desktop / NVIDIA)
    assert roster.look_up() == before


def test_a_gpu_that_falls_off_the_bus_keeps_the_nodes_to_hide(desktop: Path) -> None:
    roster = Roster(desktop)
    before = roster.look_up()
    (desktop / f"{NVIDIA}/gpus/0000:07:00.0/information").write_text("")
    bind_anew(desktop, "07")
    fallen = roster.look_up()[1]
    assert "is empty" in fallen.fault
    assert fallen.nodes == before[1].nodes


def test_another_gpu_in_the_same_slot_is_not_the_same(desktop: Path) -> None:
    roster = Roster(desktop)
    roster.look_up()
    path = desktop / f"{NVIDIA}/gpus/0000:06:00.0/information"
    change(path, "GPU-c7b57be0", "GPU-00000000")
    bind_anew(desktop, "06")
    assert faults(roster.look_up()) == {
        "0": "there is another GPU at 0000:06:00.0 now: GPU-00000000-94ff-d352-a59b-d0ee00aeed43",
        "1": "",
    }


def test_a_gpu_that_was_never_seen_takes_no_number_from_another(
    desktop: Path, tmp_path: Path
) -> None:
    """Jobs may have that one by its number."""
    late = desktop / f"{NVIDIA}/gpus/0000:06:00.0"
    late.rename(desktop / "late")
    roster = Roster(desktop, RosterFile(tmp_path))
    assert [(gpu.name, gpu.pci) for gpu in roster.look_up()] == [("0", "0000:07:00.0")]
    (desktop / "late").rename(late)
    found = [(gpu.name, gpu.pci) for gpu in roster.look_up()]
    assert found == [("0", "0000:07:00.0"), ("1", "0000:06:00.0")]


def test_numbers_outlast_the_process_that_has_given_them(desktop: Path, tmp_path: Path) -> None:
    before = Roster(desktop, RosterFile(tmp_path)).look_up()
    shutil.rmtree(desktop / f"{NVIDIA}/gpus/0000:06:00.0")
    gone, stays = Roster(desktop, RosterFile(tmp_path)).look_up()
    assert (gone.name, bool(gone.fault), gone.nodes) == ("0", True, before[0].nodes)
    assert (stays.name, stays.fault, stays.nodes) == ("1", "", before[1].nodes)
    # Others number the same ones alike.
    numbers = numbers_of(RosterFile(tmp_path).read())
    assert [(gpu.name, gpu.pci) for gpu in find_gpus(desktop, numbers=numbers)] == [
        ("1", "0000:07:00.0")
    ]
    assert [gpu.name for gpu in Roster(desktop, RosterFile(tmp_path / "no")).look_up()] == ["0"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"boot_id": "', '"boot_id": "x'),
        lambda text: text[:-5],
        lambda text: "[]",
        lambda text: "[" * 100_000,
        lambda text: text.replace('"name": "0"', '"name": "x"'),
        lambda text: text.replace('"pci"', '"place"'),
    ],
    ids=["of-another-boot", "cut-off", "a-list", "deep", "not-a-number", "of-another-version"],
)
def test_a_file_of_another_boot_or_a_damaged_one_counts_as_none(
    desktop: Path, tmp_path: Path, change: Callable[[str], str]
) -> None:
    Roster(desktop, RosterFile(tmp_path)).look_up()
    file = tmp_path / "gpus.json"
    text = file.read_text()
    assert RosterFile(tmp_path).read() != ()
    file.write_text(change(text))
    assert RosterFile(tmp_path).read() == ()
    Roster(desktop, RosterFile(tmp_path)).look_up()
    assert file.read_text() == text


def test_slices_of_before_are_lost_when_mig_is_configured_anew(divided: Path) -> None:
    roster = Roster(divided)
    roster.look_up()
    above = divided / f"{NVIDIA}/capabilities/gpu1/mig"
    (above / "gi3").rename(above / "gi2")
    lost = "MIG divides it otherwise now (nvidia, PCI address 0000:31:00.0)"
    assert faults(roster.look_up()) == {
        "0:1:0": "",
        "0:1:1": "",
        "0:3:0": lost,
        "1": "",
        "0:2:0": "",
    }
    shutil.rmtree(above)
    assert faults(roster.look_up()) == {
        **dict.fromkeys(("0:1:0", "0:1:1", "0:3:0", "0:2:0"), lost),
        "0": "",
        "1": "",
    }


def test_a_file_without_uuid_is_read_again_until_it_has_one(tmp_path: Path) -> None:
    root = unfold("fallen-off-the-bus", tmp_path)
    roster = Roster(root)
    assert roster.look_up()[0].uuid is None
    path = root / f"{NVIDIA}/gpus/0000:1a:00.0/information"
    change(path, "GPU-????????-????-????-????-????????????", "GPU-5d49bdf4")
    assert roster.look_up()[0].uuid == "GPU-5d49bdf4"


# -- files of drivers that hang -----------------------------------------------------------


class Unkillable(subprocess.Popen[bytes]):
    """A process that waits in the kernel, where no signal reaches it."""

    started: list[subprocess.Popen[bytes]]

    def __init__(self, words: list[str], *, stdin: int, stdout: int, stderr: int) -> None:
        super().__init__(words, stdin=stdin, stdout=stdout, stderr=stderr)
        self.started.append(self)

    def kill(self) -> None:
        pass


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A driver that answers for the first file only; the readers that were started."""
    program = driver_files._READER.replace("import json", "import time, json")
    program = program.replace("flush=True)", "flush=True)\n    time.sleep(600)")
    monkeypatch.setattr(driver_files, "_READER", program)
    monkeypatch.setattr(driver_files, "_PATIENCE_S", 2.0)
    monkeypatch.setattr(driver_files._Left, "process", None)
    monkeypatch.setattr(Unkillable, "started", [], raising=False)
    monkeypatch.setattr(subprocess, "Popen", Unkillable)
    yield Unkillable.started
    for reader in Unkillable.started:
        reader.terminate()
        reader.wait()


@pytest.mark.parametrize(
    ("program", "why"),
    [("/nowhere/python3", "No such file or directory"), ("/bin/false", "it ended with 1")],
)
def test_a_reader_that_cannot_run_says_nothing_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, why: str
) -> None:
    """Python may be where only root can read: then its own files are missing for nobody."""
    roster = Roster(unfold("two-nvidia-desktop", tmp_path))
    monkeypatch.setattr(sys, "executable", program)
    text = f"cannot ask NVIDIA's driver: {program} does not run as uid {os.getuid()}: {why}"
    with pytest.raises(HostError, match=f"^{re.escape(text)}$"):
        roster.look_up()


@pytest.mark.slow
def test_a_driver_that_hangs_is_waited_for_once(
    tmp_path: Path, hanging: list[subprocess.Popen[bytes]]
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
    paths = [str(tmp_path / name) for name in ("first", "second")]
    found = read_each(paths)
    assert found[paths[0]] == "first"
    assert isinstance(found[paths[1]], GpuFault)
    assert str(found[paths[1]]) == f"{paths[1]}: the driver does not answer"
    before_mono_s = time.monotonic()
    assert all(isinstance(each, GpuFault) for each in read_each(paths).values())
    assert time.monotonic() - before_mono_s < 1
    assert len(hanging) == 1


@pytest.mark.slow
def test_a_driver_that_has_come_back_is_asked_again(
    tmp_path: Path, hanging: list[subprocess.Popen[bytes]]
) -> None:
    (tmp_path / "file").write_text("text")
    path = str(tmp_path / "file")
    assert read_each([path]) == {path: "text"}
    hanging[0].terminate()
    hanging[0].wait()
    assert read_each([path]) == {path: "text"}
    assert len(hanging) == 2

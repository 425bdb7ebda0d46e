"""Device nodes: their numbers by path."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from drfd.devices.nodes import BLOCK, CHARACTER, DeviceNode, is_basic, node_at, show_node


def test_a_node_is_known_by_its_kind_and_numbers() -> None:
    assert node_at("/dev/null") == DeviceNode(CHARACTER, 1, 3)
    assert show_node(node_at(Path("/dev/null"))) == "c 1:3"


def test_a_link_to_a_node_is_the_node(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/zero")
    assert node_at(tmp_path / "link") == DeviceNode(CHARACTER, 1, 5)


def test_the_kind_of_a_block_device_and_numbers_beyond_a_byte_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Minors of MIG capability nodes and of NVMe disks are beyond 255."""
    # The tenth field and those after it are by name only: st_rdev is among them.
    fields = {"st_rdev": os.makedev(259, 70000)}
    found = os.stat_result((stat.S_IFBLK | 0o600, *([0] * 9)), fields)
    monkeypatch.setattr(os, "stat", lambda path: found)
    assert node_at("/dev/a-disk") == DeviceNode(BLOCK, 259, 70000)
    assert show_node(node_at("/dev/a-disk")) == "b 259:70000"


def test_what_is_no_device_is_refused_and_what_is_missing_is_the_kernels_error(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(ValueError, match=f"^{path} is no device node$"):
            node_at(path)
    with pytest.raises(FileNotFoundError, match="missing"):
        node_at(tmp_path / "missing")


@pytest.mark.parametrize("target", ["null", "zero", "random", "urandom", "tty", "ptmx"])
def test_a_device_that_all_processes_need_is_known_by_any_path(tmp_path: Path, target: str) -> None:
    (tmp_path / "link").symlink_to(f"/dev/{target}")
    assert is_basic(f"/dev/{target}")
    assert is_basic(str(tmp_path / "link"))
    assert is_basic("/dev/pts/7")
    assert not is_basic(str(tmp_path / "missing"))
    assert not is_basic(str(tmp_path))


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes device nodes")
def test_a_node_of_another_name_is_basic_if_jobs_cannot_start_without_it(tmp_path: Path) -> None:
    for name, minor in (("null", 3), ("zero", 5), ("random", 8)):
        os.mknod(tmp_path / name, 0o600 | stat.S_IFCHR, os.makedev(1, minor))
    found = [name for name in ("null", "zero", "random") if is_basic(str(tmp_path / name))]
    assert found == ["null", "random"]

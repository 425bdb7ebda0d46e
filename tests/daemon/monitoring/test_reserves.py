"""What of the disk and of the memory stays out of users' reach: who is refused, and told what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drfd.common.errors import Refused
from drfd.daemon.config import UserLimits
from drfd.daemon.monitoring.reserves import (
    DISK,
    MEMORY,
    Reserves,
    default_reserve_disk,
)
from drfd.host.measurements import MemoryHeadroom, spare_memory
from drfd.journal import files
from drfd.journal.files import Reserve
from fakes import ADMIN, ALICE

MIB, GIB = 1 << 20, 1 << 30
#: More than any file system has.
ALL = 1 << 60
PLENTY = MemoryHeadroom("the machine", 10 * GIB, 16 * GIB)


def reserves(
    tmp_path: Path, *spare: MemoryHeadroom, mono: Callable[[], float] = lambda: 0.0, **limits: int
) -> Reserves:
    limits = {"reserve_disk_bytes": 0} | limits
    reserve = Reserve(tmp_path / "journal.reserve", most_bytes=0)
    return Reserves(
        reserve, lambda: UserLimits(**limits), mono=mono, memory=lambda: [PLENTY, *spare]
    )


def test_below_the_reserve_of_disk_users_submit_and_change_nothing(tmp_path: Path) -> None:
    """They could fill the disk under the journal, and other people's jobs were lost to it."""
    kept = reserves(tmp_path, reserve_disk_bytes=ALL)
    for refuse, what in (
        (kept.refuse_submission, "nothing is submitted now"),
        (kept.refuse_change, "nothing is changed now"),
    ):
        with pytest.raises(Refused) as caught:
            refuse(ALICE)
        assert (caught.value.code, caught.value.exit_code) == ("short-of-disk", 1)
        assert str(caught.value).startswith(f"{what}: the disk of {tmp_path} has ")
        assert "(delete files there; the administrator can lower reserve_disk" in str(caught.value)
        refuse(ADMIN)
    assert [each.code for each in kept.shortages()] == [DISK]
    assert kept.warnings() == [f"{kept.shortages()[0].text} ({kept.shortages()[0].cure})"]


@pytest.mark.parametrize(
    ("spare", "is_short"),
    [
        (MemoryHeadroom("the machine", 255 * MIB, 64 * GIB), True),
        (MemoryHeadroom("the machine", 256 * MIB, 64 * GIB), False),
        (MemoryHeadroom("the cgroup /x", 3 * MIB, 256 * MIB), True),
        (MemoryHeadroom("the cgroup /x", 4 * MIB, 256 * MIB), False),
    ],
)
def test_below_the_reserve_of_memory_users_submit_nothing(
    tmp_path: Path, spare: MemoryHeadroom, is_short: bool
) -> None:
    kept = reserves(tmp_path, spare)
    kept.refuse_change(ALICE)
    kept.refuse_submission(ADMIN)
    if not is_short:
        kept.refuse_submission(ALICE)
        return
    with pytest.raises(Refused) as caught:
        kept.refuse_submission(ALICE)
    assert (caught.value.code, caught.value.exit_code) == ("short-of-memory", 1)
    assert f"{spare.of} has " in str(caught.value)
    assert [each.code for each in kept.shortages()] == [MEMORY]


def test_it_looks_again_after_a_moment_and_not_at_each_request(tmp_path: Path) -> None:
    now_s, looks = [0.0], [0]

    def memory() -> list[MemoryHeadroom]:
        looks[0] += 1
        return [MemoryHeadroom("the machine", 0, GIB) if looks[0] == 1 else PLENTY]

    reserve = Reserve(tmp_path / "journal.reserve", most_bytes=0)
    kept = Reserves(
        reserve, lambda: UserLimits(reserve_disk_bytes=0), mono=lambda: now_s[0], memory=memory
    )
    for _ in range(1000):
        assert len(kept.shortages()) == 1
    assert looks == [1]
    now_s[0] += 1.0
    assert kept.shortages() == []


@pytest.mark.parametrize(
    ("total", "kept"),
    [
        (3 * MIB, 3 * MIB // 4),
        (100 * MIB, 25 * MIB),
        (GIB, 64 * MIB),
        (10 * GIB, 512 * MIB),
        (1000 * GIB, GIB),
    ],
)
def test_what_is_kept_of_a_disk_unless_configured(total: int, kept: int) -> None:
    assert default_reserve_disk(total) == kept


def test_the_machine_and_its_cgroups_have_something_left() -> None:
    machine, *groups = spare_memory()
    assert machine.of == "the machine"
    assert 0 < machine.free_bytes <= machine.total_bytes
    assert all(0 <= each.free_bytes <= each.total_bytes for each in groups)


def test_a_reserve_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PLENTY", 1)
    reserve = Reserve(tmp_path / "journal.reserve", most_bytes=1 << 16)
    kept = Reserves(reserve, lambda: UserLimits(reserve_disk_bytes=0), memory=list)
    (line,) = kept.warnings()
    assert line.startswith(f"0 of 64K are left of {reserve.path}, the room for the ends of jobs")
    assert reserve.make()
    assert kept.warnings() == []

"""What is wrong, and how to mend it: each finding has its sentence, and a sound system none."""

from __future__ import annotations

from dataclasses import replace

from drfd.daemon.cures import Standing, cures

SERVICE = Standing(uid=997, is_systems=True, is_service=True, has_systemd=True, lingers=False)
OWN = Standing(uid=1000, is_systems=False, is_service=False, has_systemd=True, lingers=True)


def look(
    standing: Standing,
    *,
    has_launcher: bool = True,
    enforcement: str | None = "cgroup-v2",
    guessed: tuple[str, ...] = (),
    lacks_pins: bool = False,
) -> list[str]:
    return cures(
        standing,
        has_launcher=has_launcher,
        enforcement=enforcement,
        guessed=guessed,
        lacks_pins=lacks_pins,
    )


def test_where_all_is_well_there_is_nothing_to_mend() -> None:
    assert look(SERVICE) == []


def test_a_launcher_that_is_away_is_looked_for_where_it_is_started() -> None:
    (cure,) = look(SERVICE, has_launcher=False, enforcement=None)
    assert "systemctl status drfd-launcher" in cure
    (cure,) = look(replace(SERVICE, is_service=False), has_launcher=False, enforcement=None)
    assert "the log of drfd" in cure


def test_without_cgroups_root_can_help() -> None:
    (cure,) = look(SERVICE, enforcement="none")
    assert "as root on a machine with cgroups" in cure


def test_a_daemon_of_ones_own_is_not_the_systems() -> None:
    (cure,) = look(OWN)
    assert "drfd install" in cure


def test_who_does_not_linger_is_told_what_a_log_out_does() -> None:
    linger, _ = look(replace(OWN, lingers=False))
    assert "loginctl enable-linger" in linger
    for other in (replace(OWN, uid=0, lingers=False), replace(OWN, has_systemd=False)):
        assert not any("linger" in cure for cure in look(other))


def test_each_disk_whose_speed_is_a_guess_is_named() -> None:
    found = look(SERVICE, guessed=("state", "data"))
    assert [cure.split(":")[0] for cure in found] == [
        "the speed of disk state is a guess",
        "the speed of disk data is a guess",
    ]
    assert all("drfd calibrate" in cure for cure in found)


def test_who_wants_pins_and_has_none_is_told_where_cpusets_come_from() -> None:
    (cure,) = look(SERVICE, lacks_pins=True, enforcement="cgroup-v1")
    assert cure.startswith("CPUs of their own") and "mount -t cgroup -o cpuset" in cure
    (cure,) = look(SERVICE, lacks_pins=True)
    assert "Delegate=cpu cpuset io memory pids" in cure

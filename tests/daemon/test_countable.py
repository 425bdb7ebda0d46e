"""Countable resources when the configuration changes."""

from __future__ import annotations

from drfd.daemon.countable import CountableResource, with_devices_of

BEFORE, NOW = (("/dev/a",), ("/dev/b",)), (("/dev/b",), ("/dev/a",), ("/dev/c",))


def resource(
    name: str, *instances: str, devices: tuple[tuple[str, ...], ...] = ()
) -> CountableResource:
    return CountableResource(name=name, instances=instances, devices=devices)


def test_named_nodes_stay_as_the_launcher_was_told_them() -> None:
    """By number 0 it means the first node of the list that it has."""
    card = resource("card", "0", "1", devices=BEFORE)
    other = resource("card", "0", "1", "2", devices=NOW)
    tape, tapes = resource("tape", "0"), resource("tape", "0", "1")
    assert with_devices_of((card, tape), (other, tapes)) == (card, tapes)
    assert with_devices_of((card,), ()) == (card,)
    assert with_devices_of((card,), (resource("card", "0"),)) == (card,)


def test_nothing_is_given_out_of_nodes_that_the_launcher_does_not_know() -> None:
    other = resource("card", "0", "1", "2", devices=NOW)
    assert with_devices_of((), (other,)) == (resource("card"),)
    plain = resource("card", "left")
    assert with_devices_of((plain,), (other,)) == (plain,)

"""Countable resources when the configuration changes."""

from __future__ import annotations

from dataclasses import replace

from drfd.daemon.countable import CountableResource, late_gpus, with_devices_of

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


def test_gpus_are_late_that_were_open_to_jobs_before_they_were_given_out() -> None:
    one, two = (("gpu", ("0",)),), (("gpu", ("0", "1")), ("tape", ("0",)))
    gpu = resource("gpu", "0")
    assert late_gpus((gpu,), one, two) == ("1",)
    assert late_gpus((), (), two) == ("0", "1")
    assert late_gpus((gpu,), two, one) == ()
    for hidden in (replace(gpu, hides_all=True), replace(gpu, is_auto=True)):
        assert late_gpus((hidden,), one, two) == ()

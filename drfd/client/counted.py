"""The countable resources of a machine, by their number."""

from __future__ import annotations

from collections.abc import Mapping

from drfd.client.connection import Connection


def count_resources(client: Connection, capacity: Mapping[str, int]) -> Mapping[str, int]:
    """Return how many of each countable resource the machine has, by its capacity of them. Where
    jobs share GPUs by their memory, that is in bytes, and the instances are counted."""
    if not any(":" in name for name in capacity):
        return capacity
    there = client.request("doctor").get("gres", {})
    names = [name.partition(":")[2] or name for name in capacity]
    return {name: len(there[name]) for name in names if name in there}

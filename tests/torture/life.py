"""A whole run: everything that is done to a world, and then its end in peace."""

from __future__ import annotations

from pathlib import Path

from drfd.core.ledger.ledger import Ledger
from torture.claims import claim
from torture.deeds import calm, do
from torture.script import Step
from torture.world import Trace, World, compare_books

#: So long may it take, after the last fault, until everything has ended.
PATIENCE_S = 5_000.0


def run(seed: int, steps: list[Step], directory: Path, trace: Trace | None = None) -> World:
    """The world at its end; raises Broken, or what the product raises."""
    world = World(seed, directory, trace)
    try:
        for step in steps:
            world.run_until(world.seconds + step.pause_s)
            world.say(f"{world.seconds:8.2f} {step.kind} #{step.number}")
            world.counts[step.kind] += 1
            do(world, step)
            # What two steps do at one time is now and then taken in one turn.
            if step.number % 3:
                world.turn()
        end_in_peace(world)
    finally:
        if world.journal is not None:
            world.journal.close()
    return world


def end_in_peace(world: World) -> None:
    """No more faults, nobody keeps anything back: everything must come to its end."""
    world.say(f"{world.seconds:8.2f} no more faults")
    if world.journal is not None:
        world.journal.fault = ""
    world.machine.is_kind = True
    world.run_until(world.seconds + 30)
    assert world.engine is not None and world.journal is not None
    world.rules = world.first
    world.engine.adopt(world.first)
    world.machine.is_up = True
    world.connect()
    until_s = world.seconds + PATIENCE_S
    while world.seconds < until_s and any(world.books.live()):
        calm(world)
        world.turn()
        world.run_until(world.seconds + 20)
    left = [(each.id, each.state) for each in world.books.live()]
    claim(not left, "some never come to their end", left)
    rebuilt = Ledger.of_events(world.engine.ledger.axes, world.journal.durable)
    compare_books(world.engine.ledger, rebuilt, "the events make other books")
    claim(not any(world.engine.ledger.allocated), "something is held by nobody")
    alive = [each.key for each in world.machine.attempts.values() if each.is_alive]
    claim(not alive, "attempts that nobody knows run on", alive)

"""Builders and fakes that the tests share. Fakes insist on silence: what was not asserted fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from drfd.core.effects import Effect
from drfd.core.job import Job, JobSpec
from drfd.core.resources import Resources
from drfd.core.rules import Pool, Rules
from drfd.core.stimuli import Actor, Now

GIB = 1 << 30

ALICE = Actor(user="alice", uid=1001, is_admin=False)
BOB = Actor(user="bob", uid=1002, is_admin=False)
ADMIN = Actor(user="root", uid=0, is_admin=True)


def demand(cores: float = 1, memory_gib: float = 1, read: int = 0, write: int = 0) -> Resources:
    return Resources(
        cores_milli=round(cores * 1000),
        memory_bytes=round(memory_gib * GIB),
        read_bps=read,
        write_bps=write,
    )


def spec(
    pool: str = "root.alice",
    *,
    actor: Actor = ALICE,
    asks: Resources | None = None,
    time_limit_s: int | None = 3600,
    priority: int = 0,
    name: str = "job",
) -> JobSpec:
    return JobSpec(
        name=name,
        user=actor.user,
        uid=actor.uid,
        gid=actor.uid,
        pool=pool,
        demand=asks or demand(),
        time_limit_s=time_limit_s,
        priority=priority,
        argv=("true",),
        cwd="/home/alice",
        stdout="drf-%j.out",
        stderr="drf-%j.err",
    )


def rules(
    cores: float = 9, memory_gib: float = 18, *, weights: dict[str, str] | None = None,
    grace_s: int = 10, max_waiting_per_user: int = 1000,
) -> Rules:  # fmt: skip
    pools = {name: Pool(weight=Fraction(weight)) for name, weight in (weights or {}).items()}
    return Rules(
        capacity=demand(cores, memory_gib, read=1000, write=1000),
        pools=pools,
        grace_s=grace_s,
        max_waiting_per_user=max_waiting_per_user,
    )


def now(at_s: float = 0.0) -> Now:
    """Unix time and monotonic clock run together, 1000 s apart."""
    return Now(at_s=1_700_000_000 + at_s, mono_s=1000 + at_s)


@dataclass
class FakeHost:
    """Records the effects that an engine asks for. `take` empties it; a test ends with it empty."""

    ready: bool = True
    effects: list[Effect] = field(default_factory=list)

    def is_ready(self) -> bool:
        return self.ready

    def perform(self, effect: Effect, job: Job) -> None:
        self.effects.append(effect)

    def take(self) -> list[Effect]:
        taken, self.effects = self.effects, []
        return taken

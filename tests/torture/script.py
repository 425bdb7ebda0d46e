"""What is done in a run, drawn from a seed before anything happens: steps, of which any can be left
out.

A step names what is done and how long after the one before; whom it meets is drawn from its own
number among those who are there then.
"""

from dataclasses import dataclass
from random import Random

#: Kinds of steps, and how often they come.
KINDS = {
    "submit": 30,
    "submit_array": 8,
    "flood": 6,
    "cancel": 5,
    "hold": 3,
    "release": 3,
    "requeue": 2,
    "requeuehold": 1,
    "suspend": 4,
    "resume": 4,
    "signal": 1,
    "change": 5,
    "drain": 1,
    "undrain": 2,
    "outside": 3,
    "reload": 3,
    "launcher_dies": 2,
    "controller_dies": 3,
    "journal_fails": 2,
    "reboot": 1,
    "clock_jumps": 1,
    "late_sample": 2,
    "said_again": 3,
    "runner_dies": 2,
    "wait": 6,
}
#: Steps of a run.
STEPS = 16


@dataclass(frozen=True)
class Step:
    pause_s: float
    kind: str
    number: int

    def __str__(self) -> str:
        return f"+{self.pause_s:g}s {self.kind} #{self.number}"


def script(seed: int, steps: int = STEPS) -> list[Step]:
    random = Random(f"script {seed}")
    # Each run has its own temper: some kinds come often in it, some never.
    temper = {kind: odds * random.choice([0, 1, 1, 1, 3]) for kind, odds in KINDS.items()}
    temper["submit"] = temper["submit"] or KINDS["submit"]
    if random.random() < 0.25:
        # One takes all, and others come later.
        temper["flood"], temper["submit"] = 4 * KINDS["flood"], 2 * KINDS["submit"]
    kinds, odds = list(temper), list(temper.values())
    pauses = random.choice([[0.0, 0.0, 0.2, 1.0], [0.0, 0.5, 3.0, 10.0], [0.0, 1.0, 30.0]])
    return [
        Step(random.choice(pauses), random.choices(kinds, odds)[0], random.randrange(1 << 30))
        for _ in range(steps)
    ]

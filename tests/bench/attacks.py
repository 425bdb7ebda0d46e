"""What one user can do to another's submissions: `python -m tests.bench.attacks [NAME ...]`.

As root, with cgroups and a C compiler. Each attack of attackers.py has a private drfd of its own
and two users of its own: the attacker, who may hold 8 of 64 cores, and the one who works. The
second one's times are taken in three states, in turns, so that other load of the machine falls on
all three:

a  alone
b  beside a process of the attacker's that uses as much processor time as the attack and its jobs,
   and nothing of drfd: what a neighbour on the same machine costs anybody
c  beside the attack

and for three kinds of work:

drf submit  the command as a user types it, from the start of its process to the end of it
connection  connect, submit one job, have the answer, which means that the job is on disk
start       from the submission to the first instruction of the job

c/a is the ratio of the 99th percentiles that drfd promises to be at most two for `drf submit`; c/b
tells drfd's own part in it. With fewer than 200 samples of a kind in each state (see --commands)
the 99th percentile is little more than the largest one. `spin` is an attack on the machine alone.
"""

from __future__ import annotations

import os
import pwd
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from drfd.client.connection import Connection
from instance import BIN, CONFIG, add_account, cpu_s, delete_account, wait_for
from tests.bench.attackers import ATTACKS
from tests.bench.place import Place, latest, options_of

PROGRAM = Path(__file__).parent.joinpath("attackers.py").read_text()
KINDS = ("drf submit", "connection", "start")
ALONE, SPIN, ATTACK = STATES = ("a", "b", "c")
#: A ratio of the 99th percentiles above this is a fault, by what drfd promises.
MOST = 2.0
#: Seconds that an attacker may prepare.
_PREPARE_S = 60.0
AS_ROOT = {"unknown-uids"}
#: Their jobs do the harm, so that it matters how many run at a time.
ATTACKS_BY_JOBS = {"torn", "signals", "suspensions", "notices", "retries", "unlaunchable"}

Samples = dict[str, list[float]]


class Ended(Exception):
    """The attack has ended by itself."""


@dataclass(frozen=True)
class Counts:
    """Samples of each kind in one state, in one round."""

    commands: int
    connections: int
    starts: int


def _empty() -> Samples:
    return {kind: [] for kind in KINDS}


@dataclass
class Times:
    """Milliseconds by state and kind."""

    samples: dict[str, Samples] = field(default_factory=lambda: {each: _empty() for each in STATES})
    #: Processors that the attacker's process and jobs have used beside the work.
    processors: float = 0.0

    def late(self, state: str, kind: str) -> float:
        return latest(self.samples[state][kind])

    def ratio(self, kind: str, of: str = ALONE) -> float:
        return self.late(ATTACK, kind) / self.late(of, kind)


class Stage(Place):
    """A drfd with two users: the attacker and the one who works."""

    def __init__(self, attack: str) -> None:
        # The attackers sign nothing.
        super().__init__(signs=False)
        cores = os.cpu_count() or 1 if attack in ATTACKS_BY_JOBS else 64
        limit = cores / 2 if attack in ATTACKS_BY_JOBS else 8
        text = CONFIG.replace("cores = 9", f"cores = {cores}").replace('"18G"', '"64G"')
        self.attacker = f"drfdattack{os.getpid()}"
        text += f'[users.{self.attacker}]\nlimit = {{cores = {limit}, memory = "8G"}}\n'
        self.instance.config.write_text(text)
        self.instance.configured = text
        #: Processors that the last attack has used.
        self.processors = 0.0

    def start(self) -> Stage:
        add_account(self.attacker)
        super().start()
        self.home = self.instance.root / "attacker"
        self.home.mkdir()
        os.chown(self.home, pwd.getpwnam(self.attacker).pw_uid, -1)
        return self

    def destroy(self) -> None:
        try:
            super().destroy()
        finally:
            delete_account(self.attacker)

    @contextmanager
    def attack(self, name: str, *more: str) -> Iterator[None]:
        """While it lasts. Raises Ended when the attack has ended before."""
        account = pwd.getpwnam(self.attacker)
        who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-c", PROGRAM),
                *(name, str(self.instance.socket), str(self.home), "", *more),
            ],
            stdout=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
            **({} if name in AS_ROOT else who),  # type: ignore[arg-type]
        )
        try:
            self._await_begin(process, name)
            before_s, begin_s = self._attack_cpu_s(process.pid), time.monotonic()
            yield
            if process.poll() is not None:
                raise Ended(f"the attack {name} has ended by itself")
            used_s = self._attack_cpu_s(process.pid) - before_s
            self.processors = used_s / (time.monotonic() - begin_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            self._clear()

    @contextmanager
    def spinning(self) -> Iterator[None]:
        """As much processor time used as the last attack did."""
        with self.attack("spin", f"{self.processors:.3f}"):
            used = self.processors
            yield
        self.processors = used

    def _attack_cpu_s(self, pid: int) -> float:
        """Of the attacker's process, and of all jobs."""
        used_s = cpu_s(pid)
        for top in self._groups():
            with suppress(OSError):
                return used_s + int((top / "cpuacct.usage").read_text()) / 1e9
        for top in self._groups():
            with suppress(OSError, ValueError):
                words = (top / "cpu.stat").read_text().split()
                return used_s + int(words[words.index("usage_usec") + 1]) / 1e6
        return used_s

    def _await_begin(self, process: subprocess.Popen[bytes], name: str) -> None:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        until = time.monotonic() + _PREPARE_S
        while not process.stdout.read():
            if process.poll() is not None:
                raise Ended(f"the attack {name} has failed")
            if time.monotonic() > until:
                print(f"({name}: still preparing after {_PREPARE_S:.0f} s)", file=sys.stderr)
                return
            time.sleep(0.05)

    def _clear(self) -> None:
        """Nothing of the attacker's lives on."""

        def is_clear() -> bool:
            with closing(Connection(self.instance.socket)) as root:
                root.request("cancel", select={"user": self.attacker})
                return not root.request("status", select={"user": self.attacker}, limit=1)["jobs"]

        wait_for("the end of the attacker's jobs", is_clear, seconds=300)


def measure(stage: Stage, into: Samples, counts: Counts, random: Random) -> None:
    """The second user works: so many samples of each kind, in an order of chance."""
    kinds = ["drf submit"] * counts.commands
    kinds += ["connection"] * counts.connections + ["start"] * counts.starts
    random.shuffle(kinds)
    with closing(stage.connect()) as connection, stage.stamps() as (path, stamps):
        small = {"demand": {"cores_milli": 100, "memory_bytes": 64 << 20}, "time_limit_s": 60}
        fields = stage.fields(stage.stamp, stdout=path) | small
        nothing = stage.fields("/bin/true") | small
        env = {**os.environ, "DRFD_SOCKET": str(stage.instance.socket)}
        asked = ("-q", "-c", "0.1", "-m", "64M", "-o", "/dev/null", "--", "true")
        command = [str(BIN / "drf"), "submit", *asked]
        who = {"user": stage.uid, "group": stage.uid, "extra_groups": []}
        for kind in kinds:
            # At moments that have nothing to do with what the attacker does when.
            time.sleep(random.uniform(0, 0.02))
            begin_ns = time.monotonic_ns()
            if kind == "drf submit":
                subprocess.run(
                    command, env=env, cwd=stage.instance.work, check=True,
                    stdout=subprocess.DEVNULL, **who,  # type: ignore[call-overload]
                )  # fmt: skip
                end_ns = time.monotonic_ns()
            elif kind == "connection":
                with as_user(stage.uid), closing(Connection(stage.instance.socket)) as fresh:
                    begin_ns = time.monotonic_ns()
                    fresh.submit(**nothing)
                    end_ns = time.monotonic_ns()
            else:
                connection.submit(**fields)
                end_ns = next(stamps)
            into[kind].append((end_ns - begin_ns) / 1e6)


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    """The kernel tells drfd who we were when we connected."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def run(name: str, *, rounds: int, counts: Counts, random: Random) -> Times:
    found = Times()
    stage = Stage(name)
    try:
        stage.start()
        measure(stage, _empty(), Counts(3, 5, 3), random)
        used = []
        for at in range(rounds):
            # The first attack tells how much processor time it uses.
            states = [ALONE, ATTACK, SPIN] if at == 0 else random.sample(STATES, 3)
            for state in states:
                into = found.samples[state]
                if state == ALONE:
                    measure(stage, into, counts, random)
                elif state == SPIN:
                    with stage.spinning():
                        measure(stage, into, counts, random)
                else:
                    with stage.attack(name):
                        measure(stage, into, counts, random)
                    used.append(stage.processors)
        found.processors = statistics.mean(used)
        return found
    finally:
        stage.destroy()


def head() -> str:
    cells = ["attack"]
    for kind in KINDS:
        cells += [f"{kind}: p50 a / b / c", "p99 a / b / c", "c/a", "c/b"]
    cells.append("CPUs")
    return "| " + " | ".join(cells) + " |\n" + "|---" * len(cells) + "|"


def row(name: str, found: Times) -> str:
    cells = [name]
    for kind in KINDS:
        middles = (statistics.median(found.samples[state][kind]) for state in STATES)
        cells.append(" / ".join(f"{each:.1f}" for each in middles))
        cells.append(" / ".join(f"{found.late(state, kind):.1f}" for state in STATES))
        ratio = found.ratio(kind)
        cells.append(f"**{ratio:.1f}**" if ratio > MOST else f"{ratio:.1f}")
        cells.append(f"{found.ratio(kind, of=SPIN):.1f}")
    cells.append(f"{found.processors:.1f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = options_of("tests.bench.attacks", __doc__)
    parser.add_argument("attacks", nargs="*", metavar="NAME", help="of attacks (all)")
    parser.add_argument("--list", action="store_true", help="tell what attacks there are")
    parser.add_argument("--rounds", type=int, default=3, help="of the three states (3)")
    parser.add_argument(
        "--count", type=int, default=70, help="connections in each state of a round (70)"
    )
    parser.add_argument("--commands", type=int, default=35, help="and `drf submit` (35)")
    parser.add_argument("--starts", type=int, default=35, help="and starts (35)")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.list:
        for name, (what, _) in ATTACKS.items():
            print(f"{name:<18} {what}")
        return
    if unknown := sorted({*chosen.attacks} - {*ATTACKS}):
        parser.error(f"no such attack: {', '.join(unknown)} (see --list)")
    if os.geteuid() != 0:
        raise SystemExit("root must run this: it makes two users")
    counts = Counts(chosen.commands, chosen.count, chosen.starts)
    times: dict[str, Times] = {}
    failed: dict[str, str] = {}
    for name in chosen.attacks or ATTACKS:
        random = Random(f"{chosen.seed} {name}")
        try:
            times[name] = run(name, rounds=chosen.rounds, counts=counts, random=random)
        except Ended as error:
            failed[name] = str(error)
            print(f"{name}: no figures: {error}", flush=True)
            continue
        told = [f"{kind} {times[name].ratio(kind):.1f}" for kind in KINDS]
        print(f"{name}: c/a {', '.join(told)}", flush=True)
    print_table(times, failed, chosen.rounds, counts)


def print_table(
    times: dict[str, Times], failed: dict[str, str], rounds: int, counts: Counts
) -> None:
    """The worst for `drf submit` first."""
    of_each = (counts.commands, counts.connections, counts.starts)
    told = ", ".join(
        f"{count * rounds} × {kind}" for kind, count in zip(KINDS, of_each, strict=True)
    )
    print(f"\nMilliseconds; in each state {told}.\n\n{head()}")
    for name, found in sorted(times.items(), key=lambda each: -each[1].ratio(KINDS[0])):
        print(row(name, found))
    for kind in KINDS:
        above = [name for name, found in times.items() if found.ratio(kind) > MOST]
        print(f"\n{kind}: {len(above)} of {len(times)} above {MOST:g} by c/a.", end="")
        own = [name for name, found in times.items() if found.ratio(kind, of=SPIN) > MOST]
        print(f" By c/b {len(own)}: {', '.join(own) or 'none'}.")
    for name, why in failed.items():
        print(f"\n{name} has no figures: {why}")


if __name__ == "__main__":
    main()

"""A user who works, and keeps a record of it: what was asked for, and how it ought to end.

Run as that user, who may not be able to read this file: its text is passed with `-c`. Jobs
themselves write with O_APPEND when they run, each its attempt, so that the files tell how often
each has run. It ends when the file `stop` is in its directory, after all its jobs have ended.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from drfd.client.connection import Connection
from drfd.common.errors import DrfdError, Refused, Unavailable

_WAIT = "while :; do sleep 0.1; done"
#: Fate: the script, and the ends that are right (state, exit code).
FATES: dict[str, tuple[str, tuple[tuple[str, int | None], ...]]] = {
    "good": ("exit 0", (("COMPLETED", 0),)),
    "bad": ("exit 3", (("FAILED", 3),)),
    "short": ("sleep 0.2", (("COMPLETED", 0),)),
    "held": ("exit 4", (("FAILED", 4),)),
    "cancelled": ("exec sleep 1000", (("CANCELLED", None),)),
    "frozen": ("sleep 0.5; exit 5", (("FAILED", 5),)),
    "straggler": ("setsid sleep 1000 & exit 7", (("FAILED", 7),)),
    "signalled": (f"trap 'exit 6' USR1; touch ready; {_WAIT}", (("FAILED", 6),)),
    "long": ("sleep 6; exit 8", (("FAILED", 8),)),
    "retried": ("sleep 1; exit 9", (("FAILED", 9),)),
    "late": ("sleep 1000", (("TIMEOUT", None),)),
}
#: What each job declares.
CORES_MILLI, MEMORY_BYTES = 200, 32 << 20
#: Of all submissions, this part is made by the program `drf`.
_BY_PROGRAM = 0.05


def deeds(fate: str, chance: Random) -> list[tuple[float, str]]:
    """What is asked of such a job, in how many seconds."""
    match fate:
        case "held":
            return [(chance.uniform(0, 2), "release")]
        case "cancelled":
            return [(chance.uniform(0, 2), "cancel")]
        case "frozen":
            return [(chance.uniform(0, 0.5), "suspend"), (2.0, "resume")]
        case "signalled":
            return [(1.0, "signal")]
    return []


def _begun(number: int) -> str:
    """A job's first steps: it writes down its attempt, and whether another one still runs."""
    locked = f"exec 9>>lock-{number}; flock -n 9 || echo beside >> ran-{number}; "
    return f"{locked}echo $DRF_ATTEMPT >> ran-{number}; "


class Worker:
    """`fields`: what each job is submitted with besides; then none is by the program."""

    def __init__(
        self,
        socket_path: Path,
        home: Path,
        drf: str,
        seed: str,
        *,
        odds: dict[str, float],
        fields: dict[str, Any],
    ) -> None:
        self._connection = Connection(socket_path)
        self._home, self._drf = home, drf
        self._chance, self._odds, self._fields = Random(seed), odds, fields
        self._records = home.joinpath("records").open("a")
        self._fates: dict[int, tuple[str, int]] = {}
        self._later: list[tuple[float, str, int]] = []
        self._count = 0

    def run(self, per_second: float) -> None:
        next_s = time.monotonic()
        while not self._home.joinpath("stop").exists():
            if time.monotonic() >= next_s:
                self._submit()
                next_s = max(next_s + 1 / per_second, time.monotonic() - 1)
            self._do_what_is_due(time.monotonic())
            time.sleep(max(0.0, min(0.01, next_s - time.monotonic())))
        self._do_what_is_due(float("inf"))
        self._await_all()
        self._note(done=True)

    def _submit(self) -> None:
        number, self._count = self._count, self._count + 1
        place = self._home / str(number // 1000)
        place.mkdir(exist_ok=True)
        if not self._fields and self._chance.random() < _BY_PROGRAM:
            self._submit_by_program(number, place)
            return
        (fate,) = self._chance.choices([*self._odds], [*self._odds.values()])
        # Where another job of that name has not been.
        script = _begun(number) + FATES[fate][0].replace("ready", f"ready-{number}")
        fields: dict[str, Any] = {
            "cwd": str(place),
            "name": f"{fate}-{number}",
            "env": {"PATH": os.environ["PATH"]},
            "demand": {"cores_milli": CORES_MILLI, "memory_bytes": MEMORY_BYTES},
            "argv": ["sh", "-c", script],
            "stdout": "/dev/null",
            "stderr": "/dev/null",
            "held": fate == "held",
            "time_limit_s": 1 if fate == "late" else None,
            "retry": {"times": 2, "on": ["LOST"]} if fate == "retried" else None,
            **self._fields,
        }
        job_id = self._asked("submit", **fields)
        if job_id is not None:
            self._remember(job_id, fate, number)

    def _submit_by_program(self, number: int, place: Path) -> None:
        """As people do it."""
        script = _begun(number) + FATES["bad"][0]
        asked = ("-q", "-c", "0.2", "-m", "32M", "-o", "/dev/null", "-e", "/dev/null")
        command = [self._drf, "submit", *asked, "--", "sh", "-c", script]
        begun_ns = time.monotonic_ns()
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300)
        at_ns = time.monotonic_ns()
        if done.returncode == os.EX_UNAVAILABLE:
            # Nobody was there to ask; nothing is queued.
            self._note(away=done.stderr.strip(), begun_ns=begun_ns, at_ns=at_ns)
            return
        if done.returncode != 0:
            self._note(refused=done.stderr.strip(), code=done.returncode)
            return
        self._remember(int(done.stdout), "bad", number)

    def _remember(self, job_id: int, fate: str, number: int) -> None:
        """It has been taken just now."""
        self._note(id=job_id, number=number, fate=fate)
        self._fates[job_id] = fate, number
        now = time.monotonic()
        self._later += [(now + in_s, verb, job_id) for in_s, verb in deeds(fate, self._chance)]

    def _asked(self, op: str, **fields: Any) -> int | None:
        """Until it answers. None when it refuses, which is noted."""
        key = f"{os.getpid()}-{self._count}"
        while True:
            try:
                if op == "submit":
                    return int(self._connection.request(op, key=key, **fields)["id"])
                self._connection.request(op, **fields)
                return 0
            except Unavailable:
                self._connection.close()
                time.sleep(0.05)
            except Refused as error:
                self._note(refused=str(error), code=error.code)
                return None

    def _do_what_is_due(self, now: float) -> None:
        due = [each for each in self._later if each[0] <= now]
        self._later = [each for each in self._later if each[0] > now]
        for _, verb, job_id in due:
            if verb != "signal":
                self._asked(verb, select={"ids": [job_id]})
            elif not self._signal(job_id):
                self._later.append((now + 1.0, verb, job_id))

    def _await_all(self) -> None:
        """What could not be done, or while nobody answered, is asked for again."""
        until = time.monotonic() + 300
        while time.monotonic() < until:
            try:
                select = {"user": self._connection.request("hello")["user"]}
                live = self._connection.request("status", select=select, limit=1000)["jobs"]
            except DrfdError:
                self._connection.close()
                time.sleep(0.2)
                continue
            if not live:
                return
            for job in live:
                fate, _ = self._fates.get(job["id"], ("", 0))
                verb = {"HELD": "release", "SUSPENDED": "resume"}.get(job["state"])
                if verb is not None or fate == "cancelled":
                    self._asked(verb or "cancel", select={"ids": [job["id"]]})
                self._signal(job["id"])
            time.sleep(0.2)
        self._note(refused="jobs do not end", code="stuck")

    def _signal(self, job_id: int) -> bool:
        """Signal a job that waits for it; False before its trap is set."""
        fate, number = self._fates.get(job_id, ("", 0))
        ready = self._home.joinpath(str(number // 1000), f"ready-{number}")
        if fate != "signalled" or not ready.exists():
            return False
        self._asked("signal", select={"ids": [job_id]}, signal=10)
        return True

    def _note(self, **fields: Any) -> None:
        self._records.write(json.dumps(fields) + "\n")
        self._records.flush()


if __name__ == "__main__":
    _socket, _home, _drf, _told, _seed, _rate = sys.argv[1:7]
    os.umask(0o077)
    Worker(Path(_socket), Path(_home), _drf, _seed, **json.loads(_told)).run(float(_rate))

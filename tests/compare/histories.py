"""Random histories as requests: the scripts of `torture.script`, played to the daemon of either
tree (`driver.World`). Nothing here imports drfd.

A history is its number. The configuration, what each step asks, and whom, are drawn from it and
from what the daemon has replied: two daemons that reply the same are asked the same. A step that
only the torture's world can do, to the inside of a daemon (a journal that fails, the load of other
programs, a breach that was measured), is a pause here.
"""

import json
from asyncio import sleep
from random import Random
from typing import Any

from torture.script import Step, script

Message = dict[str, Any]

USERS = ("ann", "ben", "cyd", "dan")
MIB, GIB = 1 << 20, 1 << 30
_POOLS = {"ann": ["lab"], "ben": ["lab"], "cyd": ["lab.bio"], "dan": [None]}
#: The longest pause between two steps, in seconds. Time costs most: a daemon looks at much by
#: itself.
_PAUSE_S = 10.0
#: Rounds in which everything ends by itself, those after which it is cancelled, and their length.
_PATIENT, _ROUNDS, _ROUND_S = 9, 20, 6.0
#: In which state the job should be that a verb is for.
_STATES = {
    "cancel": "", "hold": "PENDING", "release": "HELD", "suspend": "RUNNING",
    "resume": "SUSPENDED", "signal": "RUNNING",
}  # fmt: skip


def configuration(seed: int, later: Random | None = None) -> str:
    """The configuration of a history; with `later`, as somebody changes it meanwhile."""
    random = Random(f"configuration {seed}")
    cores, memory, gpus = random.choice([2, 4, 9]), random.choice([4, 8]), random.choice([0, 1, 3])
    policy = random.choice(["drf"] * 9 + ["fifo", "slots", "asset"])
    sharing = {"share": True, "memory": "8G"} if random.random() < 0.5 else {}
    changing = later or random
    if later is not None:
        cores, memory = max(1, cores * later.choice([1, 2, 3]) // 3), later.choice([memory, 4])
        gpus = later.choice([gpus, gpus, max(0, gpus - 1)])
    scheduling = {
        "policy": policy, "respect_external_load": False,
        "reservation": random.random() < 0.5, "reservation_delay": random.choice([1, 2, 15]),
        "reservation_drain_after": random.choice([5, 40, 1_000_000]),
        "reservation_depth": random.choice([1, 1, 2, 3]),
        "half_life": random.choice([60, 604_800]), "min_charge_time": random.choice([0, 0, 10]),
        "preemption": policy == "drf" and random.random() < 0.6,
        "preempt": random.choice(["requeue", "suspend"]), "preempt_after": random.choice([1, 4]),
        "preempt_exempt": random.choice([0, 0, 1]),
    }  # fmt: skip
    lab = {
        "weight": random.choice([1, 2, 0.5]), "guarantee": random.choice(_LIMITS),
        "users": {"ben": {}, "ann": {"weight": random.choice([1, 2])}},
        "pools": {"bio": {"users": ["cyd"]}},
    }  # fmt: skip
    lab["pools"]["bio"] |= random.choice([{}, {"weight": {"memory": 2.5}}])
    hours = {"when": "Tue 22:14-22:15", "limit": {"cores": 1}}
    pools = {"lab": lab, "open": {"limit": changing.choice(_LIMITS)}}
    pools["open"] |= {"hours": [hours]} if random.random() < 0.2 else {}
    tables = {
        "capacity": {"cores": cores, "memory": f"{memory}G", "reserve_memory": 0},
        "disk": [{"name": "d", "path": "/", "read": 1000, "write": 1000}],
        "gres": {"gpu": {"instances": [*range(gpus)], **sharing}} if gpus else {},
        "scheduling": scheduling,
        "enforcement": {"grace": random.choice([1, 5])},
        "limits": {"waiting_jobs_per_user": 25, "reserve_disk": "1M"},
        "pools": pools,
    }
    if random.random() < 0.1:
        start = random.choice(["2023-11-14 22:14", "2023-11-14 22:15", "2023-11-14 22:20"])
        tables["window"] = [{"name": "w", "start": start, "length": "1m"}]
    return "".join(f"{name} = {_toml(value)}\n" for name, value in tables.items())


_LIMITS: list[dict[str, Any]] = [{}, {}, {"cores": 1}, {"cores": 2}, {"memory": "3G"}]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value)


async def play(world: Any) -> None:
    """Do all that the history does, and record replies, jobs that have changed, and all ends."""
    player = _Player(world)
    for step in script(world.seed):
        await sleep(min(step.pause_s, _PAUSE_S))
        await player.look()
        await player.do(step, Random(f"{world.seed} {step.kind} {step.number}"))
    await player.end()


class _Player:
    def __init__(self, world: Any) -> None:
        self._world, self._seed = world, world.seed
        text = configuration(self._seed)
        self._has_gpus, self._are_shared = "instances" in text, "share = true" in text
        #: The live jobs, as they are shown; all ids; what was recorded of each.
        self._rows: list[Message] = []
        self._ids: list[int] = []
        self._seen: dict[int, str] = {}

    async def _ask(self, user: str, op: str, **fields: Any) -> Message:
        reply: Message = await self._world.ask(user, op, **fields)
        kind = f"reply to {op}"
        if not reply["ok"]:
            self._world.record(kind, reply["error"]["code"])
        elif op == "submit":
            self._ids += range(reply["id"], reply["id"] + reply.get("tasks", 0) + 1)
            self._world.record(kind, f"id {reply['id']}")
        elif "failed" in reply:
            refused = [(each["id"], each["error"]["code"]) for each in reply["failed"]]
            self._world.record(kind, f"done {reply['done']} refused {refused}")
        return reply

    async def look(self) -> None:
        self._rows = (await self._ask("root", "status", tasks=True))["jobs"]
        for row in self._rows:
            text = f"{row['state']} {(row['reason'] or {}).get('code', '')} {row['attempt']}"
            if self._seen.get(row["id"]) != text:
                self._seen[row["id"]] = text
                self._world.record(f"job {row['id']}", text)

    async def do(self, step: Step, random: Random) -> None:
        world = self._world
        match step.kind:
            case "submit":
                user, fields = self._submission(random)
                for _ in range(random.choice([1, 1, 1, 2, 4])):
                    await self._ask(user, "submit", **fields, held=random.random() < 0.08)
            case "flood":
                user, fields = self._submission(random)
                small = {"cores_milli": 1000, "memory_bytes": GIB // 2}
                fields |= {"demand": small, "preemptible": True, "time_limit_s": 0, "after": []}
                fields.pop("warn", None)
                for _ in range(random.choice([4, 8])):
                    await self._ask(user, "submit", **fields)
            case "submit_array":
                user, fields = self._submission(random)
                tasks = random.choice(["0-3", "1,4-8:2", "0-5"]) + random.choice(["", "%1", "%2"])
                await self._ask(user, "submit", **fields, array=tasks)
            case verb if verb in _STATES:
                more = {"signal": 10} if verb == "signal" else {}
                await self._about_one(verb, random, _STATES[verb], **more)
            case "change":
                await self._change(random)
            case "drain" | "undrain":
                reason = random.choice([None, "x"])
                await self._ask("root", "drain", on=step.kind == "drain", reason=reason)
            case "reload":
                world.configure(configuration(self._seed, random.choice([random, None])))
                await self._ask("root", "reload")
            case "launcher_dies":
                world.launcher.fall()
                await sleep(random.choice([0.0, 0.5, 6.0]))
                await world.launcher.rise()
            case "controller_dies" | "reboot":
                await world.restart()
            case "clock_jumps":
                world.set_clock(random.choice([-3600.0, -5.0, 5.0, 3600.0]))
            case "runner_dies":
                world.launcher.lose(step.number)
            case _:
                await sleep(random.choice([1.0, 5.0]))

    async def end(self) -> None:
        """Nobody keeps anything back any more: wait until everything has ended."""
        self._world.launcher.be_kind()
        self._world.configure(configuration(self._seed))
        await self._ask("root", "reload")
        await self._ask("root", "drain", on=False)
        await self.look()
        for number in range(_ROUNDS):
            for verb in ("release", "resume", "cancel"):
                ids = [row["id"] for row in self._rows if row["state"] == _STATES[verb]]
                if verb == "cancel" and number >= _PATIENT:
                    ids = [row["id"] for row in self._rows]
                if ids:
                    await self._ask("root", verb, select={"ids": ids})
            await sleep(_ROUND_S)
            await self.look()
            if not self._rows:
                break
        after = None
        while (reply := await self._ask("root", "history", limit=100, after=after))["jobs"]:
            for row in reply["jobs"]:
                facts = (row["exit_code"], row["signal"], row["attempt"], row["outcome"]["code"])
                self._world.record(f"end of {row['id']}", f"{row['state']} {facts}")
            after = reply["after"]
            if after is None:
                break

    def _submission(self, random: Random) -> tuple[str, Message]:
        """Who submits, and what."""
        user = random.choice(USERS)
        cores = random.choice([10, 500, 1000, 1000, 2000])
        limit_s = random.choice([0, 0, 3, 10, 40, 300])
        gres = {"gpu": random.choice([1, 1, 2])} if self._has_gpus and random.random() < 0.4 else {}
        part = random.choice([0, 1, 3, 4, 8]) if gres and self._are_shared else 0
        demand = {
            "cores_milli": random.choice([9000, 4000]) if random.random() < 0.15 else cores,
            "memory_bytes": random.choice([MIB, GIB, GIB, 3 * GIB]),
            "read_bps": random.choice([0, 0, 300]), "write_bps": random.choice([0, 0, 0, 600]),
            "gres": gres, "gres_memory": {"gpu": part * GIB} if part else {},
        }  # fmt: skip
        fields: Message = {
            "argv": ["true"], "cwd": "/", "name": random.choice("abc"), "demand": demand,
            "pool": random.choice([None, None, *_POOLS[user], "open"]), "time_limit_s": limit_s,
            "priority": random.choice([0, 0, 0, 1, -1]), "preemptible": random.random() < 0.7,
            "retry": random.choice([None, None, {"times": 2, "on": []}]),
            "after": self._after(random) if random.random() < 0.3 else [],
            "begin_s": random.choice([None] * 9 + [1_700_000_000 + random.choice([-5, 20, 60])]),
            "if_never": random.choice(["keep", "keep", "cancel"]), "group": self._group(random),
        }  # fmt: skip
        if limit_s == 40 or fields["after"]:
            fields["notify"] = {"on": ["end"], "argv": ["tell"]}
        if limit_s > 5 and random.random() < 0.3:
            fields["warn"] = {"signal": 10, "before_s": 4}
        return user, fields

    def _group(self, random: Random) -> str | None:
        return random.choice([None, "sweep%1", "sweep%2", "b"]) if self._seed % 3 == 1 else None

    def _after(self, random: Random) -> list[Message]:
        some = random.sample(self._ids, min(len(self._ids), random.choice([1, 1, 2])))
        return [{"id": each, "want": random.choice(["ok", "any", "fail"])} for each in some]

    async def _change(self, random: Random) -> None:
        cores = random.choice([None, None, 500, 1500])
        wish = {
            "priority": random.choice([None, 0, 1, 5]),
            "time_limit_s": random.choice([None, None, 5, 60]),
            "demand": {"cores_milli": cores} if cores else {},
            "pool": random.choice([None, None, None, "open"]),
            "after": random.choice([None, None, [], self._after(random)]),
            "begin_s": random.choice([None, None, 0, 1_700_000_030]),
            "group": self._group(random),
        }
        await self._about_one("set", random, random.choice(["PENDING", ""]), **wish)

    async def _about_one(self, verb: str, random: Random, state: str, **fields: Any) -> None:
        """Of a live job, in this state if there is one; now and then of an array, or of any id."""
        rows = [row for row in self._rows if row["state"] == state] or self._rows
        if not rows or random.random() < 0.05:
            job_id, owner = random.choice([*self._ids, 1]), random.choice(USERS)
        else:
            row = random.choice(rows)
            is_whole = row["array_id"] is not None and random.random() < 0.5
            job_id, owner = row["array_id"] if is_whole else row["id"], row["user"]
        user = random.choice([owner] * 6 + ["root", "root", "dan"])
        await self._ask(user, verb, select={"ids": [job_id]}, **fields)

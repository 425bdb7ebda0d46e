"""What a reader sees after one fixed history: the JSON of each reading command, and its text.

Nothing here imports drfd. The daemon stands still after the history, so all times are the same.
"""

from asyncio import sleep
from typing import Any

GIB = 1 << 30
CONFIGURATION = """
[capacity]
cores = 9
memory = "18G"
reserve_memory = 0
[[disk]]
name = "d"
path = "/"
read = "1G"
write = "1G"
[gres]
gpu = [0, 1]
[defaults]
time = "2h"
[pools.lab]
weight = 2
guarantee = {cores = 1}
[pools.lab.users.ann]
weight = 2
[pools.lab.users.ben]
[pools.lab.pools.bio]
users = ["cyd"]
[pools.open]
limit = {cores = 1}
[pools.spent]
[[window]]
name = "upgrade"
start = "2023-11-20 22:00"
length = "4h"
reason = "new kernel"
[scheduling]
respect_external_load = false
reservation_delay = 1000
preemption = true
preempt_after = 20
preempt_exempt = 0
min_charge_time = 0
[limits]
reserve_disk = "1M"
"""


def _job(user: str, cores: float, gib: float = 1, *, fate: Any = None, **fields: Any) -> Any:
    demand = {"cores_milli": round(cores * 1000), "memory_bytes": round(gib * GIB)}
    demand |= fields.pop("demand", {})
    usual = {"argv": ["./train.sh", "--epochs", "10 000"], "cwd": "/srv", "name": "train"}
    return fate, user, {"op": "submit", **usual, "demand": demand, **fields}


def _verb(user: str, op: str, *ids: int, **fields: Any) -> Any:
    return None, user, {"op": op, **({"select": {"ids": ids}} if ids else {}), **fields}


#: Fate of the job, who asks, and what. Numbers are seconds that pass.
STEPS: list[Any] = [
    # Jobs that end: 1 to 9.
    _job("ann", 2, 2, fate=(30.0, 0, None, False)),
    _job("ann", 2, 4, fate=(40.0, 0, None, False)),
    _job("ann", 1, 2, fate=(20.0, 3, None, False), name="sweep", retry={"times": 1, "on": []}),
    _job("ben", 1, 2, fate=(25.0, None, 11, False), name="crash"),
    5,
    _job("ben", 1, 2, fate=(8.0, None, 9, True), name="hungry", preemptible=True),
    _job("ben", 1, 1, fate=(1e6, 0, None, False), name="slow", time_limit_s=10),
    _job("cyd", 1, 1, fate=(1e6, 0, None, False), name="unwanted"),
    _job("dan", 1, 1, fate=(0.0, None, None, False), name="lost", pool="spent"),
    _job("dan", 0.5, 1, fate=(15.0, 0, None, False), pool="spent"),
    20,
    _verb("cyd", "cancel", 7),
    60,
    # Jobs that run: 10, and tasks of an array with the ids 11 to 17.
    _job("ann", 4, 6, fate=(1e6, 0, None, False), time_limit_s=3600, demand={"gres": {"gpu": 1}}),
    _job("ann", 1, 1, fate=(1e6, 0, None, False), array="0-5%2", name="grid", preemptible=True),
    3,
    _job("ben", 1, 1, fate=(1e6, 0, None, False), name="frozen", preemptible=True),
    3,
    _verb("ben", "suspend", 18),
    # Jobs that wait, for each reason.
    _job("ben", 9, 2, name="whole"),
    _job("ben", 1, 12, name="big", priority=1, time_limit_s=600),
    _job("ann", 1, 1, name="after", after=[{"id": 10, "want": "ok"}, {"id": 12, "want": "any"}]),
    _job("ann", 1, 1, name="never", after=[{"id": 4, "want": "ok"}]),
    _job("ann", 1, 1, name="later", begin_s=1_700_100_000, notify={"on": ["end"], "argv": ["x"]}),
    _job("cyd", 1, 1, name="held", held=True),
    _job("dan", 1, 1, name="plain", pool="spent"),
    _job("dan", 1, 1, fate=(1e6, 0, None, False), name="limit", pool="open"),
    _job("dan", 1, 1, name="limit", pool="open"),
    _job("cyd", 1, 1, name="windowed", time_limit_s=0),
    _job("cyd", 1, 1, name="gpus", demand={"gres": {"gpu": 2}, "read_bps": 1 << 20}),
    _job("ann", 0.5, 1, name="one-by-one", group="g%1", fate=(1e6, 0, None, False)),
    _job("ann", 0.5, 1, name="one-by-one", group="g%1"),
    _job("ann", 1, 1, name="stubborn", fate=(1e6, 0, None, False)),
    _verb("ben", "set", 20, priority=2, time_limit_s=900),
    10,
    _verb("root", "drain", on=True, reason="new fan"),
    _verb("root", "drain", on=False),
    60,
]
_ALL = range(1, 33)
#: Who gives commands, and these: the text that they print is compared, and that with --json.
JSON = [
    *(("root", f"{verb} {each}") for verb in ("show", "why") for each in _ALL),
    *(("root", f"report --all --by {each}") for each in ("job", "name", "user", "pool")),
    *(("root", each) for each in ("status", "status --all", "history", "shares", "nodes")),
    *(("root", each) for each in ("ledger", "doctor", "top --once")),
    ("ben", "status -u ann -s RUNNING"),
    ("ben", "show 10"),
    ("ben", "why 21"),
    ("ann", "history -s COMPLETED"),
    ("ann", "wait 1 2 3"),
]
#: … of which only the text is compared.
TEXT = [
    *(("root", f"{each} --parsable") for each in ("status", "shares", "nodes")),
    *(("root", f"{each} --csv") for each in ("history", "report --all", "ledger")),
    *(("root", each) for each in ("ledger --why", "squeue", "sacct -a -X", "sinfo")),
    *(("root", f"scontrol show {each}") for each in ("job 10", "job 3")),
    ("ann", "squeue -l -r --me"),
]
SLURM = ["sbatch", "srun", "squeue", "scancel", "sinfo", "sacct", "scontrol"]


async def play(world: Any) -> None:
    for step in STEPS:
        if not isinstance(step, tuple):
            await sleep(step)
            continue
        fate, user, request = step
        reply = await world.ask(user, **request)
        world.record(f"reply to {request['op']}", str(reply))
        if fate is not None:
            for job_id in range(reply["id"], reply["id"] + reply.get("tasks", 0) + 1):
                world.launcher.fates[job_id] = fate

"""Snapshots as the daemon would send them, made up and always the same."""

from typing import Any

Row = dict[str, Any]

#: 2023-11-14 22:13:20 UTC.
AT_S = 1_700_000_000.0
GIB, MIB = 1 << 30, 1 << 20
NAMES = (
    "train", "fit", "align-reads", "render", "sweep", "convert", "resnet50-b128", "compile",
    "bayes_opt", "index",
)  # fmt: skip


def resources(
    cores: float = 0.0, memory: int = 0, read: int = 0, write: int = 0, **gres: int
) -> Row:
    return {"cores": cores, "memory": memory, "read": read, "write": write, "gres": gres}


def row(job_id: int, user: str = "alice", **changes: Any) -> Row:
    """A job that runs, unless changed."""
    return {
        "id": job_id, "label": str(job_id), "array_id": None, "array_index": None, "tasks": 1,
        "name": NAMES[job_id % len(NAMES)], "user": user, "pool": f"root.{user}",
        "state": "RUNNING", "reason": None, "demand": resources(2.0, 4 * GIB),
        "time_limit_s": 3600, "priority": 0, "attempt": 1, "submitted_at": AT_S - 900,
        "started_at": AT_S - 600, "ended_at": None, "expected_start_at": None, "outcome": None,
        "exit_code": None, "signal": None,
        "now": {"cores": 1.9, "memory": 3 * GIB, "memory_peak": 3 * GIB, "read": 0, "write": 0},
        **changes,
    }  # fmt: skip


def waits(job_id: int, user: str = "alice", **changes: Any) -> Row:
    reason = {
        "code": "RESOURCES",
        "text": "needs 8 cores, 3 free; job 40 (bob) holds 5 until 14:05 at the latest",
        "evidence": {
            "waits_for": "cores", "blocked_by": "job 40 (bob)", "resource": "cores",
            "needed": 8.0, "free": 3.0, "until": AT_S + 6600,
        },
    }  # fmt: skip
    reason = {"evidence": {}, **changes.pop("reason", reason)}
    return row(
        job_id, user,
        **{"state": "PENDING", "reason": reason, "started_at": None, "now": None, **changes},
    )  # fmt: skip


def ended(job_id: int, user: str = "alice", code: str = "COMPLETED", **changes: Any) -> Row:
    return row(
        job_id, user, state=code, outcome=code, ended_at=AT_S - 60, exit_code=0, now=None
    ) | changes  # fmt: skip


def node(path: str, **changes: Any) -> Row:
    return {
        "path": path, "weight": 1.0, "entitlement": 0.5, "usage": resources(gpu=0),
        "used": {"cores": 0.0, "memory": 0, "read": 0, "write": 0}, "dominant_resource": None,
        "dominant_share": 0.0, "satisfaction": 0.0, "running": 0, "pending": 0, **changes,
    }  # fmt: skip


CAPACITY = resources(16.0, 120 * GIB, 2 * GIB, GIB, gpu=4)


def snapshot(**changes: Any) -> Row:
    """A machine without jobs, unless changed."""
    return {
        "at": AT_S, "host": "atlas", "user": "alice", "draining": False, "capacity": CAPACITY,
        "free": CAPACITY, "external": None,
        "pressure": {
            "cpu": {"some": 0.0, "full": None}, "memory": {"some": 0.0, "full": 0.0},
            "io": {"some": 0.0, "full": 0.0},
        },
        "nodes": [], "counts": {}, "running": [], "pending": [], "pending_more": 0, "mine": [],
        "notices": [], "admin": True, "external_off": [],
        "ended": [], **changes,
    }  # fmt: skip


def gpu(name: str | None, **changes: Any) -> Row:
    """An idle GPU, unless changed."""
    return {
        "name": name, "pci": "0000:41:00.0", "uuid": "GPU-5c", "memory_used": 0,
        "memory_total": 24 * GIB, "memory_jobs": 0, "memory_outside": 0, "utilisation": 0,
        "is_lost": False, "jobs": [], "outside_uids": [], **changes,
    }  # fmt: skip


def with_gpus() -> Row:
    """GPUs used by one job, by a job and others, by others alone, of a vendor that tells little,
    lost, and slices; and the jobs."""
    shown = three_jobs()
    shown["running"][0]["now"] |= {"gpu_memory": 3 * GIB, "gpu_utilisation": None}
    shown["running"][1]["now"] |= {"gpu_memory": 38 * GIB, "gpu_utilisation": 180}
    shown["gpus"] = [
        gpu("0", memory_used=20 * GIB, memory_jobs=20 * GIB, utilisation=97, jobs=[41]),
        gpu("1", memory_used=22 * GIB, memory_jobs=18 * GIB, memory_outside=4 * GIB,
            utilisation=83, jobs=[41], outside_uids=[1007]),
        gpu("2", memory_used=6 * GIB, memory_outside=6 * GIB, utilisation=12),
        gpu("3:13:0", memory_used=3 * GIB, memory_total=5 * GIB, utilisation=None, jobs=[40]),
        gpu("4", memory_used=None, memory_total=None, memory_jobs=None, memory_outside=None,
            utilisation=None, is_lost=True, jobs=None, outside_uids=None),
        gpu(None, pci="0000:c1:00.0", memory_used=1 * GIB, memory_total=None, memory_jobs=None,
            memory_outside=None, utilisation=None, jobs=None, outside_uids=None),
    ]  # fmt: skip
    return shown


def machine(name: str, **changes: Any) -> Row:
    """A machine of Slurm's without jobs, unless changed."""
    return {
        "name": name, "engine": "slurm", "features": [], "state": "up", "since": None, "text": "",
        "capacity": resources(32.0, 120 * GIB), "allocated": resources(), "running": 0, **changes,
    }  # fmt: skip


def with_nodes() -> Row:
    """Three machines, one of them away; and the jobs."""
    shown = three_jobs()
    shown["capacity"] = resources(80.0, 360 * GIB, 2 * GIB, GIB, gpu=4)
    home = {"engine": "local", "capacity": CAPACITY, "allocated": resources(11.0, 40 * GIB, gpu=2)}
    shown["machines"] = [
        machine("atlas", **home, running=2),
        machine("n1", allocated=resources(20.0, 60 * GIB), running=1),
        machine("n2.example.org", state="away", since=AT_S - 90, text="Slurm says that it is down"),
    ]
    return shown


def three_jobs() -> Row:
    """Two users of a lab and one alone; a job near its limit, one that waits, one that ended."""
    running = [
        row(40, "bob", name="align-reads", pool="root.lab", time_limit_s=7200,
            demand=resources(5.0, 24 * GIB, 400 * MIB, 100 * MIB),
            now={"cores": 3.2, "memory": 23 * GIB, "memory_peak": 23 * GIB,
                 "read": 210 * MIB, "write": 12 * MIB}),
        row(41, "alice", pool="root.lab", demand=resources(6.0, 16 * GIB, gpu=2),
            now={"cores": 5.9, "memory": 9 * GIB, "memory_peak": 10 * GIB,
                 "read": 0, "write": 0}),
        row(44, "carol", state="SUSPENDED", name="sweep", label="44_7", array_id=44,
            array_index=7, time_limit_s=None, now=None),
    ]  # fmt: skip
    pending = [
        waits(45, "alice", pool="root.lab", demand=resources(8.0, 32 * GIB, gpu=2),
              expected_start_at=AT_S + 4200),
        waits(44, "carol", label="44_[8-99%4]", array_id=44, tasks=92, name="sweep",
              reason={"code": "FAIR_SHARE",
                      "text": "needs 2 cores, 1 free; root.dave at 0% of the entitlement is "
                              "served first; root.carol is at 50%",
                      "evidence": {"waits_for": "share of cores", "blocked_by": "dave",
                                   "resource": "cores", "needed": 2.0, "free": 1.0}},
              expected_start_at=AT_S + 750),
        waits(46, "bob", pool="root.lab", state="HELD", name="nightly",
              reason={"code": "HELD", "text": "held by bob; drf release 46 lets it go",
                      "evidence": {"waits_for": "release", "blocked_by": "bob"}}),
    ]  # fmt: skip
    used = {"read": 210 * MIB, "write": 12 * MIB}
    return snapshot(
        external={"cores": 2.2, "memory": 6 * GIB, "kept": {"cores": 1.2, "memory": 0}},
        pressure={
            "cpu": {"some": 31.4, "full": None}, "memory": {"some": 0.0, "full": 0.0},
            "io": {"some": 3.2, "full": 1.0},
        },
        nodes=[
            node("root.carol", entitlement=0.25, usage=resources(2.0, 4 * GIB, gpu=0),
                 used={"cores": 0.0, "memory": None, "read": None, "write": None},
                 dominant_resource="cores", dominant_share=0.125, satisfaction=0.5, running=1,
                 pending=92),
            node("root.lab", weight=3.0, entitlement=0.75,
                 usage=resources(11.0, 40 * GIB, 400 * MIB, 100 * MIB, gpu=2),
                 used={"cores": 9.1, "memory": 32 * GIB, **used}, dominant_resource="cores",
                 dominant_share=0.6875, satisfaction=0.917, running=2, pending=2),
            node("root.lab.alice", weight={"cores": 2.0, "memory": 1.0}, entitlement=0.5,
                 usage=resources(6.0, 16 * GIB, gpu=2), dominant_resource="gpu",
                 used={"cores": 5.9, "memory": 9 * GIB, "read": 0, "write": 0},
                 dominant_share=0.5, satisfaction=1.0, running=1, pending=1),
            node("root.lab.bob", entitlement=0.25,
                 usage=resources(5.0, 24 * GIB, 400 * MIB, 100 * MIB, gpu=0),
                 used={"cores": 3.2, "memory": 23 * GIB, **used}, dominant_resource="cores",
                 dominant_share=0.3125, satisfaction=1.25, running=1, pending=1),
        ],
        counts={"RUNNING": 2, "SUSPENDED": 1, "PENDING": 93, "HELD": 1},
        running=running, pending=pending,
        ended=[
            ended(39, "bob", "OUT_OF_MEMORY", exit_code=None, signal=9, ended_at=AT_S - 95),
            ended(38, "carol", "FAILED", exit_code=3, ended_at=AT_S - 4000),
            ended(37, "alice", ended_at=AT_S - 9000),
            ended(36, "alice", "CANCELLED", started_at=None, exit_code=None,
                  ended_at=AT_S - 3 * 86400),
        ],
    )  # fmt: skip


def many(users: int, queued: int) -> Row:
    """A busy machine: so many users, two hundred jobs that run, and so many that wait."""
    names = [f"user{number:02}" for number in range(users)]
    running, held = [], dict.fromkeys(names, 0)
    for number in range(200):
        user = names[number * 7 % users]
        held[user] += 1
        running.append(
            row(
                1000 + number, user, demand=resources(0.5, 512 * MIB, 4 * MIB, 2 * MIB),
                started_at=AT_S - 37 * number - 5, time_limit_s=7200 + 60 * number,
                now={"cores": number % 11 / 20, "memory": (number * 37 % 100) * 5 * MIB,
                     "memory_peak": 500 * MIB, "read": number % 5 * MIB,
                     "write": number % 3 * MIB},
            )
        )  # fmt: skip
    short = {"resource": "memory", "needed": 4 * GIB, "free": 1536 * MIB}
    found = (
        ("FAIR_SHARE", {"waits_for": "share of memory", "blocked_by": "user07 +11", **short}),
        ("RESOURCES", {"waits_for": "memory", "blocked_by": "job 1000 (user07)", **short,
                       "until": AT_S + 7200}),
        ("RESERVATION", {"waits_for": "start of 20001", "blocked_by": "reservation (user13)",
                         "until": AT_S + 3 * 86400}),
        ("LIMIT", {"waits_for": "limit of gpu", "blocked_by": "lab/user07", "resource": "gpu",
                   "needed": 2, "free": 1}),
        ("DEPENDENCY", {"waits_for": "job 1007 +3", "blocked_by": "user49"}),
        ("BEGIN_TIME", {"waits_for": "Nov 23 14:05", "until": AT_S + 9 * 86400}),
    )  # fmt: skip
    pending = [
        waits(
            20_000 + number, names[number * 13 % users],
            reason={"code": found[number % len(found)][0],
                    "text": f"{number} others are further below their entitlement",
                    "evidence": found[number % len(found)][1]},
            expected_start_at=None if number > 40 else AT_S + 90 * number,
        )
        for number in range(min(300, queued))
    ]  # fmt: skip
    nodes = [
        node(
            f"root.{user}", entitlement=1 / users,
            usage=resources(0.5 * held[user], 512 * MIB * held[user], 4 * MIB * held[user],
                            2 * MIB * held[user], gpu=0),
            used={"cores": 0.3 * held[user], "memory": 200 * MIB * held[user],
                  "read": MIB, "write": MIB},
            dominant_resource="cores" if held[user] else None,
            dominant_share=held[user] * 0.5 / 100,
            satisfaction=held[user] * 0.5 / 100 * users,
            running=held[user], pending=queued // users,
        )
        for user in names
    ]  # fmt: skip
    return snapshot(
        capacity=resources(100.0, 512 * GIB, 2 * GIB, GIB), nodes=nodes, running=running,
        counts={"RUNNING": 200, "PENDING": queued}, pending=pending,
        pending_more=queued - len(pending),
        ended=[
            ended(900 - number, names[number % users], ended_at=AT_S - 11 * number,
                  code=("COMPLETED", "FAILED", "TIMEOUT")[number % 3])
            for number in range(50)
        ],
    )  # fmt: skip


#: What others may call themselves and their jobs.
HOSTILE = (
    "\x1b[31mred\x1b[0m\x1b]0;title\x07", "x\n 99 forged root RUNNING\r\nmore",
    "\u202egpj.exe\u2069", "[red]x[/red] [/x] [link=http://x]y[/link]", "long" * 250,
    "\u6f22\u5b57" * 30, "a" + "\u0301" * 300 + "b", "\u200b\ufeff\u00ad\U000e0041",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2708\ufe0f", "\udcff", "%s {0} \\", "\x9b31m\x85",
    "e\u0301te\u0301", "", " ", "\u25a0\u2588\u00b7\u2502",
)  # fmt: skip


def hostile() -> Row:
    """Every word that others choose is one that a terminal, or a user, should not obey."""
    running = [
        row(50 + number, word, name=word, pool=f"root.{word}", state="RUNNING")
        for number, word in enumerate(HOSTILE)
    ]
    amount = {"needed": 1e300, "free": -1, "until": AT_S}
    pending = [
        waits(80 + number, word, name=word, reason={
            "code": word, "text": word,
            "evidence": {"waits_for": word, "blocked_by": word, "resource": word, **amount},
        })
        for number, word in enumerate(HOSTILE)
    ]  # fmt: skip
    return snapshot(
        host=HOSTILE[0], running=running, pending=pending,
        capacity=resources(64.0, 256 * GIB, 0, 0, **{"g\x1b[2Ju": 2}),
        counts={"RUNNING": len(HOSTILE), "PENDING": len(HOSTILE)},
        nodes=[
            node(f"root.{word.replace('.', '%2E')}", running=1, dominant_resource=word,
                 usage=resources(2.0, 4 * GIB, **{"g\x1b[2Ju": 0}), weight={word or "x": 2.0},
                 dominant_share=0.03, entitlement=0.06, satisfaction=0.5)
            for word in HOSTILE
        ],
        ended=[
            ended(20 + number, word, name=word, code=word or "LOST")
            for number, word in enumerate(HOSTILE)
        ],
    )  # fmt: skip


def replies() -> tuple[Row, Row]:
    """What `show` and `why` say of job 40 of `three_jobs`, seen by its owner."""
    job = next(each for each in three_jobs()["running"] if each["id"] == 40)
    shown = job | {
        "uid": 1001, "eligible_at": AT_S - 900, "cwd": "/home/bob", "cgroup": "drfd/0/job-40-1",
        "argv": ["align-reads", "--genome", "hg38", "reads [1].fq"],
        "stdout": "/home/bob/drf-40.out", "stderr": "/home/bob/drf-40.err",
        "usage": {"cores": 3.2, "memory": 23 * GIB, "memory_peak": 23 * GIB,
                  "read_bytes": 90 * GIB, "written_bytes": 3 * GIB, "cpu_seconds": 1912.0},
    }  # fmt: skip
    events = [
        {"at": AT_S - 900, "event": "Submitted", "text": ""},
        {"at": AT_S - 600, "event": "Admitted", "text": "attempt 1"},
        {"at": AT_S - 599, "event": "Launched", "text": ""},
    ]
    steps = range(120)
    usage = {
        "at": [AT_S - 600 + 5 * step for step in steps],
        "cores": [None if 60 <= step < 64 else 5 * (step % 40) / 40 for step in steps],
        "memory": [min(23, 2 + step // 4) * GIB for step in steps],
        "read": [(400 if step % 9 == 0 else 40) * MIB for step in steps],
        "write": [(step * 37 % 60) * MIB for step in steps],
    }
    why = {"job": shown, "notes": ["it holds what job 45 waits for"], "advice": None}
    return {"job": shown, "events": events, "curve": usage}, why

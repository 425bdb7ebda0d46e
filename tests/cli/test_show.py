"""drf show and why: one job in full, its use drawn over time, and moments as people say them."""

import json
import os
import shutil
import subprocess
import textwrap
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from canned import Message
from cli.test_status import LIMIT, WAITS, WHY
from drfd.client.words import parse_past
from drfd.common.errors import Refused
from drfd.common.units import short_utc, utc_time
from drfd.protocol.replies import USED
from drfd_cli import charts, output
from drfd_cli.output import show_when, why_line


def text(screen: str) -> str:
    return textwrap.dedent(screen).strip("\n") + "\n"


# -- show --------------------------------------------------------------------------------------


def test_show_prints_everything_about_a_job(drf, daemon, job):
    events = [
        {"at": 1_700_000_000.0, "event": "Submitted", "text": ""},
        {"at": 1_700_000_010.0, "event": "Admitted", "text": "attempt 1"},
        {"at": 1_700_000_020.0, "event": "PreemptRequested", "text": "stopped for job 43"},
    ]
    daemon.replies = {"show": {"job": job(), "events": events}}
    result = drf("show", 42)
    assert daemon.requests == [{"op": "show", "id": 42}]
    assert (result.code, result.err) == (0, "")
    assert result.out == text("""
        job        42 (train) of alice, pool root.alice
        state      RUNNING, attempt 1
        why        -
        demand     8 cores, 16G memory, io -
        limit      1h00m
        used       75.2 s of CPU, 1.5G peak memory, 1M read, 10 written
        submitted  2023-11-14 22:13:20
        started    2023-11-14 22:13:30
        ended      -
        cgroup     drfd/0123456789/job-42.1
        command    train --epochs '3 4'
        directory  /home/alice
        output     /home/alice/drf-42.out
        errors     /home/alice/drf-42.err
        events
          2023-11-14 22:13:20  Submitted
          2023-11-14 22:13:30  Admitted          attempt 1
          2023-11-14 22:13:40  PreemptRequested  stopped for job 43
    """)


GPU_USE = {
    "gpu_memory": 3 << 30, "gpu_memory_peak": 5 << 30, "gpu_utilisation": 180,
    "gpu_utilisation_mean": 90,
}  # fmt: skip
GPUS = {"gres": {"gpu": 2}}
EACH = {**GPUS, "gres_memory": {"gpu": 20 << 30}}
ALL_GPU_USE = "GPU use    3G of memory, 5G peak memory, 180% busy, 90% on average"


@pytest.mark.parametrize(
    ("job_has", "demand", "usage", "lines", "none"),
    [
        ({"argv": ["sh", "-c", "echo 'a b'; rm *", "$HOME", ""]}, {}, {},
         ["command    sh -c 'echo '\"'\"'a b'\"'\"'; rm *' '$HOME' ''"], ["CPUs", "range"]),
        ({"cpus": "0-3,8"}, {}, {}, ["CPUs       0-3,8, for itself"], ["GPU"]),
        ({**WAITS, "time_limit_s": None, "cgroup": None}, {}, {},
         [f"why        RESOURCES: {WHY['text']}", "limit      no time limit", "started    -",
          "cgroup     none"], []),
        (
            {"after": [{"id": 5, "want": "ok"}, {"id": 6, "want": "any"}],
             "begin_at": 1_700_000_060, "warn": {"signal": "SIGUSR1", "before_s": 60},
             "retry": {"times": 3, "on": ["FAILED", "LOST"], "done": 1},
             "attempts": "attempt 2 of 4; attempt 1 ended FAILED (exit code 3)"},
            {}, {},
            ["state      RUNNING, attempt 2 of 4; attempt 1 ended FAILED (exit code 3)",
             "after      5:ok, 6:any", "begin      2023-11-14 22:14:20",
             "retry      1 of 3 used, after FAILED, LOST",
             "warning    SIGUSR1 1m00s before the time limit"], [],
        ),
        (
            {}, {"cores": 2.0, "cores_max": 8.0, "read": 50 << 20}, {},
            ["demand     2..8 cores, 16G memory, io 50M/0"], [],
        ),
        ({"gres_instances": {"gpu": ["0", "GPU-5c"]}, "memory_nodes": [0, 1]}, GPUS, {},
         ["demand     8 cores, 16G memory, io -, 2 gpu", "gpu        0,GPU-5c",
          "near       memory node 0, 1", "GPU use    not measured"], ["GPU memory"]),
        # A job may use a GPU that it has not been given, where the kernel does not keep it from it.
        ({}, {}, GPU_USE, [ALL_GPU_USE], []),
        ({}, GPUS, dict.fromkeys(GPU_USE), ["GPU use    not measured"], []),
        ({"gpu_memory_each": {"0": 18 << 30, "GPU-b": 1 << 29}}, EACH, {},
         ["GPU memory 18G of 20G on GPU 0; 512M of 20G on GPU GPU-b"], []),
        ({"gpu_memory_each": {}, "gpu_memory_unkept": "not watched: no library"}, EACH, {},
         ["GPU memory not watched: no library"], []),
        ({"gpu_memory_each": {"0": 0}, "gpu_memory_unkept": "not watched on GPU 1"}, EACH, {},
         ["GPU memory 0 of 20G on GPU 0; not watched on GPU 1"], []),
        # Of a job that waits or has ended.
        ({"gpu_memory_each": {}}, EACH, {}, [], ["GPU memory"]),
        (
            {"node": "n1"}, {},
            dict.fromkeys(("cores", "memory", "memory_peak", "cpu_seconds", "read_bytes",
                           "written_bytes"), 0),
            ["used       not measured on n1"], [],
        ),
        ({"preemptible": True}, {}, {},
         ["preemptible it may be stopped for others, and run again"], []),
        ({}, {}, {}, [], ["preemptible", "options"]),
        (
            {"options": {"demand": {"cores_milli": 2000}, "time_limit_s": 0, "name": "a b",
                         "priority": 0, "stdout": "o", "stderr": "o", "append": True,
                         "if_never": "keep", "retry": {"times": 2, "on": ["TIMEOUT"]}}},
            {}, {},
            ["options    -c 2 -t unlimited -n 'a b' --retry 2 --retry-on timeout -o o --append"],
            [],
        ),
    ],
)  # fmt: skip
def test_show_has_a_line_for_what_there_is(drf, daemon, job, job_has, demand, usage, lines, none):
    plain = job()
    view = job(demand=plain["demand"] | demand, usage=plain["usage"] | usage, **job_has)
    daemon.replies = {"show": {"job": view, "events": []}}
    shown = drf("show", 42).out.splitlines()
    assert [line for line in lines if line not in shown] == []
    assert [line for line in shown for label in none if line.startswith(label)] == []


def test_show_says_how_many_events_are_not_there_and_sums_up_several_runs(drf, daemon, job):
    sums = {
        "runs": 3, "wall_seconds": 3600.0, "suspended_seconds": 0.0, "cpu_seconds": 1800.5,
        "memory_peak": 2 << 30, "read_bytes": 0, "written_bytes": 0,
    }  # fmt: skip
    more = {"events_dropped": 1203, "all_runs": sums}
    daemon.replies = {"show": {"job": job(), "events": [], **more}}
    out = drf("show", 42).out
    assert "in all     3 runs, 1h00m, 1800.5 s of CPU" in out.splitlines()
    assert out.endswith("events\n  1203 between the first and the last ones were not kept\n")
    assert json.loads(drf("show", "--json", 42).out).items() >= more.items()


def test_show_has_what_the_kernel_counted_of_an_ended_job(drf, daemon, ended):
    used = dict.fromkeys(USED)
    known = {
        "throttled_seconds": 90.0, "throttled_periods": 3, "quota_periods": 9,
        "memory_mean": 1 << 30, "limit_hits": 0, "oom_kills": 2, "io_stalled_seconds": 2.5,
    }  # fmt: skip
    daemon.replies = {"show": {"job": ended(), "events": [], "used": used | known}}
    assert drf("show", 42).out.splitlines()[6:9] == [
        "held back  by its cores in 3 of 9 periods, for 1m30s in sum",
        "memory     1G on average without page cache, stopped at its limit 0 times, "
        "2 processes killed",
        "waited     2s for disks",
    ]
    assert json.loads(drf("show", 42, "--json").out)["used"]["memory_mean"] == 1 << 30
    daemon.replies = {"show": {"job": ended(), "events": [], "used": used}}
    assert not [line for line in drf("show", 42).out.splitlines() if line.startswith("held")]


ARRAY: dict[str, Any] = {
    "id": 42, "array_id": 42, "array_index": None, "array_tasks": "0-99%2", "tasks": 100,
    "name": "fit", "user": "alice", "uid": 1001, "pool": "root.alice",
    "counts": {"PENDING": 93, "RUNNING": 2, "COMPLETED": 2, "FAILED": 3},
    "indices": {"FAILED": "1-2,4"},
    "demand": {"cores": 1.0, "memory": 1 << 30, "read": 0, "write": 0, "gres": {}},
    "time_limit_s": 3600, "priority": 0, "submitted_at": 1_700_000_000.0, "cwd": "/home/alice",
    "argv": ["fit", "--fast"], "stdout": "drf-%A_%a.out", "stderr": "drf-%A_%a.err",
    "after": [], "begin_at": None, "retry": None, "warn": None, "attempts": "",
}  # fmt: skip


def test_show_tells_how_the_tasks_of_an_array_stand(drf, daemon):
    events = [{"at": 1_700_000_000.0, "event": "ArraySubmitted", "text": "100 tasks"}]
    daemon.replies = {"show": {"array": ARRAY, "events": events}}
    result = drf("show", 42)
    assert (result.code, result.err) == (0, "")
    assert result.out == text("""
        array      42 (fit) of alice, pool root.alice
        indices    0-99%2
        tasks      100: 2 COMPLETED, 3 FAILED, 93 PENDING, 2 RUNNING
        failed     1-2,4
        demand     1 core, 1G memory, io - each
        limit      1h00m
        submitted  2023-11-14 22:13:20
        command    fit --fast
        directory  /home/alice
        output     drf-%A_%a.out
        errors     drf-%A_%a.err
        events
          2023-11-14 22:13:20  ArraySubmitted    100 tasks
    """)
    assert json.loads(drf("show", "--json", 42).out) == {**ARRAY, "events": events}
    indices = ",".join(str(at * at) for at in range(999))
    daemon.replies["show"] = {"array": {**ARRAY, "indices": {"FAILED": indices}}, "events": []}
    (line,) = [each for each in drf("show", 42).out.splitlines() if each.startswith("failed")]
    assert line.startswith("failed     0,1,4,9,16,") and line.endswith("…") and len(line) < 220
    assert json.loads(drf("show", "--json", 42).out)["indices"] == {"FAILED": indices}


# -- why ---------------------------------------------------------------------------------------

STARTS = "if running jobs end as estimated and none is submitted ahead of it"
NO_ROOM = {"state": "PENDING", "reason": {"code": "RESOURCES", "text": "no room"}}
WAITING = "job 42 waits: RESOURCES: no room\n"


@pytest.mark.parametrize(
    ("job_has", "more", "told"),
    [
        (WAITS, {}, f"job 42 waits: RESOURCES: {WHY['text']}\n"),
        ({}, {}, "job 42 is RUNNING: started 2023-11-14 22:13\n"),
        ({"state": "TIMEOUT", "outcome": {"code": "TIMEOUT", "text": "ran for 1h"}}, {},
         "job 42 is TIMEOUT: ran for 1h\n"),
        ({**NO_ROOM, "expected_start_at": 1_700_000_060.0}, {},
         f"{WAITING}it starts about 2023-11-14 22:14, {STARTS}\n"),
        ({**NO_ROOM, "state": "SUSPENDED", "expected_start_at": 1_700_000_060.0}, {},
         f"{WAITING}it starts about 2023-11-14 22:14, {STARTS}\n"),
        ({**NO_ROOM, "expected_start_certainty": "unknown"},
         {"notes": ["drf set -c 2 42 lets it start now"]},
         f"{WAITING}when it starts is unknown: too little is known about the jobs before it\n"
         "drf set -c 2 42 lets it start now\n"),
        (NO_ROOM, {"no_estimate": {"code": "x", "text": "no estimate within 90 s"}},
         f"{WAITING}nobody can say when it starts: no estimate within 90 s\n"),
        ({**WAITS, "reason": LIMIT, "array_id": 42, "array_index": 7}, {},
         f"job 42_7 waits: LIMIT: {LIMIT['text']}\n"),
    ],
)  # fmt: skip
def test_why_is_told_in_a_line_or_two(drf, daemon, job, job_has, more, told):
    daemon.replies = {"why": {"job": job(**job_has), **more}}
    result = drf("why", "42_7")
    assert (result.code, result.out, result.err) == (0, told, "")
    assert daemon.requests == [{"op": "why", "id": "42_7"}]
    found = json.loads(drf("why", 42, "--json").out)
    assert found.items() >= more.items()


def test_a_suspended_job_is_not_told_to_be_on_hold():
    told = "suspended by alice; drf resume 1 lets it go on"
    for state in ("SUSPENDED", "HELD"):
        view = {"state": state, "reason": {"code": "HELD", "text": told}, "outcome": None}
        assert why_line(cast(Any, view)) == f"{state}: {told}"


def test_why_goes_on_with_evidence_and_advice_for_each_of_several_jobs(drf, daemon, ended):
    advice = {"options": ["-c", "1", "-m", "96M", "-t", "1h"], "jobs": 3, "short_jobs": 1}
    notes = ["it was killed 0.5s after its start", "a\x1b[31mred note"]
    daemon.replies["why"] = lambda request: {
        "job": ended("OUT_OF_MEMORY", text="needed more", id=request["id"]),
        "notes": notes, "advice": advice,
    }  # fmt: skip
    told = (
        "job {} is OUT_OF_MEMORY: needed more\n"
        "it was killed 0.5s after its start\n"
        "a?[31mred note\n"
        "next time: drf submit -c 1 -m 96M -t 1h  (from its last 3 jobs, 1 cut short)\n"
    )
    assert drf("why", 41, 42).out == f"{told.format(41)}\n{told.format(42)}"
    shown = json.loads(drf("why", "41-42", "--json").out)["jobs"]
    assert [(each["id"], each["notes"], each["advice"]) for each in shown] == [
        (41, notes, advice), (42, notes, advice),
    ]  # fmt: skip


def test_why_of_an_array_counts_its_tasks_before_it_tells_of_one(drf, daemon, ended):
    bad = ended("FAILED", id=43, array_id=42, array_index=1, uid=os.getuid())
    counts, indices = {"COMPLETED": 1, "FAILED": 3}, {"FAILED": "1-3"}
    tasks = {"id": 42, "tasks": 6, "counts": counts, "indices": indices}
    daemon.replies = {"why": {"job": bad, "notes": [], "advice": None, "array": tasks}}
    lines = drf("why", 42).out.splitlines()
    assert lines[0] == "array 42 of 6 tasks: 1 COMPLETED, 3 FAILED (1-3)"
    assert lines[1].startswith("job 42_1 is FAILED")
    assert lines[-1] == "again: drf retry 42 --failed"
    assert json.loads(drf("why", 42, "--json").out)["array"] == tasks
    counts["FAILED"], indices["FAILED"] = 1, "1"
    assert drf("why", 42).out.splitlines()[-1] == "again: drf retry 42_1"


def test_why_has_the_whole_line_for_a_job_of_ones_own(drf, daemon, ended, tmp_path):
    def last(job: Message, advice: Message | None = None) -> str:
        daemon.replies = {"why": {"job": job, "notes": [], "advice": advice}}
        return drf("why", 42).out.splitlines()[-1]

    mine = {"uid": os.getuid()}
    advice = {
        "options": ["-c", "0.5", "-m", "96M", "-t", "1h"], "jobs": 3, "short_jobs": 1,
        "cores": 1000.0, "memory": 96 << 20, "time_limit_s": 3600,
    }  # fmt: skip
    job = ended("OUT_OF_MEMORY", text="needed more", time_limit_s=3600, **mine)
    assert last(job, advice) == "again: drf retry 42 --with '-c 0.5 -m 96M'"
    told = json.loads(drf("why", 42, "--json").out)["retry"]
    assert told == "drf retry 42 --with '-c 0.5 -m 96M'"
    # A range that differs in its upper end alone is another one.
    ranged = {**advice, "options": ["-c", "8..16"], "cores": 8.0, "cores_max": 16.0}
    for most, again in (({}, "--with '-c 8..16'"), ({"cores_max": 16.0}, "42")):
        assert last(job | {"demand": job["demand"] | most}, ranged).endswith(f" {again}")
    kept = ended("LIMIT_EXCEEDED", text="kept", output_max_bytes=1 << 30, **mine)
    assert last(kept) == "again: drf retry 42", "it was not its output"
    text = "wrote 2 GB; --output-max allows more next time"
    limited = ended("LIMIT_EXCEEDED", text=text, output_max_bytes=1 << 30, **mine)
    assert last(limited) == "again: drf retry 42 --with '--output-max 2G'"
    file = tmp_path / "drf-42.out"
    with file.open("wb") as written:
        written.truncate(19 << 30 >> 3)
    limited |= {"stdout": str(file), "stderr": str(file), "output_max_bytes": 1 << 20}
    assert last(limited) == "again: drf retry 42 --with '--output-max 4G'"
    for other in (ended("COMPLETED", **mine), ended("FAILED", uid=os.getuid() + 1)):
        assert "drf retry" not in last(other)


@pytest.mark.parametrize(("free", "is_told"), [(9, True), (11, False)])
def test_why_says_that_the_output_of_a_failed_job_has_filled_the_disk(
    drf, daemon, ended, tmp_path, monkeypatch, free, is_told
):
    """What it wrote of its error did not fit, either: its output may be empty."""
    path = str(tmp_path / "drf-42.out")
    disk = SimpleNamespace(f_bavail=free, f_frsize=1 << 20, f_blocks=1000)
    monkeypatch.setattr(os, "statvfs", {path: disk}.__getitem__)
    job = ended("FAILED", uid=os.getuid(), stdout=path, stderr=path)
    daemon.replies = {"why": {"job": job, "notes": [], "advice": None}}
    note = f"the disk of its output {path} is full now (9M of 1000M free)"
    told = drf("why", 42).out
    assert (note in told, "disk" in told) == (is_told, is_told)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_command_of_several_lines_is_one_that_a_shell_reads_as_it_was():
    argv = ["bash", "-c", "for i in 1 2\ndo\techo 'it\\'s $i'\ndone \x1b[0m \u202e\u0085", "a b"]
    line = output.shell_line(argv)
    assert line == output.clean(line)
    assert line.startswith("bash -c $'for i in 1 2\\ndo\\techo \\'it")
    told = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], env={"LC_ALL": "C.UTF-8"}, capture_output=True
    )
    assert told.stdout.decode().split("\0")[:-1] == argv


# -- its use over time -------------------------------------------------------------------------


def points(cores: list[Any], memory: list[Any], *, step_s: float = 2.0) -> dict[str, Any]:
    at = [1_700_000_000.0 + step_s * each for each in range(len(cores))]
    nothing = [None] * len(cores)
    return {"at": at, "cores": cores, "memory": memory, "read": nothing, "write": nothing}


@pytest.mark.parametrize(
    ("values", "top", "columns", "shown"),
    [
        ([0.5, 1, 2, 3, 4], 4, 80, "▁▂▄▆█"),
        # What is there at all is seen, and nothing is blank.
        ([None, 0.001, 0, 4, None], 4, 80, " ▁ █"),
        # On a narrow screen a bar is the highest of its time.
        ([1, 1, 4, 1, 1, 1, 1, 1], 4, 4, "▂█▂▂"),
        ([None, 0, None], 4, 80, "-"),
        ([0, 0, 0], 0, 80, "-"),
    ],
)
def test_a_bar_is_as_high_as_its_part_of_what_was_asked_for(values, top, columns, shown):
    at = points(values, values)["at"]
    assert charts.spark(at, values, top, columns) == shown


GIB = 1 << 30
BEYOND = {"cores": 2.0, "cores_max": 8.0}


@pytest.mark.parametrize(
    ("demand", "curve", "lines"),
    [
        ({}, points([None, 2.0, 8.0, 4.0], [None, 4 * GIB, 16 * GIB, 16 * GIB], step_s=600),
         ["cores   ▂█▄  4 now, most 8 of 8", "memory  ▂██  16G now, most 16G of 16G"]),
        (
            {"gres": {"gpu": 2}},
            points([None, 2.0, 4.0, 8.0], [None] * 4, step_s=600)
            | {"gpu_memory": [None, GIB, 4 * GIB, 4 * GIB], "gpu_utilisation": [0, 50, 150, 200]},
            ["cores    ▂▄█  8 now, most 8 of 8", "GPU      ▂▆█  200% now, most 200% of 200%",
             "GPU mem  ▂██  4G now, most 4G"],
        ),
        (
            {"gres": {"gpu": 2}, "gres_memory": {"gpu": 4 * GIB}},
            points([None] * 4, [None] * 4, step_s=600)
            | {"gpu_memory": [None, GIB, 4 * GIB, 4 * GIB], "gpu_utilisation": [None] * 4},
            ["GPU mem  ▁▄▄  4G now, most 4G of 8G"],
        ),
        # A job that holds two cores and has had up to eight.
        (BEYOND, points([None, 1.0, 5.0, 8.0], [None] * 4, step_s=600)
         | {"cores_beyond": [None, 0.0, 3.0, 6.0]},
         ["cores   ▁▅█  8 now, most 8 of 2..8", "beyond   ▄█  6 now, most 6 of 6"]),
        (BEYOND, points([None, 1.0, 5.0, 8.0], [None] * 4, step_s=600)
         | {"cores_beyond": [None, 0.0, 0.0, 0.0]}, ["cores   ▁▅█  8 now, most 8 of 2..8"]),
        # What it does not use has no line.
        ({}, points([0.0, 0.0, 0.0, 0.0], [GIB] * 4, step_s=600)
         | {"read": [0, 0, 4 << 20, None], "write": [0] * 4},
         ["memory ▁▁▁▁  1G now, most 1G of 16G", "read     █  most 4M"]),
        ({}, points([None, 1.0], [1, 1]), []),
        ({}, None, []),
    ],
)  # fmt: skip
def test_a_job_is_shown_with_how_its_use_went(drf, daemon, job, demand, curve, lines):
    beyond = [0, *(curve or {}).get("cores_beyond", [])][-1]
    usage = job()["usage"] | {"beyond_cpu_seconds": 10 * beyond + 1.25 if beyond else 0}
    view = job(demand=job()["demand"] | demand, usage=usage)
    daemon.replies = {"show": {"job": view, "events": [], "curve": curve}}
    shown = drf("show", 42).out.splitlines()
    assert [line[11:] for line in shown if ", over 30m00s" in line] == [
        f"{line}, over 30m00s" for line in lines
    ]
    assert ("beyond     61.2 s of CPU above the lower end of its range" in shown) == bool(beyond)
    assert (f'"curve": {json.dumps(curve)}' in drf("show", 42, "--json").out) == (curve is not None)


def test_on_a_narrow_screen_a_curve_is_as_long_as_there_is_room(drf, daemon, job, monkeypatch):
    curve = points([8.0] * 256, [1 << 30] * 256)
    daemon.replies = {"show": {"job": job(), "events": [], "curve": curve}}
    monkeypatch.setenv("COLUMNS", "60")
    assert [len(line) <= 60 for line in drf("show", 42).out.splitlines() if "█" in line] == [True]


# -- moments -----------------------------------------------------------------------------------

#: 2023-11-14 22:13:20 UTC, the midnight before it, and the noon after it.
NOW, MIDNIGHT, NOON = 1_700_000_000.0, 1_699_920_000.0, 1_700_049_600.0
DAY = 86400.0


@pytest.mark.parametrize(
    ("at_s", "shown"),
    [
        (NOON, "12:00 (in 0s)"), (NOON + 750, "12:12 (in 12m30s)"),
        (NOON - 7500, "09:55 (2h05m ago)"), (NOON + 15 * 3600, "tomorrow 03:00 (in 15h00m)"),
        (NOON - 13 * 3600, "yesterday 23:00 (13h00m ago)"),
        (NOON + 36 * 3600, "2023-11-17 00:00"), (NOON - DAY * 400, "2022-10-11 12:00"),
    ],
)  # fmt: skip
def test_times_near_now_are_said_as_people_say_them(plain, at_s, shown):
    assert show_when(at_s, NOON) == shown


def test_the_daemons_times_are_those_of_the_readers_zone(drf, daemon, job, monkeypatch):
    waits = {"state": "PENDING", "started_at": None, "expected_start_at": None}
    text = f"may start from {utc_time(1_795_000_000.0)} on, {short_utc(1_795_000_000.0)}"
    found = job(**waits, reason={"code": "BEGIN", "text": text})
    daemon.replies["why"] = {"job": found, "reason": found["reason"]}
    daemon.replies["status"] = {"jobs": [found], "counts": {}, "draining": False, "after": None}
    for zone, told in (("UTC0", "2026-11-18 11:06"), ("XXX-9", "2026-11-18 20:06")):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        for verb in ("why", "status"):
            shown = " ".join(drf(verb, "42").out.split())
            assert f"may start from {told} on, Nov 18 {told[-5:]}" in shown
    assert drf("status", "--json").out.count("2026-11-18 11:06:40 UTC") == 1


@pytest.mark.parametrize(
    ("text", "at_s"),
    [
        ("now", NOW), ("today", MIDNIGHT), ("Yesterday", MIDNIGHT - DAY),
        ("22:13", MIDNIGHT + 22 * 3600 + 13 * 60), ("0:05", MIDNIGHT + 300),
        ("22:14", MIDNIGHT - DAY + 22 * 3600 + 14 * 60), ("7d", NOW - 7 * DAY),
        ("10min", NOW - 600), ("1h 30 minutes ago", NOW - 5400), ("2w", NOW - 14 * DAY),
        ("1h30m", NOW - 5400), ("2023-11-14", MIDNIGHT), ("2023-11-14 01:02", MIDNIGHT + 3720),
        ("2023-11-14T01:02:03", MIDNIGHT + 3723), (" @1700000000 ", NOW), ("99999d", 0.0),
        *((word, None) for word in ("", "foo", "90", "25:00", "2023-13-01", "2023-11-14 25:00")),
        *((word, None) for word in ("-3d", "@", "1e3", "٣d")),
    ],
)  # fmt: skip
def test_a_past_time_is_understood_or_refused(plain, text, at_s):
    if at_s is not None:
        assert parse_past(text, NOW) == at_s
        return
    with pytest.raises(Refused) as refusal:
        parse_past(text, NOW)
    assert refusal.value.code == "bad-value"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("08:05:30", "2026-11-23 08:05:30"), ("1123", "2026-11-23 00:00:00"),
        ("11/23", "2026-11-23 00:00:00"), ("11/23/25-08:00", "2025-11-23 08:00:00"),
        ("11.22-08:00:07", "2026-11-22 08:00:07"), ("12/24", "2025-12-24 00:00:00"),
        ("112225", "2025-11-22 00:00:00"), ("2026-11-01T10:00:05", "2026-11-01 10:00:05"),
        ("9:30 AM", "2026-11-23 09:30:00"), ("noon", "2026-11-22 12:00:00"),
        ("now-90second", "2026-11-23 10:58:30"), ("now-2hours", "2026-11-23 09:00:00"),
        ("now+1weeks", "2026-11-30 11:00:00"), ("tomorrow", "2026-11-24 00:00:00"),
        ("midnight", "2026-11-23 00:00:00"), ("12:05 am", "2026-11-23 00:05:00"),
        *((text, None) for text in ("13/40", "25:00:00", "11/23/26/1", "soon")),
    ],
)  # fmt: skip
def test_a_past_time_may_be_written_as_in_slurm(text, at):
    now_s = time.mktime((2026, 11, 23, 11, 0, 0, 0, 0, -1))
    if at is None:
        with pytest.raises(Refused, match="is not a time"):
            parse_past(text, now_s)
    else:
        found = time.localtime(parse_past(text, now_s))
        assert time.strftime("%Y-%m-%d %H:%M:%S", found) == at

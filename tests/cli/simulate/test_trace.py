"""drf simulate TRACE: what is printed, for people and for programs, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon
from cli.drf import DRF, Drf, Spawn

TABLE = """name,user,group,submit_s,run_s,limit_s,cores,memory
a,ann,lab,0,100,200,4,1G
b,bob,den,10,100,200,4,1G
c,ann,lab,11,100,200,2,1G
d,eve,den,12,100,200,2,1G
huge,eve,den,13,100,200,99,1G
torn
"""
NODE = ("--capacity", "cores=4,memory=8G")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TABLE)
    return path


def test_policies_stand_side_by_side(drf: Drf, table: Path) -> None:
    result = drf("simulate", table, *NODE, "--policy", "drf,fifo")
    assert result.code == 0
    lines = result.screen.splitlines()
    assert lines[0].startswith(f"trace    {table} (a table of jobs): 5 jobs of 3 users")
    assert lines[1:4] == [
        "machine  4 cores, 8G of memory",
        "left out 1 line: line 7: it has 1 fields, not 8",
        "refused  1 job: huge: the job asks for 99 cores, and this machine has 4 for jobs: "
        "it could never start",
    ]
    rows = {name: cells for name, *cells in (re.split("  +", line.strip()) for line in lines[6:])}
    assert rows["jobs run"] == ["4", "4"]
    assert rows["wait, mean"] == ["1m56s", "1m56s"]
    assert rows["use of cores"] == ["100.0 %", "100.0 %"]


def test_programs_get_the_same_bytes_each_time(drf: Drf, table: Path) -> None:
    first, second = (drf("simulate", table, *NODE, "--json") for _ in range(2))
    assert first.out == second.out
    found = json.loads(first.out)
    assert found["capacity"] == {"cores": 4000, "memory": 8 << 30}
    assert [run["label"] for run in found["runs"]] == ["drf", "fifo", "easy"]
    assert found["trace"]["bad"] == {
        "count": 1, "first": [{"line": 7, "why": "it has 1 fields, not 8"}],
    }  # fmt: skip
    assert [each["job"] for each in found["trace"]["refused"]["first"]] == ["huge"]
    assert "s of CPU time" in first.err and "CPU" not in first.out
    assert "\x1b" not in first.err, "progress is for terminals"


def test_estimates_stand_side_by_side_for_policies_that_ask_for_them(drf: Drf, table: Path) -> None:
    words = ("--policy", "drf,fifo", "--estimates", "none,exact", "--json")
    runs = json.loads(drf("simulate", table, *NODE, *words).out)["runs"]
    assert [run["label"] for run in runs] == ["drf none", "drf exact", "fifo"]


def test_another_weight_is_shown_beside_what_is(drf: Drf, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    held = "".join(f"{user},0,{run_s},{cores},1G\n" for user, run_s, cores in (
        ("ann", 1000, 1), ("bob", 1000, 1), ("eve", 100, 2)))  # fmt: skip
    path.write_text(f"user,submit_s,run_s,cores,memory\n{held}ann,1,50,2,1G\nbob,1,50,2,1G\n")
    words = ("simulate", path, *NODE, "--policy", "drf", "--weight", "bob=2")
    plain, heavy = json.loads(drf(*words, "--json").out)["runs"]
    waits = [
        [run["users"][leaf]["wait_s"]["max"] for leaf in ("root.ann", "root.bob")]
        for run in (plain, heavy)
    ]
    assert (plain["label"], heavy["label"]) == ("drf", "drf bob=2")
    assert waits == [[99, 149], [149, 99]]
    assert "drf bob=2: WAIT" in drf(*words).out


def test_groups_of_the_trace_can_be_pools(drf: Drf, table: Path) -> None:
    words = ("simulate", table, *NODE, "--policy", "drf", "--pools", "trace", "--json")
    (run,) = json.loads(drf(*words).out)["runs"]
    assert list(run["users"]) == ["root.den.bob", "root.den.eve", "root.lab.ann"]


def test_limits_by_hour_are_not_simulated_and_that_is_said(
    drf: Drf, table: Path, tmp_path: Path
) -> None:
    pools = tmp_path / "drfd.toml"
    pools.write_text('[[users.ann.hours]]\nwhen = "Mon-Sun"\nlimit = {cores = 0}\n')
    words = ("simulate", table, *NODE, "--policy", "drf", "--json")
    found = drf(*words, "--pools", pools)
    said = "drf: limits by hour (of ann) are not simulated: the ordinary limits count all the time"
    assert found.err.splitlines()[0] == said
    assert json.loads(found.out)["runs"] == json.loads(drf(*words).out)["runs"]


def test_it_is_said_that_quotas_are_not_simulated(drf: Drf, table: Path, tmp_path: Path) -> None:
    pools = tmp_path / "drfd.toml"
    words = ("simulate", table, *NODE, "--policy", "drf", "--pools", pools)
    pools.write_text("[users.ann]\nweight = 2\n")
    assert "quota" not in drf(*words).err
    pools.write_text("[users.ann]\nquota = {share_hours = 1}\n")
    assert f"quotas of the week in {pools} are not simulated" in drf(*words).err


def test_synthetic_rates_are_called_so_in_every_output(
    drf: Drf, table: Path, tmp_path: Path
) -> None:
    profile = tmp_path / "tasks.csv"
    profile.write_text("n,disk_read_mb_p50,disk_write_mb_p50,disk_mb_s_p90\n1,1,1,50\n")
    words = ("simulate", table, "--capacity", "cores=4,memory=8G,read=1G,write=1G",
             "--io-profile", profile)  # fmt: skip
    assert "SYNTHETIC disk rates" in drf(*words).out
    notes = json.loads(drf(*words, "--json").out)["trace"]["notes"]
    assert notes[0].startswith("SYNTHETIC disk rates")


USED = """name,user,submit_s,run_s,cores,memory,cpu_s,cores_max
a,ann,0,100,2,1G,100,8
b,bob,10,100,2,1G,200,
"""


def test_lending_stands_beside_what_is_without_it(drf: Drf, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(USED)
    words = ("simulate", path, "--capacity", "cores=8,memory=8G", "--policy", "drf")
    plain, lending = json.loads(drf(*words, "--lend", "--json").out)["runs"]
    assert [(run["label"], run["lends"]) for run in (plain, lending)] == [
        ("drf", False), ("drf lent", True),
    ]  # fmt: skip
    assert plain["run_s"]["mean"] == 100
    # It was busy for 50 of its 100 seconds; with four times the cores these are 12.5.
    assert lending["users"]["root.ann"]["run_s"]["mean"] == 62.5
    assert lending["users"]["root.bob"]["run_s"]["mean"] == 100
    shown = drf(*words, "--ranges", "2").screen
    rows = {name: cells for name, *cells in (
        re.split("  +", line.strip()) for line in shown.splitlines())}  # fmt: skip
    assert rows["run time, mean"] == ["1m40s", "1m02s"]
    assert rows["cores that were busy"] == ["34.1 %", "50.0 %"]
    assert "as if each job could use 2 times the cores that it declares" in shown
    assert "drf lent: WAIT" in shown
    bare = drf(*words).screen
    assert "run time" not in bare and "busy" not in bare


def test_it_is_said_when_no_job_can_be_lent_anything(drf: Drf, table: Path) -> None:
    shown = drf("simulate", table, *NODE, "--policy", "drf", "--lend").screen
    assert "no job has a range, so nothing is lent; --ranges 4 gives them all one" in shown
    assert "4 of 4 jobs say nothing" not in shown and "say nothing of their processor" in shown


def test_what_is_generated_can_be_simulated(drf: Drf, tmp_path: Path) -> None:
    made = drf("simulate", "generate", "--jobs", "60", "--users", "3", "--seed", "4")
    assert made.code == 0
    path = tmp_path / "made.csv"
    path.write_text(made.out)
    words = ("--capacity", "cores=64,memory=256G,read=2G,write=1G", "--policy", "all", "-n", "40")
    found = json.loads(drf("simulate", path, *words, "--json").out)
    assert len(found["runs"]) == 9
    assert {run["jobs"] for run in found["runs"]} == {40}


def test_the_past_of_this_machine_is_asked_of_the_daemon(drf: Drf, daemon: CannedDaemon) -> None:
    def ended(id: int, user: str, cores: float) -> dict[str, Any]:
        return {
            "id": id, "user": user, "pool": f"root.{user}", "submitted_at": 1e9 + id, "attempt": 1,
            "started_at": 1e9 + 500, "ended_at": 1e9 + 600, "time_limit_s": None, "used": {},
            "demand": {"cores": cores, "memory": 0, "read": 0, "write": 0, "gres": {}},
        }  # fmt: skip

    capacity = {"cores": 4.0, "memory": 1 << 33, "read": 0, "write": 0, "gres": {}}
    daemon.replies = {
        "history": [
            {"jobs": [ended(2, "bob", 3)], "after": [1e9 + 600, 2]},
            {"jobs": [ended(1, "ann", 3)], "after": None},
        ],
        "shares": {"capacity": capacity, "free": capacity, "nodes": []},
    }
    found = json.loads(drf("simulate", "--history", "--policy", "drf", "--json").out)
    assert found["trace"]["source"] == "the history of this machine"
    assert found["capacity"] == {"cores": 4000, "memory": 1 << 33}
    assert found["runs"][0]["users"]["root.bob"]["wait_s"]["mean"] == 99
    assert [request.get("after") for request in daemon.asked("history", times=2)] == [
        None, [1e9 + 600, 2],
    ]  # fmt: skip


def test_a_machine_on_which_nothing_has_run_has_no_past(drf: Drf, daemon: CannedDaemon) -> None:
    capacity = {"cores": 4.0, "memory": 1 << 33, "read": 0, "write": 0, "gres": {}}
    daemon.replies = {
        "history": {"jobs": [], "after": None},
        "shares": {"capacity": capacity, "free": capacity, "nodes": []},
    }
    result = drf("simulate", "--history")
    assert (result.code, result.out) == (1, "")
    assert result.err == "drf: no job has run here (try a TRACE)\n"


def test_no_daemon_is_asked_for_a_trace(drf: Drf, daemon: CannedDaemon, table: Path) -> None:
    drf("simulate", table, *NODE)
    assert daemon.connections == 0


def test_without_a_capacity_one_is_suggested_that_will_do(drf: Drf, table: Path) -> None:
    refused = drf("simulate", table)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("drf: say what the machine has (for this trace for instance ")
    text = refused.err.rstrip(")\n").split()[-1]
    assert drf("simulate", table, "--capacity", text, "--policy", "drf").code == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--capacity", "cores=4"], 1, "jobs of this trace ask for memory, up to 1G each"),
        (["--capacity", "cores"], 2, "'cores' is not NAME=AMOUNT"),
        ([*NODE, "--policy", "best"], 2, "there is no 'best' (drf, fifo, easy, "),
        ([*NODE, "--estimates", "wild"], 2, "there is no 'wild' (predicted, limit, exact, none)"),
        ([*NODE, "--weight", "ann"], 2, "'ann' is not NAME=WEIGHT"),
        ([*NODE, "--weight", "ann=0"], 2, "'ann=0' is not NAME=WEIGHT"),
        ([*NODE, "--weight", "nobody=2"], 1, "there is no pool or user 'nobody'"),
        ([*NODE, "--pools", "/nowhere.toml"], 78, "cannot read /nowhere.toml"),
        ([*NODE, "--io-profile", "/nowhere.csv"], 1, "/nowhere.csv: cannot be read"),
        ([*NODE, "--history"], 2, "name one TRACE, or --history"),
        ([*NODE, "--since", "7d"], 2, "--since goes with --history"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(
    drf: Drf, table: Path, words: list[str], code: int, said: str
) -> None:
    result = drf("simulate", table, *words)
    assert (result.code, result.out) == (code, "")
    assert said in result.err and result.err.count("\n") == 1


def test_a_dash_is_standard_input(spawn: Spawn) -> None:
    words = ("simulate", "-", *NODE, "--policy", "drf", "--json")
    process = spawn(*words, stdin=subprocess.PIPE)
    out, err = process.communicate(gzip.compress(TABLE.encode()), timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["trace"]["source"] == "standard input"


def test_without_a_trace_it_is_said_in_one_line_where_to_look(drf: Drf) -> None:
    result = drf("simulate")
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1 and "--help" in result.err


def test_a_slip_is_not_taken_for_a_file(drf: Drf, tmp_path: Path) -> None:
    slip = drf("simulate", "generat")
    assert (slip.code, slip.out) == (2, "")
    assert "No such command or file 'generat'. Did you mean 'generate'?" in slip.err
    assert "none.csv: cannot be read" in drf("simulate", tmp_path / "none.csv", *NODE).err


def test_names_of_a_trace_are_shown_harmlessly(drf: Drf, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    bad = "\x1b[2J[red]"
    path.write_text(f"name,user,submit_s,run_s,cores,memory\n{bad},{bad},0,1,9,1G\n"
                    f"x,{bad},0,1,1,1G\n")  # fmt: skip
    shown = drf("simulate", path, *NODE, "--policy", "drf", "--users")
    assert shown.code == 0 and "\x1b" not in shown.out and "?[2J[red]" in shown.out


def test_progress_is_shown_on_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    lines = "".join(f"u{at % 9},{at},100,1,1G\n" for at in range(1500))
    path.write_text(f"user,submit_s,run_s,cores,memory\n{lines}")
    words = ["simulate", str(path), *NODE, "--policy", "drf"]
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", DRF, *words], stdout=subprocess.DEVNULL, stderr=follower
    ) as process:
        os.close(follower)
        shown = b""
        try:
            while chunk := os.read(leader, 4096):
                shown += chunk
        except OSError:
            # On Linux that is how a terminal ends.
            pass
        assert process.wait(60) == 0
    os.close(leader)
    assert b"% of 1,500 jobs" in shown
    assert b"\x1b[Kdrf: simulated drf in " in shown, "the line of progress is gone by then"


def test_the_curves_come_after_the_tables(drf: Drf, table: Path) -> None:
    lines = drf("simulate", table, *NODE, "--policy", "drf", "--plot", "-").screen.splitlines()
    titles = [
        "Waits: the part of the jobs that waited no longer",
        "Use of cores",
        "Use of memory",
        "Dominant shares by user, drf",
    ]
    assert [line for line in lines if line in titles] == titles
    assert "o ann   + bob   x eve   = several" in lines[-1]


@pytest.mark.slow
def test_a_picture_of_a_trace_is_the_same_every_time(drf: Drf, table: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = []
    for name in ("a.svg", "b.svg"):
        assert drf("simulate", table, *NODE, "--plot", tmp_path / name, "--json").code == 0
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
    assert b"Dominant shares by user, easy" in pictures[0]


def test_json_and_curves_do_not_go_to_one_place(drf: Drf, table: Path) -> None:
    result = drf("simulate", table, *NODE, "--plot", "-", "--json")
    assert (result.code, result.out) == (2, "")
    assert "--plot - goes without --json" in result.err

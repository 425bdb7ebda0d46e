"""drf simulate: allocations, traces and the paper's figures, for people and for programs; and drf
demo: what is made of measurements, and where they cannot run."""

import gzip
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cli.drf import DRF, ROOT, Result
from drfd.daemon.config import parse
from drfd_cli.commands import demo, simulate

# -- alloc -------------------------------------------------------------------------------------

#: The example of the DRF paper, as in docs/simulator.md.
PAPER = """{"capacity": {"cpu": 9, "mem": 18},
 "users": [{"name": "A", "demand": {"cpu": 1, "mem": 4}},
           {"name": "B", "demand": {"cpu": 3, "mem": 1}}],
 "policy": "drf", "mode": "discrete"}
"""


@pytest.fixture
def spec(tmp_path) -> Path:
    path = tmp_path / "paper.json"
    path.write_text(PAPER)
    return path


def test_programs_get_one_object_as_in_the_manual(drf, daemon, spec):
    result = drf("simulate", "alloc", spec, "--json")
    assert (result.code, result.err, daemon.connections) == (0, "", 0)
    assert json.loads(result.out) == {
        "tasks": {"A": 3, "B": 2},
        "shares": {"A": {"cpu": 1 / 3, "mem": 2 / 3}, "B": {"cpu": 2 / 3, "mem": 1 / 9}},
        "dominant_share": {"A": 2 / 3, "B": 2 / 3},
        "dominant_resource": {"A": "mem", "B": "cpu"},
        "order": ["B", "A", "A", "B", "A"],
    }
    assert '"tasks": {"A": 3, "B": 2}' in result.out, "whole numbers are written as such"
    manual = (ROOT / "docs" / "simulator.md").read_text()
    assert PAPER in manual
    assert f"--json\n{result.out}```" in manual


def test_people_get_a_table_and_the_order(drf, spec):
    assert drf("simulate", "alloc", spec).screen.splitlines() == [
        "",
        " USER       TASKS   DOMINANT    SHARE           cpu           mem",
        " ────────────────────────────────────────────────────────────────",
        " A              3   mem        66.7 %    3 (33.3 %)   12 (66.7 %)",
        " B              2   cpu        66.7 %    6 (66.7 %)    2 (11.1 %)",
        " together                               9 (100.0 %)   14 (77.8 %)",
        "",
        "order  B A A B A",
    ]
    # Tasks that can be cut have no order; a mark at the beginning of the file does no harm.
    text = PAPER.replace("discrete", "continuous").replace('"drf"', '"asset"')
    spec.write_text(text, encoding="utf-8-sig")
    found = json.loads(drf("simulate", "alloc", spec, "--json").out)
    assert (found["tasks"], found["order"]) == ({"A": 2.52, "B": 2.16}, [])
    shown = drf("simulate", "alloc", spec)
    assert "2.52" in shown.out and "order" not in shown.out
    # Hostile names are shown harmlessly.
    spec.write_text(PAPER.replace('"A"', '"\\u001b[2J[red]"'))
    shown = drf("simulate", "alloc", spec)
    assert "\x1b" not in shown.out and "?[2J[red]" in shown.out
    assert drf("simulate", "alloc", spec, "--json").code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            b'{"capacity": {"cpu": 9}, "usrs": []}',
            "Object contains unknown field `usrs` (see drf simulate alloc --help)",
        ),
        (b"nonsense", "is not JSON: JSON is malformed: invalid character (byte 4)"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b" " * (4 << 20) + b" ", "is too long (4M are the most)"),
        (
            b'{"capacity": {"cpu": 9}, "users": [{"name": "A", "demand": {"mem": 1}}]}',
            "users[0].demand: mem is not known (known: cpu)",
        ),
        (
            b'{"capacity": {"cpu": 1e9}, "users": [{"name": "A", "demand": {"cpu": 1}}]}',
            "the machine has room for more than 200000 tasks (ask for larger tasks, or for "
            '"mode": "continuous")',
        ),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_bad_problem_is_refused_in_one_line_that_names_the_file(drf, tmp_path, text, said):
    spec = tmp_path / "problem.json"
    if text is not None:
        spec.write_bytes(text)
    result = drf("simulate", "alloc", spec, "--json")
    assert result == Result(1, "", f"drf: {spec}: {said}\n")
    assert "Is a directory" in drf("simulate", "alloc", tmp_path).err


# -- traces ------------------------------------------------------------------------------------

TABLE = """name,user,group,submit_s,run_s,limit_s,cores,memory
a,ann,lab,0,100,200,4,1G
b,bob,den,10,100,200,4,1G
c,ann,lab,11,100,200,2,1G
d,eve,den,12,100,200,2,1G
huge,eve,den,13,100,200,99,1G
torn
"""
NODE = ("--capacity", "cores=4,memory=8G")
#: With one policy, which takes a tenth of the time of all.
DRF_ONLY = (*NODE, "--policy", "drf")


@pytest.fixture
def table(tmp_path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TABLE)
    return path


def cells(screen: str) -> dict[str, list[str]]:
    lines = [re.split("  +", line.strip()) for line in screen.splitlines()]
    return {name: rest for name, *rest in lines}


def test_estimates_pools_and_weights_can_be_others(drf, table, tmp_path):
    def runs(*words: object) -> Any:
        return json.loads(drf("simulate", *words, "--json").out)["runs"]

    estimates = ("--policy", "drf,fifo", "--estimates", "none,exact")
    labels = [run["label"] for run in runs(table, *NODE, *estimates)]
    assert labels == ["drf none", "drf exact", "fifo"], "for policies that ask for them"
    (run,) = runs(table, *DRF_ONLY, "--pools", "trace")
    assert list(run["users"]) == ["root.den.bob", "root.den.eve", "root.lab.ann"]
    path = tmp_path / "weighed.csv"
    held = "".join(f"{user},0,{run_s},{cores},1G\n" for user, run_s, cores in (
        ("ann", 1000, 1), ("bob", 1000, 1), ("eve", 100, 2)))  # fmt: skip
    path.write_text(f"user,submit_s,run_s,cores,memory\n{held}ann,1,50,2,1G\nbob,1,50,2,1G\n")
    plain, heavy = runs(path, *DRF_ONLY, "--weight", "bob=2")
    waits = [
        [run["users"][leaf]["wait_s"]["max"] for leaf in ("root.ann", "root.bob")]
        for run in (plain, heavy)
    ]
    assert (plain["label"], heavy["label"]) == ("drf", "drf bob=2")
    assert waits == [[99, 149], [149, 99]]
    assert "drf bob=2: WAIT" in drf("simulate", path, *DRF_ONLY, "--weight", "bob=2").out


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("[users.ann]\nweight = 2\n", None),
        (
            '[[users.ann.hours]]\nwhen = "Mon-Sun"\nlimit = {cores = 0}\n',
            "drf: limits by hour (of ann) are not simulated: the ordinary limits count all ",
        ),
    ],
)
def test_what_is_not_simulated_is_said(drf, table, tmp_path, limits, said):
    pools = tmp_path / "drfd.toml"
    pools.write_text(limits)
    found = drf("simulate", table, *DRF_ONLY, "--pools", pools, "--json")
    if said is None:
        assert "not simulated" not in found.err
        return
    assert said.format(pools) in found.err
    plain = drf("simulate", table, *DRF_ONLY, "--json")
    assert json.loads(found.out)["runs"] == json.loads(plain.out)["runs"]


def test_synthetic_rates_are_called_so_in_every_output(drf, table, tmp_path):
    profile = tmp_path / "tasks.csv"
    profile.write_text("n,disk_read_mb_p50,disk_write_mb_p50,disk_mb_s_p90\n1,1,1,50\n")
    words = ("simulate", table, "--capacity", "cores=4,memory=8G,read=1G,write=1G",
             "--io-profile", profile)  # fmt: skip
    assert "SYNTHETIC disk rates" in drf(*words).out
    notes = json.loads(drf(*words, "--json").out)["trace"]["notes"]
    assert notes[0].startswith("SYNTHETIC disk rates")


@pytest.mark.parametrize(
    ("policy", "count"), [("drf", 1), pytest.param("all", 9, marks=pytest.mark.slow)]
)
def test_what_is_generated_can_be_simulated(drf, tmp_path, policy, count):
    made = drf("simulate", "generate", "--jobs", "30", "--users", "3", "--seed", "4")
    assert made.code == 0
    path = tmp_path / "made.csv"
    path.write_text(made.out)
    words = ("--capacity", "cores=64,memory=256G,read=2G,write=1G", "--policy", policy, "-n", "20")
    found = json.loads(drf("simulate", path, *words, "--json").out)
    assert [run["jobs"] for run in found["runs"]] == [20] * count


def test_the_past_of_this_machine_is_asked_of_the_daemon(drf, daemon):
    def ended(id: int, user: str, cores: float) -> dict[str, Any]:
        return {
            "id": id, "user": user, "pool": f"root.{user}", "submitted_at": 1e9 + id, "attempt": 1,
            "started_at": 1e9 + 500, "ended_at": 1e9 + 600, "time_limit_s": None, "used": {},
            "demand": {"cores": cores, "memory": 0, "read": 0, "write": 0, "gres": {}},
        }  # fmt: skip

    capacity = {"cores": 4.0, "memory": 1 << 33, "read": 0, "write": 0, "gres": {}}
    pages = [
        {"jobs": [ended(2, "bob", 3)], "after": [1e9 + 600, 2]},
        {"jobs": [ended(1, "ann", 3)], "after": None},
    ]
    daemon.replies = {
        "history": [*pages, {"jobs": [], "after": None}],
        "shares": {"capacity": capacity, "free": capacity, "nodes": []},
    }
    found = json.loads(drf("simulate", "--history", "--policy", "drf", "--json").out)
    assert found["trace"]["source"] == "the history of this machine"
    assert found["capacity"] == {"cores": 4000, "memory": 1 << 33}
    assert found["runs"][0]["users"]["root.bob"]["wait_s"]["mean"] == 99
    asked = [request.get("after") for request in daemon.asked("history", times=2)]
    assert asked == [None, [1e9 + 600, 2]]
    nothing = "drf: no job has run here (try a TRACE)\n"
    assert drf("simulate", "--history") == Result(1, "", nothing)


def test_without_a_capacity_one_is_suggested_that_will_do(drf, table):
    refused = drf("simulate", table)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("drf: say what the machine has (for this trace for instance ")
    text = refused.err.rstrip(")\n").split()[-1]
    assert drf("simulate", table, "--capacity", text, "--policy", "drf").code == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("TRACE --capacity cores=4", 1, "jobs of this trace ask for memory, up to 1G each"),
        ("TRACE --capacity cores", 2, "'cores' is not NAME=AMOUNT"),
        ("TRACE NODE --policy best", 2, "there is no 'best' (drf, fifo, easy, "),
        ("TRACE NODE --estimates wild", 2, "there is no 'wild' (predicted, limit, exact, none)"),
        ("TRACE NODE --weight ann", 2, "'ann' is not NAME=WEIGHT"),
        ("TRACE NODE --weight ann=0", 2, "'ann=0' is not NAME=WEIGHT"),
        ("TRACE NODE --weight nobody=2", 1, "there is no pool or user 'nobody'"),
        ("TRACE NODE --pools /nowhere.toml", 78, "cannot read /nowhere.toml"),
        ("TRACE NODE --io-profile /nowhere.csv", 1, "/nowhere.csv: cannot be read"),
        ("TRACE NODE --history", 2, "name one TRACE, or --history"),
        ("TRACE NODE --since 7d", 2, "--since goes with --history"),
        ("none.csv NODE", 1, "none.csv: cannot be read"),
        ("", 2, "--help"),
        # A slip is not taken for a file.
        ("generat", 2, "No such command or file 'generat'. Did you mean 'generate'?"),
        *((words, 2, "") for words in ("alloc", "alloc a b", "alloc a --jsn", "allok a")),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(drf, table, words, code, said):
    known = {"TRACE": [str(table)], "NODE": [*NODE], "none.csv": [str(table.with_name("none.csv"))]}
    result = drf("simulate", *(each for word in words.split() for each in known.get(word, [word])))
    assert (result.code, result.out, result.err.count("\n")) == (code, "", 1)
    assert said in result.err


@pytest.mark.slow
def test_a_dash_is_standard_input(drf, spawn, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(PAPER.encode())))
    assert json.loads(drf("simulate", "alloc", "-", "--json").out)["tasks"] == {"A": 3, "B": 2}
    process = spawn("simulate", "-", *DRF_ONLY, "--json", stdin=subprocess.PIPE)
    out, err = process.communicate(gzip.compress(TABLE.encode()), timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["trace"]["source"] == "standard input"


def test_names_of_a_trace_are_shown_harmlessly(drf, tmp_path):
    path = tmp_path / "jobs.csv"
    bad = "\x1b[2J[red]"
    path.write_text(f"name,user,submit_s,run_s,cores,memory\n{bad},{bad},0,1,9,1G\n"
                    f"x,{bad},0,1,1,1G\n")  # fmt: skip
    shown = drf("simulate", path, *DRF_ONLY, "--users")
    assert shown.code == 0 and "\x1b" not in shown.out and "?[2J[red]" in shown.out


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal(tmp_path):
    path = tmp_path / "jobs.csv"
    lines = "".join(f"u{at % 9},{at},100,1,1G\n" for at in range(1500))
    path.write_text(f"user,submit_s,run_s,cores,memory\n{lines}")
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", DRF, "simulate", str(path), *DRF_ONLY],
        stdout=subprocess.DEVNULL, stderr=follower,
    ) as process:  # fmt: skip
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


# -- the paper's figures -----------------------------------------------------------------------


def test_where_only_the_program_is_installed_there_are_no_experiments(drf, monkeypatch):
    monkeypatch.setattr(simulate, "EXPERIMENTS", ())
    assert "paper" not in drf("simulate", "--help").out
    assert "paper is an experiment, which only a checkout" in drf("simulate", "paper").err


@pytest.mark.slow
def test_the_papers_figures_are_listed_and_shown(drf):
    lines = drf("simulate", "paper").screen.splitlines()
    assert [line.split()[0] for line in lines[3:]] == [
        "table1", *(f"fig{number}" for number in range(4, 15))
    ]  # fmt: skip
    screen = drf("simulate", "paper", "table1").screen
    rows = [line.split()[0] for line in screen.splitlines() if line.endswith("%")]
    assert rows == ["B", "A", "A", "B", "A"]
    lines = drf("simulate", "paper", "fig8", "--nodes", 8).screen.splitlines()
    over_time = lines[lines.index("Mean shares in each 30 seconds") + 4 :][:12]
    assert [line.split()[0] for line in over_time] == [str(at) for at in range(0, 360, 30)]
    assert over_time[1].split()[1:3] == ["25.0%", "75.0%"], "job 2 has more CPUs at first"


@pytest.mark.slow
def test_programs_get_every_number_of_a_figure_and_the_same_twice(drf):
    first, again = (drf("simulate", "paper", "fig8", "--nodes", 8, "--json").out for _ in range(2))
    assert first == again
    (figure,) = json.loads(first)["experiments"]
    assert figure["name"] == "fig8"
    assert len(figure["tables"][1]["rows"]) == 12
    columns = [each["name"] for each in figure["tables"][0]["columns"]]
    dominant = figure["tables"][0]["rows"][0][columns.index("DOMINANT")]
    assert dominant == pytest.approx(0.71, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fig99", "there is no experiment fig99 (did you mean fig9?)"),
        ("fig13 --trace /no/t", "/no/t: cannot be read: No such file or directory"),
        ("fig8 --trace x", "--trace is for fig13 and fig14"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(drf, words, said):
    assert drf("simulate", "paper", *words.split()) == Result(1, "", f"drf: {said}\n")


@pytest.mark.slow
def test_a_trace_is_used_and_named(drf, tmp_path):
    path = tmp_path / "sample.csv.gz"
    rows = "".join(f"job{at},{at * 10},1,0,{at % 7}000000000\n" for at in range(40))
    path.write_bytes(
        gzip.compress(f"job,submit_s,input_bytes,shuffle_bytes,output_bytes\n{rows}".encode())
    )
    result = drf("simulate", "paper", "fig14", "--trace", path)
    assert result.code == 0
    assert "40 jobs of the SWIM sample" in " ".join(result.out.split())
    path.write_bytes(path.read_bytes()[:50])
    assert drf("simulate", "paper", "fig14", "--trace", path).err == (
        f"drf: {path}: the gzip file is damaged or cut short\n"
    )


# -- demo ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("uid", "user"), [(0, "root"), (1000, None)])
def test_roots_daemon_stays_root(tmp_path, monkeypatch, uid, user):
    """As the user drfd of an installation, it would take only jobs that are signed."""
    monkeypatch.setattr(os, "getuid", lambda: uid)
    text = demo.config_for(tmp_path)
    assert parse(tomllib.loads(text), "drfd.toml").user == user


def test_a_signal_waits_for_the_end_of_the_cleaning_up():
    before = signal.getsignal(signal.SIGINT)
    done = []
    with pytest.raises(KeyboardInterrupt):
        with demo.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("all")
        done.append("more")
    assert done == ["all"]
    assert signal.getsignal(signal.SIGINT) is before

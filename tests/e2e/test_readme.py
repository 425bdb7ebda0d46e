"""What the README and the manual show is run, and compared with what it says; so it cannot rot.

Times, figures of use and paths are another machine's: those alone may differ. The tour is taken on
several machines too: the daemon's own, and two of a real Slurm with cgroups.
"""

import getpass
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from drfd.common.errors import Unavailable
from drfd.core.scheduling.kept_free import SAMPLES
from drfd.daemon.monitoring.meter import PERIOD_S
from drfd.slurm.files import MORE_CONF, NAMES
from drfd.slurm.settings import SLURM_CONF
from instance import BIN, Instance, patient, wait_for
from private_slurm import Cluster, ending, missing

ROOT = Path(__file__).parents[2]

#: In place of the README's program, which sleeps: waits for a file, for as long as the tour takes.
TRAIN = """\
import os, time
print("epoch 1 of 2", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


@cache
def documents() -> str:
    """The README and the manual, which are not everywhere where tests are found."""
    return "\n".join(path.read_text() for path in (ROOT / "README.md", *ROOT.glob("docs/*.md")))


def blocks(mark: str) -> list[str]:
    """The code after each `<!-- mark -->`."""
    code = rf"^<!-- {mark} -->\n```\w+\n(.*?)^```$"
    found = re.findall(code, documents(), re.DOTALL | re.MULTILINE)
    assert found, f"no document has anything marked {mark}"
    return found


def run_line(instance: Instance, line: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a line of bash as its reader would, in the directory of the instance."""
    env = {
        **os.environ,
        "DRFD_SOCKET": str(instance.socket),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "COLUMNS": "104",
    }
    return subprocess.run(
        ["bash", "-c", line], cwd=instance.work, env=env, text=True, timeout=300,
        stdin=subprocess.DEVNULL, **{"capture_output": True, **options},
    )  # fmt: skip


def plain(text: str, directory: Path) -> str:
    """The words, without what belongs to one machine and one moment."""
    text = text.replace(str(directory), "/home/alice")
    text = re.sub(rf"\b{re.escape(getpass.getuser())}\b(?!\.)", "alice", text)
    text = re.sub(r"^(used|cgroup) .*", r"\1", text, flags=re.MULTILINE)
    # Only of a job that has run for some time, as on a busy machine.
    text = re.sub(r"^over time .*\n( .*\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"─+", "─", text)
    text = re.sub(r"\d{4}-\d\d-\d\d|tomorrow ", "", text)
    text = re.sub(r"\b\d\d:\d\d(:\d\d)?\b", "CLOCK", text)
    text = re.sub(r"\b(\d+[dhms])+\b", "SPAN", text)
    if "THROTTLED" in text:
        # What was used.
        text = re.sub(r"\b\d+(\.\d+)?[KMG%]?", "#", text)
    return " ".join(text.split())


def steps(tour: str) -> list[tuple[str, str]]:
    """Each command, and what it printed."""
    parts = re.split(r"^\$ (.*)\n", tour, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def take(instance: Instance, mark: str = "tour") -> Iterator[tuple[str, str, str]]:
    """Run the commands after each `<!-- mark -->`, and yield each with what is shown of it and what
    it printed."""
    (stand_in,) = blocks("stand-in")
    assert run_line(instance, stand_in).stderr == ""
    program = (instance.work / "train.py").read_text()
    compile(program, "train.py", "exec")
    assert "epoch 1 of 2" in program
    (instance.work / "train.py").write_text(TRAIN)
    (instance.work / "count.sh").write_text(file_named("count.sh"))
    status = 0
    for command, shown in [step for tour in blocks(mark) for step in steps(tour)]:
        if command == "drf status":
            instance.wait_state(1, "RUNNING")
        if command.startswith("drf log"):
            wait_for("its output", lambda line=command: run_line(instance, line).stdout)
        if command == "drf wait 1":
            (instance.work / "go").touch()
        done = run_line(instance, command.replace("$?", str(status)), capture_output=False,
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        status = done.returncode
        yield command, shown, done.stdout


CONFIG = """
[capacity]
cores = 8
memory = "16G"
reserve_memory = 0
"""


#: As a user's own daemon has it on a machine with two cores.
TWO = CONFIG.replace("cores = 8", "cores = 2")
TWO += '[scheduling]\nrespect_external_load = "memory"\n'
#: Seconds for which others use cores before a daemon takes note of them.
NOTICED_S = SAMPLES * PERIOD_S + 2


def file_named(name: str) -> str:
    """The code block that has its file's name in a comment."""
    for code in re.findall(r"^```\w+\n(.*?)^```$", documents(), re.DOTALL | re.MULTILINE):
        if f"# {name}" in code.splitlines()[:2]:
            return str(code)
    raise AssertionError(f"no document shows a file {name}")


@pytest.fixture
def instance(make_instance) -> Instance:
    """Of each test's own: what is shown has the first ids."""
    return make_instance(CONFIG).start()


@pytest.fixture
def shell(instance):
    """Run a line as its reader would, in the directory of the instance."""
    return partial(run_line, instance)


@pytest.mark.parametrize("mark", ["tour", "tutorial"])
def test_the_tour_and_the_tutorial_are_what_one_sees(make_instance, mark):
    """On two cores, the tour where other programs use them."""
    instance = make_instance(TWO).start()
    if not instance.has_cgroups():
        pytest.skip("without cgroups nothing counts what short jobs use")
    with ExitStack() as others:
        if mark == "tour":
            for _ in range(2):
                loop = others.enter_context(subprocess.Popen(["sh", "-c", "while :; do :; done"]))
                others.callback(loop.kill)
            time.sleep(NOTICED_S)
        for command, shown, said in take(instance, mark):
            assert plain(said, instance.work) == plain(shown, instance.work), command


def test_the_tour_has_the_commands_of_a_first_day():
    shown = {command.split()[1] for tour in blocks("tour") for command, _ in steps(tour)}
    assert shown >= {"submit", "status", "why", "show", "log", "wait", "cancel", "shares", "report"}
    assert any("--array" in command for tour in blocks("tour") for command, _ in steps(tour))


def test_the_python_example_runs(instance, shell):
    (example,) = blocks("client")
    (instance.work / "example.py").write_text(example)
    done = shell(f"{sys.executable} example.py")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert sorted(lines[:9]) == sorted([*(f"1_{n} COMPLETED" for n in range(8)), "10 COMPLETED"])
    assert lines[8] == "10 COMPLETED"
    assert sorted(lines[9:]) == [f"seed {n}" for n in range(8)]


def test_functions_as_jobs_survive_a_kill_of_the_daemon(instance, shell):
    pytest.importorskip("cloudpickle", reason="drfd[futures] is not installed")
    (example,) = blocks("futures")
    (instance.work / "sweep.py").write_text(example)
    with ThreadPoolExecutor() as pool:
        script = pool.submit(shell, f"XDG_STATE_HOME=$PWD/state {sys.executable} sweep.py")
        wait_for("some ends", lambda: instance.status("--all", "-s", "completed"), pause_s=0.2)
        instance.kill()
        assert not script.done()
        instance.start()
        done = script.result()
    assert done.stderr == ""
    heading, *rows = done.stdout.splitlines()
    assert heading == "rate   mean distance"
    assert [row.split()[0] for row in rows] == ["0.001", "0.01", "0.1", "0.5"]
    assert shell("drf wait 1").stdout == "array 1 COMPLETED: 200 of 200 tasks completed\n"
    assert not list((instance.work / "state").rglob("calls-*"))


def fit(instance: Instance) -> None:
    """The program of the recipes: says what it was given."""
    path = instance.work / "fit"
    path.write_text('#!/bin/sh\necho "fitted $*"\n')
    path.chmod(0o755)


def test_the_sweep_runs(instance, shell):
    fit(instance)
    (instance.work / "grid.txt").write_text("a 1\nb 2\nc 3\n")
    (recipe,) = blocks("sweep")
    done = shell(recipe)
    assert (done.returncode, done.stderr) == (0, "")
    shell("drf wait 1")
    for index, words in enumerate(("a 1", "b 2", "c 3"), 1):
        assert shell(f"drf log 1_{index}").stdout == f"fitted {words}\n"


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_runs_and_fails_as_its_jobs_do(instance, shell):
    fit(instance)
    (recipe,) = blocks("make")
    (instance.work / "Makefile").write_text(recipe)
    for number in range(12):
        (instance.work / f"{number}.in").touch()
    targets = " ".join(f"{number}.out" for number in range(12))
    done = shell(f"make -j 12 {targets}")
    assert done.returncode == 0, done.stderr
    made = [(instance.work / f"{number}.out").read_text() for number in range(12)]
    assert made == [f"fitted {number}.in\n" for number in range(12)]
    (instance.work / "fit").write_text("#!/bin/sh\nexit 3\n")
    (instance.work / "new.in").touch()
    assert shell("make -j 2 new.out").returncode != 0
    assert not (instance.work / "new.out").exists()
    (words,) = re.findall(r"`make -j 100 (SHELL=drf .*)` runs", documents())
    (instance.work / "Makefile").write_text("0.in:\n\techo job $$DRF_JOB_ID\n.PHONY: 0.in\n")
    done = shell(f"make -s -j 2 {words}")
    assert (done.stdout, done.stderr) == ("job 14\n", "")


def test_jupyter_says_how_to_reach_it(instance, shell):
    """By a stand-in for it."""
    (instance.work / "jupyter").write_text('#!/bin/sh\necho "jupyter $*"\n')
    (instance.work / "jupyter").chmod(0o755)
    (instance.work / "jupyter.sh").write_text(file_named("jupyter.sh"))
    assert shell("PATH=$PWD:$PATH drf submit -q -w -m 64M jupyter.sh").returncode == 0
    forward, server = shell("drf log jupyter").stdout.splitlines()
    (port,) = re.findall(r"^from another computer: ssh -L (\d+):localhost:\1 ", forward)
    assert server == f"jupyter lab --no-browser --port {port}"


# -- several machines ----------------------------------------------------------------------------

#: The first two jobs of the tour fit on the first node of Slurm's alone.
CLUSTER = """
[capacity]
cores = 2
memory = "512M"
reserve_memory = 0
[[disk]]
name = "test"
path = "/var/tmp"
read = "200M"
write = "200M"
[enforcement]
grace = "1s"
[nodes.head]
engine = "local"
[nodes.{large}]
engine = "slurm"
cores = 2
memory = "7G"
[nodes.{small}]
engine = "slurm"
cores = 3
memory = "512M"
[slurm]
config = "{conf}"
user = "root"
"""
#: What `drf shares` prints of three machines, which have seven cores.
SHARES = """\
POOL OR USER  WEIGHT  ENTITLED  SHARE  DOMINANT  SATISFIED  CORES  MEM     IO R/W  RUN  WAIT ───
alice              1      100%    14%     cores        14%      1   1G          -    1     1
free                                                            6   7G  200M/200M
capacity                                                        7   8G  200M/200M
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(cores=8, memory_mb=8000)
    try:
        yield made
    finally:
        made.destroy()


@pytest.fixture
def clustered(cluster) -> Iterator[Instance]:
    """A daemon with the nodes of a Slurm that is configured as drfd prints it."""
    large, small = cluster.nodes
    made = Instance(CLUSTER.format(large=large, small=small, conf=cluster.conf))
    state = made.state / "slurm-launcher"
    with ending(made, cluster):
        cluster.start(
            {
                MORE_CONF if name == SLURM_CONF else name: printed(cluster, name, state)
                for name in NAMES
            }
        )
        yield made.start()


def printed(cluster: Cluster, name: str, state: object) -> str:
    """What `drfd slurm-conf` prints of a file."""
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-m", "drfd.daemon", "slurm-conf", name),
            *("--dir", str(cluster.directory), "--socket", f"{state}/events.sock"),
            *("--starts", f"{state}/started"),
        ],
        env=cluster.env, capture_output=True, text=True, timeout=60, cwd="/", check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.system
@pytest.mark.skipif(bool(missing()), reason=missing() or "there is Slurm")
def test_the_tour_works_unchanged_on_several_machines(clustered, cluster):
    """Jobs of Slurm's nodes have a node and no measurements, and its words follow those of their
    own; all else is as on one machine."""
    instance = clustered
    wait_for(
        "the nodes",
        lambda: [node["state"] for node in instance._ask("nodes")["nodes"]] == ["up"] * 3,
    )
    on_node = f"\nnode       {cluster.nodes[0]}\nused  "
    ends = []
    for command, shown, said in take(instance):
        found = plain(said, instance.work)
        match command.split():
            case ["drf", "shares"]:
                expected = plain(SHARES, instance.work)
            case ["drf", "show", "1"]:
                assert shown.count("\nused  ") == 1
                expected = plain(shown.replace("\nused  ", on_node), instance.work)
            case ["drf", "report"]:
                rows = [line.split()[:2] for line in said.splitlines()]
                # The first is what has had more, which the clock decides.
                assert sorted(row for row in rows if row and row[0] in ("train", "fit")) == [
                    ["fit", "4"],
                    ["train", "1"],
                ]
                continue
            case ["drf", "submit", "-w", *_]:
                expected = plain(shown, instance.work)
                found = found[: len(expected)]
            case _:
                expected = plain(shown, instance.work)
        assert found == expected, command
        ends.append(command)
    # The last one printed the exit code of a job that has exceeded its memory.
    assert ends[-1] == "echo $?"


# -- the demo of the first line: what it shows, and that it leaves nothing ----------------------


def processes_of(place: Path) -> list[str]:
    """The commands of processes that name a directory, also in their environment or files."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes()
            known = words + (entry / "environ").read_bytes()
            fds = [*(entry / "fd").iterdir()]
        except OSError:
            # Gone, or no process.
            continue
        for fd in fds:
            with suppress(OSError):
                known += os.fsencode(os.readlink(fd))
        if os.fsencode(place) in known:
            found.append(words.replace(b"\0", b" ").decode())
    return found


@pytest.fixture
def room() -> Iterator[Path]:
    """For directories of demos; at the end there must be none, and no process of one."""
    place = Path(tempfile.mkdtemp(prefix="drfd-test-", dir="/var/tmp"))
    place.chmod(0o755)
    try:
        yield place
        assert list(place.iterdir()) == []
        wait_for("the end of its processes", lambda: not processes_of(place))
    finally:
        shutil.rmtree(place)


def demo(room: Path, *before: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*map(str, before), str(BIN / "drf"), "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(room)},
    )


def tasks_of(name: str) -> list[int]:
    """The processes of the demo whose directory is called so."""
    mark = f"DRF_DEMO={name}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            # Gone, or somebody else's.
            continue
    return found


def test_the_demo_shows_the_paper_and_stops_the_liar(room):
    with demo(room) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    assert "First launches: B A A B A " in out
    assert "Dominant shares then: A 67%, B 67% " in out
    outcomes = re.findall(r"^  job +\d+ (\S+) .*  ([A-Z_]+): ", out, re.MULTILINE)
    liar = [state for name, state in outcomes if name == "C-liar"]
    assert liar == ["OUT_OF_MEMORY"]
    assert {state for name, state in outcomes if name != "C-liar"} == {"COMPLETED"}
    assert len(outcomes) == 12


@pytest.mark.skipif(os.getuid() != 0, reason="only root can cover a file by another one")
def test_a_demo_whose_jobs_cannot_be_started_says_why_and_ends(room):
    """As where drfd was built without a C compiler."""
    # That of the installed drfd, which the tests may stand beside.
    code = "from drfd.launcher.runner.starter.sources import PROGRAM; print(PROGRAM)"
    asked = [BIN / "python", "-I", "-c", code]
    program = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    covered = f'mount --bind /dev/null {program} && exec "$@"'
    with demo(room, "unshare", "--mount", "sh", "-c", covered, "sh") as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (Unavailable.exit_code, "")
    assert err.strip().endswith(f"drfd-launcher: no job can be started: {program} is no file")


def test_a_demo_that_is_interrupted_leaves_nothing(room):
    with demo(room) as process:
        try:
            # Python's tempfile makes a file there first, to see whether it may.
            (place,) = wait_for("its directory", lambda: list(room.glob("drf-demo-*")))
            wait_for("its tasks", lambda: tasks_of(place.name))
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        except BaseException:
            process.terminate()
            raise
    assert (process.returncode, err.strip()) == (130, "")
    assert tasks_of(place.name) == []


# -- the benchmarks run, of jobs that did what they were to do ----------------------------------


@pytest.mark.skipif(shutil.which("cc") is None, reason="the baseline is in C: no compiler")
def test_a_short_run_has_a_line_for_each_figure():
    few = ["--runs", "1", "--jobs", "20"]
    names = ("slots", "client", "run")
    only = [word for name in names for word in ("--only", name)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", *few, *only],
        cwd=ROOT, capture_output=True, text=True, timeout=patient(300),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    begins = ("20 no-op jobs, 2 slots, all", "20 submissions at once", "5 submissions, one after")
    for what in (*begins, "drf run -- true"):
        (line,) = [line for line in lines if line.startswith(what)]
        assert " of " in line, "beside its baseline"

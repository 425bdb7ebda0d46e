"""What the README and the manual show is run, and compared with what it says; so it cannot rot.

Times, figures of use and paths are another machine's: those alone may differ. The tour is taken on
several machines too: the daemon's own, and two of a real Slurm with cgroups.
"""

import getpass
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from drfd.slurm.files import MORE_CONF, NAMES
from drfd.slurm.settings import SLURM_CONF
from instance import BIN, Instance, wait_for
from slurm_cluster import Cluster, missing

ROOT = Path(__file__).parents[2]

#: Waits for a file between its two epochs: for as long as the tour takes.
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
    (instance.work / "train.py").write_text(TRAIN)
    big = instance.work / "big"
    big.write_text("#!/bin/sh\nexec sleep 600\n")
    big.chmod(0o755)
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
def test_the_tour_and_the_tutorial_are_what_one_sees(instance, mark):
    if not instance.has_cgroups():
        pytest.skip("without cgroups nothing counts what short jobs use")
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


def test_the_sweeps_run(instance, shell):
    fit(instance)
    (instance.work / "grid.txt").write_text("a 1\nb 2\nc 3\n")
    (recipe,) = blocks("sweep")
    done = shell(recipe)
    assert (done.returncode, done.stderr) == (0, "")
    shell("drf wait 1")
    for index, words in enumerate(("a 1", "b 2", "c 3"), 1):
        assert shell(f"drf log 1_{index}").stdout == f"fitted {words}\n"
    rates = [shell(f"drf log {job_id}").stdout for job_id in (5, 6, 7)]
    assert rates == ["fitted 0.1\n", "fitted 0.01\n", "fitted 0.001\n"]


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


def test_the_snakemake_profile_submits_tells_and_cancels(instance, shell):
    """By a stand-in: the plugin runs SUBMIT with the path of a script, takes the first line for the
    id, asks STATUS for one word, and runs CANCEL, without a shell, with many ids."""
    for name in ("status", "cancel"):
        path = instance.work / name
        path.write_text(file_named(name))
        path.chmod(0o755)
    found = re.search(r'submit-cmd: "(.*)"', file_named("config.yaml"))
    assert found is not None

    def submit(script: str) -> str:
        path = instance.work / "snakejob.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        command = re.sub(r"{threads}", "2", found[1]).replace("{rule}", "align")
        command = command.replace("{resources.mem_mb}", "64")
        done = shell(f'{command} "{path}"')
        assert (done.returncode, done.stderr) == (0, "")
        return str(done.stdout.splitlines()[0])

    def status(job_id: str) -> str:
        done = shell(f"{instance.work}/status '{job_id}'")
        assert (done.returncode, done.stderr) == (0, "")
        return str(done.stdout)

    good, bad, long, other = map(submit, ("true", "exit 1", "sleep 600", "sleep 600"))
    job = instance.show(int(long))
    assert (job["name"], job["demand"]["cores"], job["demand"]["memory"]) == ("align", 2, 64 << 20)
    for job_id, word in ((good, "success"), (bad, "failed"), (long, "running")):
        wait_for(
            word, lambda i=job_id, w=word: status(i) == f"{w}\n", show=lambda i=job_id: status(i)
        )
    assert shell(f"{instance.work}/cancel {long} {other}").returncode == 0
    for job_id in (long, other):
        wait_for(
            "the end", lambda i=job_id: status(i) == "failed\n", show=lambda i=job_id: status(i)
        )
    # A restart of the daemon is no failure of a job.
    instance.kill()
    assert shell(f"./status {good}").stdout == "running\n"
    instance.start()


SNAKEFILE = """\
rule all:
    input: expand("{n}.txt", n=range(3))
rule one:
    output: "{n}.txt"
    threads: 2
    resources: mem_mb=300
    shell: "echo $DRF_CORES > {output}"
"""


@pytest.mark.skipif(
    shutil.which("snakemake") is None, reason="snakemake and its cluster-generic plugin: pip"
)
def test_snakemake_itself_runs_with_the_profile(instance, shell):
    (instance.work / "Snakefile").write_text(SNAKEFILE)
    profile = instance.work / "profile"
    profile.mkdir()
    for name in ("config.yaml", "status", "cancel"):
        (profile / name).write_text(file_named(name).replace("DIR/", f"{profile}/"))
        (profile / name).chmod(0o755)
    done = shell("snakemake --profile profile")
    assert done.returncode == 0, done.stderr
    assert [(instance.work / f"{n}.txt").read_text() for n in range(3)] == ["2\n"] * 3
    assert [job["name"] for job in instance.status("--all")] == ["one"] * 3


# -- several machines ----------------------------------------------------------------------------

#: The larger job of the tour fits on the first node of Slurm's alone, and so does the other.
CLUSTER = """
[capacity]
cores = 2
memory = "4G"
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
cores = 8
memory = "6G"
[nodes.{small}]
engine = "slurm"
cores = 3
memory = "6G"
[slurm]
config = "{conf}"
user = "root"
"""
#: What `drf shares` prints of three machines, which have thirteen cores.
SHARES = """\
POOL OR USER  WEIGHT  ENTITLED  SHARE  DOMINANT  SATISFIED  CORES  MEM     IO R/W  RUN  WAIT ───
alice              1      100%    31%     cores        31%      4   1G          -    1     1
free                                                            9  15G  200M/200M
capacity                                                       13  16G  200M/200M
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
    try:
        cluster.start(
            {
                MORE_CONF if name == SLURM_CONF else name: printed(cluster, name, state)
                for name in NAMES
            }
        )
        yield made.start()
    finally:
        try:
            # While Slurm is there to end them.
            made.drf("cancel", "--all", check=False)
            cluster.stop()
        finally:
            made.destroy()


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
                assert [row for row in rows if row and row[0] in ("train", "fit")] == [
                    ["train", "1"],
                    ["fit", "4"],
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

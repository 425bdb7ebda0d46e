"""Scripts written for Slurm, and scripts from elsewhere than a file, run by a daemon."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd_cli.slurm import SLURM_NAMES
from gpu_machines import without_gpus
from instance import BIN, CONFIG, Instance, wait_for

SCRIPTS = Path(__file__).parent.parent / "data" / "slurm"
GPUS = "\n[gres]\ngpu = [0, 1]\n"


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    instance = Instance(CONFIG + GPUS)
    try:
        yield instance.start()
    finally:
        instance.destroy()


@pytest.fixture(autouse=True)
def place_of_records(instance, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(instance.root / "own"))


def ran(instance: Instance, name: str) -> tuple[int, Path]:
    """Submit a script in a directory of its own and await its end. Returns its id and the place."""
    place = instance.work / name
    place.mkdir()
    job_id = instance.submit(SCRIPTS / name, cwd=place)
    instance.drf("wait", job_id)
    return job_id, place


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("01-hello.sh", "hello_{id}.log", f"job {{id}} named hello on {os.uname().nodename}\n"),
        ("02-threads.sh", "threads.out", "threads: 2, memory: 100\n"),
        ("03-array.sh", "array_{id}_3.out", "task 3 of 4\n"),
        ("04-throttled.sh", "file_6.txt", "file g\n"),
        pytest.param("05-gpu.sh", "train-{id}.out", "devices 0\n", marks=without_gpus),
        pytest.param("06-gpus-of-a-kind.sh", "drf-{id}.out", "0,1\n", marks=without_gpus),
        ("08-account.sh", "drf-{id}.out", "{place}\n"),
        ("09-python", "python.out", "job {id} cpus 1\n"),
        ("13-hybrid.sh", "drf-{id}.out", "2 x 3\n"),
        ("14-chain.sh", "chain.log", "restarted 0 times\n"),
        ("17-signal.sh", "drf-{id}.out", "ready\n"),
        ("18-clean-environment.sh", "environment.txt", "unset {id}\n"),
        ("19-own-variables.sh", "own.out", "large 7 1\n"),
    ],
)
def test_a_script_for_slurm_runs_with_what_it_asks_for(instance, name, file, text):
    job_id, place = ran(instance, name)
    found = place / file.format(id=job_id)
    assert found.read_text() == text.format(id=job_id, place=place)


def test_a_script_from_a_pipe_sees_its_directory(instance):
    text = "import os, sys\nprint(sys.argv, sys.path[0] == os.getcwd(), __file__)\n"
    done = subprocess.run(
        [BIN / "drf", "--socket", instance.socket, "submit", "-q", "-m", "64M", "-", "a b"],
        input=f"#!{sys.executable}\n{text}", capture_output=True, text=True, cwd=instance.work,
        check=True,
    )  # fmt: skip
    instance.wait_end(int(done.stdout))
    said = (instance.work / f"drf-{int(done.stdout)}.out").read_text()
    name = f"{instance.work}/stdin"
    assert said == f"['{name}', 'a b'] True {name}\n"


def test_slurms_commands_go_together(instance):
    """As a script does that submits one job after another."""
    place = instance.work / "names"
    instance.drf("slurm-names", place)
    env = {"PATH": f"{place}:{os.environ['PATH']}"}
    line = "srun -n 3 -l sh -c 'echo $SLURM_PROCID in $SLURM_JOB_ID'"
    words = ("--parsable", "--mem", "64", "-n", "2")
    first = instance.drf("sbatch", *words, "--wrap", line, cwd=place, env=env).stdout.strip()
    after = ("-d", f"afterok:{first}", "--wrap", "true")
    second = instance.drf("sbatch", *words, *after, cwd=place).stdout.strip()
    instance.wait_end(int(second))
    said = (place / f"slurm-{first}.out").read_text().splitlines()
    assert sorted(said) == [f"{number}: {number} in {first}" for number in range(3)]
    told = instance.drf(
        "sacct", "-j", f"{first},{second}", "-n", "-P", "-o", "JobID,State,AllocCPUS,NTasks"
    )
    assert told.stdout.split() == [
        *(f"{step}|COMPLETED|2|1" for step in (first, f"{first}.batch")),
        f"{first}.0|COMPLETED|2|3",
        *(f"{step}|COMPLETED|2|1" for step in (second, f"{second}.batch")),
    ]
    assert instance.drf("squeue", "-h", "-j", second).stdout == "", "loops that poll it end"
    waits = instance.drf("sbatch", "--parsable", "-H", "--wrap", "true", cwd=place).stdout.strip()
    shown = instance.drf("squeue", "-j", waits, "-h", "-o", "%i %t %r")
    assert shown.stdout == f"{waits} PD JobHeldUser\n"
    assert instance.drf("scancel", waits).stdout == ""
    done = instance.drf("srun", "-c", "1", "--mem", "64M", "printenv", "SLURM_CPUS_PER_TASK")
    assert done.stdout == "1\n"


def test_each_step_of_a_job_is_listed_with_its_own_end(instance):
    """As Snakemake's report of efficiency reads them, and whoever looks which step has failed."""
    place = instance.work / "steps"
    instance.drf("slurm-names", place)
    env = {"PATH": f"{place}:{os.environ['PATH']}"}
    fill = f"{sys.executable} -c 'bytearray(100 << 20); sum(range(3000000))'"
    script = f"""#!/bin/sh
        srun -n1 -J large {fill}
        srun -n1 sh -c 'exit 3'
        srun -n2 sh -c 'kill -TERM $$'
        srun -n1 sh -c 'trap "exit 7" USR1; : > ready; while :; do sleep 0.1; done' &
        until [ -e ready ]; do sleep 0.1; done
        kill -USR1 $!
        wait $!
        echo $? > told
        exec srun -n1 sh -c 'trap "exit 9" USR1; : > last; while :; do sleep 0.1; done'
    """
    (place / "x.sh").write_text(script)
    words = ("--parsable", "--mem", "300", "-n", "2", "x.sh")
    job = instance.drf("sbatch", *words, cwd=place, env=env).stdout.strip()
    wait_for("the last step", (place / "last").exists)
    running = instance.drf("squeue", "-h", "-s", "-j", job, "-o", "%i %j").stdout.split("\n")
    assert running == [f"{job}.batch batch", f"{job}.4 sh", ""]
    assert f"StepId={job}.4 " in instance.drf("scontrol", "show", "step", f"{job}.4").stdout
    assert instance.drf("sstat", "-n", "-P", "-j", f"{job}.4", "-o", "JobID").stdout == f"{job}.4\n"
    assert (place / "told").read_text() == "7\n", "a signal to srun is one to its step"
    instance.drf("scancel", "-b", "-s", "USR1", job)
    instance.wait_end(int(job))
    names = "JobID,JobName,State,ExitCode,NTasks"
    told = instance.drf("sacct", "-n", "-P", "-j", job, "-o", names).stdout.splitlines()[2:]
    assert told == [
        f"{job}.0|large|COMPLETED|0:0|1", f"{job}.1|sh|FAILED|3:0|1", f"{job}.2|sh|FAILED|0:15|2",
        f"{job}.3|sh|FAILED|7:0|1", f"{job}.4|sh|FAILED|9:0|1",
    ]  # fmt: skip
    used = instance.drf(
        *("sacct", "-n", "-P", "-j", f"{job}.0,{job}.1", "-o", "MaxRSS,TotalCPU,User")
    ).stdout.split()
    assert int(used[0].partition("K|")[0]) > 100 << 10 > int(used[1].partition("K|")[0])
    assert used[0].split("|")[1] > used[1].split("|")[1]
    shown = json.loads(instance.drf("sacct", "--json", "-j", job).stdout)["jobs"][0]["steps"]
    assert [each["tasks"]["count"] for each in shown] == [1, 1, 1, 2, 1, 1]
    assert [each["step"]["name"] for each in shown] == ["batch", "large", "sh", "sh", "sh", "sh"]


def test_a_script_that_requeues_itself_runs_again_under_its_id(instance):
    """As trainings do that have reached their time limit."""
    place = instance.work / "again"
    instance.drf("slurm-names", place)
    env = {"PATH": f"{place}:{os.environ['PATH']}"}
    once = "[ $SLURM_RESTART_COUNT ] || { scontrol requeue $SLURM_JOB_ID; sleep 60; }"
    once = f"echo run ${{SLURM_RESTART_COUNT:-0}} of $SLURM_JOB_ID; {once}"
    job = instance.drf(
        *("sbatch", "--parsable", "--mem", "64", "-W", "--wrap", once), cwd=place, env=env
    ).stdout.strip()
    assert (place / f"slurm-{job}.out").read_text() == f"run 0 of {job}\nrun 1 of {job}\n"
    told = instance.drf("sacct", "-X", "-n", "-P", "-j", job, "-o", "State,Restarts").stdout
    assert told == "COMPLETED|1\n", "who waited for it has waited for its second run"


def without_slurm(place: Path) -> Path:
    """Make a directory of the machine's programs but for Slurm's, which may be installed here."""
    place.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name not in SLURM_NAMES:
            (place / program.name).symlink_to(program)
    return place


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash -l"])
def test_a_script_finds_slurms_commands_by_itself(instance, shell):
    place = instance.work / shell[5:9].strip()
    place.mkdir()
    path = without_slurm(place / "bin")
    lines = ["srun -l hostname", "scontrol show hostnames", "squeue -h -j $SLURM_JOB_ID -o %i"]
    if shell.endswith("-l"):  # its profile has set PATH anew, with Slurm's if they are installed
        lines.insert(0, f"PATH={path}")
    text = "\n".join([f"#!{shell}", "#SBATCH -n 2 --mem=64M -t 5", *lines])
    (place / "x.sh").write_text(text)
    job_id = instance.submit("x.sh", cwd=place, env={"PATH": str(path)})
    instance.wait_end(job_id)
    host = os.uname().nodename
    said = (place / f"drf-{job_id}.out").read_text().splitlines()
    assert sorted(said[:2]) == [f"0: {host}", f"1: {host}"]
    assert said[2:] == [host.partition(".")[0], str(job_id)]

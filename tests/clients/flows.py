"""One short flow for each program of others that submits with Slurm's commands, or by a plugin.

`python flows.py CLIENT FILE` is run by a Python that has the client, in a directory of its own, and
writes what has come out, as JSON. `test_clients.py` says what that must be.
"""

import csv
import json
import os
import pty
import pwd
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Nothing that will come takes longer, in seconds.
LONGEST_S = 240
SNAKEFILE = """
rule all:
    input: "sum.txt"
rule make:
    output: "part-{i}.txt"
    resources: mem_mb=200, runtime=5
    shell: "echo $(({wildcards.i} + 1)) >{output}"
rule total:
    input: expand("part-{i}.txt", i=range(3))
    output: "sum.txt"
    threads: 2
    resources: mem_mb=200, runtime=5
    shell: "echo $(( $(cat {input} | paste -sd+) )) >{output}"
rule wrong:
    output: "never.txt"
    resources: mem_mb=200, runtime=5
    shell: "exit 3"
rule long:
    output: "long.txt"
    resources: mem_mb=200, runtime=5, drf_priority=5
    shell: "touch begun; sleep 600"
rule wide:
    output: "wide.txt"
    threads: 400
    shell: "exit 3"
"""


def square(number: int) -> int:
    return number * number


def fail(number: int) -> None:
    raise ValueError(f"wrong {number}")


class Count:
    """Counts on, when it is queued again, from where it was when it was told to save its state. It
    leaves a file when it has begun to count."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def __call__(self, upto: int) -> int:
        while self.number < upto:
            time.sleep(0.5)
            self.number += 1
            Path("counting").touch()
        return self.number

    def checkpoint(self, upto: int) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(Count(self.number), upto)


def submitit() -> dict[str, Any]:
    import submitit

    executor = submitit.SlurmExecutor(folder="log")
    executor.update_parameters(time=5, mem="512MB", cpus_per_task=1, array_parallelism=2)
    one, wrong = executor.submit(square, 5), executor.submit(fail, 3)
    array = executor.map_array(square, [1, 2, 3, 4])
    hog, long = executor.submit(bytearray, 600 << 20), executor.submit(time.sleep, 1000)
    await_so(lambda: long.state == "RUNNING")
    long.cancel()
    requeued = executor.submit(Count(), 12)
    # Its program must be there to catch the signal.
    await_so(Path("counting").exists)
    requeued._interrupt()
    for job in (one, wrong, *array, hog, long, requeued):
        await_so(lambda job=job: job.done(force_check=True))
    return {
        "one": one.result(),
        "wrong": [wrong.state, "wrong 3" in str(wrong.exception())],
        "array": [job.result() for job in array],
        "hog": hog.state,
        "long": long.state.split()[0],
        "requeued": [requeued.result(), restarts_of(requeued.job_id)],
    }


def dask() -> dict[str, Any]:
    from dask.distributed import Client
    from dask_jobqueue import SLURMCluster

    with (
        SLURMCluster(
            cores=1, memory="600MB", processes=1, walltime="00:05:00", interface="lo",
            scheduler_options={"dashboard_address": None},
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        cluster.scale(jobs=2)
        client.wait_for_workers(2, timeout=LONGEST_S)
        squares = client.gather(client.map(square, range(10)))
        wrong = client.submit(fail, 3).exception(timeout=LONGEST_S)
        cluster.scale(jobs=0)
        await_so(lambda: not client.scheduler_info()["workers"])
    return {"squares": squares, "wrong": str(wrong)}


def parsl() -> dict[str, Any]:
    from parsl.launchers import SrunLauncher
    from parsl.providers import SlurmProvider

    return run_apps(SlurmProvider(
        nodes_per_block=1, cores_per_node=2, mem_per_node=1, init_blocks=1, max_blocks=1,
        walltime="00:05:00", exclusive=False, launcher=SrunLauncher(),
        worker_init=f"export PATH={Path(sys.executable).parent}:$PATH",
    ))  # fmt: skip


def parsl_drfd() -> dict[str, Any]:
    from parsl_drfd import DrfdProvider

    return run_apps(DrfdProvider(cores=2, memory="1G", time="5m"))


def run_apps(provider: Any) -> dict[str, Any]:
    import parsl
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor

    executor = HighThroughputExecutor(
        label="here", address="127.0.0.1", max_workers_per_node=2, provider=provider
    )
    with parsl.load(Config(executors=[executor], run_dir="parsl")):
        squares = [parsl.python_app(square)(number) for number in range(6)]
        wrong = parsl.python_app(fail)(3)
        return {
            "squares": [future.result(timeout=LONGEST_S) for future in squares],
            "wrong": str(wrong.exception(timeout=LONGEST_S)),
        }


def simple_slurm() -> dict[str, Any]:
    from simple_slurm import Slurm

    needs = {"cpus_per_task": 1, "mem": "100M", "time": "5:00"}
    array = Slurm(array=range(3), output="%A-%a.out", **needs)
    first = array.sbatch("echo task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_JOB_ID")
    after = Slurm(dependency={"afterok": first}, output="after.out", **needs)
    second = after.sbatch("echo after; sleep 1000")
    await_so(lambda: Path("after.out").exists() and Path("after.out").read_text())
    after.scancel.cancel_job(second)
    await_so(lambda: state_of(second) == "CANCELLED")
    outputs = [Path(f"{first}-{task}.out").read_text() for task in range(3)]
    return {
        "array": [text.removesuffix(f" of {first}\n") for text in outputs],
        "srun": Slurm(**needs).srun("true"),
    }


def snakemake() -> dict[str, Any]:
    words = ("--executor", "slurm", "--slurm-no-account",
             "--slurm-init-seconds-before-status-checks", "3",
             "--slurm-efficiency-report", "--slurm-efficiency-report-path", "reports")  # fmt: skip
    found, _ = run_snakefile(*words)
    # A row for each step, of a rule that is known by the comment of its job.
    texts = [path.read_text().splitlines() for path in Path("reports").iterdir()]
    rows = [row for lines in texts for row in csv.DictReader(lines)]
    kinds = ("make", "total", "wrong")
    found["rules"] = sorted(kind for row in rows for kind in kinds if kind in row["RuleName"])
    found["measured"] = all(float(row["MaxRSS_MB"]) > 1 for row in rows)
    return found


def snakemake_drfd() -> dict[str, Any]:
    import drfd.client

    found, said = run_snakefile("--executor", "drfd", "--drfd-options", "time=7m group=flow")
    with drfd.client.connect() as client:
        asked = {(job.raw["time_limit_s"], job.raw["group"]) for job in client.status(ended=10)}
    start = [Path(sys.executable).parent / "snakemake", "--executor", "drfd", "--jobs", "1", "long"]
    running = subprocess.Popen(start, stdout=2)
    await_so(Path("begun").exists)
    running.send_signal(signal.SIGINT)
    stopped = running.wait(LONGEST_S) != 0
    both = [*start[:-2], "4", "wide", "part-7.txt"]
    refused = subprocess.run(both, stderr=subprocess.PIPE, text=True, check=False).stderr
    others = "could never start" in refused and Path("part-7.txt").exists()
    return {
        **found, "reason": "FAILED: exit code 1" in said, "stopped": stopped, "others": others,
        "asked": list(asked),
    }  # fmt: skip


def run_snakefile(*words: str) -> tuple[dict[str, Any], str]:
    """What becomes of a workflow, and what Snakemake says of one that fails."""
    Path("Snakefile").write_text(SNAKEFILE)
    command = [Path(sys.executable).parent / "snakemake", "--jobs", "4", *words]
    right = subprocess.run([*command, "all"], stdout=2, check=False, timeout=LONGEST_S)
    wrong = subprocess.run(
        [*command, "wrong"], stdout=2, stderr=subprocess.PIPE, text=True, check=False,
        timeout=LONGEST_S,
    )  # fmt: skip
    print(wrong.stderr)
    found = {
        "right": [right.returncode, Path("sum.txt").read_text()],
        "wrong": [wrong.returncode, Path("never.txt").exists()],
    }
    return found, wrong.stderr


def clusterfutures() -> dict[str, Any]:
    import cfut

    lines = ["#SBATCH --mem=200M", "#SBATCH -t 5"]
    with cfut.SlurmExecutor(False, additional_setup_lines=lines) as executor:
        squares = list(executor.map(square, range(4), timeout=LONGEST_S))
        wrong = executor.submit(fail, 3).exception(timeout=LONGEST_S)
    return {"squares": squares, "wrong": "ValueError: wrong 3" in str(wrong)}


def ipyparallel() -> dict[str, Any]:
    import ipyparallel

    with ipyparallel.Cluster(n=2, engines="slurm", controller_ip="127.0.0.1") as found:
        found.wait_for_engines(2, timeout=LONGEST_S)
        return {"squares": found.load_balanced_view().map_sync(square, range(8))}


def reportseff() -> dict[str, Any]:
    job = sbatch("--mem=100M", "-t", "5", "--wrap", "sleep 1")
    await_so(lambda: state_of(job) == "COMPLETED")
    command = Path(sys.executable).parent / "reportseff"
    said = [
        subprocess.run([command, *words], capture_output=True, text=True, check=True).stdout
        for words in ([str(job)], ["-u", pwd.getpwuid(os.getuid()).pw_name])
    ]
    return {"rows": [line.split()[:2] == [str(job), "COMPLETED"] for text in said
                     for line in text.splitlines()[1:]]}  # fmt: skip


def slurmtop() -> dict[str, Any]:
    # What its screens show, as it reads that.
    from slurmtop._data import SlurmData

    job = sbatch("--mem=100M", "-t", "5", "--wrap", "sleep 600")
    await_so(lambda: state_of(job) == "RUNNING")
    found = SlurmData()
    subprocess.run(["scancel", str(job)], check=True)
    [row] = found.squeue_data.jobs
    keys = ("partition", "name", "job_state", "node_number")
    return {
        "job": [row[key] for key in keys],
        "partitions": [row[0] for row in found.sinfo_data.data],
    }


def turm() -> dict[str, Any]:
    name = "a-name-of-more-than-twenty-letters"
    job = sbatch("--mem=100M", "-t", "5", "-J", name, "-o", f"{name}.out", "--wrap",
                 "echo its-first-line; sleep 600")  # fmt: skip
    await_so(lambda: state_of(job) == "RUNNING")
    # Blanks of a screen are not written.
    main, side = pty.openpty()
    termios.tcsetwinsize(side, (50, 200))
    program = [Path(sys.executable).parent / "turm", "--slurm-refresh", "1"]
    shown = subprocess.Popen(program, stdin=side, stdout=side, stderr=side)
    seen = b""
    until = time.monotonic() + 20
    while time.monotonic() < until and b"its-first-line" not in seen:
        if select.select([main], [], [], 1)[0]:
            seen += os.read(main, 65536)
    os.write(main, b"q")
    shown.wait(LONGEST_S)
    subprocess.run(["scancel", str(job)], check=True)
    return {"name": name.encode() in seen, "log": b"its-first-line" in seen}


def sbatch(*words: str) -> int:
    said = subprocess.run(
        ["sbatch", "--parsable", *words], capture_output=True, text=True, check=True
    )
    return int(said.stdout)


def state_of(job: int) -> str:
    words = ("sacct", "-X", "-n", "-P", "-o", "State", "-j", str(job))
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return said.split()[0] if said else ""


def restarts_of(job: str) -> str:
    words = ("sacct", "-X", "-n", "-P", "-o", "Restarts", "-j", job)
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def await_so(is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + LONGEST_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise TimeoutError("waited in vain")
        time.sleep(0.5)


FLOWS = (
    *(submitit, dask, parsl, simple_slurm, snakemake, clusterfutures, ipyparallel),
    *(snakemake_drfd, parsl_drfd, reportseff, slurmtop, turm),
)

if __name__ == "__main__":
    (flow,) = [flow for flow in FLOWS if flow.__name__ == sys.argv[1]]
    found = flow()
    Path(sys.argv[2]).write_text(json.dumps(found))

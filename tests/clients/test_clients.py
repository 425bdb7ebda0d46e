"""Programs of others get what they expect: by Slurm's commands, which are drfd's, and by Python.

Each is installed by pip into an environment that is thrown away, and runs one short flow
(`flows.py`), or a recipe of the manual, against a daemon of its own.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from instance import ALONE, Instance, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "DRFD_CLIENTS" not in os.environ, reason="installs programs of others: DRFD_CLIENTS=1"
    ),
]

CONFIG = """
[capacity]
cores = 4
memory = "8G"
reserve_memory = 0
[enforcement]
grace = "1s"
"""
ROOT = Path(__file__).parents[2]
SQUARES = [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
#: Client → what pip installs, and what its flow prints.
CLIENTS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "submitit": (
        ["submitit"],
        {
            "one": 25, "wrong": ["FAILED", True], "array": SQUARES[1:5],
            "hog": "OUT_OF_MEMORY", "long": "CANCELLED", "requeued": [12, "1"],
        },
    ),
    "dask": (["dask-jobqueue"], {"squares": SQUARES, "wrong": "wrong 3"}),
    "parsl": (["parsl"], {"squares": SQUARES[:6], "wrong": "wrong 3"}),
    "simple_slurm": (
        ["simple-slurm"],
        {"array": ["task 0", "task 1", "task 2"], "srun": 0},
    ),
    "snakemake": (
        ["snakemake", "snakemake-executor-plugin-slurm"],
        {
            "right": [0, "6\n"], "wrong": [1, False], "measured": True,
            "rules": ["make", "make", "make", "total", "wrong"],
        },
    ),
    "reportseff": (["reportseff"], {"rows": [True, True]}),
    "slurmtop": (
        ["slurmtop"],
        {"job": ["main", "wrap", "RUNNING", "1"], "partitions": ["main*"]},
    ),
    "turm": (["turm"], {"name": True, "log": True}),
    "clusterfutures": (["clusterfutures"], {"squares": SQUARES[:4], "wrong": True}),
    "ipyparallel": (["ipyparallel"], {"squares": SQUARES[:8]}),
    "snakemake_drfd": (
        [f"{ROOT}", f"{ROOT}/packaging/snakemake-executor-plugin-drfd", "snakemake"],
        {
            "right": [0, "6\n"], "wrong": [1, False], "reason": True, "stopped": True,
            "others": True, "asked": [[300, "flow"]],
        },
    ),
    "parsl_drfd": (
        [f"{ROOT}", f"{ROOT}/packaging/parsl-drfd"],
        {"squares": SQUARES[:6], "wrong": "wrong 3"},
    ),
}  # fmt: skip

#: Recipe of docs/python.md → what pip installs besides drfd, what it prints, and its jobs.
RECIPES = {
    "joblib": ("joblib", "[1.0, 2.0, 3.0]\n", 3),
    "dask": ("dask", "30\n", 6),
}


@pytest.fixture
def daemon(make_instance) -> Instance:
    instance = make_instance(CONFIG + ALONE).start()
    instance.drf("slurm-names", instance.root / "bin")
    return instance


def installed(place: Path, packages: list[str]) -> Path:
    """A Python that has them."""
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    words = [place / "bin/python", "-m", "pip", "install", "-q", *packages]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["it does not say why"])[-1]
        pytest.skip(f"pip cannot install {' '.join(packages)}: {why}")
    return place / "bin/python"


def run(words: list[object], daemon: Instance) -> str:
    """Run a program, whose directory has others of its environment, and return what it printed."""
    env = {
        **os.environ,
        "DRFD_SOCKET": str(daemon.socket),
        "HOME": str(daemon.work),
        "PATH": f"{daemon.root}/bin:{Path(str(words[0])).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        list(map(str, words)),
        cwd=daemon.work, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("client", CLIENTS)
def test_its_flow_comes_out_right_with(client, daemon, tmp_path):
    packages, expected = CLIENTS[client]
    python = installed(tmp_path / "environment", packages)
    flow, result = Path(__file__).with_name("flows.py"), tmp_path / "result"
    said = run([python, flow, client, result], daemon)
    assert json.loads(result.read_text()) == expected, said
    # What it has cancelled last, as its workers, may still be on its way out.
    wait_for("no job to be left", lambda: not daemon.status(), show=daemon.status)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_manuals_recipe_runs_with(recipe, daemon, tmp_path):
    package, printed, jobs = RECIPES[recipe]
    (program,) = re.findall(
        rf"^<!-- {recipe} -->\n```python\n(.*?)^```$", (ROOT / "docs" / "python.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )  # fmt: skip
    path = daemon.work / "recipe.py"
    path.write_text(program)
    python = installed(tmp_path / "environment", [f"{ROOT}[futures]", package])
    assert run([python, path], daemon) == printed
    assert [job["state"] for job in daemon.status("--all")] == ["COMPLETED"] * jobs

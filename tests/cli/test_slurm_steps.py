"""Steps of a job: `srun` within it starts what it is told, and records it."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from drfd_cli.slurm import records, step
from drfd_cli.slurm.grammar import Given

#: A job of no daemon, which no other test has.
JOB = f"7{os.getpid()}"
ENV = {"DRF_JOB_ID": JOB, "DRF_ATTEMPT": "1"}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setitem(ENV, "XDG_STATE_HOME", str(tmp_path / "state"))


# -- records -----------------------------------------------------------------------------------


JOB_VIEW = {
    "id": int(JOB), "attempt": 1, "uid": os.getuid(), "state": "CANCELLED", "started_at": 100.0,
    "ended_at": 200.0, "exit_code": None, "signal": 15, "demand": {"cores": 2.0}, "used": {},
}  # fmt: skip


def written(*lines: str) -> Path:
    records.Record(ENV, name="first", tasks=1, cores=1)
    (path,) = Path(os.environ["XDG_STATE_HOME"]).glob("drfd/steps/*/*")
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_step_without_an_end_ended_with_its_job():
    # A daemon whose state was removed since has had a job of this number, too.
    before = ['{"record":"asked","step":0,"at_s":40.0}', '{"record":"began","step":0,"at_s":40.0}']
    asked = '{"record":"asked","step":1,"at_s":140.0,"name":"first","tasks":3,"cores":9}'
    path = written(*before, asked, '{"record":"began","step":1,"at_s":150.0}')
    assert (path.name, path.stat().st_mode & 0o777) == (f"{JOB}.1", 0o600)
    (step,) = records.steps_of(JOB_VIEW)
    assert (step["state"], step["signal"], step["ended_at"]) == ("CANCELLED", 15, 200.0)
    assert (step["step"], step["name"], step["tasks_of_step"]) == ("0", "first", 3)
    assert step["demand"]["cores"] == 2, "more than the job has it cannot have had"


def test_what_is_no_step_of_the_job_is_left_out():
    asked = '{"record":"asked","step":0,"at_s":140.0,"name":"first","tasks":1,"cores":1}'
    waits = written(asked)
    assert not list(records.steps_of(JOB_VIEW)), "one that has not begun"
    # What is cut short, and what nobody has written.
    for line in ('{"record":"beg', "[]", "7", "\xff",
                 '{"record":"began","step":0,"at_s":"soon"}'):  # fmt: skip
        waits.write_text(f"{asked}\n{line}\n")
        assert not list(records.steps_of(JOB_VIEW)), line
    waits.write_text(f'{asked}\n{{"record":"began","step":0,"at_s":150}}\n')
    assert list(records.steps_of(JOB_VIEW))
    assert not list(records.steps_of({**JOB_VIEW, "uid": os.getuid() + 1})), "another user's"


@pytest.mark.parametrize("spoil", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_a_step_runs_without_a_record_where_it_has_no_place(spawn, finish, spoil):
    path = written("")
    path.unlink()
    spoil(path)
    assert finish(spawn("srun", "-n1", "echo", "on", env=ENV)).out == "on\n"
    assert not list(records.steps_of(JOB_VIEW))


def test_records_of_long_ago_are_removed(monkeypatch):
    path = written("")
    old = path.with_name("1.1")
    old.touch()
    os.utime(old, (0, 0))
    path.unlink()
    monkeypatch.setattr(records, "_TIDIES", 1)
    records.Record(ENV, name="first", tasks=1, cores=1)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


# -- srun --------------------------------------------------------------------------------------


def test_a_number_in_a_file_s_name_has_ten_digits_at_most():
    for width, shown in (
        ("", "7"),
        ("3", "007"),
        ("9999", "0000000007"),
        ("9" * 9999, "0000000007"),
    ):
        assert step.path_of(f"a-%{width}j", {"DRF_JOB_ID": "7"}, 0) == f"a-{shown}"


@pytest.mark.slow
def test_a_step_writes_to_its_files(spawn, finish, tmp_path):
    say = ("sh", "-c", "echo out; echo err >&2; cat")
    (tmp_path / "in").write_text("in\n")
    assert finish(spawn("srun", "-n1", "-o", "a-%j", "-i", "in", *say, env=ENV)).out == ""
    assert (tmp_path / f"a-{JOB}").read_text() == "out\nerr\nin\n"
    words = ("-n2", "-o", "b-%t", "-e", "e", "-D", str(tmp_path))
    assert finish(spawn("srun", *words, "-i", "none", *say, env=ENV)).err == ""
    assert [(tmp_path / f"b-{each}").read_text() for each in (0, 1)] == ["out\n"] * 2
    assert (tmp_path / "e").read_text() == "err\nerr\n"
    words = ("-n2", "-l", "-o", "b-0", "--open-mode=append")
    finish(spawn("srun", *words, "echo", "more", env=ENV))
    lines = (tmp_path / "b-0").read_text().splitlines()
    assert (lines[0], sorted(lines[1:])) == ("out", ["0: more", "1: more"])
    result = finish(spawn("srun", "-o", "no/such", "true", env=ENV))
    assert (result.code, result.err) == (
        1, "drf: srun: --output=no/such: No such file or directory\n"
    )  # fmt: skip


@pytest.mark.slow
def test_a_step_sees_the_gpus_of_its_job_and_each_task_its_own(spawn, finish):
    show = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    for words, shown in (
        (["-n1"], ["4,7"]), (["-n2"], ["4,7"] * 2), (["-n2", "--gpus-per-task=1"], ["4", "7"]),
    ):  # fmt: skip
        result = finish(spawn("srun", *words, *show, env={**ENV, "CUDA_VISIBLE_DEVICES": "4,7"}))
        assert (sorted(result.out.split()), result.err) == (shown, "")


@pytest.mark.slow
def test_the_warning_of_a_job_ends_no_step(spawn, finish, tmp_path):
    """The signal goes to all processes of the job, and its tasks know what to do."""
    script = "trap 'echo saved; exit 3' USR1; : > up$SLURM_PROCID; while :; do sleep 0.02; done"
    step = spawn("srun", "-n2", "sh", "-c", script, env=ENV, start_new_session=True)
    deadline = time.monotonic() + 60
    while not all((tmp_path / f"up{each}").exists() for each in (0, 1)):
        assert time.monotonic() < deadline, "the tasks do not start"
        time.sleep(0.01)
    step.send_signal(signal.SIGUSR1)
    for task in Path(f"/proc/{step.pid}/task/{step.pid}/children").read_text().split():
        os.kill(int(task), signal.SIGUSR1)
    result = finish(step)
    assert (result.code, result.out) == (3, "saved\n" * 2)


def test_what_a_step_leaves_out_is_named(spawn, finish):
    words = ("-n1", "--exclusive", "--mem=1G", "-K", "--export=ALL,NOSUCH", "-v", "--overlap")
    result = finish(spawn("srun", *words, "true", env=ENV))
    assert (result.code, result.err) == (
        0,
        "drf: srun: without effect on a step: --exclusive, --mem=1G, --kill-on-bad-exit, "
        "NOSUCH in --export=ALL,NOSUCH (there is no such variable)\n",
    )


@pytest.mark.parametrize(
    ("export", "seen"),
    [
        ("ALL,V='a,b',W=1", "'a,b' 1 own 42"), ("NONE", "- - - 42"), ("MINE,W=a b", "- a b own 42"),
        ("ALL", "old - own 42"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("tasks", ["-n1", "-n2"])
def test_a_step_has_the_variables_that_are_exported(spawn, finish, export, seen, tasks):
    env = {**ENV, "MINE": "own", "V": "old", "SLURM_JOB_ID": "42"}
    shown = "echo ${V:--} ${W:--} ${MINE:--} $SLURM_JOB_ID"
    result = finish(spawn("srun", tasks, f"--export={export}", "sh", "-c", shown, env=env))
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{seen}\n" * int(tasks[-1])


def test_a_step_is_ended_at_its_time_limit(capsys):
    asked = {"time": Given("0:30"), "cpus-per-task": Given("2")}
    made = step.Step(asked, ["x"], {"SLURM_NTASKS": "3"})
    assert (made.limit_s, made.cores, made.tasks) == (60, 6, 3)
    tasks = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    assert not step.await_tasks(tasks, 0)
    assert [task.returncode for task in tasks] == [-15, -15]
    assert "srun: the step is ended at its time limit" in capsys.readouterr().err


# -- threads of a task -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "more", "threads"),
    [
        ({"ntasks": "4"}, {}, {"OMP_NUM_THREADS": "1", "JULIA_NUM_THREADS": "1"}),
        ({"ntasks": "1"}, {}, {"OMP_NUM_THREADS": "1", "JULIA_NUM_THREADS": "1"}),
        ({}, {"SLURM_NTASKS": "4"}, {"OMP_NUM_THREADS": "1", "JULIA_NUM_THREADS": "1"}),
        (
            {"ntasks": "2"}, {"SLURM_CPUS_PER_TASK": "2", "OMP_NUM_THREADS": "3"},
            {"JULIA_NUM_THREADS": "2"},
        ),
        ({}, {}, {}),
        ({"ntasks": "2", "cpus-per-task": "2"}, {}, {"OMP_NUM_THREADS": "2"}),
    ],
)  # fmt: skip
def test_a_task_has_as_many_threads_as_cores_unless_the_user_says_otherwise(options, more, threads):
    """drfd sets the counts for all cores of the job, which are right for a task that has them."""
    usual = {"SLURM_CPUS_ON_NODE": "4", "OMP_NUM_THREADS": "4", "JULIA_NUM_THREADS": "4"}
    given = {name: Given(value) for name, value in options.items()}
    found = step.Step(given, ["x"], {**ENV, **usual, **more}).variables()
    assert {name: each for name, each in found.items() if "THREADS" in name} == threads


@pytest.mark.parametrize(
    ("options", "more", "lists"),
    [
        ({"ntasks": "4", "gpus-per-task": "1"}, {}, ["2", "3", "5", "7"]),
        ({"ntasks": "2", "gpus-per-task": "a100:2"}, {}, ["2,3", "5,7"]),
        ({}, {"SLURM_NTASKS": "2", "SLURM_GPUS_PER_TASK": "2"}, ["2,3", "5,7"]),
        ({"ntasks": "4"}, {"SLURM_NTASKS_PER_GPU": "2"}, ["2", "2", "3", "3"]),
        ({"ntasks": "4"}, {}, [None] * 4),
        ({"ntasks": "5", "gpus-per-task": "1"}, {}, [None] * 5),
        ({"ntasks": "1", "gpus-per-task": "1"}, {}, [None]),
    ],
)  # fmt: skip
def test_each_task_sees_its_own_gpus(options, more, lists):
    given = {name: Given(value) for name, value in options.items()}
    made = step.Step(given, ["x"], {**ENV, "CUDA_VISIBLE_DEVICES": "2,3,5,7", **more})
    told = [made.devices(number) for number in range(made.tasks)]
    assert told == [{} if each is None else {"CUDA_VISIBLE_DEVICES": each} for each in lists]
    assert made.without_effect() == []


def test_a_step_may_be_sent_to_this_machine():
    options = {"nodelist": Given(step.host_name()), "nodes": Given("1")}
    assert step.Step(options, ["x"], ENV).without_effect() == []
    assert step.Step({"nodelist": Given("n7")}, ["x"], ENV).without_effect() == ["--nodelist=n7"]

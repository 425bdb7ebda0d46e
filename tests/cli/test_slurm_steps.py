"""Steps of a job: `srun` within it waits for what other steps hold, and starts what it is told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.drf import LIGHT_DRF
from drfd_cli.slurm import records, step, step_queue
from drfd_cli.slurm.grammar import Given

#: A job of no daemon, which no other test has.
JOB = f"7{os.getpid()}"
ENV = {"DRF_JOB_ID": JOB, "DRF_ATTEMPT": "1", "DRF_CORES": "2", "DRF_MEMORY": str(100 << 20)}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setitem(ENV, "XDG_STATE_HOME", str(tmp_path / "state"))
    before = {each: signal.getsignal(each) for each in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    Path(f"/tmp/drf-steps-{os.getuid()}/{JOB}.1").unlink(missing_ok=True)


def enters(path: str, asks: tuple[int, int], has: tuple[int, int]) -> bool:
    return step_queue.enter(path, asks, has, wait=False) is not None


# -- the list of who holds what ----------------------------------------------------------------


def test_a_step_enters_while_cores_and_memory_last(tmp_path):
    path, has = str(tmp_path / "list"), (3, 100)
    asks = [(1, 50), (1, 60), (1, 50), (1, 1), (1, 0), (1, 0)]
    entered = [enters(path, each, has) for each in asks]
    assert entered == [True, False, True, False, True, False]
    # One that is too large waits for all others.
    path = str(tmp_path / "other")
    assert enters(path, (9, 0), (2, 0))
    assert not enters(path, (1, 0), (2, 0))


def test_what_an_ended_process_held_is_free(tmp_path):
    path = tmp_path / "list"
    gone = subprocess.Popen(["true"])
    gone.wait()
    own = f"{os.getpid()} {step_queue.started_at(os.getpid())} 1 0\n"
    path.write_text(f"{gone.pid} 12345 1 0\n{os.getpid()} 1 1 0\nnonsense\n{own}")
    assert enters(str(path), (1, 0), (2, 0))
    assert path.read_text() == own * 2
    assert not enters(str(path), (1, 0), (2, 0))


def test_lists_in_which_nobody_holds_anything_are_removed(tmp_path):
    (tmp_path / "1.1").write_text("1 1 1 0\n")
    (tmp_path / "2.1").write_text(f"{os.getpid()} {step_queue.started_at(os.getpid())} 1 0\n")
    assert enters(str(tmp_path / "3.1"), (1, 0), (1, 0))
    assert {each.name for each in tmp_path.iterdir()} == {"2.1", "3.1"}


def test_the_place_of_the_lists_is_private(tmp_path, monkeypatch):
    """Nobody keeps another user's steps from waiting by taking the name of the place."""
    home, shared = tmp_path / "home", tmp_path / "shared"
    home.mkdir()
    shared.mkdir()
    monkeypatch.delenv("HOME", raising=False)
    path = Path(step_queue.private_directory(str(shared)))
    assert path.stat().st_mode & 0o777 == 0o700

    def make_link() -> None:
        path.rmdir()
        path.symlink_to(tmp_path)

    def make_file() -> None:
        path.unlink()
        path.write_text("mine")

    for spoil in (lambda: path.chmod(0o777), make_link, make_file):
        spoil()
        with pytest.raises(step_queue.NoPlace, match="belongs to somebody else"):
            step_queue.private_directory(str(shared))
    monkeypatch.setenv("HOME", str(home))
    path = Path(step_queue.private_directory(str(shared)))
    assert (path.parent, path.stat().st_mode & 0o777) == (home, 0o700)
    assert step_queue.private_directory(str(shared)) == str(path)


def test_a_step_that_waits_goes_on_where_the_disk_is_full():
    # Nothing can be written there.
    words = ["/dev/full", "1", "0", "1", "0", "0", "", "echo", "on"]
    program = [sys.executable, "-I", "-S", step_queue.__file__]
    result = subprocess.run([*program, *words], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "on\n")
    assert result.stderr.endswith("/dev/full: No space left on device\n")


def test_a_step_in_the_line_outlives_the_warning_of_its_job():
    step_queue.stand_in_line(["true"], ENV)
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        step_queue.leave_line()


def test_steps_that_begin_at_once_come_one_by_one():
    """Each takes the memory of a whole command line until it has entered."""
    path = f"{step_queue.private_directory()}/{JOB}.1"
    try:
        step_queue.stand_in_line(["-n1", "true"], ENV)
        assert step_queue.open_locked(path, wait=False) is None, "this one is about to enter"
        assert enters(path, (1, 0), (2, 100))
        file = step_queue.open_locked(path, wait=False)
        assert file is not None, "and has entered"
        os.close(file)
        step_queue.stand_in_line(["-n1", "true"], ENV)
        step_queue.leave_line()
        file = step_queue.open_locked(path, wait=False)
        assert file is not None
        for words, env in (
            (["--overlap", "x"], ENV), (["--jobid=8", "x"], ENV), (["x"], {"DRF_JOB_ID": JOB}),
            (["x"], {**ENV, "DRF_STEP": f"{JOB}.1"}),
        ):  # fmt: skip
            step_queue.stand_in_line(words, env)
        os.close(file)
    finally:
        step_queue.leave_line()


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
    assert (step["step"], step["step_name"], step["tasks_of_step"]) == ("0", "first", 3)
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


@pytest.mark.slow
@pytest.mark.parametrize("words", [["-n1", "--mem=50"], ["-n1", "-l", "--mem=60"]])
def test_a_step_waits_for_the_steps_before_it(spawn, finish, tmp_path, words):
    program = tmp_path / "drf"
    program.write_text(f"#!{sys.executable} -P\n{LIGHT_DRF}")
    program.chmod(0o755)
    env = {**ENV, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = "echo up > up; exec sleep 600"
    first = spawn("srun", "-n1", "--mem=60", "sh", "-c", script, env=ENV, program=LIGHT_DRF)
    deadline = time.monotonic() + 60
    while not (tmp_path / "up").exists():
        assert time.monotonic() < deadline, "the first step does not start"
        time.sleep(0.01)
    second = spawn("srun", *words, "sh", "-c", "cat up", env=env, program=LIGHT_DRF)
    assert second.stderr is not None
    said = second.stderr.readline()
    assert (
        said
        == f"drf: srun: waiting for cores or memory of job {JOB} that other steps hold\n".encode()
    )
    (tmp_path / "up").write_text("down\n")
    first.kill()
    first.wait()
    assert finish(second).out.removeprefix("0: ") == "down\n"


@pytest.mark.slow
def test_a_step_that_overlaps_or_lies_within_another_does_not_wait(spawn, finish):
    env = {**ENV, "DRF_CORES": "1"}
    result = finish(spawn("srun", "-n1", "sh", "-c", "echo $DRF_STEP", env=env))
    assert result.out == f"{JOB}.1\n"
    # This very process holds the core.
    path = f"{step_queue.private_directory()}/{JOB}.1"
    assert enters(path, (1, 0), (1, 100))
    assert finish(spawn("srun", "-n1", "--overlap", "echo", "1", env=env)).out == "1\n"
    within = {**env, "DRF_STEP": f"{JOB}.1"}
    assert finish(spawn("srun", "-n1", "echo", "2", env=within)).out == "2\n"


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
def test_a_step_sees_the_gpus_that_it_asks_for(spawn, finish):
    env = {**ENV, "DRF_GRES_GPU": "4,7", "CUDA_VISIBLE_DEVICES": "4,7"}
    show = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    for words, shown in (
        (["-n1", "--gres=gpu:1"], ["4"]), (["-n1"], ["4,7"]), (["-n1", "-G", "2"], ["4,7"]),
        (["-n2", "--gpus-per-task=1"], ["4", "7"]), (["-n2", "--gpus=2"], ["4,7"] * 2),
    ):  # fmt: skip
        result = finish(spawn("srun", *words, *show, env=env))
        assert (sorted(result.out.split()), result.err) == (shown, "")
    named = {**env, "CUDA_VISIBLE_DEVICES": "GPU-5c,GPU-9a"}
    result = finish(spawn("srun", "-n2", "--gpus-per-task=1", *show, env=named))
    assert sorted(result.out.split()) == ["GPU-5c", "GPU-9a"]
    result = finish(spawn("srun", "-n1", *show, env={**env, "SLURM_GPUS_PER_TASK": "1"}))
    assert result.out == "4\n", "as the job asks for one for each task"
    result = finish(spawn("srun", "-n1", "--gpus=3", "--gres=fpga:1", *show, env=env))
    assert (result.out, result.err.splitlines()) == (
        "4,7\n",
        [
            "drf: srun: without effect on a step: --gres=fpga",
            f"drf: srun: the step asks for 3 GPUs; job {JOB} has 2",
        ],
    )


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
    words = ("-n1", "--exclusive", "--cpu-bind=cores", "-K", "--export=ALL,NOSUCH", "-v")
    result = finish(spawn("srun", *words, "true", env=ENV))
    assert (result.code, result.err) == (
        0,
        "drf: srun: without effect on a step: --cpu-bind=cores, --kill-on-bad-exit, "
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
    asked = {"time": Given("0:30"), "mem": Given("1G"), "cpus-per-task": Given("2")}
    made = step.Step(asked, ["x"], {"SLURM_NTASKS": "3"})
    assert (made.limit_s, made.memory, made.cores, made.tasks) == (60, 1024, 6, 3)
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

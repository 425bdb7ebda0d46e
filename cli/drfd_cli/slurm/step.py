"""Steps of a job: what `srun` within a job starts. They share what the job has."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from mmap import ACCESS_READ, mmap
from threading import Lock, Thread

from drfd.common.errors import Refused
from drfd.payload.environment import DEVICE_LISTS, SLOTS, may_set, thread_defaults
from drfd.payload.unpack import filled
from drfd_cli import output
from drfd_cli.slurm import host_name
from drfd_cli.slurm.grammar import SRUN, Given, Options
from drfd_cli.slurm.records import Record
from drfd_cli.slurm.sbatch_options import Asked, read_count, read_export, read_limit

#: Seconds that a step has for its end after its time limit.
_GRACE_S = 30
#: Options that a step honours; others are named in a warning.
_KNOWN = frozenset(
    (
        *("ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-task", "label", "output"),
        *("error", "input", "open-mode", "chdir", "time", "overlap", "jobid"),
        *("job-name", "pty", "unbuffered", "mpi", "quiet", "export"),
        # Of one machine they ask for nothing.
        *("parsable", "nodes", "ntasks-per-gpu", "mincpus"),
    )
)


_tasks = partial(read_count, limit=9999)


class Step:
    """What `srun` asks for within a job."""

    def __init__(self, options: Options, command: list[str], env: Mapping[str, str]) -> None:
        """Raises Refused for values that cannot be read."""
        self.options, self.command, self.env = options, command, env
        asked = Asked(options, "srun")
        of_job = Asked({"ntasks": Given(env.get("SLURM_NTASKS", "1"))}, "srun")
        self.tasks = (
            asked.get("ntasks", _tasks) or asked.get("ntasks-per-node", _tasks)
            or of_job.get("ntasks", _tasks) or 1
        )  # fmt: skip
        per_task = asked.get("cpus-per-task", _tasks)
        if per_task is None:
            cpus = env.get("SLURM_CPUS_PER_TASK", "")
            per_task = int(cpus) if cpus.isdecimal() else 1
        self.cores = self.tasks * per_task
        #: What srun itself starts: each task, or one mpirun that starts those of a program with
        #: MPI.
        self.processes = self.tasks
        name = self.options.get("job-name", Given("")).value
        self._name = name or os.path.basename(self.command[0])
        mpi = self.options.get("mpi", Given("")).value
        if self.tasks > 1 and mpi != "none" and (mpi or _is_mpi(self.command[0])):
            self.command = [_mpirun(self.command[0]), "-n", str(self.tasks), *self.command]
            self.processes = 1
        #: None for no limit of its own.
        self.limit_s = asked.get("time", read_limit) or None

    def without_effect(self) -> list[str]:
        """Return the options that change nothing, as they are written."""
        written = [
            f"--{name}={given.value}" if given.value else f"--{name}"
            for name, given in self.options.items()
            if name not in _KNOWN | SRUN.said_nothing
            # Scripts send steps to the machines of the job, of which this is the only one.
            and (name, given.value) != ("nodelist", host_name())
        ]
        return written + read_export(self._export())[2]

    def _export(self) -> str:
        return self.options.get("export", Given("ALL")).value

    def exported(self) -> dict[str, str]:
        """Return the job's variables as far as the tasks have them, and those that `--export` sets.
        What drfd and Slurm tell a job stays."""
        own, kept, _ = read_export(self._export())
        env = {
            name: value
            for name, value in self.env.items()
            if kept is None
            or name in kept
            or name.startswith(("SLURM_", "DRF_", "DRFD_"))
            or may_set(name)
        }
        return env | own

    def variables(self) -> dict[str, str]:
        text = str(self.tasks)
        found = {"SLURM_NTASKS": text, "SLURM_NPROCS": text, "SLURM_STEP_NUM_TASKS": text}
        if self.processes < self.tasks:
            found |= dict.fromkeys(SLOTS, text)
        if "cpus-per-task" in self.options:
            cpus = self.options["cpus-per-task"].value
            found |= {"SLURM_CPUS_PER_TASK": cpus, "OMP_NUM_THREADS": cpus}
        elif self.tasks > 1 or "ntasks" in self.options:
            found |= self._threads()
        return found

    def record(self) -> Record:
        return Record(os.environ, name=self._name, tasks=self.tasks, cores=self.cores)

    def devices(self, number: int) -> dict[str, str]:
        """Return the lists of the GPUs of one of several tasks, if the job or the step asks for
        GPUs by tasks, or for tasks by GPUs, and there are enough of them."""
        asked = self.options.get("gpus-per-task", Given(self.env.get("SLURM_GPUS_PER_TASK", "")))
        per_task, per_gpu = asked.value.rpartition(":")[2], self.env.get("SLURM_NTASKS_PER_GPU", "")
        if self.tasks == 1 or not (per_task or per_gpu).isdecimal():
            return {}

        def span(task: int) -> tuple[int, int]:
            if per_task:
                return task * int(per_task), (task + 1) * int(per_task)
            gpu = task // max(1, int(per_gpu))
            return gpu, gpu + 1

        first, end = span(number)
        lists = {name: self.env.get(name, "").split(",") for name in DEVICE_LISTS}
        return {
            name: ",".join(devices[first:end])
            for name, devices in lists.items()
            if first < end and span(self.tasks - 1)[1] <= len(devices) and devices != [""]
        }

    def _threads(self) -> dict[str, str]:
        """Return thread counts for a task, in place of those for all cores of the job, which drfd
        has set; another value is the user's own."""
        all_cores = self.env.get("SLURM_CPUS_ON_NODE")
        usual, after = thread_defaults(self.cores // self.tasks)
        return {
            name: count
            for name, count in (usual | after).items()
            if self.env.get(name) == all_cores and all_cores is not None
        }


def _is_mpi(name: str) -> bool:
    """Return whether a program is linked to a library of MPI."""
    try:
        with (
            open(shutil.which(name) or name, "rb") as file,
            mmap(file.fileno(), 0, access=ACCESS_READ) as data,
        ):
            return data[:4] == b"\x7fELF" and data.find(b"\0libmpi") >= 0
    except (OSError, ValueError):
        return False


def _mpirun(name: str) -> str:
    """Return what starts the ranks of a program with MPI. Raises Refused: started one by one, each
    would take itself for the only one, and write the same files."""
    found = shutil.which("mpirun") or shutil.which("prterun")
    if found is None:
        text = f"srun: {output.clean(name)} uses MPI, and there is no mpirun in the PATH"
        raise Refused("no-mpi", text, hint="--mpi=none starts its tasks one by one")
    return found


def run(options: Options, command: list[str]) -> int:
    """Run the tasks of a step within the job that calls srun, each a process of its own."""
    # The signals that warn a job of its time limit are left to the tasks: a program that is
    # executed has them as ever.
    for warning in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(warning, lambda *_: None)
    step = Step(options, command, os.environ)
    left = step.without_effect()
    if left:
        output.say(f"srun: without effect on a step: {', '.join(left)}")
    if "chdir" in options:
        path = options["chdir"].value
        try:
            os.chdir(path)
        except OSError as error:
            raise Refused("bad-value", f"srun: --chdir={path}: {error.strerror}") from None
    if shutil.which(step.command[0]) is None:
        raise Refused("no-program", f"srun: there is no command {step.command[0]}")
    if step.processes == 1 and step.limit_s is None and "label" not in options:
        files = _files(step, 0)
        sys.stdout.flush()
        for number, file in enumerate(files):
            if file is not None:
                os.dup2(file, number)
        env = {**step.exported(), **step.variables(), "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
        program = shutil.which(step.command[0], path=env.get("PATH")) or step.command[0]
        command = [*step.record().parent(program), *step.command]
        sys.stdout.flush()
        try:
            os.execvpe(command[0], command, env)
        except OSError as error:
            text = f"srun: cannot run {command[0]}: {error.strerror}"
            raise Refused("no-program", text) from None
    return _run_tasks(step)


#: Input, output and errors of a task; None where it has those of srun.
_Files = tuple[int | None, int | None, int | None]


def _files(step: Step, number: int) -> _Files:
    """Open the files that the options name, for the task of this number. Raises Refused."""
    append = step.options.get("open-mode", Given("")).value.lower().startswith("a")
    mode = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC)
    stdin = _open(step, "input", number, os.O_RDONLY)
    # Only the first task reads standard input.
    if number and "input" not in step.options:
        stdin = os.open(os.devnull, os.O_RDONLY)
    stdout = _open(step, "output", number, mode | os.O_APPEND)
    is_one = step.options.get("error") in (None, step.options.get("output"))
    return stdin, stdout, stdout if is_one else _open(step, "error", number, mode | os.O_APPEND)


def _open(step: Step, name: str, number: int, mode: int) -> int | None:
    given = step.options.get(name)
    if given is None or given.value == "all":
        return None
    if given.value == "none" or (given.value.isdecimal() and int(given.value) != number):
        return os.open(os.devnull, os.O_RDWR)
    if given.value.isdecimal():
        return None
    path = path_of(given.value, step.env, number)
    if number and "%t" not in given.value:
        # All tasks write to one file, which the first one has emptied.
        mode &= ~os.O_TRUNC
    try:
        return os.open(path, mode, 0o666)
    except OSError as error:
        raise Refused("no-output", f"srun: --{name}={given.value}: {error.strerror}") from None


def path_of(text: str, env: Mapping[str, str], number: int) -> str:
    job = env.get("DRF_JOB_ID", "")
    signs = {
        "j": job, "J": f"{job}.{os.getpid()}", "s": str(os.getpid()), "t": str(number),
        "n": "0", "N": host_name(), "x": env.get("DRF_JOB_NAME", ""), "u": env.get("USER", ""),
        "A": env.get("SLURM_ARRAY_JOB_ID", job), "a": env.get("SLURM_ARRAY_TASK_ID", "0"),
    }  # fmt: skip
    return filled(text, signs)


def _run_tasks(step: Step) -> int:
    program = shutil.which(step.command[0]) or step.command[0]
    label = "label" in step.options
    sys.stdout.flush()
    files = [_files(step, number) for number in range(step.processes)]
    tasks: list[subprocess.Popen[bytes]] = []

    def end(*_: object) -> None:
        for task in tasks:
            task.terminate()

    # From before the first task on, which may be warned as soon as it runs.
    signal.signal(signal.SIGTERM, end)
    record = step.record()
    record.begin()
    for number, (stdin, stdout, stderr) in enumerate(files):
        env = {**step.exported(), **step.variables()}
        env |= step.devices(number) if step.processes > 1 else {}
        env["SLURM_PROCID"] = str(number)
        tasks.append(
            subprocess.Popen(
                [program, *step.command[1:]], env=env | {"SLURM_LOCALID": str(number)},
                stdin=stdin, stdout=subprocess.PIPE if label else stdout, stderr=stderr,
            )
        )  # fmt: skip
    threads = _relay(tasks, [stdout for _, stdout, _ in files]) if label else []
    ended = await_tasks(tasks, step.limit_s)
    for thread in threads:
        thread.join()
    code = max((task.returncode for task in tasks), key=_status)
    if not ended:
        code = code or -signal.SIGTERM
    record.end(code)
    return _status(code)


def _status(code: int) -> int:
    return code if code >= 0 else 128 - code


def await_tasks(tasks: list[subprocess.Popen[bytes]], limit_s: int | None) -> bool:
    """Wait until all have ended; return False if the time limit has ended them."""
    if _all_end(tasks, limit_s):
        return True
    minutes = (limit_s or 0) // 60
    output.say(f"srun: the step is ended at its time limit of {minutes} min")
    for task in tasks:
        task.terminate()
    if not _all_end(tasks, _GRACE_S):
        for task in tasks:
            task.kill()
        _all_end(tasks, None)
    return False


def _all_end(tasks: list[subprocess.Popen[bytes]], within_s: float | None) -> bool:
    until_s = None if within_s is None else time.monotonic() + within_s
    try:
        for task in tasks:
            task.wait(None if until_s is None else max(0.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _relay(tasks: list[subprocess.Popen[bytes]], files: Iterable[int | None]) -> list[Thread]:
    """Begin to write the lines of all tasks, each with the number of its task before it."""
    lock, threads = Lock(), list[Thread]()

    def relay(number: int, task: subprocess.Popen[bytes], file: int | None) -> None:
        assert task.stdout is not None
        for line in task.stdout:
            with lock:
                os.write(1 if file is None else file, f"{number}: ".encode() + line)

    for number, pair in enumerate(zip(tasks, files, strict=True)):
        threads.append(Thread(target=relay, args=(number, *pair), daemon=True))
        threads[-1].start()
    return threads

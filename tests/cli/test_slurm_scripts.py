"""Scripts written for Slurm, as its users' manuals show them: what drf submit asks for."""

import calendar
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from canned import Message
from drfd.client import submission
from drfd.client.words import parse_begin
from drfd.common.errors import Refused
from drfd.common.indices import read_array
from drfd.common.signals import FIRST, REST
from drfd_cli.slurm import SLURM_NAMES
from drfd_cli.slurm.batch_script import NAMES
from drfd_cli.slurm.grammar import SBATCH, SUBMITTING, Given
from drfd_cli.slurm.sbatch_options import read_begin, read_lines, translate
from drfd_cli.submission.job_line import read_script
from seeds import examples

SCRIPTS = Path(__file__).parent.parent / "data" / "slurm"
HOST = os.uname().nodename.partition(".")[0]
M, G = 1 << 20, 1 << 30


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch, daemon):
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.setattr(submission, "SENDMAIL", ())
    daemon.replies = {
        "submit": {"id": 7},
        "shares": {
            "nodes": [{"path": "root"}, {"path": "root.short"}, {"path": "root.short.al"}],
            "capacity": {"cores": 8.0, "memory": 32 * G, "gres": {"gpu": 8, "solver": 4}},
        },
        "nodes": {"nodes": [machine("")]},
        "hello": {"user": "alice"},
        "status": {"jobs": [], "counts": {}, "draining": False, "after": None},
    }


def machine(name: str, cores: float = 8.0, memory: int = 32 * G, *features: str) -> Message:
    capacity = {"cores": cores, "memory": memory, "gres": {}}
    return {"name": name, "capacity": capacity, "features": [*features]}


SEVERAL = [machine("head"), machine("n1", 4.0, 8 * G, "ssd"), machine("n2", 16.0, 64 * G)]


@pytest.fixture
def asked(drf, daemon):
    """Submits with these words; the request, and what is printed on standard error."""

    def run(*args: object) -> tuple[Message, str]:
        result = drf("submit", *args)
        assert result.code == 0, result.err
        return daemon.requests.pop(), result.err

    return run


@pytest.fixture
def of(asked):
    """The same of a script of these lines, after which stand other words of the command line."""

    def run(*lines: str, words: tuple[object, ...] = ()) -> tuple[Message, str]:
        head = [] if lines[0].startswith("#!") else ["#!/bin/sh"]
        Path("x.sh").write_text("".join(f"{line}\n" for line in (*head, *lines)))
        return asked(*words, "x.sh")

    return run


def cores(number: int, memory: int | None = None, **gres: int) -> dict[str, Any]:
    found: dict[str, Any] = {"cores_milli": 1000 * number} if number else {}
    return found | ({"memory_bytes": memory} if memory else {}) | ({"gres": gres} if gres else {})


HERE = {"demand", "name", "array", "time_limit_s", "stdout", "stderr", "pool", "held", "priority"}
FILES = {"stdout": "array_%A_%a.out", "stderr": "array_%A_%a.err"}


@pytest.mark.parametrize(
    ("name", "demand", "more", "warned"),
    [
        ("01-hello.sh", cores(1, 100 * M),
         {"name": "hello", "time_limit_s": 300, "stdout": "hello_%j.log"}, None),
        ("02-threads.sh", cores(2, 100 * M),
         {"name": "threads", "time_limit_s": 600, "stdout": "threads.out"}, None),
        ("03-array.sh", cores(1, 64 * M),
         {"name": "array", "array": "1-4", "time_limit_s": 3600, **FILES}, None),
        ("04-throttled.sh", cores(0, 64 * M), {"array": "0-8:2%2", "time_limit_s": 360}, None),
        ("05-gpu.sh", cores(2, 200 * M, gpu=1),
         {"name": "train", "time_limit_s": 7200, "stdout": "%x-%j.out"}, None),
        ("06-gpus-of-a-kind.sh", cores(2, 200 * M, gpu=2), {"time_limit_s": 86400},
         "the kind a100 in --gpus=a100:2, --constraint=nvlink"),
        ("07-mail.sh", cores(0, 64 * M), {"time_limit_s": 1800},
         "--mail-type=TIME_LIMIT_80, --mail-type (no mail here, and no ~/.config/drfd/notify)"),
        ("08-account.sh", cores(0, 64 * M), {"time_limit_s": 60, "pool": "short"},
         "--account=project_123, --qos=normal"),
        ("09-python", cores(1, 100 * M), {"time_limit_s": 600, "stdout": "python.out"}, None),
        ("11-mpi-here.sh", cores(4),
         {"name": "mpi", "time_limit_s": 300, "stdout": "mpi-%j.out", "stderr": "mpi-%j.err"},
         "--partition=compute (no such pool; drf shares lists them)"),
        ("13-hybrid.sh", cores(6, 120 * M),
         {"name": "hybrid", "time_limit_s": 300, "pool": "short"}, None),
        ("16-held.sh", cores(8, G), {"held": True, "priority": -50}, None),
        ("19-own-variables.sh", cores(0, 64 * M),
         {"time_limit_s": 0, "name": "drfs-own", "stdout": "own.out"}, None),
        ("20-licences.sh", cores(1, 32 * G, solver=2), {"name": "solve", "time_limit_s": 43200},
         "--nodelist=node[01-04], --tmp=10G"),
    ],
)  # fmt: skip
def test_a_script_asks_for_what_its_lines_say(asked, name, demand, more, warned):
    request, said = asked(SCRIPTS / name)
    usual = {"name": name, "demand": demand}
    if request["stderr"] in (request.get("stdout"), "drf-%j.out", "drf-%A_%a.out"):
        # One file for both.
        del request["stderr"]
    assert {key: request[key] for key in HERE & set(request)} == usual | more
    told = re.findall(r"^drf: without effect here: (.*)$", said, re.MULTILINE)
    assert told == ([] if warned is None else [warned])


@pytest.mark.parametrize(
    ("words", "demand"),
    [
        # The whole machine.
        ("--exclusive -n 2", cores(8, 32 * G)),
        ("--exclusive --mem-per-cpu=1G -c 3", cores(8, 3 * G)),
        ("--mem=0", cores(0, 32 * G)),
        # GPUs bring their tasks and cores.
        ("--gpus-per-node=4 --ntasks-per-gpu=1 -c 8", cores(32, gpu=4)),
        ("--gpus=4 --cpus-per-gpu=8 -n 4 --mem-per-cpu=1G", cores(32, 32 * G, gpu=4)),
        ("--gpus=2 --cpus-per-gpu=6", cores(12, gpu=2)),
        ("-n 4 --mincpus=6", cores(6)),
        ("--gres=gpu:0 -c 2", cores(2)),
        ("--gres=gpu:2,memory=20G,solver:1 -c 2",
         {**cores(2, gpu=2, solver=1), "gres_memory": {"gpu": 20 * G}}),
    ],
)  # fmt: skip
def test_words_of_slurm_become_a_demand_and_drfs_own_win(of, words, demand):
    request, said = of(f"#SBATCH {words}", "#SBATCH -p main")
    assert (request["demand"], said) == (demand, "")
    request, _ = of(
        f"#SBATCH {words} -t 7 -J theirs", "#DRF -m 1G", words=("-c", "2", "-n", "mine")
    )
    own = demand | cores(2, G)
    assert (request["demand"], request["name"], request["time_limit_s"]) == (own, "mine", 420)


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("-w n1", {"node": "n1"}),
        ("-C ssd&avx", {"features": ["ssd", "avx"]}),
        ("-C ssd --mem=0", {"features": ["ssd"], "demand": cores(0, 8 * G)}),
        ("-w n2 --exclusive", {"node": "n2", "demand": cores(16, 64 * G)}),
        ("--mem=0", {"demand": cores(0, 64 * G)}),
    ],
)
def test_of_several_machines_a_script_may_name_one_or_its_features(daemon, of, words, fields):
    daemon.replies["nodes"] = {"nodes": SEVERAL}
    request, said = of(f"#SBATCH {words}")
    shown = {key: request.get(key) for key in ("node", "features", "demand")}
    assert (shown, said) == ({"node": None, "features": None, "demand": {}} | fields, "")
    own, _ = of(f"#SBATCH {words}", words=("--node", "head", "--constraint", "big"))
    assert (own["node"], own["features"]) == ("head", ["big"])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--time=soon", "--time=soon: is not a time of Slurm (write 90 (minutes) or 1-12:00:00)"),
        ("--mem=lots", "--mem=lots: is not a size (write 4000 (MiB), 4G or 512M)"),
        ("-c 0", "--cpus-per-task=0: is not a number from 1 (drf submit --ignore-sbatch leaves "),
        ("--tyme=3", "--tyme: is no option of sbatch (drf submit --ignore-sbatch leaves out these"),
        ("-d after:5+10", "--dependency=after:5+10: cannot be met here (after, afterok, "),
        ("--kill-on-invalid-dep=x", "--kill-on-invalid-dep=x: is neither yes nor no"),
        ("-d afterok:5?afterok:6", "one of several jobs (?) cannot be waited for"),
        ("--mem", "--mem: needs a value"),
        ("hetjob", "hetjob: asks for several machines; this is one"),
        ("--gpus=many", "--gpus=many: is not a number of GPUs"),
        ("'", "#SBATCH: No closing quotation"),
        ("--array=5-1", "--array=5-1: the range 5-1 ends before it begins (write 0-99"),
        ("--array=1-<MAX>", "--array=1-<MAX>: '1-<MAX>' is neither an index nor a range (write"),
        ("-D /none/x", "--chdir=/none/x: there is no such directory (sbatch --chdir=DIR SCRIPT"),
        ("--nodes=4", "--nodes=4: asks for several machines; drfd runs jobs on this one (sbatch "
         "--nodes=1 SCRIPT runs it here alone)"),
        ("'-w' 'n[1-2]'", "asks for several machines; drfd runs a job on one"),
        ("'-C' 'ssd|avx'", "drfd knows features that a machine must all have, joined by &"),
        ("-hold", "-h: is no option of sbatch (drf submit --ignore-sbatch leaves out these lines)"),
        ("-mem=4G", "--distribution=em=4G: is no distribution of tasks (of memory: --mem=4G)"),
        ("-L SCRATCH", "--licenses=SCRATCH: this machine counts no SCRATCH, but 8 gpu, 4 solver "),
    ],
)  # fmt: skip
def test_what_cannot_be_met_is_refused_with_its_place(drf, daemon, line, complaint):
    daemon.replies["nodes"] = {"nodes": SEVERAL}
    Path("x.sh").write_text(f"#!/bin/sh\n\n#SBATCH {line}\n")
    result = drf("submit", "x.sh")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert {each["op"] for each in daemon.requests} <= {"nodes", "shares"}
    assert result.err.startswith("drf: x.sh, line 3: #SBATCH") and complaint in result.err
    daemon.requests.clear()
    assert drf("submit", "--ignore-sbatch", "x.sh").code == 0
    request = daemon.requests.pop()
    assert request["demand"] == {} and "DRF_SLURM" not in request["env"]


# -- what the job is told ----------------------------------------------------------------------


def test_a_job_is_told_what_slurm_would_tell_it(asked, tmp_path, monkeypatch):
    """And nothing of the Slurm job, real or not, that submits it."""
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "5")
    env = asked(SCRIPTS / "02-threads.sh")[0]["env"]
    told = {key: value for key, value in env.items() if key.startswith("SLURM")}
    hosts = ("SLURM_SUBMIT_HOST", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME",
             "SLURM_CLUSTER_NAME")  # fmt: skip
    assert told == dict.fromkeys(hosts, HOST) | {
        "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_CPUS_PER_TASK": "2",
        "SLURM_NTASKS": "1", "SLURM_NPROCS": "1", "SLURM_TASKS_PER_NODE": "1",
        "SLURM_MEM_PER_CPU": "50",
    }  # fmt: skip
    assert env["DRF_SLURM"] == "1"


def test_a_script_finds_slurms_commands_at_the_end_of_its_path(of, tmp_path, monkeypatch):
    lines = ("#SBATCH -c 1", "srun true", "hosts=$(scontrol show hostnames)")
    request, said = of(*lines)
    assert (request["env"]["PATH"], said) == (f"/none:{NAMES}", "")
    assert not [name for name in request["env"] if name.startswith("BASH_FUNC_")]
    real = tmp_path / "bin"
    real.mkdir()
    for name in SLURM_NAMES:
        (real / name).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(real))
    assert of(*lines)[0]["env"]["PATH"] == str(real), "Slurm itself is here"
    monkeypatch.delenv("PATH")
    assert "PATH" not in of("true")[0]["env"], "no script of Slurm's"


@pytest.mark.parametrize(
    ("line", "has_functions"),
    [
        ("#!/bin/bash -l", True), ("#!/usr/bin/env -S bash -e --login", True),
        ("#!/bin/bash -el", True), ("#!/bin/bash", False), ("#!/bin/bash -e", False),
        ("#!/bin/sh -l", False),
    ],
)  # fmt: skip
def test_a_login_shell_which_sets_its_path_anew_finds_them_too(of, line, has_functions):
    env = of(line, "#SBATCH -L none -c 1", "srun hostname -l")[0]["env"]
    assert ("BASH_FUNC_srun%%" in env) == has_functions


@pytest.mark.parametrize("name", ["sbatch", "scontrol"])
def test_each_of_slurms_commands_calls_drf(tmp_path, name):
    program = tmp_path / "drf"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    assert {(Path(NAMES) / each).read_text() for each in SLURM_NAMES} == {
        (Path(NAMES) / name).read_text()
    }
    # Beside an installed package there is its own drf, which comes before others.
    apart = shutil.copy(os.path.join(NAMES, name), tmp_path)
    for env in ({"DRF_PROGRAM": str(program)}, {"PATH": f"{tmp_path}:/usr/bin:/bin"}):
        done = subprocess.run(
            [apart, "a b", "-c"], env=env, capture_output=True, text=True, check=True
        )
        assert (done.stdout, done.stderr) == (f"{name} a b -c\n", "")


NO_MPI = "there is no such command here; an MPI, such as Open MPI, must be in your PATH"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["# `mpirun`", "hosts=$(mpiexec hostname)"], [f"calls mpiexec, and {NO_MPI}"]),
        (["# $(mpirun x)", "echo mpirun # module load"], []),
        (["module load x"], ["calls module, and there is no such command here; what it loads must "
                             "be in your PATH"]),
        (["source activate x", "conda activate x", "sbatch $0"],
         ["calls conda, and there is no such command here; put it into your PATH, or have the "
          "script read the file that defines it"]),
        # What defines it may be read.
        *(
            ([line, "conda activate x"], [])
            for line in (". /tmp", 'source "$HOME/x/conda.sh"', 'eval "$($HOME/bin/conda hook)"')
        ),
    ],
)  # fmt: skip
def test_commands_that_are_not_here_are_named(of, lines, told):
    _, said = of("#SBATCH -c 1", *lines)
    assert said.splitlines() == [f"drf: the script {line}" for line in told]


def test_a_script_that_uses_it_is_told_its_own_tmp(drf, daemon, of):
    line = "cp x $SLURM_TMPDIR/"
    request, said = of("#SBATCH -c 1", line)
    assert "SLURM_TMPDIR" not in request["env"] and said == ""
    daemon.replies["hello"] = {"user": "alice", "private_tmp": True}
    request, said = of("#SBATCH -c 1", line)
    assert (request["env"]["SLURM_TMPDIR"], said) == ("/tmp", ""), "the job's own"
    result = drf("sbatch", "--export=ALL,SLURM_TMPDIR=/scratch", "x.sh")
    assert (daemon.requests[-1]["env"]["SLURM_TMPDIR"], result.err) == ("/scratch", "")


def test_a_job_gets_the_variables_that_are_exported(asked, monkeypatch):
    monkeypatch.setenv("EDITOR", "ed")
    request = asked(SCRIPTS / "18-clean-environment.sh")[0]
    assert "EDITOR" not in request["env"] and request["env"]["PATH"] == f"/none:{NAMES}"
    assert request["cwd"] == "/tmp"
    env = asked(SCRIPTS / "19-own-variables.sh")[0]["env"]
    assert (env["EDITOR"], env["MODEL"], env["SEED"]) == ("ed", "large", "7")


@pytest.mark.parametrize(
    ("line", "value", "unknown"),
    [
        ("ALL,V='a,b',X=1", "'a,b'", []), ('ALL,V="a, b"', '"a, b"', []),
        ("V=it's,PATH", "it's", []),
        # The words of the line have lost their quotes.
        ("ALL,V=fine,compact", "fine", ["compact"]), ("V=1,NO", "1", ["NO"]),
    ],
)  # fmt: skip
def test_an_exported_value_is_cut_only_at_a_comma_outside_quotes_which_is_told(
    drf, daemon, monkeypatch, line, value, unknown
):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    result = drf("sbatch", f"--export={line}", "--wrap", "true")
    assert daemon.requests[-1]["env"]["V"] == value
    told = [f"{name} in --export={line} (there is no such variable)" for name in unknown]
    assert result.err == "".join(f"drf: without effect here: {each}\n" for each in told)


def test_mail_goes_to_the_address(asked, tmp_path):
    notify = tmp_path / "drfd" / "notify"
    notify.parent.mkdir()
    notify.write_text("#!/bin/sh\n")
    notify.chmod(0o755)
    request, said = asked(SCRIPTS / "07-mail.sh")
    assert request["notify"] == {"on": ["end", "fail"], "argv": [str(notify)]}
    assert request["env"]["DRF_MAIL_TO"] == "somebody@example.org"
    assert said == "drf: without effect here: --mail-type=TIME_LIMIT_80\n"


# -- when it runs ------------------------------------------------------------------------------


def test_a_job_waits_for_others_and_until_later(asked, of, daemon):
    request, _ = asked(SCRIPTS / "15-after.sh")
    assert request["after"] == [
        {"id": 7, "want": "ok"}, {"id": 9, "want": "ok"}, {"id": 11, "want": "any"},
    ]  # fmt: skip
    assert 3500 < request["begin_s"] - time.time() <= 3600
    for word, answer in (("yes", "cancel"), ("no", "keep")):
        request, said = of(f"#SBATCH -d 7 --kill-on-invalid-dep={word}")
        assert (request["if_never"], request["after"]) == (answer, [{"id": 7, "want": "any"}])
        assert said == ""
    # A singleton waits for jobs of its name.
    daemon.replies["status"]["jobs"] = [
        {"id": 4, "array_id": None, "name": "chain"},
        {"id": 5, "array_id": None, "name": "other"},
        {"id": 9, "array_id": 8, "name": "chain"},
    ]
    request, _ = asked(SCRIPTS / "14-chain.sh")
    assert request["after"] == [{"id": 4, "want": "any"}, {"id": 8, "want": "any"}]
    assert (request["retry"], request["append"]) == ({"times": 1, "on": ["LOST"]}, True)
    select = next(each["select"] for each in daemon.requests if each["op"] == "status")
    assert select["user"] == "alice"


def test_limits_that_are_not_to_be_passed_on_are_not(of):
    assert of("#SBATCH --propagate=none")[1] == ""
    assert of("#SBATCH --propagate")[1] == "drf: without effect here: --propagate\n"


def test_a_job_may_need_the_start_of_one_that_has_started(drf, daemon, of, job):
    daemon.replies["show"] = {"job": job()}
    assert of("#SBATCH --dependency=after:42")[0].get("after") in (None, [])
    daemon.replies["show"] = {"job": job(started_at=None, state="PENDING")}
    daemon.requests.clear()
    result = drf("submit", "x.sh")
    assert (result.code, [each["op"] for each in daemon.requests]) == (1, ["show"])
    assert result.err == (
        "drf: --dependency=after:42: it has not started, and the start of a job cannot be waited "
        "for (afterany:42 waits for its end)\n"
    )


@pytest.mark.parametrize(
    ("signal", "number"),
    [("USR1", REST | 10), ("R:USR1", REST | 10), ("B:USR1", FIRST | 10), ("BR:12", FIRST | 12)],
)
def test_a_signal_is_for_what_the_script_runs_or_for_its_shell(of, signal, number):
    request, told = of("#!/bin/sh", f"#SBATCH --signal={signal}@60", "#SBATCH -t 10")
    assert request["warn"] == {"signal": number, "before_s": 60}
    assert told == ""


@pytest.mark.parametrize(
    ("lines", "limit_s", "told"),
    [
        ("-t 5 --signal=USR2@900", None, "--signal=USR2@900 (the time limit is 5m00s)"),
        ("-t 1 --signal=B:USR1", None, "--signal=B:USR1 (the time limit is 1m00s)"),
        ("--signal=USR1@120", None, "--signal=USR1@120 (the time limit is none)"),
        ("-t 0 --signal=USR1@120", 3600, "--signal=USR1@120 (the time limit is none)"),
        ("--signal=USR1@120", 60, "--signal=USR1@120 (the time limit is 1m00s)"),
        ("--signal=USR1@120", 3600, None),
        ("-t 1 --signal=USR1@0", None, None),
    ],
)
def test_a_signal_that_would_come_before_the_start_is_left_out(of, daemon, lines, limit_s, told):
    daemon.replies["hello"] |= {} if limit_s is None else {"time_limit_s": limit_s}
    request, said = of(f"#SBATCH {lines}")
    assert ("warn" in request, said) == (
        (True, "") if told is None else (False, f"drf: without effect here: {told}\n")
    )


# -- how its words are read --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400), ("5:30", 360), ("1:02:03", 3780), ("1-2", 93600), ("1-2:03", 93780),
        ("1-02:03:04", 93840), ("00:00:20", 60), ("UNLIMITED", None), ("0", None),
        ("00:00:00", None), ("0-00:00", None), ("0:240:0", 14400), ("240:0", 14400),
        ("1:100", 180), ("1:100:00", 9600), ("0:0:14400", 14400), ("0-0:90", 5400),
        ("0-36", 129600), ("1:3", 120), ("100:00:00", 360000),
    ],
)  # fmt: skip
def test_times_are_slurms(text, seconds):
    words = translate({"time": Given(text)}, "host").words
    assert words == ["-t", "unlimited" if seconds is None else f"{seconds}s"]


#: In New York, and then in UTC.
NOON = calendar.timegm((2026, 7, 1, 16, 0, 0))


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("now", None), ("now+0", None), ("now + 0 minutes", None), ("now-1hour", None),
        ("now+3600", 1), ("now+60minutes", 1), ("now+1day", 24), ("now+2 weeks", 336),
        ("13:00", 1), ("1pm", 1), ("1:00 PM", 1), ("13:00:00", 1), ("11:00", 23), ("noon", 24),
        ("midnight", 12), ("fika", 3), ("teatime", 4), ("elevenses", 23),
        ("today", None), ("today 11:00", None), ("today 13:00", 1), ("tomorrow", 12),
        ("noon tomorrow", 24), ("4pm tomorrow", 28), ("tomorrow-16:00", 28),
        ("070226", 12), ("0702", 12), ("07/02/26", 12), ("07.02", 12), ("7/2-13:00", 25),
        ("070226 1pm", 25), ("070126", None), ("2010-01-20T12:34:00", None), ("2010-01-20", None),
        ("2026-07-01T13:00", 1), ("2026-07-01T17:00:00Z", 1), ("2026-07-01T17:00Z", 1),
        ("2010-01-20T12:34:00Z", None), (f"uts{NOON + 3600}", 1), (f"uts{NOON - 1}", None),
    ],
)  # fmt: skip
def test_begin_times_are_slurms_and_one_that_is_over_is_now(monkeypatch, text, hours):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        monkeypatch.setattr(time, "time", lambda: float(NOON))
        word = read_begin(text)
        begin_s = parse_begin(word)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert begin_s == (0 if hours is None else NOON + 3600 * hours)


@pytest.mark.parametrize("text", ["", "soon", "25:00", "13/40", "2026-13-01T00:00Z", "now+", "x z"])
def test_what_is_no_time_is_refused(drf, daemon, text):
    result = drf("sbatch", f"--begin={text}", "--wrap", "true")
    assert (result.code, daemon.requests) == (1, [])
    assert result.err.startswith(f"drf: sbatch: --begin={text}: is not a time of Slurm (write ")


def test_numbers_in_names_of_files_keep_their_zeros(of):
    request, said = of("#SBATCH -a 1-2 -o out-%A_%03a.txt -e %4t-%4J-%b-%5N.err")
    assert (request["stdout"], request["stderr"]) == (
        "out-%A_%03a.txt", f"0000-%4j-%a-{HOST}.err",
    )  # fmt: skip
    assert said == ""


def test_an_index_counts_once_and_no_task_at_once_is_no_bound(of):
    assert of("#SBATCH --array=1-3%0")[0]["array"] == "1-3"
    assert read_array("3,3,1-7:2") == (((1, 1, 1), (3, 3, 1), (5, 5, 1), (7, 7, 1)), None)


#: The long options of Slurm's manuals, of all three commands and of each alone. `=` has a value.
OF_ALL = """
    account= acctg-freq= bb= bbf= begin= chdir= cluster-constraint= clusters= comment= constraint=
    container= container-id= contiguous core-spec= cores-per-socket= cpu-freq= cpus-per-gpu=
    cpus-per-task= deadline= delay-boot= dependency= distribution=block exclude= exclusive extra=
    extra-node-info= get-user-env gid= gpu-bind= gpu-freq= gpus= gpus-per-node= gpus-per-socket=
    gpus-per-task= gres= gres-flags= hint= hold job-name= kill-on-invalid-dep= licenses= mail-type=
    mail-user= mcs-label= mem= mem-bind= mem-per-cpu= mem-per-gpu= mincpus= network= nice no-kill
    nodefile= nodelist= nodes= ntasks= ntasks-per-core= ntasks-per-gpu= ntasks-per-node=
    ntasks-per-socket= ntasks-per-tres= oom-kill-step= overcommit oversubscribe partition= power=
    prefer= priority= profile= propagate qos= quiet reboot reservation= segment= signal=
    sockets-per-node= spread-job stepmgr switches= tasks-per-node= thread-spec= threads-per-core=
    time= time-min= tmp= tres-bind= tres-per-job= tres-per-task= uid= use-min-nodes verbose wckey=
    x11
"""
OF_EACH = {
    "sbatch": """array= batch= error= export= export-file= ignore-pbs input= no-requeue open-mode=
        output= parsable requeue test-only wait wait-all-nodes= wrap=""",
    "srun": """accel-bind= bcast bcast-exclude=x compress cpu-bind= disable-status epilog= error=
        exact export= het-group= immediate input= interactive jobid= kill-on-bad-exit label mpi=
        msg-timeout= multi-prog no-allocate open-mode= output= overlap preserve-env prolog= pty
        quit-on-interrupt relative= resv-ports send-libs slurmd-debug= task-epilog= task-prolog=
        test-only threads= treewidth= unbuffered wait=""",
    "salloc": "bell immediate kill-command no-bell no-shell wait-all-nodes=",
}  # fmt: skip


@pytest.mark.parametrize("command", OF_EACH)
def test_every_option_of_slurms_manuals_is_known(command):
    grammar = SUBMITTING[command]
    for word in f"{OF_ALL} {OF_EACH[command]}".split():
        found, rest = grammar.parse([f"--{word}", "x.sh"])
        assert (len(found), rest) == (1, ["x.sh"]), word


@pytest.mark.parametrize("command", OF_EACH)
def test_options_without_effect_are_named_in_one_warning(drf, daemon, command, monkeypatch):
    grammar = SUBMITTING[command]
    values = {"distribution": "=block", "exclusive": "=user", "propagate": "=ALL"}
    words = [
        f"--{option}{values.get(option, '=1' * (grammar.kinds[option] == '='))}"
        for option in sorted(grammar.without_effect)
    ]
    said = []
    monkeypatch.setattr(
        "drfd_cli.submission.sending.attached", lambda *args, **asked: {"status": 0}
    )
    monkeypatch.setattr("drfd_cli.output.say", said.append)
    Path("x.sh").write_text("#!/bin/sh\n")
    silent = [f"--{option}" for option in grammar.said_nothing if not grammar.kinds[option]]
    result = drf(command, *words, *silent, "--wckey=a", "x.sh" if command == "sbatch" else "true")
    assert result.code == 0
    assert said == [f"without effect here: {', '.join(words)}"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["-c4", "--mem", "2G", "-J", "a b", "x.sh"],
         {"cpus-per-task": "4", "mem": "2G", "job-name": "a b"}),
        (["--mem_bind=local", "--cluster", "a", "x.sh"], {"mem-bind": "local", "clusters": "a"}),
        (["-Hn2", "--job=x", "x.sh"], {"hold": "", "ntasks": "2", "job-name": "x"}),
        (["--nice", "--exclusive=user", "--", "x.sh"], {"nice": "", "exclusive": "user"}),
    ],
)  # fmt: skip
def test_options_are_read_as_slurm_reads_them(words, found):
    options, rest = SBATCH.parse(words)
    assert {name: given.value for name, given in options.items()} == found
    assert rest == ["x.sh"]
    text = "#!/bin/sh\n# SBATCH -c 4\n##SBATCH -c 4\ntrue\n#SBATCH -c 4\n"
    assert read_lines(text, "x") is None, "no script of Slurm's"


# -- other places of a script ------------------------------------------------------------------


@pytest.fixture
def typed():
    """Gives drf a standard input: a text, or a terminal."""
    kept = os.dup(0)
    opened: list[int] = []

    def give(text: str | None) -> None:
        if text is None:
            fd, other = os.openpty()
        else:
            fd = os.memfd_create("typed")
            os.write(fd, text.encode())
            os.lseek(fd, 0, os.SEEK_SET)
            other = os.open(os.devnull, os.O_RDONLY)
        os.dup2(fd, 0)
        os.close(fd)
        opened.append(other)

    yield give
    os.dup2(kept, 0)
    for fd in (kept, *opened):
        os.close(fd)


@pytest.mark.parametrize("words", [["-"], [], ["-", "a b", "c"]])
def test_a_script_comes_from_standard_input(asked, typed, tmp_path, words):
    text = "#!/bin/sh\n#DRF -c 3\n#SBATCH -c 2 --mem=2G\necho $1\n"
    typed(text)
    request, said = asked("-t", "1h", *words)
    assert (said, request["script"], request["argv"]) == ("", text, ["stdin", *words[1:]])
    assert (request["name"], request["demand"]) == ("stdin", cores(3, 2 * G))
    assert request["env"]["DRF_SCRIPT"] == str(tmp_path / "stdin")


@pytest.mark.parametrize(
    ("text", "words", "complaint", "code"),
    [
        ("", ["-"], "standard input has no script", 1),
        ("", [], "say what to run: drf submit -- COMMAND", 2),
        (None, [], "say what to run: drf submit -- COMMAND", 2),
        ("echo", ["--"], "say what to run: drf submit -- COMMAND", 2),
        ("#!/bin/sh\r\n", ["-"], "the script stdin has the line ends of Windows", 1),
        ("#DRF --tyme 3\n", ["-"], "stdin, line 1: No such option '--tyme'", 1),
        (None, ["--wrap", "true", "x.sh"], "--wrap ", 2),
        (None, ["--wrap", " "], "--wrap ", 2),
    ],
)
def test_what_is_no_script_is_refused(drf, daemon, typed, text, words, complaint, code):
    typed(text)
    result = drf("submit", *words)
    assert (result.code, result.out, daemon.requests) == (code, "", [])
    assert complaint.replace("'", "") in result.err.replace("'", "")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("line", ["true\r\nfalse", "true\r"])
def test_a_line_with_returns_is_not_wrapped(drf, daemon, line):
    result = drf("submit", "--wrap", line)
    assert (result.code, daemon.requests) == (1, [])
    assert "--wrap has the line ends of Windows" in result.err


#: Lines before the options: comments and blanks of every sort, and the first command.
_LINES_BEFORE = (
    *(b"", b"# text", b"  # indented", b"\t#\ttabs", b" \t\v\f", b"##SBATCH --mem=7", b"#"),
    *(
        b"# a\x0cb",
        b"# a\x0bb",
        b"# a\xc2\x85b",
        b"# a\xe2\x80\xa8b",
        b"# f\xfcr",
        b"# a\rb",
        b"\r",
    ),
    *(b" #SBATCH --mem=9", b"# SBATCH --mem=9", b"set -e", b"\xc2\xa0", b"#SBATCH", b"#DRF -m 8G"),
)
_SPACES = (b"", b" ", b"\t", b"  \t", b"\x0c")
_WRITTEN = (
    b"--mem=64",
    b"-J x",
    b"-J 'a b'",
    b'--comment="a # b"',
    b"--comment=a#b",
    b"-Jx # -J y",
)


_LINES = st.one_of(
    st.sampled_from(_LINES_BEFORE),
    st.builds(
        b"#SBATCH%b%b".__mod__, st.tuples(st.sampled_from(_SPACES), st.sampled_from(_WRITTEN))
    ),
)


@pytest.mark.slow
@examples(300)
@hypothesis.given(st.lists(_LINES, max_size=6))
def test_options_are_read_from_the_lines_from_which_slurm_reads_them(lines):
    program = shutil.which("sbatch", path="/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("there is no sbatch of Slurm here (Debian: slurm-client)")
    Path("x.sh").write_bytes(b"\n".join((b"#!/bin/bash", *lines, b"")))
    # It reads the script before it asks the controller, which is none.
    Path("slurm.conf").write_text(
        "ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\n"
        "NodeName=localhost\nPartitionName=p Nodes=localhost Default=YES\n"
    )
    try:
        mine = read_lines(read_script("x.sh"), "x.sh") or {}
        found = {name: each.value for name, each in mine.items()}
    except Refused:
        found = None
    assert found == _read_by(program)


def _read_by(program: str) -> dict[str, str] | None:
    """Return the options that Slurm's sbatch finds in x.sh, or None if it refuses the script."""
    words = [program, "-v", "--test-only", "x.sh"]
    env = {"PATH": "/usr/bin:/bin", "SLURM_CONF": os.path.abspath("slurm.conf")}
    found: dict[str, str] = {}
    with subprocess.Popen(words, stderr=subprocess.PIPE, env=env) as sbatch:
        assert sbatch.stderr is not None
        for line in sbatch.stderr:
            name, _, value = line.decode().removeprefix("sbatch: ").rstrip("\n").partition(": ")
            found[name.strip()] = value
            if "end of defined options" in name:
                break
        sbatch.kill()
    if "error" in found:
        return None
    return {name: found[name] for name in ("mem", "job-name", "comment") if name in found}


def test_a_line_of_the_shell_is_wrapped(asked):
    request, _ = asked("-c", "2", "--wrap", "seq 9 | wc -l > 'a b'")
    assert request["argv"] == ["sh", "-c", "seq 9 | wc -l > 'a b'"]
    assert "script" not in request and request["demand"] == cores(2)

"""Environment variables of a job: those that it takes along, and those that drfd sets; and the name
that a line of the shell gives it, if that is certain."""

import re
import subprocess
import sys

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as some

from drfd.common import paths
from drfd.payload.environment import may_hide, may_set, thread_defaults
from drfd.payload.submitter import SYSTEM_SOCKET, addressed, capture, is_secret

#: The rules as patterns.
SECRET = re.compile(
    r"^(?!.*_(?:DIR|DIRECTORY|FILE|HOME|PATH)$).*?(?:"
    r"TOKENS?(?:_|$)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|(?:API|ACCESS|PRIVATE)_?KEY|_(?:PWD|PAT)$)",
    re.IGNORECASE | re.DOTALL,
)
SESSION = re.compile(
    r"SSH_\w+|XDG_SESSION_\w+|XDG_RUNTIME_DIR|XDG_VTNR|XDG_SEAT|DBUS_\w+|DISPLAY|WAYLAND_DISPLAY|"
    r"XAUTHORITY|WINDOWID|TMUX\w*|STY|TERM_SESSION_ID|GPG_AGENT_INFO|SUDO_\w+|INVOCATION_ID|"
    r"NOTIFY_SOCKET|LISTEN_\w+|WATCHDOG_\w+|JOURNAL_STREAM|MAINPID|DRFD_\w+|DRF_\w+|_|SHLVL|OLDPWD"
)
OWN = re.compile(
    r"DRF_(JOB_ID|JOB_NAME|POOL|ATTEMPT|CORES|MEMORY|ARRAY_(ID|INDEX|COUNT|MIN|MAX)|STATE|REASON|"
    r"EXIT_CODE|SIGNAL|ELAPSED|GRES_[A-Z0-9_]{1,64})",
    re.ASCII,
)
#: Characters that are like others without regard to case, and some that are not part of a word.
STRANGE = ("token", "ſecret", "credentİal", "to\u212aen", *"S_ßé-7 x\n")
#: Names made of the words of the patterns, and of what is strange.
NAMES = some.text() | some.lists(
    some.sampled_from(
        [*re.findall(r"[A-Z]+_?|_", f"{SECRET.pattern}|{SESSION.pattern}|{OWN.pattern}"), *STRANGE]
    ),
    max_size=6,
).map("".join)


@for_all(NAMES)
def test_names_are_told_apart_as_the_patterns_do(name):
    if SECRET.search(name):
        assert is_secret(name)
    if name.isascii():
        assert is_secret(name) == bool(SECRET.search(name))
    is_kept = not is_secret(name) and SESSION.fullmatch(name) is None
    assert capture({name: "x"}, ()) == ({name: "x"} if is_kept else {})
    is_drfds = name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    assert may_set(name) == (is_drfds or OWN.fullmatch(name) is not None)


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
        "CONDA_PREFIX", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "EDITOR", "TMPDIR", "a",
        "XDG_CACHE_HOME", "TIKTOKEN_CACHE_DIR", "AWS_SHARED_CREDENTIALS_FILE",
        "TERM", "USER", "DISPLAY_NAME", "MY_SHLVL", "KEYBOARD",
    ],
)  # fmt: skip
def test_what_a_program_may_need_goes_along(name):
    assert capture({name: "x"}, ()) == {name: "x"}


@pytest.mark.parametrize(
    "name",
    [
        "GITHUB_TOKEN", "token", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "PGPASSWORD", "PASSWD",
        "OPENAI_API_KEY", "APIKEY", "SSH_PRIVATE_KEY", "MY_PRIVATEKEY", "GOOGLE_CREDENTIALS",
        "Aws_Secret",
    ],
)  # fmt: skip
def test_secrets_stay_behind_unless_they_are_named(name):
    env = {name: "s3cret", "OTHER_TOKEN": "t", "PATH": "/bin"}
    assert capture(env, ()) == {"PATH": "/bin"}
    assert capture(env, (name, "NOT_THERE")) == {name: "s3cret", "PATH": "/bin"}


def test_values_are_not_looked_at():
    env = {"NOTE": "my password is a token", "EMPTY": "", "BASH_FUNC_f%%": "() {  :\n}"}
    assert capture(env, ()) == env


def test_a_job_gets_the_address_of_its_daemon_unless_that_is_the_systems(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert str(paths.SYSTEM_SOCKET) == SYSTEM_SOCKET
    assert addressed({"A": "x"}, SYSTEM_SOCKET) == {"A": "x"}
    assert addressed({"A": "x"}, "s") == {"A": "x", "DRFD_SOCKET": f"{tmp_path}/s"}
    assert addressed({"DRFD_SOCKET": "/other"}, "s") == {"DRFD_SOCKET": "/other"}
    # The submitter's own may be relative to another directory, or --socket names another daemon.
    monkeypatch.setenv("DRFD_SOCKET", "s")
    assert addressed({"DRFD_SOCKET": "s"}, "s") == {"DRFD_SOCKET": f"{tmp_path}/s"}
    assert addressed({"DRFD_SOCKET": "s"}, "/another") == {"DRFD_SOCKET": "/another"}
    assert addressed({"DRFD_SOCKET": "s"}, SYSTEM_SOCKET) == {"DRFD_SOCKET": SYSTEM_SOCKET}


@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C.UTF-8"}], ids=["nothing", "it"])
def test_what_python_adds_to_its_environment_is_not_the_submitters(given):
    """In the C locale it sets LC_CTYPE (PEP 538)."""
    program = (
        "import os; from drfd.payload.submitter import as_given;"
        " print(os.environ.get('LC_CTYPE'), as_given(os.environ).get('LC_CTYPE'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=given, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["C.UTF-8", given.get("LC_CTYPE", "None")]


def test_the_usual_libraries_are_told_and_those_that_follow_openmp_apart():
    """Who sets OpenMP means those, too: MKL_NUM_THREADS, say, would win over it."""
    usual, after = thread_defaults(4)
    for library in ("OMP", "NUMBA", "JULIA", "RAYON"):
        assert usual[f"{library}_NUM_THREADS"] == "4"
    assert usual["GOMAXPROCS"] == usual["PYTHON_CPU_COUNT"] == "4"
    assert usual["LOKY_MAX_CPU_COUNT"] == usual["MC_CORES"] == "4"
    libraries = ("NUMEXPR", "OPENBLAS", "MKL", "BLIS")
    assert after == {f"{library}_NUM_THREADS": "4" for library in libraries}
    usual, after = thread_defaults(8, 2)
    assert usual["OMP_NUM_THREADS"] == after["NUMEXPR_NUM_THREADS"] == usual["GOMAXPROCS"] == "8"
    assert {after[f"{library}_NUM_THREADS"] for library in libraries[1:]} == {"2"}


def test_only_its_own_variables_and_those_of_devices_are_drfds_to_set():
    """Whoever had the controller's uid could put any variable into anybody's job."""
    for name in (
        *("LD_PRELOAD", "PATH", "BASH_ENV", "DRFD_X", "DRF_", "DRF_\n", "DRF_a", "xDRF_A"),
        *("BASH_FUNC_DRF_A%%", "DRF_A", "DRF_SCRIPT", "DRF_MAIL_TO", "DRF_GRES_a", "SLURM_CONF"),
        *("DRF_GRES_", "DRF_GRES_" + "A" * 65),
    ):
        assert not may_set(name) and not may_hide(name)
    for name in ("DRF_JOB_ID", "DRF_GRES_GPU_2", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"):
        assert may_set(name)
    assert may_set("DRF_GRES_A") and may_set("DRF_GRES_" + "A" * 64)
    assert may_hide("ROCR_VISIBLE_DEVICES")

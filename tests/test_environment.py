"""What of the submitter's environment a job takes along."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from drfd.environment import capture, not_text


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
        "CONDA_PREFIX", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "EDITOR", "TMPDIR", "a",
        "XDG_CACHE_HOME", "TERM", "USER", "DISPLAY_NAME", "MY_SHLVL", "KEYBOARD",
    ],
)  # fmt: skip
def test_what_a_program_may_need_goes_along(name: str) -> None:
    assert capture({name: "x"}, ()) == {name: "x"}


@pytest.mark.parametrize(
    "name",
    [
        "GITHUB_TOKEN", "token", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "PGPASSWORD", "PASSWD",
        "OPENAI_API_KEY", "APIKEY", "SSH_PRIVATE_KEY", "MY_PRIVATEKEY", "GOOGLE_CREDENTIALS",
        "Aws_Secret",
    ],
)  # fmt: skip
def test_secrets_stay_behind_unless_they_are_named(name: str) -> None:
    env = {name: "s3cret", "OTHER_TOKEN": "t", "PATH": "/bin"}
    assert capture(env, ()) == {"PATH": "/bin"}
    assert capture(env, (name,)) == {name: "s3cret", "PATH": "/bin"}


@pytest.mark.parametrize(
    "name",
    [
        "SSH_AUTH_SOCK", "SSH_CONNECTION", "SSH_TTY", "XDG_SESSION_ID", "XDG_RUNTIME_DIR",
        "XDG_VTNR", "XDG_SEAT", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY",
        "XAUTHORITY", "WINDOWID", "TMUX", "TMUX_PANE", "STY", "TERM_SESSION_ID", "GPG_AGENT_INFO",
        "SUDO_USER", "SUDO_COMMAND", "INVOCATION_ID", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID",
        "WATCHDOG_USEC", "JOURNAL_STREAM", "MAINPID", "DRFD_SOCKET", "DRF_JOB_ID", "_", "SHLVL",
        "OLDPWD",
    ],
)  # fmt: skip
def test_what_dies_with_a_session_stays_behind(name: str) -> None:
    assert capture({name: "x"}, ()) == {}


def test_the_values_are_not_looked_at() -> None:
    env = {"NOTE": "my password is a token", "EMPTY": "", "BASH_FUNC_f%%": "() {  :\n}"}
    assert capture(env, ()) == env


def test_naming_what_is_not_there_adds_nothing() -> None:
    assert capture({"PATH": "/bin"}, ("NO_TOKEN",)) == {"PATH": "/bin"}


def test_what_no_message_can_carry_is_found_by_name_and_by_value() -> None:
    bad = os.fsdecode(b"\xff")
    env = {"A": "ü", f"B{bad}": "x", "C": f"x{bad}", "D": ""}
    assert not_text(env) == [f"B{bad}", "C"]


@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C.UTF-8"}], ids=["nothing", "it"])
def test_what_python_adds_to_its_environment_is_not_the_submitters(given: dict[str, str]) -> None:
    """In the C locale it sets LC_CTYPE (PEP 538)."""
    program = (
        "import os; from drfd.environment import as_given;"
        " print(os.environ.get('LC_CTYPE'), as_given(os.environ).get('LC_CTYPE'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=given, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["C.UTF-8", given.get("LC_CTYPE", "None")]

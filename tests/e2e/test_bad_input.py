"""Bad input of any kind: one clear line that names the place and the cure; nothing is lost."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from instance import CONFIG, Instance


def serve_with(instance: Instance, text: str) -> subprocess.CompletedProcess[str]:
    instance.config.write_text(text)
    command = [sys.executable, "-I", "-m", "drfd.daemon", "serve", "--config", instance.config]
    return subprocess.run(
        [*command, "--state", instance.state, "--socket", instance.socket],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("text", "place", "cure"),
    [
        ("[capacity]\ncors = 4", "capacity.cors: unknown key", "did you mean cores?"),
        ('[defaults]\nmemory = "-2G"', "defaults.memory: ", "write 512M"),
        ("[pools.lab]\nweight = 0", "pools.lab.weight: ", "write 2 or 0.5"),
        ("[[disk]]\nname = 'x'", "disk[0].path: is missing", ""),
        ("[capacity]\ncores = = 2", "is not TOML", "line 2"),
    ],
)
def test_a_bad_configuration_is_refused_in_one_line(
    make_instance: Callable[..., Instance], text: str, place: str, cure: str
) -> None:
    done = serve_with(make_instance(), text)
    assert done.returncode == 78
    assert place in done.stderr and cure in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["submit", "-m", "-5", "--", "true"], 2, "'-5' is not a size (write 512M"),
        (["submit", "-c", "0", "--", "true"], 2, "not a number of cores"),
        (["submit", "-c", "99", "--", "true"], 1, "asks for 99 cores, and this machine has 9"),
        (["submit", "--io", "2T", "--", "true"], 1, "it could never start"),
        (["submit", "no-such-script.sh"], 1, "cannot read the script no-such-script.sh"),
        (["submit", "-p", "nowhere", "--", "true"], 1, "there is no pool 'nowhere'"),
        (["cancel", "77"], 1, "there is no live job 77"),
        (["show", "77"], 1, "there is no job 77"),
        (["wait", "x"], 2, "'x' is not a job id, nor the name of a job of yours (write 41,"),
        (["show", "@-3"], 2, "no job of yours is known"),
        (["frobnicate"], 2, "No such command 'frobnicate'"),
        (["cancel"], 2, "name jobs by their ids"),
    ],
)
def test_a_bad_command_line_is_refused_in_one_line(
    instance: Instance, words: list[str], status: int, text: str
) -> None:
    done = instance.drf(*words, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert instance.status("--all") == []


@pytest.mark.parametrize(
    "garbage",
    [b"\0" * (10 << 20), b"{" * (10 << 20), b'{"op":"submit"' + b"x" * (10 << 20) + b"\n"],
    ids=["zeros", "braces", "a long line"],
)
def test_ten_megabytes_of_garbage_get_an_answer_and_do_no_harm(
    instance: Instance, garbage: bytes
) -> None:
    job_id = instance.submit("--", "sleep", "100")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(instance.socket))
        connection.settimeout(30)
        try:
            connection.sendall(garbage)
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            answer = connection.recv(1 << 16)
        except ConnectionResetError:
            answer = b""
    assert answer == b"" or b"a request may have" in answer
    assert instance.show(job_id)["state"] in ("STARTING", "RUNNING")


def test_a_frame_that_never_ends_holds_up_nobody(instance: Instance) -> None:
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(instance.socket))
        slow.sendall(b'{"op":"sta')
        started = time.monotonic()
        job_id = instance.submit("-w", "--", "true")
        assert time.monotonic() - started < 20
        assert instance.show(job_id)["state"] == "COMPLETED"


def test_two_hundred_idle_connections_leave_the_next_request_alone(instance: Instance) -> None:
    idle = []
    try:
        for _ in range(200):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(instance.socket))
            idle.append(connection)
        assert instance.submit("--", "true") == 1
    finally:
        for connection in idle:
            connection.close()


def test_hostile_names_are_shown_harmlessly(instance: Instance) -> None:
    name = "\x1b[2J[red]x[/x]\nnext\u202eline"
    job_id = instance.submit("-n", name, "--", "sleep", "100")
    for words in (["status"], ["show", job_id], ["why", job_id], ["shares"]):
        shown = instance.drf(*words).stdout
        assert "\x1b" not in shown and "\u202e" not in shown
    assert "?[2J[red]x[/x]?next?" in instance.drf("status").stdout
    assert instance.show(job_id)["name"] == name


def test_the_configuration_of_the_design_is_accepted(
    make_instance: Callable[..., Instance],
) -> None:
    extra = '[scheduling]\npolicy = "drf"\nreservation_delay = "30s"\npreemption = false\n'
    instance = make_instance(CONFIG + extra).start()
    assert instance.wait_end(instance.submit("--", "true"))["state"] == "COMPLETED"

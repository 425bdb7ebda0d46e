"""The root helper: what it runs for each request, and what it refuses. Slurm's commands are scripts
that write down how they were called."""

import json
import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drfd.launcher.protocol import KeyOrder, encode
from drfd.launcher.slurm_root.words import PROGRAMS
from drfd.linux.sealed import receive, seal
from drfd.linux.unix_sockets import at_socket
from drfd.payload.signature import KEY_BYTES, digest_of, proof_of, user_key
from launcher.rig import WAIT_S, Asked, name_of, order, python, until

ME, SECRET = os.getuid(), b"s" * KEY_BYTES
#: Nobody's uid here, whose orders are checked.
CONTROLLER = 64322
CALLED = """#!/bin/sh
echo "${0##*/} $*" >> {place}/calls
case ${0##*/} in
    sbatch) cat > {place}/script; env > {place}/env; echo 77 ;;
    sinfo) echo nodes ;;
    squeue) [ -e {place}/hangs ] && sleep 1000; cat {place}/listed ;;
    scontrol) echo "complaint" >&2; exit 3 ;;
esac
"""


class Helper:
    """A helper with its launcher's end of the connection."""

    def __init__(self, place: Path, timeout_s: float = WAIT_S) -> None:
        self.place = place
        programs, keys, state = (place / name for name in ("bin", "keys", "state"))
        for directory in (programs, keys, state):
            directory.mkdir()
        (keys / "secret").write_bytes(SECRET)
        self.clear()
        for name in PROGRAMS:
            (programs / name).write_text(CALLED.replace("{place}", str(place)))
            (programs / name).chmod(0o755)
        config = place / "drfd.toml"
        user = name_of(ME)
        config.write_text(f'[slurm]\ncommands = "{programs}"\nuser = "{user}"\npartition = "p"\n')
        self.process = subprocess.Popen(
            python(
                "from drfd.launcher.slurm_root.main import main; main()",
                *(
                    "--state",
                    state,
                    "--controller",
                    CONTROLLER,
                    "--launcher",
                    name_of(ME),
                    "--keys",
                    keys,
                ),
                *("--allow-uid", ME, "--config", config, "--timeout", timeout_s),
            )
        )
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(WAIT_S)

        def connect() -> bool:
            with suppress(OSError), at_socket(state / "root.sock") as address:
                self.connection.connect(address)
                return True
            return False

        until("a helper", connect)
        _, fds, _ = receive(self.connection, 1 << 16, 4)
        self.sockets = [socket.socket(fileno=fd) for fd in fds]

    def ask(self, do: str, *fds: int, **about: int) -> tuple[dict[str, Any], str, str]:
        """The answer, and what was said."""
        usual = {"number": 4, "do": do, "job": 0, "slurm_id": 0, "signal": 0}
        socket.send_fds(self.connection, [encode({**usual, **about})], fds)
        data, got, _ = receive(self.connection, 1 << 16, 4)
        texts = []
        for fd in got:
            texts.append(os.pread(fd, 1 << 16, 0).decode())
            os.close(fd)
        output, errors = texts
        return json.loads(data), output, errors

    def submit(
        self, asked: Asked, *, line: bytes | None = None, fd: int | None = None
    ) -> tuple[dict[str, Any], str]:
        """The answer to a submission, and its error output."""
        fds = seal(line or encode(asked.order)), fd or seal(asked.data)
        try:
            said, _, errors = self.ask("submit", *fds)
        finally:
            for each in fds:
                os.close(each)
        return said, errors

    def calls(self) -> list[str]:
        path = self.place / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def clear(self) -> None:
        for name in ("calls", "hangs"):
            (self.place / name).unlink(missing_ok=True)
        (self.place / "listed").write_text("drfd-5\n")

    def end(self) -> None:
        self.connection.close()
        for each in self.sockets:
            each.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[Helper]:
    place = tmp_path_factory.mktemp("helper")
    place.chmod(0o755)
    helper = Helper(place)
    yield helper
    helper.end()


@pytest.fixture
def helper(shared) -> Helper:
    shared.clear()
    return shared


@pytest.fixture
def own(tmp_path) -> Iterator[Helper]:
    helper = Helper(tmp_path)
    yield helper
    helper.end()


def signed(tmp_path: Path, **changes: Any) -> Asked:
    asked = order("echo", "a b", cwd=tmp_path, id=5, node="n1", journal="a" * 32, **changes)
    key = user_key(SECRET, asked.uid, asked.user)
    return replace(asked, proof=proof_of(key, digest_of(asked.data)))


def test_it_hands_over_the_sockets_first(helper):
    kinds = [each.type for each in helper.sockets]
    assert kinds == [socket.SOCK_STREAM, socket.SOCK_DGRAM]


@pytest.mark.parametrize(
    ("do", "called"),
    [
        ("end", ["scancel --name=drfd-5 77"]),
        ("kill", ["scancel --signal=KILL --name=drfd-5 77"]),
        ("signal", ["scancel --signal=10 --full --name=drfd-5 77"]),
        ("suspend", ["squeue -h -a -t all -j 77 -o %j", "scontrol suspend 77"]),
        ("resume", ["squeue -h -a -t all -j 77 -o %j", "scontrol resume 77"]),
        ("register", ["scontrol reconfigure"]),
    ],
)
def test_each_action_on_a_job_is_one_command_for_a_job_with_the_name_that_drfd_gives(
    helper, do, called
):
    said, _, errors = helper.ask(do, job=5, slurm_id=77, signal=10)
    assert helper.calls() == called
    fails = called[-1].startswith("scontrol")
    assert said == {"number": 4, "code": 3 if fails else 0, "was_run": True}
    assert errors == ("complaint\n" if fails else "")


@pytest.mark.parametrize("do", ["suspend", "resume"])
def test_a_job_with_another_name_is_not_suspended(helper, do):
    (helper.place / "listed").write_text("backup\n")
    said, _, errors = helper.ask(do, job=5, slurm_id=77)
    assert (said["was_run"], json.loads(errors)) == (False, {"text": "another job has this id"})
    assert [line.split()[0] for line in helper.calls()] == ["squeue"]


def test_lists_come_whole_or_with_the_first_failure(helper):
    assert helper.ask("jobs")[:2] == ({"number": 4, "code": 0, "was_run": True}, "drfd-5\n\0")
    said, output, errors = helper.ask("nodes")
    assert (said["code"], output, errors) == (3, "nodes\n\0", "complaint\n")


def test_a_command_that_takes_too_long_is_killed(tmp_path):
    helper = Helper(tmp_path, timeout_s=0.5)
    try:
        (tmp_path / "hangs").touch()
        said, _, errors = helper.ask("jobs")
    finally:
        helper.end()
    assert (said["code"], errors) == (None, "Slurm has not answered within 0.5 s")


def test_what_the_user_has_signed_is_submitted_for_the_user(helper, tmp_path):
    asked = signed(tmp_path, env={"A": "b"}, stdout="50%%", umask=0o027)
    assert helper.submit(asked) == ({"number": 4, "code": 0, "was_run": True}, "")
    [call] = helper.calls()
    words = call.split()
    assert words[0] == "sbatch"
    assert {f"--uid={ME}", f"--gid={os.getgid()}", "--job-name=drfd-5"} <= {*words}
    assert {f"--comment={'a' * 32}.5.1", "--nodelist=n1", "--partition=p"} <= {*words}
    script = (helper.place / "script").read_text()
    assert script == f"#!/bin/sh\numask 27\ncd -- {tmp_path} || exit 125\nexec echo 'a b'\n"
    env = (helper.place / "env").read_text().splitlines()
    # The user's own variables are data for sbatch.
    assert f"SBATCH_OUTPUT={tmp_path}/50%%" in env
    assert "A=b" not in env


@pytest.mark.parametrize("proof", [None, "0" * 64])
def test_nothing_is_submitted_that_its_user_has_not_signed(helper, tmp_path, proof):
    said, errors = helper.submit(replace(signed(tmp_path), proof=proof))
    assert (said["was_run"], said["code"]) == (False, None)
    assert "not signed by its user" in json.loads(errors)["text"]
    assert helper.calls() == []


def test_a_signature_is_valid_for_its_payload_and_its_user_alone(helper, tmp_path):
    asked = signed(tmp_path)
    other = replace(asked, argv=("rm", "-r", "/"))
    assert "not signed" in helper.submit(other)[1]
    assert "not signed" in helper.submit(replace(asked, uid=54321))[1]
    # A system account's, whatever is signed.
    assert "not allowed" in helper.submit(signed(tmp_path, uid=1, user="daemon"))[1]
    assert helper.calls() == []


def test_a_submission_that_is_no_order_or_may_still_be_changed_is_refused(helper, tmp_path):
    asked = signed(tmp_path)
    unsealed = os.memfd_create("payload")
    os.write(unsealed, asked.data)
    for said, _ in (
        helper.submit(asked, line=encode(KeyOrder(ME))),
        helper.submit(asked, line=encode(replace(asked, node="").order)),
        helper.submit(asked, line=encode(replace(asked, is_notice=True).order)),
        helper.submit(asked, line=encode(asked)),
        helper.submit(asked, fd=unsealed),
    ):
        assert said == {"number": 4, "code": None, "was_run": False}
    assert helper.ask("submit")[0]["was_run"] is False
    assert helper.calls() == []


def test_what_cannot_be_decoded_is_a_failure_of_the_job(helper, tmp_path):
    asked = replace(signed(tmp_path), payload=b"no payload")
    key = user_key(SECRET, asked.uid, asked.user)
    said, errors = helper.submit(replace(asked, proof=proof_of(key, digest_of(asked.data))))
    assert (said["code"], said["was_run"]) == (1, False)
    assert json.loads(errors)["text"].startswith("what it is to run cannot be read: ")
    assert helper.calls() == []


@pytest.mark.parametrize("changed", [{"do": "run"}, {"slurm_id": "7 8"}, {"more": 1}])
def test_at_anything_else_it_ends(own, changed):
    usual = {"number": 1, "do": "jobs", "job": 0, "slurm_id": 0, "signal": 0}
    own.connection.send(encode({**usual, **changed}))
    until("its end", own.has_ended)
    assert own.calls() == []


def test_it_ends_where_it_cannot_answer(own):
    """The launcher would wait for the answer for ever."""
    resource.prlimit(own.process.pid, resource.RLIMIT_NOFILE, (3, 3))
    own.connection.send(encode({"number": 1, "do": "jobs"}))
    until("its end", own.has_ended)
    assert own.calls() == []


def test_it_ends_with_its_launcher(own):
    own.connection.close()
    until("its end", own.has_ended)

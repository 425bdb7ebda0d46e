"""drfd as a service manager runs it: a launcher of its own, words to the manager, an end; without
a system daemon, where `drf` starts the user's own; and killed at any time. (At every failpoint:
tests/torture/test_crash_matrix.py.) What is told of jobs that are over outlives that, too.
"""

import csv
import io
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from drfd.common.paths import SYSTEM_SOCKET
from instance import (
    ALONE,
    BIN,
    BLOWS,
    GATE,
    PLAIN,
    ROOMY,
    SMALL,
    Instance,
    as_root,
    is_alive,
    parent_of,
    patient,
    wait_for,
)

ME = pwd.getpwuid(os.getuid()).pw_name
#: Whoever runs the tests may be root, whose jobs the system's daemon does not take.
OPEN = f'{PLAIN}[daemon]\nsystem_users = ["{ME}"]\n'


class Manager:
    """What systemd is for the two services, as far as it can be had without one."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.room = instance.state / "launcher"
        self.room.mkdir(parents=True)
        instance.options = ["--launcher", str(self.room)]
        # A service takes no failpoints.
        instance.has_failpoints = False
        self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ear.bind(str(instance.root / "notify"))
        self._ear.settimeout(0.2)
        self._is_open = True
        self.words: list[str] = []
        self._since = 0
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()
        told = {"NOTIFY_SOCKET": str(instance.root / "notify"), "INVOCATION_ID": "1"}
        instance.env = {**told, "WATCHDOG_USEC": "400000"}
        self._launchers: list[subprocess.Popen[bytes]] = []

    def start_launcher(self) -> None:
        command = [sys.executable, "-I", "-m", "drfd.launcher"]
        command += ["--config", str(self.instance.config), "--state", str(self.room)]
        with self.instance.log.open("ab") as log:
            started = subprocess.Popen(
                [*command, "--controller", ME],
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "INVOCATION_ID": "2", "NOTIFY_SOCKET": "/nowhere"},
                start_new_session=True,
            )
        self._launchers.append(started)

    def await_word(self, word: str) -> None:
        """Now, or at any time since `forget` and the last word awaited."""
        wait_for(word, lambda: word in self.words[self._since :], show=lambda: self.words)
        self._since = self.words.index(word, self._since) + 1

    def forget(self) -> None:
        self._since = len(self.words)

    def _listen(self) -> None:
        while self._is_open:
            try:
                self.words.extend(self._ear.recv(1000).decode().split("\n"))
            except TimeoutError:
                continue

    def close(self) -> None:
        self._is_open = False
        self._listener.join()
        self._ear.close()
        for launcher in self._launchers:
            launcher.kill()
            launcher.wait()


@pytest.fixture
def manager(make_instance) -> Iterator[Manager]:
    manager = Manager(make_instance(OPEN))
    try:
        yield manager
        # While there is a launcher for it.
        manager.instance.destroy()
    finally:
        manager.close()


@pytest.fixture
def service(manager) -> Instance:
    """Both run."""
    manager.start_launcher()
    return manager.instance.start()


def end_of(instance: Instance) -> int:
    assert instance.process is not None
    return instance.process.wait(patient(120))


def test_the_manager_is_told_when_it_is_ready_reloads_and_stops(manager):
    """It is ready when it answers, with or without the launcher, which may come later."""
    service = manager.instance
    service.launch()
    manager.await_word("READY=1")
    assert service.drf("status").returncode == 0
    status = "STATUS=0 running, 0 waiting, the launcher is away"
    wait_for("its status", lambda: status in manager.words, show=lambda: manager.words)
    manager.start_launcher()
    wait_for("the launcher", service.answers)
    manager.forget()
    manager.await_word("WATCHDOG=1")
    # A reload is framed by two words.
    assert service.process is not None
    service.process.send_signal(signal.SIGHUP)
    manager.await_word("RELOADING=1")
    manager.await_word("READY=1")
    # A wrong configuration is refused, and the service is as ready as before.
    manager.forget()
    service.config.write_text("[nonsense]\n")
    done = service.drf("reload", check=False)
    assert (done.returncode, "nonsense" in done.stderr) == (78, True)
    manager.await_word("READY=1")
    service.config.write_text(OPEN)
    service.stop()
    manager.await_word("STOPPING=1")


def test_a_shutdown_that_kills_ends_when_the_last_job_is_gone(service):
    stubborn = "trap '' TERM; echo $$; while :; do sleep 0.1; done"
    jobs = [
        service.submit("--", "sh", "-c", stubborn),
        service.submit("--", "sleep", "1000"),
        service.submit("-c", "9", "--", "true"),
    ]
    for job_id in jobs[:2]:
        service.wait_state(job_id, "RUNNING")
    wait_for("the trap", lambda: service.output(jobs[0]))
    began = time.monotonic()
    done = service.drf("shutdown", "--kill-jobs")
    assert "stopping 2 running jobs" in done.stdout
    assert time.monotonic() - began > 0.9, "the grace time of one second was not given"
    assert end_of(service) == 0
    service.start()
    assert [service.show(job_id)["state"] for job_id in jobs] == ["CANCELLED"] * 2 + ["PENDING"]
    assert service.show(jobs[2])["reason"]["code"] == "DRAINING"
    service.drf("undrain")
    assert service.wait_end(jobs[2])["state"] == "COMPLETED"


def test_the_log_says_who_did_what(service):
    job_id = service.submit("--hold", "--", "true")
    service.drf("cancel", job_id)
    service.drf("cancel", job_id, check=False)
    lines = [line for line in service.log.read_text().splitlines() if "event=audit" in line]
    who = f"uid={os.getuid()} user={ME}"
    assert lines == [
        f"drfd: event=audit verb=submit {who} jobs={job_id} result=done",
        f"drfd: event=audit verb=cancel {who} jobs={job_id} result=done",
        f"drfd: event=audit verb=cancel {who} refused={job_id}:ended result=done",
    ]


def test_a_launcher_with_a_wrong_configuration_is_not_tried_again(manager):
    """78 is what the unit does not restart after."""
    manager.instance.config.write_text("[enforcement]\nprivate_tmp = 1\n")
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-m", "drfd.launcher", "--controller", ME),
            *("--config", str(manager.instance.config), "--state", str(manager.room)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr.count("\n")) == (78, 1)
    said = "enforcement.private_tmp: 1 is not true or false"
    assert said in done.stderr


# -- a user's own --------------------------------------------------------------------------------

on_ones_own = pytest.mark.skipif(
    SYSTEM_SOCKET.parent.exists(), reason="a system daemon is, or was, running here"
)


@pytest.fixture
def home() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="drfd-home-"))
    # Root's own daemon reads the system's configuration, and sees what others do after ten seconds.
    config = place / ".config/drfd/drfd.toml"
    config.parent.mkdir(parents=True)
    config.write_text(ALONE)
    yield place
    if daemons(place):
        # Its jobs first: nobody would clean up after them once their state is gone.
        drf(place, "cancel", "--all", "--yes")
        wait_for(
            "the end of its jobs", lambda: '"jobs": []' in drf(place, "status", "--json").stdout
        )
    for pid in daemons(place):
        # One that has found the state directory taken leaves by itself.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    # The launcher ends a moment after the daemon, and writes below this place until then.
    wait_for("the end of all its processes", lambda: not processes(place))
    shutil.rmtree(place)


def daemons(home: Path) -> list[int]:
    """Controllers whose state is below this home."""
    return [pid for pid, words in processes(home).items() if b"serve" in words]


def processes(home: Path) -> dict[int, list[bytes]]:
    """The command lines of those that are told of a path below this home."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(os.fsencode(home)) for word in command):
            found[int(entry.name)] = command
    return found


def drf(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": os.environ["PATH"], **more}
    return subprocess.run(
        [str(BIN / "drf"), *words],
        capture_output=True, text=True, env=env, cwd=home, timeout=patient(120), check=False,
    )  # fmt: skip


@on_ones_own
def test_the_first_command_starts_it_and_says_so(home):
    (home / ".config/drfd/drfd.toml").unlink()
    first = drf(home, "submit", "-w", "--", "sh", "-c", "echo it runs; exit 3")
    assert first.returncode == 3
    assert first.stdout == "submitted job 1\n"
    # On a slow machine it says besides that the launcher is not there yet, and when it is.
    said = [line for line in first.stderr.splitlines() if not line.startswith("drf: the launcher ")]
    assert said[:2] == [
        "drf: started your own drfd (no system daemon is running here); "
        "drf doctor says what it can enforce",
        "drf: job 1 FAILED: exit code 3",
    ]
    assert (home / "drf-1.out").read_text() == "it runs\n"
    second = drf(home, "submit", "-q", "--", "true")
    assert (second.stdout, second.stderr) == ("2\n", "")
    # The other one finds the state directory taken, and leaves.
    wait_for("one daemon to be left", lambda: len(daemons(home)) == 1)
    assert (home / ".local/state/drfd").stat().st_mode & 0o066 == 0
    # Whoever has a daemon alone knows what else uses the cores.
    assert json.loads(drf(home, "top", "--json").stdout)["external_off"] == ["cores"]


@on_ones_own
def test_two_first_commands_at_once_start_one(home):
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    both = [
        subprocess.Popen(
            [str(BIN / "drf"), "submit", "-w", "--", "true"],
            env=env, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    said = sorted(process.communicate(timeout=patient(120))[0] for process in both)
    assert said == ["submitted job 1\n", "submitted job 2\n"]
    assert [process.returncode for process in both] == [0, 0]
    # The other one finds the state directory taken, and leaves.
    wait_for("one daemon to be left", lambda: len(daemons(home)) == 1)


@on_ones_own
def test_a_job_finds_its_daemon_and_a_shell_is_told_where_it_is(home):
    """It answers in the runtime directory, whose variable jobs and cron do not have."""
    first = drf(
        home, "submit", "-q", "--wait", "--", str(BIN / "drf"), "submit", "-q", "--wait", "--",
        "true", XDG_RUNTIME_DIR=str(home),
    )  # fmt: skip
    assert first.returncode == 0, first.stderr
    assert (home / "drf-1.out").read_text().splitlines()[0] == "2"
    other = drf(home, "status")
    assert other.returncode == 69
    assert f"its socket: {home}/drfd.sock" in other.stderr
    [daemon] = daemons(home)
    os.kill(daemon, signal.SIGTERM)
    wait_for("the daemon's end", lambda: not daemons(home))


@on_ones_own
@as_root
def test_nothing_is_written_through_a_link_in_the_home_of_another_user(home):
    state = home / ".local/state/drfd"
    state.mkdir(parents=True)
    (state / "drfd.log").symlink_to(home / "elsewhere")
    os.chown(state, 65534, 65534)
    found = drf(home, "status")
    assert (found.returncode, "belongs to somebody else" in found.stderr) == (69, True)
    assert not (home / "elsewhere").exists()


def test_a_reader_that_leaves_early_is_no_failure():
    """As in `drfd slurm-conf slurm.conf | head -1`."""
    with subprocess.Popen(
        [BIN / "drfd", "slurm-conf", "slurm.conf"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)


# -- killing drfd, its launcher, or both, costs nothing: no job is lost, or run twice -----------


@pytest.mark.parametrize("blow", BLOWS)
def test_jobs_of_every_kind_come_through(lend, blow):
    instance = lend(ROOMY)
    script = f"echo $$; {GATE}; exit "
    living = [instance.submit(*SMALL, "--", "sh", "-c", f"{script}{code}") for code in range(5)]
    for job_id in living:
        instance.wait_state(job_id, "RUNNING")
    pids = [int(wait_for("a pid", lambda i=i: instance.output(i))) for i in living]
    held = instance.submit("--hold", "--", "true")
    instance.strike(blow)
    assert [instance.show(job_id)["state"] for job_id in living] == ["RUNNING"] * 5
    assert [instance.show(job_id)["attempt"] for job_id in living] == [1] * 5
    assert [is_alive(pid) for pid in pids] == [True] * 5
    (instance.work / "gate").touch()
    ends = [instance.wait_end(job_id) for job_id in living]
    assert [job["exit_code"] for job in ends] == list(range(5))
    assert [int(instance.output(job_id)) for job_id in living] == pids, "each ran once"
    assert instance.show(held)["state"] == "HELD"


def test_a_time_limit_that_passed_meanwhile_is_enforced_at_once(lend):
    instance = lend(ROOMY)
    # Not so short that it might have passed before anybody has looked.
    limit_s = 5
    job_id = instance.submit("-c", "0.1", "-t", f"{limit_s}s", "--", "sleep", "600")
    started_s = instance.wait_state(job_id, "RUNNING")["started_at"]
    instance.kill()
    wait_for("the time limit", lambda: time.time() > started_s + limit_s + 0.5)
    instance.start()
    assert instance.wait_end(job_id)["state"] == "TIMEOUT"


def test_a_job_that_comes_before_the_launcher_is_ready_starts_when_it_is(instance):
    """As after every start of a user's own daemon, which answers before its launcher is up."""
    for _ in range(3):
        instance.stop()
        instance.launch()
        done = wait_for(
            "the first answer",
            lambda: [
                done
                for done in [instance.drf("submit", "-q", "--", "true", check=False)]
                if done.returncode == 0
            ],
        )[0]
        assert instance.wait_end(int(done.stdout))["state"] == "COMPLETED"


def test_when_the_launchers_supervisor_dies_the_daemon_ends_and_says_so(instance):
    """Nobody would start a launcher, nor any job, any more; jobs that run go on."""
    job_id = instance.running("--", "sh", "-c", f"{GATE}; exit 5")["id"]
    os.kill(parent_of(instance.launcher_pid()), signal.SIGKILL)
    wait_for("the daemon's end", instance.is_dead)
    assert "the supervisor of the launcher has died" in instance.log.read_text()
    (instance.work / "gate").touch()
    instance.start()
    assert instance.wait_end(job_id)["exit_code"] == 5


# -- what is over ------------------------------------------------------------------------------

HOLD = "import time; block = bytearray(80 << 20); time.sleep(3)"
HOLDER = ("-p", "A", "--", sys.executable, "-c", HOLD)


@pytest.mark.anew
def test_history_report_and_why_tell_of_them_also_after_a_restart(instance):
    for _ in range(3):
        instance.submit("-c", "3", "-m", "1G", "-n", "train", *HOLDER)
    instance.submit("-p", "B", "-m", "0.1G", "--", "sh", "-c", "exit 127")
    assert instance.drf("wait", 1, 2, 3, 4, check=False).returncode == 127
    instance.stop()
    instance.start()

    def ids(*words: str) -> list[int]:
        found = json.loads(instance.drf("history", "--json", *words).stdout)
        return sorted(job["id"] for job in found["jobs"])

    assert ids() == [1, 2, 3, 4]
    assert ids("-s", "failed") == [4]
    assert ids("--name", "train", "--since", "1h", "-p", "A") == [1, 2, 3]
    rows = list(csv.DictReader(io.StringIO(instance.drf("history", "--csv").stdout)))
    assert sorted(row["exit_code"] for row in rows) == ["0", "0", "0", "127"]
    peaks = [int(row["memory_peak"]) for row in rows if row["exit_code"] == "0"]
    assert all(80 << 20 < peak < 500 << 20 for peak in peaks)

    report = json.loads(instance.drf("report", "--json").stdout)
    by_name = {row["name"]: row for row in report["rows"]}
    advice = by_name["train"]["advice"]
    assert (by_name["train"]["jobs"], by_name["exit"]["advice"]) == (3, None)
    assert report["total"]["cores"]["used"] == sum(row["cores"]["used"] for row in report["rows"])
    options = advice["options"]
    assert f"next time drf submit {' '.join(options)}" in instance.drf("report").stdout
    assert f"next time: drf submit {' '.join(options)}" in instance.drf("why", 2).stdout
    assert "127 is a shell's word for: there is no such command" in instance.drf("why", 4).stdout
    assert instance.ended(*options, *HOLDER)["state"] == "COMPLETED", "what is advised is enough"

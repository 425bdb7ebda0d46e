"""drfd as a service manager runs it: a launcher of its own, words to the manager, an end."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from instance import CONFIG, Instance, wait_for

ME = pwd.getpwuid(os.getuid()).pw_name
#: Whoever runs the tests may be root, whose jobs the system's daemon does not take.
OPEN = f'{CONFIG}cgroups = false\n[daemon]\nsystem_users = ["{ME}"]\n'


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
        command = [sys.executable, "-I", "-m", "drfd.daemon", "launcher"]
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

    def restart_launcher(self) -> None:
        self._launchers[-1].kill()
        self._launchers[-1].wait()
        self.start_launcher()

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
def manager(make_instance: Callable[..., Instance]) -> Iterator[Manager]:
    manager = Manager(make_instance(OPEN))
    try:
        yield manager
        # While there is a launcher for it.
        manager.instance.destroy()
    finally:
        manager.close()


@pytest.fixture
def service(manager: Manager) -> Instance:
    """Both run."""
    manager.start_launcher()
    return manager.instance.start()


def end_of(instance: Instance) -> int:
    assert instance.process is not None
    return instance.process.wait(30)


def test_it_is_ready_when_it_answers_and_not_before(manager: Manager) -> None:
    """With or without the launcher, which may come later."""
    manager.instance.launch()
    manager.await_word("READY=1")
    assert manager.instance.drf("status").returncode == 0
    status = "STATUS=0 running, 0 waiting, the launcher is away"
    wait_for("its status", lambda: status in manager.words, show=lambda: manager.words)
    manager.start_launcher()
    wait_for("the launcher", manager.instance.answers)


def test_it_feeds_the_watchdog_and_says_when_it_stops(manager: Manager, service: Instance) -> None:
    manager.forget()
    manager.await_word("WATCHDOG=1")
    service.stop()
    manager.await_word("STOPPING=1")


def test_a_reload_is_framed_by_two_words(manager: Manager, service: Instance) -> None:
    manager.forget()
    assert service.process is not None
    service.process.send_signal(signal.SIGHUP)
    manager.await_word("RELOADING=1")
    manager.await_word("READY=1")


def test_a_wrong_configuration_is_refused_and_the_service_is_as_ready_as_before(
    manager: Manager, service: Instance
) -> None:
    manager.forget()
    service.config.write_text("[nonsense]\n")
    done = service.drf("reload", check=False)
    assert (done.returncode, "nonsense" in done.stderr) == (78, True)
    manager.await_word("READY=1")
    service.config.write_text(OPEN)


def test_jobs_have_nothing_of_what_the_services_were_told(service: Instance) -> None:
    job = service.wait_end(service.submit("--", "env"))
    assert job["state"] == "COMPLETED", job["outcome"]
    names = {line.partition("=")[0] for line in service.output(job["id"]).splitlines()}
    assert "DRF_JOB_ID" in names
    assert names.isdisjoint({"INVOCATION_ID", "NOTIFY_SOCKET", "WATCHDOG_USEC", "JOURNAL_STREAM"})


def test_either_service_may_be_killed_and_no_job_is_lost(
    manager: Manager, service: Instance
) -> None:
    gate = service.work / "gate"
    script = f"while ! [ -e {gate} ]; do sleep 0.05; done; exit 6"
    job_id = service.submit("--", "sh", "-c", script)
    service.wait_state(job_id, "RUNNING")
    manager.restart_launcher()
    wait_for("the launcher", service.answers)
    service.kill()
    service.start()
    manager.restart_launcher()
    service.kill()
    service.start()
    assert service.show(job_id)["state"] == "RUNNING"
    gate.touch()
    assert service.wait_end(job_id)["exit_code"] == 6


def test_a_shutdown_leaves_jobs_to_the_next_daemon(service: Instance) -> None:
    script = "while ! [ -e gate ]; do sleep 0.05; done; exit 4"
    job_id = service.submit("--", "sh", "-c", script)
    service.wait_state(job_id, "RUNNING")
    done = service.drf("shutdown")
    assert done.stdout == "drfd has ended; 1 running job left to the next one\n"
    assert end_of(service) == 0, "a service that ends so is not started again"
    (service.work / "gate").touch()
    service.start()
    assert service.wait_end(job_id)["exit_code"] == 4


def test_a_shutdown_that_kills_ends_when_the_last_job_is_gone(service: Instance) -> None:
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


def test_who_did_what_is_in_the_log(service: Instance) -> None:
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


def test_a_launcher_with_a_wrong_configuration_is_not_tried_again(manager: Manager) -> None:
    """78 is what the unit does not restart after."""
    manager.instance.config.write_text("[nonsense]\n")
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-m", "drfd.daemon", "launcher", "--controller", ME),
            *("--config", str(manager.instance.config), "--state", str(manager.room)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr.count("\n")) == (78, 1)
    assert "nonsense" in done.stderr


def test_a_reload_reads_the_file_that_was_read_at_the_start(tmp_path: Path) -> None:
    """Also when the controller is by then another user, whose own file would be elsewhere."""
    from drfd.daemon import main as start

    assert start._usual_config(True) == Path("/etc/drfd/drfd.toml")
    assert (start._usual_config(False) == Path("/etc/drfd/drfd.toml")) is (os.getuid() == 0)

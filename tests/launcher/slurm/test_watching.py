"""What slurmctld and the nodes are asked and told: which jobs that are shown as running are on
their nodes, which process a daemon is, and that it is to look at its queue at once."""

from __future__ import annotations

import os
import select
import selectors
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.launcher.attempt_files import Key
from drfd.launcher.slurm.commands import Commands
from drfd.launcher.slurm.mapping import read_settings
from drfd.launcher.slurm.nudge import Controller, Nudge, message, read_controller
from drfd.launcher.slurm.watching.census import Census, Shown
from drfd.launcher.slurm.watching.daemon_process import running_process
from launcher.rig import until

# -- what the nodes are asked, and when ---------------------------------------------------


FIRST, SECOND, OTHER = (1, 1), (2, 1), (3, 1)
SHOWN = {FIRST: Shown(11, "n1"), SECOND: Shown(12, "n1"), OTHER: Shown(13, "n2")}


class Rig:
    """A census with a program `sstat` that knows the steps in a file."""

    def __init__(self, place: Path) -> None:
        self._selector = selectors.DefaultSelector()
        self._place = place
        program = place / "sstat"
        program.write_text(
            f'#!/bin/sh\necho "$*" >>{place}/asked\n'
            f"case $* in *13.batch*) cat {place}/n2 ;; *) cat {place}/n1 ;; esac\n"
            f"cat {place}/complaint >&2\n"
        )
        program.chmod(0o755)
        (place / "asked").touch()
        self.say(n1="11.batch\n12.batch\n", n2="13.batch\n")
        self.absent: list[Key] = []
        self.commands = Commands(self._selector, programs=place, conf=None, most_s=60)
        self.census = Census(self.commands, self.absent.append)
        self.lists = 0

    def say(self, *, n1: str = "", n2: str = "", complaint: str = "") -> None:
        for name, text in (("n1", n1), ("n2", n2), ("complaint", complaint)):
            (self._place / name).write_text(text)

    def show(self, shown: dict[Key, Shown] = SHOWN) -> None:
        self.lists += 1
        self.census.see_list(self.lists, shown)

    def ask(self) -> list[str]:
        """Ask the nodes, and return the jobs of each question once all have been answered."""
        asked = self._place / "asked"
        asked.write_text("")
        self.census.ask_nodes(self.lists)
        while len(self.commands):
            for chosen, _ in self._selector.select(60):
                chosen.data()
        words = "--noheader --parsable2 --format=JobID --jobs="
        lines = asked.read_text().splitlines()
        assert all(line.startswith(words) for line in lines)
        return sorted(line.removeprefix(words) for line in lines)

    def close(self) -> None:
        self._selector.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_each_node_is_asked_for_its_jobs_after_a_start_of_slurmctld(rig: Rig) -> None:
    rig.show()
    assert rig.ask() == []
    assert rig.census.see_start(1000, 0.0, rig.lists)
    # The list that is there may be of the slurmctld before.
    assert rig.ask() == []
    rig.show()
    assert rig.ask() == ["11.batch,12.batch", "13.batch"]
    assert rig.ask() == []
    assert not rig.census.see_start(1000, 0.0, rig.lists)
    rig.show()
    assert rig.ask() == []
    assert rig.absent == []


def test_a_job_is_absent_when_its_node_lacks_it_and_a_later_list_still_shows_it(rig: Rig) -> None:
    rig.say(n1="12.batch\n", n2="13.batch\n")
    rig.census.see_start(1000, 0.0, rig.lists)
    rig.show()
    assert rig.ask() == ["11.batch,12.batch", "13.batch"]
    # No list was asked for since: its end may be on its way.
    assert rig.ask() == ["11.batch"]
    assert rig.absent == []
    rig.show()
    assert rig.ask() == ["11.batch"]
    assert rig.absent == [FIRST]
    rig.show()
    assert rig.ask() == []


def test_an_answer_with_a_complaint_says_nothing(rig: Rig) -> None:
    """As sstat gives it, with exit code 0, of a node that is not reached."""
    complaint = (
        "sstat: error: slurm_job_step_stat: unknown return given from n1: 9001 rc = "
        "Communication connection failure\n"
    )
    rig.say(complaint=complaint)
    rig.census.see_start(1000, 0.0, rig.lists)
    for _ in range(3):
        rig.show()
        assert rig.ask() == ["11.batch,12.batch", "13.batch"]
    assert rig.absent == []
    rig.say(n1="11.batch\n12.batch\n", n2="13.batch\n")
    rig.ask()
    assert rig.ask() == []


def test_another_start_of_slurmctld_begins_it_again(rig: Rig) -> None:
    rig.say()
    rig.census.see_start(1000, 0.0, rig.lists)
    rig.show()
    rig.ask()
    assert rig.census.see_start(1001, 0.0, rig.lists)
    rig.show()
    rig.ask()
    assert rig.absent == []
    rig.show()
    rig.ask()
    assert sorted(rig.absent) == [FIRST, SECOND, OTHER]


# -- which process a daemon is, by its pid file -------------------------------------------


def begun() -> subprocess.Popen[bytes]:
    """A process that is called sleep by now."""
    process = subprocess.Popen(["sleep", "1000"])
    comm = Path(f"/proc/{process.pid}/comm")
    until("its name", lambda: comm.read_text() == "sleep\n")
    return process


def test_a_process_is_the_same_until_it_ends_and_another_after_that(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    first, second = begun(), begun()
    try:
        pid_file.write_text(f"{first.pid}\n")
        found = running_process(str(pid_file), "sleep")
        assert found is not None
        assert found == running_process(str(pid_file), "sleep")
        assert running_process(str(pid_file), "slurmctld") is None
        pid_file.write_text(f"{second.pid}\n")
        other = running_process(str(pid_file), "sleep")
        assert other is not None
        assert other != found
        second.kill()
        # A zombie is no process that answers.
        until("its end", lambda: running_process(str(pid_file), "sleep") is None)
    finally:
        for process in (first, second):
            process.kill()
            process.wait()


def test_of_what_is_no_pid_file_nothing_is_said(tmp_path: Path) -> None:
    for text in ("", "0", "-1", "x", "9" * 30, "\xff"):
        (tmp_path / "pid").write_bytes(text.encode("latin-1"))
        assert running_process(str(tmp_path / "pid"), "sleep") is None
    for path in ("", str(tmp_path / "none"), str(tmp_path)):
        assert running_process(path, "sleep") is None


# -- what slurmctld is told so that it looks at its queue at once -------------------------


CONFIG_SHOWN = """\
Configuration data as of 2026-11-25T19:03:49
AuthInfo                = socket=/run/x/socket,ttl=60
AuthType                = auth/munge
CommunicationParameters = NoInAddrAny,NoCtldInAddrAny
SlurmctldHost[0]        = head(127.0.0.1)
SlurmctldHost[1]        = spare
SlurmctldPort           = 6817
SlurmUser               = slurm(64030)
SLURM_VERSION           = 22.05.8
"""


def read(text: str) -> Controller | None:
    return read_controller(read_settings(text))


def test_the_first_slurmctld_is_told_at_an_address_at_which_it_listens() -> None:
    found = read(CONFIG_SHOWN)
    assert found == Controller("127.0.0.1", 6817, 64030, "/run/x/socket", 0x2600)
    assert found.credential_words()[1:] == ["--restrict-uid=64030", "--socket=/run/x/socket"]
    plain = read(
        CONFIG_SHOWN.replace("socket=/run/x/socket,ttl=60", "(null)").replace("(127.0.0.1)", "")
    )
    assert plain == Controller("head", 6817, 64030, None, 0x2600)
    assert plain.credential_words()[1:] == ["--restrict-uid=64030"]
    # Names that have both kinds of addresses have that of IPv6 first.
    hosts = "fe80::1 STREAM head\nfe80::1 DGRAM\n10.0.0.1 STREAM\n10.0.0.2 STREAM\n"
    usual = read(CONFIG_SHOWN)
    other = read(CONFIG_SHOWN.replace("NoInAddrAny", "EnableIPv6,DisableIPv4"))
    assert usual is not None
    assert other is not None
    assert (usual.address_of(hosts), other.address_of(hosts)) == ("10.0.0.1", "fe80::1")
    assert (usual.address_of("fe80::1 STREAM head\n"), usual.address_of("\n")) == ("fe80::1", None)


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("22.05.8", "23.11.4"),
        ("22.05.8", "22.050"),
        ("22.05.8", "24.110.1"),
        ("auth/munge", "auth/slurm"),
        ("NoInAddrAny", "block_null_hash"),
        ("NoInAddrAny", "Block_Zero_Hash"),
        ("6817", "6817-6820"),
        ("slurm(64030)", "slurm"),
        ("SlurmctldHost[0]", "SlurmctldHost"),
    ],
)
def test_one_that_may_not_understand_it_is_not_told(word: str, other: str) -> None:
    assert word in CONFIG_SHOWN
    assert read(CONFIG_SHOWN.replace(word, other)) is None


class Place:
    """A nudge whose programs are scripts of a test, and a slurmctld that is none."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.selector = selectors.DefaultSelector()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(30)
        self.boot_s = 0
        commands = Commands(self.selector, programs=directory, conf=None, most_s=30)
        self.nudge = Nudge(commands)
        self.write("munge", "echo x >> munged; echo MUNGE:$(cat | wc -c):$1:")
        self.write("getent", "echo 127.0.0.1 STREAM $2")
        module = "drfd.launcher.slurm.nudge"
        monkeypatch.setattr(f"{module}._MUNGE_PROGRAM", str(directory / "munge"))
        monkeypatch.setattr(f"{module}._GETENT", str(directory / "getent"))

    def write(self, name: str, script: str) -> None:
        path = self.directory / name
        path.write_text(f"#!/bin/sh\ncd {self.directory}\n{script}\n")
        path.chmod(0o755)

    @property
    def settings(self) -> dict[str, str]:
        return read_settings(CONFIG_SHOWN.replace("6817", str(self.listener.getsockname()[1])))

    def see(self, age_s: float = 1000.0) -> None:
        """See a slurmctld that has run for so long."""
        self.nudge.see(self.settings, int(time.time() - age_s))
        self.run()

    def begin(self) -> None:
        """It is told once when it is known, because of earlier submissions."""
        self.boot_s = int(time.time()) - 1000
        self.see_again()
        assert self.received()

    def see_again(self) -> None:
        self.nudge.see(self.settings, self.boot_s)
        self.run()

    def submit(self, number: int) -> None:
        self.nudge.submitted(number)
        self.run()

    def hears_nothing(self) -> bool:
        """The system has a connection before its maker goes on."""
        return not select.select([self.listener], [], [], 0)[0]

    def run(self) -> None:
        """Let all commands end."""
        deadline = time.monotonic() + 60
        while self.nudge.commands and time.monotonic() < deadline:
            for key, _ in self.selector.select(1):
                key.data()

    def received(self) -> bytes:
        connection, _ = self.listener.accept()
        with connection:
            connection.settimeout(30)
            return b"".join(iter(lambda: connection.recv(4096), b""))

    def credentials(self) -> int:
        made = self.directory / "munged"
        return len(made.read_text().split()) if made.exists() else 0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(tmp_path, monkeypatch)
    yield made
    made.listener.close()
    made.selector.close()


def test_each_submission_is_told_with_a_credential_of_its_own(place: Place) -> None:
    place.begin()
    said = message("MUNGE:3:--restrict-uid=64030:", 0x2600)
    for number in (7, 8):
        place.nudge.prepare()
        place.submit(number)
        assert (place.received(), place.credentials()) == (said, number - 5)


def test_a_credential_that_was_made_before_is_used(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.begin()
    # It is made while nothing is submitted, as the settings are seen again.
    for _ in range(2):
        place.see_again()
        assert place.credentials() == 2
    place.nudge.submitted(7)
    assert place.received().endswith(b"drfd\0")
    # Munge takes none that is old.
    place.see_again()
    later = time.monotonic() + 250
    with monkeypatch.context() as patched:
        patched.setattr("time.monotonic", lambda: later)
        place.nudge.see(place.settings, place.boot_s)
    place.run()
    assert place.credentials() == 4


def test_a_name_that_is_not_found_at_first_is_asked_for_again(place: Place) -> None:
    place.write("getent", "exit 2")
    place.see()
    place.submit(7)
    assert place.hears_nothing()
    place.write("getent", "echo ::2 STREAM $2; echo 127.0.0.1 STREAM")
    place.nudge.keep_ready()
    place.run()
    assert place.received()
    assert place.credentials() == 1


def test_one_that_has_just_started_is_told_when_it_has_run_for_some_time(place: Place) -> None:
    """It may give the ids again of jobs that have just ended, and their nodes remember these."""
    place.see(age_s=0)
    place.submit(7)
    assert place.hears_nothing()
    place.begin()
    # A submission after the start of another, of which nothing is known yet.
    place.submit(8)
    assert place.received()
    for number in (8, 6):
        place.submit(number)
        assert place.hears_nothing()
    place.submit(9)
    assert place.received()
    place.nudge.saw(30)
    place.submit(30)
    assert place.hears_nothing()
    # Of the next slurmctld, the ids may be less.
    place.boot_s += 100
    place.see_again()
    place.submit(1)
    assert place.received()


@pytest.mark.parametrize("what", ["no munged", "no munge", "no slurmctld"])
def test_what_cannot_be_sent_is_left_for_some_time(
    place: Place, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.begin()
    match what:
        case "no munged":
            place.write("munge", "echo x >> munged; exit 1")
        case "no munge":
            os.unlink(place.directory / "munge")
        case _:
            place.listener.close()
    for number in (7, 8, 9):
        place.submit(number)
    assert place.credentials() == (1 if what == "no munge" else 2)
    # Later it is tried again.
    later = time.monotonic() + 100
    place.write("munge", "echo x >> munged; echo MUNGE:")
    with monkeypatch.context() as patched:
        patched.setattr("time.monotonic", lambda: later)
        place.nudge.prepare()
    place.run()
    assert place.credentials() == (2 if what == "no munge" else 3)

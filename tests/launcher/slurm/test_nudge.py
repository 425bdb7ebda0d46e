"""What slurmctld is told so that it looks at its queue at once, and which slurmctld is told it."""

from __future__ import annotations

import os
import select
import selectors
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.launcher.slurm.commands import Commands
from drfd.launcher.slurm.mapping import read_settings
from drfd.launcher.slurm.nudge import Controller, Nudge, message, read_controller

SHOWN = """\
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


def test_the_first_slurmctld_is_told() -> None:
    found = read(SHOWN)
    assert found == Controller("127.0.0.1", 6817, 64030, "/run/x/socket", 0x2600)
    assert found.credential_words()[1:] == ["--restrict-uid=64030", "--socket=/run/x/socket"]
    plain = read(SHOWN.replace("socket=/run/x/socket,ttl=60", "(null)").replace("(127.0.0.1)", ""))
    assert plain == Controller("head", 6817, 64030, None, 0x2600)
    assert plain.credential_words()[1:] == ["--restrict-uid=64030"]


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
    assert word in SHOWN
    assert read(SHOWN.replace(word, other)) is None


def test_it_is_told_at_an_address_at_which_it_listens() -> None:
    """Names that have both kinds of addresses have that of IPv6 first."""
    hosts = "fe80::1 STREAM head\nfe80::1 DGRAM\n10.0.0.1 STREAM\n10.0.0.2 STREAM\n"
    usual = read(SHOWN)
    other = read(SHOWN.replace("NoInAddrAny", "EnableIPv6,DisableIPv4"))
    assert usual is not None
    assert other is not None
    assert (usual.address_of(hosts), other.address_of(hosts)) == ("10.0.0.1", "fe80::1")
    assert (usual.address_of("fe80::1 STREAM head\n"), usual.address_of("\n")) == ("fe80::1", None)


@pytest.mark.parametrize(
    ("version", "protocol"),
    # The first is that of 22.05, the other that of 23.02.
    [("22.05.8", "2600"), ("24.11.5", "2700")],
)
def test_the_message_says_that_the_epilog_of_no_job_has_ended(version: str, protocol: str) -> None:
    found = read(SHOWN.replace("22.05.8", version))
    assert found is not None
    assert message("MUNGE:x:", found.protocol) == bytes.fromhex(
        "00000032"  # 50 bytes follow
        f"{protocol} 0000 177c 00000011 0000 0000 0000"  # MESSAGE_EPILOG_COMPLETE, 17 bytes of it
        "00000065 00000009 4d554e47453a783a00"  # munge, the credential
        "00000000 00000000 00000005 6472666400"  # job 0, code 0, the node
    )


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
        return read_settings(SHOWN.replace("6817", str(self.listener.getsockname()[1])))

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


def test_without_a_slurmctld_that_is_known_nothing_is_made_or_sent(place: Place) -> None:
    place.nudge.prepare()
    place.submit(7)
    place.nudge.see(read_settings(SHOWN.replace("22.05", "23.11")), 1)
    place.submit(8)
    assert place.credentials() == 0


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

"""sd_notify, from the service's side."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from drfd.linux import service
from drfd.linux.service import Service


@pytest.mark.parametrize("name", ["/notify", "@"])
def test_what_is_said_arrives_as_one_datagram(tmp_path: Path, name: str) -> None:
    """A manager may listen at a path or, in some containers, in the abstract name space."""
    path = f"@drfd-test-{os.getpid()}" if name == "@" else f"{tmp_path}{name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + path[1:] if name == "@" else path)
        manager.settimeout(5)
        Service(notify_socket=path).notify("READY=1", "STATUS=2 jobs run")
        assert manager.recv(100) == b"READY=1\nSTATUS=2 jobs run"


def test_nobody_listening_is_no_harm(tmp_path: Path) -> None:
    Service(notify_socket=str(tmp_path / "gone")).notify("READY=1")
    Service().notify("READY=1")
    assert not Service().is_heard


def test_what_describes_this_process_alone_leaves_the_environment() -> None:
    env = {"PATH": "/bin", "NOTIFY_SOCKET": "/n", "INVOCATION_ID": "1", "WATCHDOG_USEC": "3000000"}
    env |= {"LISTEN_FDS": "1", "JOURNAL_STREAM": "0:0", "WATCHDOG_PID": str(os.getpid())}
    told = service.take(env)
    assert env == {"PATH": "/bin"}
    assert told == Service(notify_socket="/n", watchdog_s=3.0, has_journal=False)


def test_nothing_said_is_nothing_told() -> None:
    assert service.take({}) == Service()
    assert service.take({"NOTIFY_SOCKET": ""}) == Service()


def test_another_process_watchdog_is_not_ours() -> None:
    assert service.take({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}).watchdog_s is None


@pytest.mark.parametrize("text", ["", "soon", "-5", "1.5"])
def test_a_watchdog_time_that_is_no_number_is_none(text: str) -> None:
    assert service.take({"WATCHDOG_USEC": text}).watchdog_s is None


def test_the_journal_is_there_if_standard_error_is_what_it_says() -> None:
    status = os.fstat(2)
    here = f"{status.st_dev}:{status.st_ino}"
    assert service.take({"JOURNAL_STREAM": here}).has_journal
    assert not service.take({"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"}).has_journal

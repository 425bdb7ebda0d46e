"""`drfd metrics`: the page, or one line that says what is wrong and what helps."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.daemon.metrics import printing
from drfd.daemon.metrics.printing import ask_once
from drfd.linux.unix_sockets import at_socket
from strangers import full_listener

PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\npage\n"


@contextmanager
def one_answer(path: Path, answer: bytes) -> Iterator[None]:
    """A program at this path that answers one request so, whatever it is."""
    with socket.socket(socket.AF_UNIX) as listener:
        with at_socket(path) as address:
            listener.bind(address)
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 12)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def refusal(path: Path) -> tuple[str, str]:
    """The error without the path, and the cure."""
    with pytest.raises(HostError) as raised:
        ask_once(path)
    assert str(raised.value).isprintable(), "it is one line"
    before = f"no metrics at {path}: "
    assert raised.value.text.startswith(before)
    return raised.value.text.removeprefix(before), raised.value.hint


def test_a_path_of_any_length_is_found(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 120) / "metrics.sock"
    path.parent.mkdir()
    with one_answer(path, PAGE):
        assert ask_once(path) == "page\n"


def test_a_name_that_no_socket_can_have_is_said(tmp_path: Path) -> None:
    text, hint = refusal(tmp_path / ("s" * 120))
    assert text == "the name is too long for a socket"
    assert "--socket PATH" in hint


def test_without_a_socket_the_configuration_is_the_cure(tmp_path: Path) -> None:
    text, hint = refusal(tmp_path / "metrics.sock")
    assert text == "No such file or directory"
    assert "[metrics] socket = true" in hint and "--socket PATH" in hint


def test_with_a_dead_socket_a_start_is_the_cure(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    text, hint = refusal(tmp_path / "s")
    assert text == "nobody listens there"
    assert "start drfd" in hint


@pytest.mark.slow
def test_with_a_busy_socket_waiting_is_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "ANSWER_S", 1)
    with full_listener(tmp_path / "s"):
        text, hint = refusal(tmp_path / "s")
    assert text == "it has too many readers, and did not answer within 1 s"
    assert "try again" in hint


@pytest.mark.slow
def test_a_socket_that_answers_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "ANSWER_S", 1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        text, hint = refusal(tmp_path / "s")
    assert text == "it did not answer within 1 s"
    assert "try again" in hint


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "the connection was closed without an answer"),
        (b"SSH-2.0\n\x1b[31m\n", "the answer is not drfd's"),
        (PAGE.replace(b"page", b"\xff\xff\xff\xff"), "the answer is not drfd's"),
        (PAGE.replace(b"th: 5", b"th: 9"), "the answer is not drfd's"),
        (
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 10\r\n\r\ntry later\n",
            "503 Service Unavailable, try later",
        ),
        (b"HTTP/1.1 500 \x1b[31m\r\n\r\n\xff", "500 ?[31m, \ufffd"),
    ],
)
def test_each_wrong_answer_is_one_line(tmp_path: Path, answer: bytes, text: str) -> None:
    with one_answer(tmp_path / "s", answer):
        said, _ = refusal(tmp_path / "s")
    assert said == text

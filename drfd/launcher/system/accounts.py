"""What the system's user directory says of an account, asked by a process without rights.

The directory's modules (NSS) are code of others that reads what a server sends. So they run in no
process of root's, nor in a copy of one that knows the secret of signatures: a program that is
`nobody` asks (`answers`), which the launcher executes once, and which forks for each question,
because the directory may never answer.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import TypeAlias

from drfd.launcher.system.background import BackgroundWork
from drfd.launcher.system.nobody import without_rights

#: A question: the seconds that the answer may take, what is asked, and of whom.
Question: TypeAlias = Sequence[object]

_PROGRAM = without_rights("drfd.launcher.system.answers")
#: Longest answer that is read: an account with all the groups that Linux allows.
MOST_BYTES = 1 << 20
#: The highest uid that a user can have; the next number means "no uid".
MOST_UID = (1 << 32) - 2


class Denied(Exception):
    """The job cannot run, or not as this user; the text is the reason."""


class DirectoryFailed(Exception):
    """The user directory cannot answer now; it may do so later."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the user directory does not answer: {os.strerror(number)}")
        self.errno = number


class NotAsked(DirectoryFailed):
    """The machine has no process, or no memory, to ask the user directory."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.error = OSError(number, os.strerror(number))


class AccountProcess:
    """The process that asks, started when it is needed and is not there."""

    def __init__(
        self,
        background: BackgroundWork,
        selector: selectors.BaseSelector,
        program: Sequence[str] = _PROGRAM,
    ) -> None:
        self._background, self._selector, self._program = background, selector, program
        self._questions: socket.socket | None = None

    def begin(self) -> None:
        """Start the process before there is a question. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            self._background.start(
                [*self._program, str(fd)], lambda status: self._ended(ours), fd, nice=0
            )
        ours.setblocking(False)
        self._questions = ours

    def ask(self, question: Question, on_answer: Callable[[object], None]) -> None:
        """Ask, and call `on_answer` with the answer, or with None if there is none in time. Raises
        OSError."""
        fd = os.memfd_create("question", os.MFD_CLOEXEC)
        # Nobody writes to the pipe: it ends with the process that answers.
        out, into = os.pipe()
        try:
            os.write(fd, json.dumps(question).encode())
            self._send([fd, into])
        except OSError:
            os.close(out)
            os.close(fd)
            raise
        finally:
            os.close(into)
        self._selector.register(
            out, selectors.EVENT_READ, lambda: self._take(out, fd, question, on_answer)
        )

    def _send(self, fds: list[int]) -> None:
        if self._questions is not None:
            try:
                socket.send_fds(self._questions, [b"?"], fds)
                return
            except ConnectionError:
                # It has just been killed, perhaps for lack of memory.
                self._ended(self._questions)
        self.begin()
        assert self._questions is not None
        socket.send_fds(self._questions, [b"?"], fds)

    def _ended(self, questions: socket.socket) -> None:
        questions.close()
        if self._questions is questions:
            self._questions = None

    def _take(
        self, out: int, fd: int, question: Question, on_answer: Callable[[object], None]
    ) -> None:
        self._selector.unregister(out)
        os.close(out)
        data = os.pread(fd, MOST_BYTES, 0)
        os.close(fd)
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            # It took too long, was killed, or had no memory for all.
            answer = None
        on_answer(None if answer == list(question) else answer)


def ask_once(*question: object) -> object:
    """Return the answer of a process for this question alone, or None if there is none. Raises
    OSError if no process can be had."""
    asked = json.dumps([0, *question])
    done = subprocess.run(_PROGRAM, input=asked, stdout=subprocess.PIPE, text=True, cwd="/")
    try:
        return json.loads(done.stdout)
    except ValueError:
        return None

"""The connection to the root helper, which runs Slurm's commands (`drfd.launcher.slurm_root`)."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from drfd.launcher.protocol import Message, encode
from drfd.launcher.slurm.mapping import SlurmJob, first_line
from drfd.launcher.slurm_root.requests import (
    END,
    JOBS,
    KILL,
    MOST_AT_ONCE,
    NODES,
    REGISTER,
    SOCKET_NAME,
    RootAnswer,
)
from drfd.linux.sealed import receive
from drfd.linux.unix_sockets import at_socket

log = logging.getLogger("drfd.launcher")

#: Largest number of bytes of an answer that is read, and of the message with it.
_MOST_BYTES, _MOST_MESSAGE = 64 << 20, 1 << 16
#: Seconds that the helper has to listen.
_HELPER_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended."""

    #: None if it was killed because it took too long, or could not be begun.
    code: int | None
    output: str
    complaint: str
    #: False for a submission of which nothing was submitted; the complaint says why.
    was_run: bool = True

    @property
    def is_good(self) -> bool:
        return self.code == 0


def connect(state: Path) -> tuple[socket.socket, socket.socket, socket.socket]:
    """Connect to the helper with this directory. Returns the connection, and the sockets for the
    controller and for Slurm's scripts. Ends the process if there is no helper."""
    deadline = time.monotonic() + _HELPER_WAIT_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with at_socket(state / SOCKET_NAME) as address:
                connection.connect(address)
            _, fds, _ = receive(connection, _MOST_MESSAGE, 2)
            if len(fds) == 2:
                break
        except OSError:
            pass
        connection.close()
        if time.monotonic() > deadline:
            sys.exit(f"drfd-slurm-launcher: no helper listens in {state}")
        time.sleep(0.05)
    controllers, events = (socket.socket(fileno=fd) for fd in fds)
    return connection, controllers, events


class Commands:
    """The commands that run, or wait for their turn. `on_done` is called when one that acts on jobs
    has ended: a list shows the effect."""

    def __init__(
        self,
        connection: socket.socket,
        selector: selectors.BaseSelector,
        on_done: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._connection, self._on_done, self._on_lost = connection, on_done, on_lost
        #: The fields of a request, its descriptors, and who gets the answer.
        self._waiting: deque[tuple[Message, list[int], Callable[[Answer], None]]] = deque()
        #: Number → who gets the answer.
        self._running: dict[int, Callable[[Answer], None]] = {}
        self._number = 0
        selector.register(connection, selectors.EVENT_READ, self._read)

    def run(
        self,
        do: str,
        on_answer: Callable[[Answer], None],
        *,
        job: int = 0,
        slurm_id: int = 0,
        signal: int = 0,
        fds: Sequence[int] = (),
    ) -> None:
        """Have the helper do what a `RootRequest` with these fields asks for, with copies of these
        descriptors. Raises OSError if they cannot be copied."""
        fields: Message = {"do": do, "job": job, "slurm_id": slurm_id, "signal": signal}
        each = fields, [os.dup(fd) for fd in fds], on_answer
        # Slurm's lists show what becomes of everything else.
        (self._waiting.appendleft if do in (JOBS, NODES) else self._waiting.append)(each)
        self._send()

    def act(self, do: str, job: SlurmJob, signal: int = 0) -> None:
        """Act on one of Slurm's jobs."""
        name = job.name.key[0]
        self.run(do, partial(self._take, do), job=name, slurm_id=job.id, signal=signal)

    def end(self, job: SlurmJob) -> None:
        """End a job, by SIGKILL if it has started."""
        self.act(KILL if job.state == "RUNNING" else END, job)

    def register(self, then: Callable[[Answer], None]) -> None:
        """Ask all nodes to register with slurmctld, and pass on the answer."""

        def on_answer(answer: Answer) -> None:
            then(answer)
            self._take(REGISTER, answer)

        self.run(REGISTER, on_answer)

    def _take(self, do: str, answer: Answer) -> None:
        if not answer.is_good:
            text = first_line(answer.complaint)
            log.warning("event=slurm-refuses command=%s error=%s", do, text)
        self._on_done()

    def _send(self) -> None:
        while self._waiting and len(self._running) < MOST_AT_ONCE:
            fields, fds, on_answer = self._waiting.popleft()
            self._number += 1
            self._running[self._number] = on_answer
            try:
                request = encode({"number": self._number, **fields})
                socket.send_fds(self._connection, [request], fds)
            except OSError:
                # It is gone: so says the end of the connection, too.
                return
            finally:
                for fd in fds:
                    os.close(fd)

    def _read(self) -> None:
        try:
            data, fds, _ = receive(self._connection, _MOST_MESSAGE, 2)
        except OSError:
            data, fds = b"", []
        if not data:
            self._on_lost()
            return
        answer = msgspec.json.decode(data, type=RootAnswer)
        output, complaint = map(_taken, fds)
        on_answer = self._running.pop(answer.number)
        on_answer(Answer(answer.code, output, complaint, answer.was_run))
        self._send()


def _taken(fd: int) -> str:
    """Return what was written to a file in memory, and close it."""
    try:
        data = os.pread(fd, min(os.fstat(fd).st_size, _MOST_BYTES), 0)
        return data.decode(errors="backslashreplace")
    finally:
        os.close(fd)

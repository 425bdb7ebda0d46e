"""drfd-slurm-root: the root helper of the launcher of Slurm's nodes.

It serves one launcher, a thread for each request, and ends with its connection; the next helper
serves the next launcher.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from threading import BoundedSemaphore, Thread
from types import MappingProxyType

import msgspec

from drfd.launcher import startup
from drfd.launcher.protocol import (
    SECRET_NAME,
    SOCKET_NAME,
    BadMessage,
    LaunchOrder,
    encode,
    read_order,
)
from drfd.launcher.runner import inheritance
from drfd.launcher.runner.shortage import failure
from drfd.launcher.settings import account_of
from drfd.launcher.signatures import SigningKeys, is_signed
from drfd.launcher.slurm_root import requests, words
from drfd.launcher.slurm_root.requests import RootAnswer, RootRequest
from drfd.launcher.system.nobody import without_rights
from drfd.linux.kernel_files import opened
from drfd.linux.sealed import NotSealed, read_sealed, receive, sealed_size
from drfd.linux.service import Service
from drfd.payload.signature import MAX_BYTES

log = logging.getLogger("drfd.launcher")

EVENTS_NAME = "events.sock"
#: Seconds that the local launcher has to make the secret of signatures.
_SECRET_WAIT_S = 10.0
#: Texts that `preparation` prints, a NUL after each: the group, and the paths of both outputs.
_PREPARED, _GID = 3 + 1, re.compile("[0-9]{1,10}")
_MOST_REQUEST, _MOST_ORDER, _MOST_PREPARED = 4096, 4 << 20, 1 << 16
#: What timeout(1) ends with if it, or the command, was killed.
_KILLED = -signal.SIGKILL, 128 + signal.SIGKILL
_PREPARATION = without_rights("drfd.launcher.slurm_root.preparation")


def main(argv: Sequence[str] | None = None) -> None:
    options = _parse(argv)
    manager = startup.begin("drfd-slurm-root")
    with startup.ending_if_wrong("drfd-slurm-root", manager):
        setup = startup.read_setup(options)
        slurm_uid = account_of(setup.settings.slurm.user, "slurm.user").pw_uid
        name = options.launcher
        account = None if name.isdecimal() else account_of(name, "--launcher")
    ids = (int(name), int(name)) if account is None else (account.pw_uid, account.pw_gid)
    inheritance.protect(no_new_privileges=False)
    startup.run(partial(_serve, options, setup, slurm_uid, *ids), options.keep_fd, manager)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = startup.parser_of("drfd-slurm-root", __doc__)
    add = parser.add_argument
    add("--launcher", required=True, metavar="USER", help="name or uid of the launcher's user")
    add("--keys", type=Path, metavar="DIR", help="state directory of the local launcher")
    add("--timeout", type=float, metavar="S", default=5.0, help="how long a command may take")
    return parser.parse_args(argv)


def _serve(
    options: argparse.Namespace, setup: startup.Setup, slurm_uid: int, uid: int, gid: int,
    manager: Service,
) -> None:  # fmt: skip
    """Serve the launcher that has this uid and gid."""
    state, programs = options.state, setup.settings.slurm.programs
    if not all(Path(programs, name).exists() for name in words.PROGRAMS):
        sys.exit(f"drfd-slurm-root: Slurm's commands are not in {programs}")
    # The controller is trusted if it is root.
    keys = None if setup.controller_uid == os.getuid() else _keys(options.keys)
    _make(state / requests.OWN_NAME, uid, gid, 0o700)
    # Slurm's script notes starts there as SlurmUser, and the launcher adds and removes notes.
    _make(state / requests.STARTS_NAME, slurm_uid, gid, 0o775)
    controllers = startup.listen(state / SOCKET_NAME, setup.controller_uid)
    events = startup.listen(state / EVENTS_NAME, slurm_uid, socket.SOCK_DGRAM)
    # Only the launcher's user can connect to it.
    listener = startup.listen(state / requests.SOCKET_NAME, uid, socket.SOCK_SEQPACKET)
    manager.notify("READY=1")
    if not _waits_for(listener, options.keep_fd):
        return
    connection, _ = listener.accept()
    socket.send_fds(connection, [b"sockets"], [controllers.fileno(), events.fileno()])
    _Helper(setup, keys, options.timeout, connection).serve(options.keep_fd)


def _make(path: Path, uid: int, gid: int, mode: int) -> None:
    """Make a directory in one of root's, and give it to this user and group."""
    path.mkdir(mode=0o700, exist_ok=True)
    with opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as fd:
        os.fchown(fd, uid, gid)
        os.fchmod(fd, mode)


def _keys(directory: Path) -> SigningKeys:
    """Return the keys of users' signatures: those of the local launcher, which makes the secret:
    two that make one at once would have two."""
    deadline = time.monotonic() + _SECRET_WAIT_S
    while not (directory / SECRET_NAME).exists():
        if time.monotonic() > deadline:
            sys.exit(f"drfd-slurm-root: no launcher has made the secret in {directory}")
        time.sleep(0.05)
    return SigningKeys(directory)


def _waits_for(first: socket.socket, keep_fd: int | None) -> bool:
    """Wait until the socket has something, and return True; or until `keep_fd` ends."""
    ready = select.select([first.fileno(), *([] if keep_fd is None else [keep_fd])], [], [])[0]
    return keep_fd not in ready


@dataclass(frozen=True, slots=True)
class _Helper:
    setup: startup.Setup
    #: None if the controller is trusted.
    keys: SigningKeys | None
    timeout_s: float
    connection: socket.socket

    def serve(self, keep_fd: int | None) -> None:
        free = BoundedSemaphore(requests.MOST_AT_ONCE)
        with suppress(ConnectionError):
            while _waits_for(self.connection, keep_fd):
                data, fds, _ = receive(self.connection, _MOST_REQUEST, 2)
                if not data:
                    break
                try:
                    request = msgspec.json.decode(data, type=RootRequest)
                except msgspec.DecodeError as error:
                    log.error("event=bad-request error=%s", error)
                    break
                free.acquire()
                said = _in_memory(), _in_memory()
                Thread(target=self._carry_out, args=(request, fds, *said, free)).start()
        # Without waiting for the commands that run.
        os._exit(0)

    def _carry_out(
        self, request: RootRequest, fds: list[int], output: FileIO, errors: FileIO,
        free: BoundedSemaphore,
    ) -> None:  # fmt: skip
        """Carry out a request, and answer it. Closes the files and descriptors."""
        code, was_run = None, True
        with output, errors:
            try:
                if request.do == requests.SUBMIT:
                    code, was_run = self._submit(fds, output, errors)
                else:
                    code = self._run_all(self._commands(request), output, errors)
            except (BadMessage, NotSealed) as error:
                was_run = False
                errors.write(encode(failure(str(error), None)))
            except Exception as error:
                # Whatever it is, the launcher waits for the answer.
                log.error("event=not-carried-out request=%s error=%r", request.do, error)
                errors.write(f"it cannot be run: {error}".encode())
            # Without a launcher, nobody hears of it.
            with suppress(OSError):
                answer = RootAnswer(number=request.number, code=code, was_run=was_run)
                said = output.fileno(), errors.fileno()
                socket.send_fds(self.connection, [encode(answer)], said)
        for fd in fds:
            os.close(fd)
        free.release()

    def _commands(self, request: RootRequest) -> Sequence[Sequence[str]]:
        if request.do in words.FIXED:
            return words.FIXED[request.do]
        if request.do in (requests.SUSPEND, requests.RESUME):
            with _in_memory() as title, _in_memory() as errors:
                self._run(words.title_words(request), title, errors)
                title.seek(0)
                if title.read(_MOST_REQUEST).strip() != words.title_of(request.job).encode():
                    raise BadMessage("another job has this id")
        return [words.control_words(request)]

    def _submit(self, fds: list[int], output: FileIO, errors: FileIO) -> tuple[int | None, bool]:
        """Submit an attempt. Return the exit code of what was run last, and whether it was sbatch.
        Raises BadMessage or NotSealed if the submission is refused."""
        if len(fds) != 2:
            raise BadMessage("a submission without its order or its payload")
        order_fd, payload_fd = fds
        sealed_size(order_fd, _MOST_ORDER)
        sealed_size(payload_fd, MAX_BYTES)
        order = read_order(bytes(read_sealed(order_fd)))
        if not isinstance(order, LaunchOrder) or order.is_notice or not order.node:
            raise BadMessage("the order launches nothing on a node")
        if (refusal := self.setup.policy.refusal(order.uid)) is not None:
            raise BadMessage(refusal)
        if not is_signed(order, payload_fd, self.keys):
            raise BadMessage("the request is not signed by its user: submit it again")
        with _in_memory() as env, _in_memory() as script, _in_memory() as prepared:
            given = payload_fd, env.fileno(), script.fileno()
            preparation = (*_PREPARATION, *map(str, given))
            code = self._run(preparation, prepared, errors, stdin=order_fd, fds=given)
            if code != 0:
                return code, False
            prepared.seek(0)
            texts = prepared.read(_MOST_PREPARED).decode(errors="surrogateescape").split("\0")
            if len(texts) != _PREPARED or not _GID.fullmatch(texts[0]):
                raise BadMessage("its submission could not be prepared")
            return self._run(
                words.submit_words(
                    order, partition=self.setup.settings.slurm.partition, gid=texts[0],
                    env_fd=env.fileno(),
                ),
                output, errors, stdin=script.fileno(), fds=(env.fileno(),),
                env=words.submit_env(*texts[1:3]),
            ), True  # fmt: skip

    def _run_all(
        self, commands: Sequence[Sequence[str]], output: FileIO, errors: FileIO
    ) -> int | None:
        """Run commands up to the first that fails, with a NUL after each one's output."""
        code: int | None = 0
        for command in commands:
            code = self._run(command, output, errors)
            if code != 0:
                break
            output.write(b"\0")
        return code

    def _run(
        self, command: Sequence[str], output: FileIO, errors: FileIO, *,
        stdin: int = subprocess.DEVNULL, fds: Sequence[int] = (),
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> int | None:  # fmt: skip
        """Run a command, which gets these descriptors under their numbers, and these variables:
        users' variables would change what the commands print. Return its exit code, or None if it
        took too long. Raises OSError."""
        slurm = self.setup.settings.slurm
        usual = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        conf = {} if slurm.conf is None else {"SLURM_CONF": slurm.conf}
        # A program that is named by its whole path is taken from there.
        program = os.path.join(slurm.programs, command[0])
        done = subprocess.run(
            ["/usr/bin/timeout", "-s", "KILL", f"{self.timeout_s}", program, *command[1:]],
            env={**usual, **conf, **env}, cwd="/", stdin=stdin, pass_fds=fds,
            stdout=output, stderr=errors, check=False,
        )  # fmt: skip
        if done.returncode not in _KILLED:
            return done.returncode
        errors.write(b"Slurm has not answered within %g s" % self.timeout_s)
        return None


def _in_memory() -> FileIO:
    return FileIO(os.memfd_create("command"), "r+")

"""Asking systemd, the system's or a user's own: over its command line, each time within bounds."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

#: A manager that is asked and does not answer within so long counts as away.
_ANSWER_S = 20.0


#: Where logind has a file for each user that lingers.
LINGER = "/var/lib/systemd/linger"

#: A process that does nothing.
SLEEP = ("sleep", "infinity")


class NoAnswer(Exception):
    """systemd is not there, or refuses; says what it said."""


def sleep() -> int:
    """Start a process that does nothing and outlives us; its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.execvp(SLEEP[0], SLEEP)  # noqa: S606
    finally:
        os._exit(127)


def is_booted() -> bool:
    """Whether PID 1 is systemd (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def lingers(uid: int) -> bool:
    """Whether the user's manager, and all below it, lives on without a session of the user's.
    `loginctl` would say so only of users that logind knows at the moment."""
    try:
        return Path(LINGER, pwd.getpwuid(uid).pw_name).exists()
    except KeyError:
        return False


@dataclass(frozen=True)
class Keeper:
    """A process that was started to keep a scope alive."""

    process: subprocess.Popen[bytes]
    #: A file in memory: the process will hold it for as long as it sleeps.
    said_fd: int

    def has_failed(self) -> bool:
        return self.process.poll() is not None

    def is_in(self, unit: str) -> bool:
        """Whether systemd has moved it there."""
        try:
            here = Path(f"/proc/{self.process.pid}/cgroup").read_text()
        except OSError:
            return False
        return any(line.startswith("0::") and line.endswith(f"/{unit}") for line in here.split())

    def why(self) -> str:
        return _last_line(os.pread(self.said_fd, 4096, 0).decode(errors="replace"))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True, slots=True)
class Manager:
    #: The manager of the user that we are; else the system's.
    is_users: bool

    def show(self, *words: str) -> dict[str, str]:
        """Properties of a unit, or of the manager itself; one that does not exist has some too."""
        lines = _ask(["systemctl", *self._whose(), "show", *words], self._environment())
        return {
            name: value for name, _, value in (line.partition("=") for line in lines.splitlines())
        }

    def start_scope(self, unit: str, description: str) -> Keeper:
        """A scope with delegated controllers around a sleeping process that will outlive us."""
        words = [*self._scope(), f"--unit={unit}", f"--description={description}"]
        said_fd = os.memfd_create("systemd-run")
        try:
            process = subprocess.Popen(
                [*words, "--property=Delegate=yes", *SLEEP],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said_fd,
                env=self._environment(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise NoAnswer(f"systemd-run: {error.strerror}") from None
        return Keeper(process, said_fd)

    def become_scope(self, command: list[str]) -> None:
        """Go on as this command in a scope of its own, with the same pid and descriptors. Raises
        NoAnswer if no scope can be started."""
        _ask([*self._scope(), "true"], self._environment())
        words = [*self._scope(), *command]
        os.execvpe(words[0], words, self._environment())  # noqa: S606

    def _whose(self) -> list[str]:
        return ["--user"] if self.is_users else []

    def _scope(self) -> list[str]:
        options = ["--scope", "--quiet", "--collect", "--slice=drfd.slice"]
        return ["systemd-run", *self._whose(), *options]

    def _environment(self) -> dict[str, str]:
        """Where a user's manager listens is not always said: after sudo -u, or from cron."""
        return {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **os.environ}


def _ask(words: list[str], env: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=env,
            timeout=_ANSWER_S,
        )
    except OSError as error:
        raise NoAnswer(f"{words[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{words[0]}: no answer within {_ANSWER_S:.0f} s") from None
    if done.returncode != 0:
        raise NoAnswer(f"{words[0]}: {_last_line(done.stderr)}")
    return done.stdout


def _last_line(said: str) -> str:
    return (said.strip() or "failed and said nothing").splitlines()[-1]

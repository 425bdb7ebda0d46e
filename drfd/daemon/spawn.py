"""Starting our own launcher, and giving up root's rights: what happens before the loop runs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from drfd.daemon.config import Config
from drfd.errors import ConfigError, HostError

#: The system user that the controller becomes, if there is one and nothing else is configured.
DEFAULT_USER = "drfd"


@dataclass(frozen=True, slots=True)
class Places:
    """The state directory, which belongs to whoever started drfd, and its two rooms."""

    state: Path

    @property
    def controller(self) -> Path:
        """The journal; the controller's own."""
        return self.state / "controller"

    @property
    def launcher(self) -> Path:
        """Attempt files and the launcher's socket; root's in system mode."""
        return self.state / "launcher"

    @property
    def journal(self) -> Path:
        return self.controller / "journal.sqlite"


def prepare(places: Places) -> int:
    """Make the directories and take the state directory's lock, for the life of this process."""
    try:
        _make_state(places.state)
        places.controller.mkdir(mode=0o700, exist_ok=True)
        places.launcher.mkdir(mode=0o711, exist_ok=True)
        lock = os.open(places.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HostError(
            "state", f"cannot use the state directory {places.state}: {error.strerror}"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise HostError(
            "running", f"another drfd is running with the state directory {places.state}"
        ) from None
    return lock


def _make_state(state: Path) -> None:
    """A directory that is there already is taken as it is, if nobody else can change it."""
    if not state.exists():
        state.mkdir(parents=True)
        state.chmod(0o711)
        return
    status = state.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise HostError(
            "state",
            f"the state directory {state} belongs to somebody else, or others may write it",
            hint="name a directory of its own with --state",
        )


def group_for(state: Path) -> str:
    """The cgroup of a private instance: the same for the same state directory."""
    return "drfd/" + hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:10]


def start_launcher(
    places: Places, config: Config, *, controller_uid: int, allow: Iterable[int], group: str
) -> tuple[int, int]:
    """Start a launcher that is restarted when it dies, and ends with us: its keeper reads to the
    end of a pipe. (our end of the pipe, pidfd of the keeper)."""
    end_for_it, ours = os.pipe()
    command = [
        *(sys.executable, "-I", "-m", "drfd.launcher"),
        *("--state", str(places.launcher)),
        *("--controller-uid", str(controller_uid)),
        *("--group", group),
        *("--keep-fd", str(end_for_it)),
    ]
    for uid in allow:
        command += ["--allow-uid", str(uid)]
    if not config.use_cgroups:
        command.append("--no-cgroups")
    # A session of its own: ^C at the terminal is for the controller alone.
    keeper = subprocess.Popen(
        command, pass_fds=(end_for_it,), stdin=subprocess.DEVNULL, start_new_session=True
    )
    os.close(end_for_it)
    return ours, os.pidfd_open(keeper.pid)


def system_uids(config: Config) -> list[int]:
    """The uids of `daemon.system_users`. Raises ConfigError for a name that does not exist."""
    return [_account(name, "daemon.system_users").pw_uid for name in sorted(config.system_users)]


def controller_account(config: Config, places: Places) -> tuple[pwd.struct_passwd | None, str]:
    """Whom the controller becomes (None: stays what it is), and a warning about that."""
    if os.getuid() != 0:
        return None, ""
    if config.user is not None:
        account = _account(config.user, "daemon.user")
        if not _can_reach(account, places):
            raise ConfigError(
                "config",
                f"daemon.user: {config.user} cannot reach the state directory {places.state}",
                hint="choose a directory below one that all may enter, such as /var/lib",
            )
        return account, ""
    try:
        account = pwd.getpwnam(DEFAULT_USER)
    except KeyError:
        return None, f"the controller runs as root: there is no user {DEFAULT_USER}"
    if not _can_reach(account, places):
        return None, f"the controller runs as root: {DEFAULT_USER} cannot reach {places.state}"
    return account, ""


def become(account: pwd.struct_passwd, places: Places) -> None:
    """Hand over the controller's room and drop root for good."""
    _hand_over(places.controller, account)
    os.setgroups([])
    os.setresgid(*(account.pw_gid,) * 3)
    os.setresuid(*(account.pw_uid,) * 3)
    assert os.getresuid() == (account.pw_uid,) * 3


def _hand_over(room: Path, account: pwd.struct_passwd) -> None:
    """The room, and in it the journal of a controller that ran as root before. Nothing else: who
    may write in there must not get root to follow a link of theirs."""
    directory = os.open(room, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(directory, account.pw_uid, account.pw_gid)
        for name in ("journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm"):
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == 0:
                os.chown(
                    name, account.pw_uid, account.pw_gid, dir_fd=directory, follow_symlinks=False
                )
    finally:
        os.close(directory)


def _account(name: str, key: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ConfigError("config", f"{key}: there is no user {name}") from None


def _can_reach(account: pwd.struct_passwd, places: Places) -> bool:
    """Try it, as that user, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(*(account.pw_gid,) * 3)
            os.setresuid(*(account.pw_uid,) * 3)
            os._exit(0 if os.access(places.state, os.X_OK) else 1)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0

"""Before the loop runs: directories, a launcher of our own if need be, dropping root's rights."""

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
    """The state directory, which belongs to whoever started drfd, and its two rooms. Under systemd
    the launcher's is somebody else's: `given_launcher`."""

    state: Path
    given_launcher: Path | None = None

    @property
    def controller(self) -> Path:
        """The journal; the controller's own."""
        return self.state / "controller"

    @property
    def launcher(self) -> Path:
        """Attempt files and the launcher's socket; root's in system mode."""
        return self.given_launcher or self.state / "launcher"

    @property
    def journal(self) -> Path:
        return self.controller / "journal.sqlite"


@dataclass(frozen=True, slots=True)
class OwnLauncher:
    """A launcher that ends with us. `keeper` is the pidfd of the process that restarts it."""

    keeper: int
    _pipe: int

    def let_go(self) -> None:
        os.close(self._pipe)


def prepare(places: Places) -> int:
    """Make the directories and take the controller's lock, for the life of this process."""
    try:
        if places.given_launcher is None:
            _make_state(places.state)
            places.launcher.mkdir(mode=0o711, exist_ok=True)
        places.controller.mkdir(mode=0o700, exist_ok=True)
        # Whoever owns this room must not get root to follow a link of theirs.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        lock = os.open(places.controller / "lock", flags, 0o600)
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


def launcher_command(
    room: Path, config: Config, *, controller_uid: int, allow: Iterable[int], group: str
) -> list[str]:
    command = [
        *(sys.executable, "-I", "-m", "drfd.launcher"),
        *("--state", str(room)),
        *("--controller-uid", str(controller_uid)),
        *("--group", group),
    ]
    for uid in allow:
        command += ["--allow-uid", str(uid)]
    if not config.use_cgroups:
        command.append("--no-cgroups")
    return command


def start_launcher(
    places: Places, config: Config, *, controller_uid: int, allow: Iterable[int], group: str
) -> OwnLauncher:
    """Start a launcher that is restarted when it dies, and ends with us: its keeper reads to the
    end of a pipe."""
    end_for_it, ours = os.pipe()
    command = launcher_command(
        places.launcher, config, controller_uid=controller_uid, allow=allow, group=group
    )
    # A session of its own: ^C at the terminal is for the controller alone.
    keeper = subprocess.Popen(
        [*command, "--keep-fd", str(end_for_it)],
        pass_fds=(end_for_it,),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(end_for_it)
    return OwnLauncher(os.pidfd_open(keeper.pid), ours)


def system_uids(config: Config) -> list[int]:
    """The uids of `daemon.system_users`. Raises ConfigError for a name that does not exist."""
    return [account_of(name, "daemon.system_users").pw_uid for name in sorted(config.system_users)]


def account_of(name: str, key: str) -> pwd.struct_passwd:
    """`key` is what named it. Raises ConfigError when there is no such user."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ConfigError("config", f"{key}: there is no user {name}") from None


def controller_account(config: Config, places: Places) -> tuple[pwd.struct_passwd | None, str]:
    """Whom the controller becomes (None: stays what it is), and a warning about that."""
    if os.getuid() != 0:
        refuse_another(config, places)
        return None, ""
    if config.user is not None:
        account = account_of(config.user, "daemon.user")
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


def refuse_another(config: Config, places: Places) -> None:
    """Under systemd the unit has chosen the user, and the launcher takes orders of no other."""
    if places.given_launcher is None or config.user is None:
        return
    if account_of(config.user, "daemon.user").pw_uid != os.getuid():
        raise ConfigError(
            "config",
            f"daemon.user is {config.user}, but the service is started as another user",
            hint="leave it out: under systemd User= of drfd.service decides",
        )


def become(account: pwd.struct_passwd, places: Places) -> None:
    """Hand over the controller's room and drop root for good."""
    _hand_over(places.controller, account)
    os.setgroups([])
    os.setresgid(*(account.pw_gid,) * 3)
    os.setresuid(*(account.pw_uid,) * 3)
    assert os.getresuid() == (account.pw_uid,) * 3


def _hand_over(room: Path, account: pwd.struct_passwd) -> None:
    """The room, and in it the files of a controller that ran as root before. Nothing else: who
    may write in there must not get root to follow a link of theirs."""
    directory = os.open(room, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(directory, account.pw_uid, account.pw_gid)
        for name in ("lock", "journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm"):
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

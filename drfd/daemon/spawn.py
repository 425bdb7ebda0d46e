"""Preparations before the loop runs: directories, the daemon's own launcher, dropped rights."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import pwd
import stat
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drfd.common import paths
from drfd.common.errors import ConfigError, HostError, StillStarting
from drfd.daemon.cluster import has_slurm
from drfd.daemon.config import Config, load, load_if_there
from drfd.launcher.settings import account_of
from drfd.linux.own_process import RUN_MODULE
from drfd.payload.signature import KEYS_NAME

log = logging.getLogger("drfd")

#: Runs the package that is the next word; tests run it with failpoints (tests/failing.py).
RUN = RUN_MODULE
#: The system user that the controller becomes, if there is one and nothing else is configured.
DEFAULT_USER = "drfd"
#: The system user of the launcher of Slurm's nodes.
SLURM_USER = "drfd-slurm"
#: Files in the controller's directory, beside the lock.
JOURNAL_FILES = ("journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "journal.reserve")


@dataclass(frozen=True, slots=True)
class Places:
    """The state directory, which belongs to the user who started drfd, and its two parts. Under
    systemd the launcher's part is elsewhere, in the directory `given_launcher` of another unit."""

    state: Path
    given_launcher: Path | None = None

    @property
    def controller(self) -> Path:
        """The controller's own directory, with the journal."""
        return self.state / "controller"

    @property
    def launcher(self) -> Path:
        """The launcher's directory, with attempt files and its socket; root's in system mode."""
        return self.given_launcher or self.state / "launcher"

    @property
    def slurm_launcher(self) -> Path:
        """The directory of the launcher of Slurm's nodes, if there are any."""
        return self.launcher.with_name(self.launcher.name.replace("launcher", "slurm-launcher"))

    def keys(self) -> Path | None:
        """Return the directory of the users' keys, or None if the launcher has this process's uid:
        then its secrets could not be kept from this process."""
        is_own = self.launcher.stat().st_uid == os.getuid()
        return None if is_own else (self.launcher / KEYS_NAME).resolve()

    @property
    def journal(self) -> Path:
        return self.controller / "journal.sqlite"


@dataclass(frozen=True, slots=True)
class OwnLauncher:
    """A launcher that ends with this daemon."""

    #: Pidfd of the process that restarts the launcher.
    supervisor: int
    #: The end of a pipe whose closing ends the launcher.
    _pipe: int

    def release(self) -> None:
        os.close(self._pipe)


def prepare(places: Places) -> int:
    """Make the directories and take the controller's lock, which this process holds until it ends.
    Returns the lock's descriptor."""
    try:
        if places.given_launcher is None:
            _make_state(places.state)
            places.launcher.mkdir(mode=0o711, exist_ok=True)
        places.controller.mkdir(mode=0o700, exist_ok=True)
        # Root must not follow a link that the owner of this directory has made.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        lock = os.open(places.controller / "lock", flags, 0o600)
    except OSError as error:
        raise HostError(
            "state", f"cannot use the state directory {places.state}: {error.strerror}"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = f"another drfd is running with the state directory {places.state}"
        address = _published(lock)
        os.close(lock)
        if not address:
            raise StillStarting("running", text) from None
        raise HostError(
            "running", text, hint=f"DRFD_SOCKET or --socket name its socket: {address}"
        ) from None
    if _is_plain(lock):
        os.truncate(lock, 0)
    return lock


def _is_plain(lock: int) -> bool:
    """Return whether this is a file without another name: root has opened it, and must not change
    a file elsewhere."""
    status = os.fstat(lock)
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _published(lock: int) -> str:
    """Return where the daemon that holds the lock answers, or nothing if it does not yet."""
    try:
        return os.pread(lock, 4096, 0).decode(errors="replace")
    except OSError:
        return ""


def publish(lock: int, socket_path: Path) -> None:
    """Note in the lock's file that the daemon answers, and where. On a full disk it answers all the
    same, and a second daemon cannot say where."""
    if not _is_plain(lock):
        return
    try:
        os.pwrite(lock, os.fsencode(socket_path.absolute()), 0)
    except OSError as error:
        log.warning("event=address-not-noted error=%s", error.strerror)


def _make_state(state: Path) -> None:
    """Make the state directory. An existing one is used as it is, if nobody else can change it."""
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
    """Return the cgroup of a private instance, which depends only on its state directory."""
    return "drfd/" + hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:10]


def launcher_command(
    module: str,
    directory: Path,
    config_file: Path,
    *,
    controller_uid: int,
    allow: Iterable[int],
) -> list[str]:
    """Return the command of a launcher, whose program is the package `module`. It reads its part of
    the configuration by itself, and takes jobs of the uids in `allow` besides."""
    command = [
        *(*RUN, module),
        *("--state", str(directory)),
        *("--config", str(config_file.absolute())),
        *("--controller", str(controller_uid)),
    ]
    for uid in allow:
        command += ["--allow-uid", str(uid)]
    return command


def refuse_slurm_without_root(config: Config, *, is_roots: bool) -> None:
    """Raise ConfigError if nodes of Slurm's are configured for an ordinary user's daemon: only root
    can submit jobs of others to Slurm, and let its scripts note what they start."""
    if has_slurm(config.nodes) and not is_roots:
        raise ConfigError(
            "config",
            "nodes: only a daemon that root has started has nodes of Slurm's",
            hint="leave them out, or submit to the system's daemon",
        )


def start_launcher(command: Sequence[str], account: pwd.struct_passwd | None = None) -> OwnLauncher:
    """Start a launcher, as this user or our own, with a supervisor, which restarts it when it dies,
    and which ends with this daemon because it then reads the end of a pipe. `command`: see
    `launcher_command`."""
    end_for_it, ours = os.pipe()
    # A session of its own: ^C at the terminal is for the controller alone.
    supervisor = subprocess.Popen(
        [*command, "--keep-fd", str(end_for_it)],
        pass_fds=(end_for_it,),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        user=None if account is None else account.pw_uid,
        group=None if account is None else account.pw_gid,
        extra_groups=None if account is None else [],
    )
    os.close(end_for_it)
    return OwnLauncher(os.pidfd_open(supervisor.pid), ours)


def start_slurm_launcher(
    root_command: Sequence[str], places: Places, controller: pwd.struct_passwd | None
) -> list[OwnLauncher]:
    """Start the launcher of Slurm's nodes as a user of its own, or as the controller's if there is
    none that can reach the state directory, and its root helper."""
    account = controller or pwd.getpwuid(os.getuid())
    with suppress(ConfigError):
        own = account_of(SLURM_USER, "")
        account = own if _can_reach(own, places) else account
    words = ("--keys", str(places.launcher), "--launcher", account.pw_name)
    command = (*RUN, "drfd.launcher.slurm", "--state", str(places.slurm_launcher))
    return [
        start_launcher([*root_command, *words]),
        start_launcher(command, account if account.pw_uid else None),
    ]


def controller_account(
    config: Config, places: Places, *, as_root: bool
) -> tuple[pwd.struct_passwd | None, str]:
    """Return the account that the controller switches to, or None and perhaps a warning if it keeps
    its own. Raises ConfigError if it would stay root and `as_root` does not allow that."""
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
        account = account_of(DEFAULT_USER, "daemon.user")
        if _can_reach(account, places):
            return account, ""
        why = f"{DEFAULT_USER} cannot reach {places.state}"
        cure = "choose a --state directory below one that all may enter"
    except ConfigError:
        why = f"there is no user {DEFAULT_USER}"
        cure = "make that user with drfd install"
    if not as_root:
        raise ConfigError(
            "as-root",
            f"the controller would run as root: {why}",
            hint=f"{cure}, name another user as daemon.user, or start it with --as-root",
        )
    return None, f"the controller runs as root: {why}"


def refuse_another(config: Config, places: Places) -> None:
    """Raise ConfigError if the configured user is not the one of the systemd unit, from whom alone
    the launcher takes orders."""
    if places.given_launcher is None or config.user is None:
        return
    if account_of(config.user, "daemon.user").pw_uid != os.getuid():
        raise ConfigError(
            "config",
            f"daemon.user is {config.user}, but the service is started as another user",
            hint="leave it out: under systemd User= of drfd.service decides",
        )


def become(account: pwd.struct_passwd, places: Places) -> None:
    """Hand over the controller's directory and drop root's rights for good."""
    hand_over(places.controller, account)
    _switch_to(account)
    assert os.getresuid() == (account.pw_uid,) * 3


def _switch_to(account: pwd.struct_passwd) -> None:
    os.setgroups([])
    os.setresgid(*(account.pw_gid,) * 3)
    os.setresuid(*(account.pw_uid,) * 3)


#: Flags with which neither a link nor a FIFO is followed.
_SAFE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def hand_over(path: Path, account: pwd.struct_passwd) -> None:
    """Give the account the controller's directory `path`, and in it the files of a controller that
    ran as root before. Links are not followed, because a user who may write there may have made
    them."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(directory, account.pw_uid, account.pw_gid)
        for name in ("lock", *JOURNAL_FILES):
            try:
                file = os.open(name, _SAFE_FLAGS, dir_fd=directory)
            except OSError:
                # There is no such file, or it is a link.
                continue
            try:
                # By descriptor, because the name may mean another file by now.
                status = os.fstat(file)
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == 0:
                    os.fchown(file, account.pw_uid, account.pw_gid)
            finally:
                os.close(file)
    finally:
        os.close(directory)


def _can_reach(account: pwd.struct_passwd, places: Places) -> bool:
    """Whether the account can enter the state directory, as tried by a child process."""
    pid = os.fork()
    if pid == 0:
        try:
            _switch_to(account)
            os._exit(0 if os.access(places.state, os.X_OK) else 1)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def read_config(path: Path, *, must_exist: bool) -> Config:
    return load(path) if must_exist else load_if_there(path)


def usual_config(is_system: bool) -> Path:
    is_roots = is_system or os.getuid() == 0
    return paths.SYSTEM_CONFIG if is_roots else paths.user_config(os.environ)

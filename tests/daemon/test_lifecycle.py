"""The daemon's process: its start, what systemd is told, threads, and administrators' commands."""

from __future__ import annotations

import asyncio
import errno
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.desk import drfd
from daemon.fake_launcher import until
from drfd.common.errors import ConfigError, HostError
from drfd.core.decisions.stimuli import DrainAsked
from drfd.daemon import controller, tools
from drfd.daemon.config import Config, DiskConfig, load
from drfd.daemon.controller import ServiceNotifier, status
from drfd.daemon.engine.engine import Work
from drfd.daemon.spawn import Places, group_for, hand_over, prepare, publish, refuse_another
from drfd.host.disks import NEEDED_BYTES, Speed
from drfd.linux.service import Service
from fakes import ADMIN, Bench, demand, now, spec

# -- before the loop runs: directories, the lock, and whose uids are taken ---------------------


def test_one_state_directory_has_one_daemon(tmp_path):
    places = Places(tmp_path / "state")
    lock = prepare(places)
    with pytest.raises(HostError) as error:
        prepare(places)
    assert (error.value.code, error.value.text) == (
        "running",
        f"another drfd is running with the state directory {places.state}",
    )
    assert error.value.exit_code == 75, "the other one may be about to answer"
    publish(lock, tmp_path / "socket")
    with pytest.raises(HostError, match=f"{tmp_path}/socket") as error:
        prepare(places)
    assert error.value.exit_code == 1
    os.close(lock)
    os.close(prepare(places))
    assert (places.controller / "lock").read_bytes() == b""


def test_a_daemon_starts_on_a_full_disk_and_writes_into_no_file_of_another_name(
    tmp_path, monkeypatch
):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    places = Places(tmp_path / "state")
    lock = prepare(places)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        publish(lock, tmp_path / "socket")
    os.close(lock)
    other = tmp_path / "other"
    other.write_text("theirs")
    (places.controller / "lock").unlink()
    os.link(other, places.controller / "lock")
    lock = prepare(places)
    publish(lock, tmp_path / "socket")
    os.close(lock)
    assert other.read_text() == "theirs"


def test_the_lock_is_not_followed_to_where_it_points(tmp_path):
    """The controller's own user could have put a link there, for root to make a file."""
    places = Places(tmp_path / "state")
    os.close(prepare(places))
    lock = places.controller / "lock"
    lock.unlink()
    lock.symlink_to(tmp_path / "target")
    with pytest.raises(HostError, match="cannot use the state directory"):
        prepare(places)
    assert not (tmp_path / "target").exists()


def test_the_unit_and_not_the_configuration_says_who_the_controller_is(tmp_path):
    me = pwd.getpwuid(os.getuid()).pw_name
    other = next(each.pw_name for each in pwd.getpwall() if each.pw_uid != os.getuid())
    places = Places(tmp_path, tmp_path / "launcher")
    refuse_another(Config(), places)
    refuse_another(Config(user=me), places)
    with pytest.raises(ConfigError, match=f"daemon.user is {other}"):
        refuse_another(Config(user=other), places)
    refuse_another(Config(user=other), Places(tmp_path))
    os.close(prepare(places))
    assert not places.launcher.exists(), "the other unit makes it"


def test_a_state_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path):
    tmp_path.joinpath("file").write_text("")
    places = Places(tmp_path / "file" / "state")
    with pytest.raises(HostError, match=str(places.state)):
        prepare(places)


def test_one_state_directory_has_one_cgroup_by_whatever_path(tmp_path):
    """After a restart the jobs' cgroups must be found again."""
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "link").symlink_to(state)
    assert group_for(tmp_path / "link") == group_for(state) == group_for(state / ".." / "state")
    assert group_for(tmp_path) != group_for(state)
    assert group_for(state).startswith("drfd/")


@pytest.mark.skipif(os.getuid() != 0, reason="not root")
def test_only_what_was_looked_at_is_handed_over(tmp_path, monkeypatch):
    """Between the look and the change of owner the room's own user could put a link to a file of
    root's in the place of the lock, where the kernel lets users link to files of others."""
    room, secret = tmp_path / "controller", tmp_path / "secret"
    room.mkdir()
    lock = room / "lock"
    lock.touch()
    secret.touch()
    inode = lock.stat().st_ino
    looks = {name: getattr(os, name) for name in ("stat", "fstat")}

    def swap(name: str, path: object, **more: object) -> os.stat_result:
        found: os.stat_result = looks[name](path, **more)
        if found.st_ino == inode and not (room / "aside").is_symlink():
            lock.rename(room / "kept")
            os.link(secret, lock)
            (room / "aside").symlink_to("done")
        return found

    for name in looks:
        monkeypatch.setattr(os, name, lambda path, name=name, **more: swap(name, path, **more))
    hand_over(room, pwd.getpwnam("nobody"))
    monkeypatch.undo()
    assert (room / "aside").is_symlink()
    assert secret.stat().st_uid == 0
    assert (room / "kept").stat().st_uid == pwd.getpwnam("nobody").pw_uid


# -- what the service manager is told, and that a hang of the loop is silence ------------------


@pytest.fixture
def ear(short) -> Iterator[socket.socket]:
    """The manager's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(short / "notify"))
        listener.setblocking(False)
        yield listener


@pytest.fixture
def make_pulse(make_shell, short):
    def make(
        *,
        watchdog_s: float | None = None,
        submit: Callable[[Work], None] | None = None,
        away_s: float | None = None,
    ) -> ServiceNotifier:
        shell = make_shell()
        manager = Service(notify_socket=str(short / "notify"), watchdog_s=watchdog_s)
        if submit is not None:
            shell.engine.submit = submit
        return ServiceNotifier(manager, shell.engine, lambda: away_s)

    return make


async def beat_until(pulse: ServiceNotifier, is_so: Callable[[], Any]) -> None:
    """Let it beat until something has come of it."""
    task = asyncio.create_task(pulse.feed_watchdog())
    await until(is_so)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def heard(ear: socket.socket) -> list[bytes]:
    words = []
    while True:
        try:
            words.append(ear.recv(1000))
        except BlockingIOError:
            return words


def test_ready_reloading_and_stopping_are_said(make_pulse, ear, monkeypatch):
    """A reload with the time at which it began."""
    clocks = {time.CLOCK_MONOTONIC: 7_654_321}
    monkeypatch.setattr(time, "clock_gettime_ns", clocks.__getitem__)
    pulse = make_pulse()
    pulse.ready()
    pulse.reloading()
    pulse.stopping()
    assert heard(ear) == [
        b"READY=1\nSTATUS=0 running, 0 waiting",
        b"RELOADING=1\nMONOTONIC_USEC=7654",
        b"STOPPING=1\nSTATUS=stopping; jobs run on",
    ]


def test_the_watchdog_is_fed_again_and_again(make_pulse, ear):
    said: list[bytes] = []

    def three() -> bool:
        said.extend(heard(ear))
        return len(said) >= 3

    asyncio.run(beat_until(make_pulse(watchdog_s=0.04), three))
    assert set(said) == {b"WATCHDOG=1"}


@pytest.mark.parametrize("watchdog_s", [None, 0.04])
def test_without_a_watchdog_there_are_no_beats_and_without_the_end_of_a_turn_is_silence(
    make_pulse, ear, watchdog_s
):
    """The loop itself still runs: that alone is no sign of life."""
    taken: list[Work] = []
    pauses = iter(range(5))
    pulse = make_pulse(watchdog_s=watchdog_s, submit=taken.append)
    is_over = (lambda: next(pauses, None) is None) if watchdog_s is None else lambda: len(taken) > 2
    asyncio.run(beat_until(pulse, is_over))
    assert heard(ear) == []
    assert (taken == []) is (watchdog_s is None)


async def test_the_status_is_told_when_it_has_changed(make_shell, short, ear, monkeypatch):
    monkeypatch.setattr(controller, "STATUS_S", 0.01)
    shell = make_shell()
    manager = Service(notify_socket=str(short / "notify"))
    pulse = ServiceNotifier(manager, shell.engine, lambda: None)
    said: list[bytes] = []

    def told(count: int) -> bool:
        said.extend(heard(ear))
        return len(said) >= count

    task = asyncio.create_task(pulse.report_status())
    await until(lambda: told(1))
    shell.turn(DrainAsked(now(), True, ADMIN))
    await until(lambda: told(2))
    task.cancel()
    assert said == [b"STATUS=0 running, 0 waiting", b"STATUS=0 running, 0 waiting, draining"]


@pytest.mark.parametrize(("away_s", "asks"), [(None, False), (0.005, False), (0.02, True)])
async def test_a_launcher_that_stays_away_is_asked_for(make_pulse, ear, monkeypatch, away_s, asks):
    """systemd looks for what the unit upholds when the state of that changes, and not again when
    it could not start it then: a reload of nothing is such a change."""
    monkeypatch.setattr(controller, "STATUS_S", 0.01)
    status_text = b"STATUS=0 running, 0 waiting" + (b", the launcher is away" if away_s else b"")
    said: list[bytes] = []

    def is_told() -> bool:
        said.extend(heard(ear))
        return status_text in said

    task = asyncio.create_task(make_pulse(away_s=away_s).report_status())
    await until(is_told)
    task.cancel()
    asked = [word.partition(b"\n")[0] for word in said if not word.startswith(b"STATUS")]
    assert asked[:2] == [b"RELOADING=1", b"READY=1"] * asks


def test_the_status_counts_jobs():
    bench = Bench()
    for _ in range(3):
        bench.start()
    bench.submit(spec(asks=demand(9)))
    bench.submit(held=True)
    bench.suspend(2)
    assert status(bench.ledger) == "2 running, 2 waiting, 1 suspended"


# -- threads do not delay the end --------------------------------------------------------------


_PROGRAM = """
import asyncio, time
from drfd.daemon.users.threads import loops_threads
from drfd.daemon.main import leave

async def work():
    asyncio.get_running_loop().set_default_executor(loops_threads())
    for _ in range(50):
        asyncio.ensure_future(asyncio.to_thread(time.sleep, 100))
    await asyncio.sleep(0.1)

asyncio.run(work())
print("the loop has ended")
leave(7)
"""


@pytest.mark.slow
def test_a_daemon_that_ends_does_not_wait_for_what_its_threads_compute():
    """While a hundred forecasts were computed, a daemon that was told to end, or whose supervisor
    had died, stayed for two minutes, and those who connected meanwhile were not answered."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "the loop has ended\n", "")
    assert time.monotonic() - begun < 60


# -- administrators' commands where a path is out of reach -------------------------------------


#: An ordinary user without an account.
_UID = 64_999
_WHO: dict[str, Any] = {}
if os.getuid() == 0:
    _WHO = {"user": _UID, "group": _UID, "extra_groups": []}


@pytest.fixture
def locked() -> Iterator[Path]:
    """A directory that nobody may enter, with a state directory in it."""
    try:
        subprocess.run([sys.executable, "-c", ""], check=True, **_WHO)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"other users cannot run {sys.executable}")
    # Pytest's own are below one that other users may not enter.
    top = Path(tempfile.mkdtemp(prefix="drfd-"))
    top.chmod(0o755)
    place = top / "locked"
    (place / "state" / "controller").mkdir(parents=True)
    (place / "state" / "controller" / "journal.sqlite").touch()
    place.chmod(0)
    yield place
    place.chmod(0o700)
    shutil.rmtree(top)


def told(locked: Path, *words: str, **env: str) -> tuple[int, str]:
    """Exit code and standard error of `drfd WORDS`, run by an ordinary user."""
    home = {"PATH": os.defpath, "HOME": str(locked.parent)}
    command = [sys.executable, "-I", "-m", "drfd.daemon", *words]
    done = subprocess.run(
        command, env=home | env, cwd="/", capture_output=True, text=True, timeout=60, **_WHO
    )
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("serve --state {}/state", 1), ("serve --config {}/drfd.toml", 78),
        ("calibrate --path {}/state", 1),
        ("calibrate --config {}/drfd.toml", 78), ("check-config {}/drfd.toml", 78),
        ("install --dry-run --root {}/state", 78),
        ("uninstall --dry-run --root {}/state", 77),
    ],
)  # fmt: skip
def test_a_place_out_of_reach_is_a_line_that_names_it(locked, words, code):
    """Half of the commands ended with a traceback."""
    found, err = told(locked, *words.format(locked).split())
    assert (found, err.count("\n")) == (code, 1), err
    assert str(locked) in err and "Permission denied" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "variable"), [("serve --idle-exit 0", "XDG_CONFIG_HOME"), ("calibrate", "HOME")]
)
def test_a_home_out_of_reach_is_one_line_too(locked, words, variable):
    found, err = told(locked, *words.split(), **{variable: str(locked)})
    assert (found, err.count("\n")) == (78, 1), err
    assert f"drfd: cannot read {locked}" in err


# -- `drfd calibrate`: lines that can be put into the configuration as they are ----------------


MIB = 1 << 20


@pytest.fixture
def fast_disk(monkeypatch) -> list[Path]:
    """A disk of known speed, measured at once; where it was measured."""
    seen: list[Path] = []

    def measure(directory: Path) -> Speed:
        seen.append(directory)
        return Speed(read_bps=1900 * MIB + 5, write_bps=700_000, is_direct=len(seen) < 2)

    monkeypatch.setattr(tools, "measure", measure)
    return seen


@pytest.fixture
def two_disks(tmp_path) -> Path:
    for name in ("data", "scratch"):
        (tmp_path / name).mkdir()
    path = tmp_path / "drfd.toml"
    disks = [("data", tmp_path / "data"), ("fast", tmp_path / "scratch")]
    path.write_text(
        "".join(f'[[disk]]\nname = "{name}"\npath = "{place}"\n' for name, place in disks)
    )
    return path


def test_what_it_prints_is_a_configuration(fast_disk, two_disks, tmp_path, capsys):
    assert drfd("calibrate", "--config", two_disks) == 0
    said = capsys.readouterr()
    copied = tmp_path / "copied.toml"
    copied.write_text(said.out)
    rates = {"read_bps": 1900 * MIB, "write_bps": 683 << 10}
    assert load(copied).disks == (
        DiskConfig(name="data", path=f"{tmp_path}/data", **rates),
        DiskConfig(name="fast", path=f"{tmp_path}/scratch", **rates),
    )
    assert fast_disk == [tmp_path / "data", tmp_path / "scratch"]
    assert "scratch knows no direct I/O: the page cache may make it look faster" in said.err
    assert f"in place of the [[disk]] lines of {two_disks}" in said.err


def test_a_disk_may_be_chosen_and_a_path_be_named(fast_disk, two_disks, tmp_path, capsys):
    odd = tmp_path / "an odd one"
    odd.mkdir()
    assert drfd("calibrate", "--config", two_disks, "--disk", "fast", "--path", odd) == 0
    found = tomllib.loads(capsys.readouterr().out)["disk"]
    rates = {"read": "1900M", "write": "683K"}
    assert found == [
        {"name": "fast", "path": str(tmp_path / "scratch"), **rates},
        {"name": "an-odd-one", "path": str(odd), **rates},
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--disk", "dta"), "drfd: there is no disk 'dta' in the configuration (disks: data, "),
        (("--path", "/no/such"), "drfd: disk such: there is no /no/such (is it mounted?)"),
    ],
)
def test_what_is_not_there_is_one_line_and_nothing_is_measured(
    fast_disk, two_disks, capsys, words, said
):
    assert drfd("calibrate", "--config", two_disks, *words) == 1
    error = capsys.readouterr().err
    assert error.startswith(said)
    assert error.count("\n") == 1
    assert fast_disk == []


@pytest.fixture
def roomy(tmp_path) -> Iterator[Path]:
    system = os.statvfs(tmp_path)
    if system.f_bavail * system.f_frsize < NEEDED_BYTES:
        pytest.skip("the tests' own disk is nearly full")
    place = tmp_path / "measured"
    place.mkdir()
    yield place
    shutil.rmtree(place)


@pytest.mark.slow
def test_stopped_half_way_it_leaves_nothing_behind(roomy):
    program = [sys.executable, "-I", "-m", "drfd.daemon", "calibrate", "--path", str(roomy)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("drfd: measuring disk measured")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, "")
    assert err == "drfd: stopped; nothing is left behind\n"
    assert list(roomy.iterdir()) == []

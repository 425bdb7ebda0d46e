"""Cgroup v2 with the real systemd: where the jobs' cgroup is, and what becomes of it."""

import json
import os
import pwd
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drfd.daemon.spawn import group_for
from drfd.linux import service
from instance import ALONE, BIN, Instance, is_alive, wait_for
from kernel import Kernel, holder
from launcher.rig import WAIT_S, LauncherProcess, pid_in, shell

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        Kernel().v2 is None or not service.has_systemd(), reason="no systemd with cgroup v2 here"
    ),
]

#: A job that ends when there is a file `gate`.
GATED = "while ! [ -e gate ]; do sleep 0.1; done; exit 3"

UNIT = f"drfd-test-{os.getpid()}.service"


def top(instance: Instance) -> Path:
    """The cgroup of an instance's service of jobs, which may be gone."""
    v2 = Kernel().v2
    assert v2 is not None
    return Path(v2, "drfd.slice", holder(group_for(instance.state)))


def pids(directory: Path) -> list[int]:
    return [int(line) for line in (directory / "cgroup.procs").read_text().split()]


def show(unit: str, name: str) -> str:
    words = ["systemctl", "show", f"--property={name}", "--value", unit]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


# -- a service of our own ---------------------------------------------------------------------


def test_jobs_live_in_a_service_outside_of_the_daemons_own_cgroup(instance):
    job = instance.running("--", "sleep", "600")
    assert job["cgroup"] == f"drfd.slice/{top(instance).name}/jobs/of-root/job-{job['id']}-1"
    assert show(top(instance).name, "ActiveState") == "active"
    assert show(top(instance).name, "Delegate") == "yes"
    own = Path(f"/proc/{instance.launcher_pid()}/cgroup").read_text()
    assert "drfd.slice" not in own


def test_the_service_goes_with_the_daemon_when_no_job_is_left(instance):
    assert instance.ended("--", "true")["state"] == "COMPLETED"
    (keeper,) = pids(top(instance) / "keeper")
    instance.stop()
    wait_for("the end of the service", lambda: not top(instance).exists())
    wait_for("the end of the keeper", lambda: not is_alive(keeper))
    wait_for("its unit's end", lambda: show(top(instance).name, "LoadState") == "not-found")


def test_the_next_daemon_takes_over_service_and_limits_as_they_are(instance):
    """kill -9 of everything but the job: its limits are the kernel's."""
    device = json.loads(instance.drf("doctor", "--json").stdout)["disks"][0]["device"]
    io = ("--io", "10M") if device else ()
    job = instance.running("-c", "0.5", "-m", "100M", *io, "--", "sh", "-c", GATED)
    before = Kernel().limits(job)
    assert (before["cores"], before["memory"], before["swap"]) == (500, 100 << 20, 0)
    assert before["disks"] == ([f"{device}", "rbps=10485760", "wbps=10485760", "riops=max",
                                "wiops=max"] if device else [])  # fmt: skip
    (keeper,) = pids(top(instance) / "keeper")
    instance.strike("both")
    assert instance.show(job["id"])["state"] == "RUNNING"
    assert Kernel().limits(job) == before
    assert pids(top(instance) / "keeper") == [keeper]
    (instance.work / "gate").touch()
    assert instance.wait_end(job["id"])["exit_code"] == 3


def test_reloading_systemd_leaves_limits_and_cgroups_alone(instance):
    job = instance.running("-c", "0.5", "--", "sleep", "600")
    before = Kernel().limits(job)
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    assert Kernel().limits(job) == before
    second = instance.submit("-c", "0.5", "--", "true")
    assert instance.wait_end(second)["state"] == "COMPLETED"


def test_when_the_service_is_stopped_jobs_end_and_later_ones_get_another(instance):
    job_id = instance.running("--", "sleep", "600")["id"]
    subprocess.run(["systemctl", "stop", top(instance).name], check=True)
    job = instance.wait_end(job_id)
    assert (job["state"], job["signal"]) == ("FAILED", signal.SIGTERM)
    later = instance.ended("--", "true")
    assert later["state"] == "COMPLETED"
    assert later["attempt"] == 1


def test_when_the_keeper_is_killed_jobs_go_on_and_others_start(instance):
    """Jobs keep the service alive meanwhile."""
    job_id = instance.running("--", "sleep", "600")["id"]
    (keeper,) = pids(top(instance) / "keeper")
    os.kill(keeper, signal.SIGKILL)
    launcher = instance.launcher_pid()
    os.kill(launcher, signal.SIGKILL)
    wait_for("another launcher", lambda: instance.launcher_pid() != launcher and instance.answers())
    assert instance.show(job_id)["state"] == "RUNNING"
    assert instance.ended("--", "true")["state"] == "COMPLETED"


def test_a_users_job_cannot_leave_its_cgroup_nor_lift_its_limits(instance, users):
    home = instance.home_for(users[0])
    escape = (
        "cd /sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup); "
        "for up in . .. ../.. ../../.. ../../../..; do echo 0 > $up/cgroup.procs; done; "
        "echo max > memory.max; echo max > cpu.max; echo max > pids.max; mkdir inner; "
        "cat /proc/self/cgroup memory.max pids.max; ls -d inner"
    )
    job_id = instance.submit(
        *("-m", "100M", "-o", "out", "-e", "err", "--", "sh", "-c", escape),
        user=users[0].pw_uid,
        cwd=home,
    )
    job = instance.wait_end(job_id)
    group = f"of-{users[0].pw_name}"
    expected = f"0::/{top(instance).relative_to(Kernel().v2 or '/')}/jobs/{group}/job-{job_id}-1"
    assert (home / "out").read_text().split() == [expected, str(100 << 20), "64"], job
    assert (home / "err").read_text().count("denied") == 9


# -- a unit that somebody else keeps ----------------------------------------------------------


@pytest.fixture
def start_holder(tmp_path) -> Iterator[Callable[..., None]]:
    def start_holder(*properties: str, pause_s: float = 0) -> None:
        """A unit with a keeper that moves into its own cgroup after a while."""
        keep = tmp_path / "keep"
        keep.write_text(
            "cd /sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup) && mkdir -p keeper && "
            f"sleep {pause_s} && echo $$ > keeper/cgroup.procs && exec sleep infinity\n"
        )
        words = [f"--unit={UNIT}", "--collect", *(f"--property={text}" for text in properties)]
        subprocess.run(["systemd-run", "--quiet", *words, "sh", str(keep)], check=True)

    yield start_holder
    subprocess.run(["systemctl", "stop", UNIT], check=False, stderr=subprocess.DEVNULL)


@pytest.fixture
def launcher(tmp_path) -> Iterator[LauncherProcess]:
    launcher = LauncherProcess(tmp_path / "state")
    yield launcher
    launcher.clean_up()


@pytest.fixture
def work(tmp_path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


def test_jobs_live_below_the_holder_also_when_its_keeper_takes_its_time(
    start_holder, launcher, work
):
    start_holder("Delegate=yes", pause_s=3)
    launcher.start("--holder", UNIT, cgroups=True)
    controller = launcher.connect()
    assert controller.hello["kind"] == "cgroup-v2"
    assert controller.hello["controls"]["cores"] == "enforced"
    controller.launch(shell("echo $$ > pid; exec sleep 600", cwd=work))
    cgroup = controller.take("launched")["cgroup"]
    assert cgroup == f"{show(UNIT, 'ControlGroup').lstrip('/')}/jobs/job-1-1"
    assert Path(f"/proc/{pid_in(work / 'pid')}/cgroup").read_text() == f"0::/{cgroup}\n"
    launcher.kill()
    launcher.start("--holder", UNIT, cgroups=True)
    controller = launcher.connect()
    assert [report["report"] for report in controller.list()] == ["launched", "listed"]
    controller.ask("kill")
    controller.take("exited", signal=9)
    controller.ask("remove")
    controller.take("removed")
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.process.wait(WAIT_S) == 0
    assert show(UNIT, "ActiveState") == "active", "the holder is not ours to end"


# -- an ordinary user -------------------------------------------------------------------------


class Own:
    """A user's own daemon."""

    def __init__(self, account: pwd.struct_passwd, home: Path) -> None:
        self.account, self.home = account, home
        config = home / ".config/drfd/drfd.toml"
        config.parent.mkdir(parents=True)
        config.write_text(ALONE)
        os.chown(home, account.pw_uid, account.pw_gid)
        self.start()

    def start(self) -> None:
        words = (BIN / "drfd", "serve", "--state", self.home / "state")
        with (self.home.parent / "log").open("ab") as log:
            self.process = self.run(
                subprocess.Popen, *words, "--socket", self.home / "socket", stderr=log
            )
        wait_for("its answer", lambda: self.doctor()["launcher"] == "connected", show=self.log)

    def run(self, how: Callable[..., Any], *words: object, **options: Any) -> Any:
        env = {"HOME": str(self.home), "PATH": os.environ["PATH"]}
        env |= {"DRFD_SOCKET": str(self.home / "socket")}
        who = {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}
        return how([str(word) for word in words], cwd=self.home, env=env, **who, **options)

    def drf(self, *words: object) -> subprocess.CompletedProcess[str]:
        done = self.run(subprocess.run, BIN / "drf", *words, capture_output=True, text=True)
        assert isinstance(done, subprocess.CompletedProcess)
        return done

    def show(self, job_id: int) -> dict[str, Any]:
        return dict(json.loads(self.drf("show", job_id, "--json").stdout))

    def doctor(self) -> dict[str, Any]:
        done = self.drf("doctor", "--json")
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {"launcher": "none"}

    def log(self) -> str:
        return (self.home.parent / "log").read_text()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT_S)


@pytest.fixture
def place(instance) -> Path:
    """A directory that all may enter."""
    place = instance.root / "users"
    place.mkdir(mode=0o755)
    return place


@pytest.fixture
def lingering(users) -> Iterator[pwd.struct_passwd]:
    name = users[0].pw_name
    subprocess.run(["loginctl", "enable-linger", name], check=True)
    try:
        manager = f"user@{users[0].pw_uid}.service"
        wait_for("the user's manager", lambda: show(manager, "ActiveState") == "active")
        yield users[0]
    finally:
        subprocess.run(["loginctl", "disable-linger", name], check=True)
        wait_for("its end", lambda: show(manager, "ActiveState") == "inactive")


def test_a_lingering_user_has_limits_enforced(lingering, place):
    own = Own(lingering, place / "home")
    try:
        doctor = own.doctor()
        assert doctor["enforcement"] == "cgroup-v2", doctor
        assert doctor["controls"]["memory"].startswith("enforced")
        assert doctor["controls"]["read"].startswith("measured: ")
        hog = ("submit", "-w", "-m", "64M", "--io", "10M", "--", "python3", "-c")
        done = own.drf(*hog, "bytearray(200 << 20)")
        assert (done.returncode, "more than its memory limit of 64M" in done.stderr) == (137, True)
        own.drf("submit", "-q", "-c", "0.5", "--", "sh", "-c", GATED)
        wait_for("its start", lambda: own.show(2)["state"] == "RUNNING")
        limits = Path(Kernel().v2 or "/", own.show(2)["cgroup"], "cpu.max")
        assert limits.read_text() == "50000 100000\n"
        own.process.kill()
        own.process.wait()
        own.start()
        assert limits.read_text() == "50000 100000\n", "found again, in the same service"
        (own.home / "gate").touch()
        assert own.drf("wait", 2).returncode == 3
    finally:
        own.stop()


def test_a_user_whose_manager_ends_with_the_login_is_told_so(users, place):
    """And has jobs that outlive it, with limits measured."""
    own = Own(users[1], place / "home")
    try:
        doctor = own.doctor()
        assert doctor["enforcement"] == "none"
        assert "loginctl enable-linger" in doctor["controls"]["memory"]
        assert own.drf("submit", "-w", "--", "sh", "-c", "exit 3").returncode == 3
    finally:
        own.stop()

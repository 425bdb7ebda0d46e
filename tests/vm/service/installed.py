"""The drfd that is installed on this system, driven as its users drive it, and what is left behind
for the next boot to look at.

- `python installed.py files` writes down what files there are before the installation.
- `python installed.py leave` leaves jobs behind that run and that wait.
- `python installed.py cut` does so, too, lets nothing of drfd's be written to the disk by anything
  but drfd itself, and cuts the power when the last job has been acknowledged.
"""

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

from drfd.client.connection import Connection
from drfd.common import paths
from drfd.common.errors import DrfdError, Unavailable
from instance import PATIENCE, wait_for

USERS = ("alice", "bob", "carol")
UNITS = ("drfd-jobs", "drfd-launcher", "drfd")
BIN = Path(sys.executable).parent
#: All that jobs live in.
JOBS = Path("/sys/fs/cgroup/drfd.slice/drfd-jobs.service/jobs")
#: Of a job's cgroup: what limits it, besides its quota of processors.
LIMIT_FILES = ("cpu.weight", "io.max", "memory.max", "memory.oom.group",
               "memory.swap.max", "pids.max")  # fmt: skip


class Installed:
    # -- as a user ----------------------------------------------------------------------------

    def login(self, user: str, script: str, *, check: bool = True) -> str:
        """What a script says in a log-in session of the user's."""
        words = ["su", "-l", user, "-c", f"cd {self.work(user)} && {script}"]
        done = run(*words, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{user}: {script}: {done.returncode} {done.stdout}{done.stderr}")
        return done.stdout if check else done.stdout + done.stderr

    def submit(self, user: str, *argv: object, **fields: Any) -> int:
        """Over the socket, by a process that is the user's: quick. The id."""
        fields = {"demand": demand(), "cwd": str(self.work(user)), **fields}
        fields.setdefault("env", {"PATH": "/usr/bin:/bin"})
        return int(self.as_user(user, "submit", argv=[*map(str, argv)], **fields)["id"])

    def as_user(self, user: str, op: str, **fields: Any) -> dict[str, Any]:
        """A request by a process with the user's ids; the reply."""
        account = pwd.getpwnam(user)
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.initgroups(user, account.pw_gid)
                os.setresgid(*(account.pw_gid,) * 3)
                os.setresuid(*(account.pw_uid,) * 3)
                try:
                    reply = ask(op, **fields)
                except DrfdError as error:
                    reply = {"refused": str(error)}
                os.write(into, json.dumps(reply).encode())
            finally:
                os._exit(0)
        os.close(into)
        with os.fdopen(out) as pipe:
            reply = json.load(pipe)
        os.waitpid(pid, 0)
        assert "refused" not in reply, reply
        return dict(reply)

    def work(self, user: str) -> Path:
        """The user's own directory."""
        account = pwd.getpwnam(user)
        place = Path(account.pw_dir, "work")
        if not place.exists():
            place.mkdir()
            os.chown(place, account.pw_uid, account.pw_gid)
        return place

    # -- jobs ---------------------------------------------------------------------------------

    def show(self, job_id: int) -> dict[str, Any]:
        reply = ask("show", id=job_id)
        return {**reply["job"], "events": reply["events"]}

    def wait_state(self, job_id: int, *states: str) -> dict[str, Any]:
        def has_come() -> dict[str, Any] | None:
            job = self.show(job_id)
            return job if job["state"] in states else None

        # On an emulated processor, a quicker poll is itself an external load that jobs wait for.
        what = f"job {job_id} {states}"
        return dict(wait_for(what, has_come, pause_s=0.5, show=lambda: self.show(job_id)))

    def wait_end(self, job_id: int) -> dict[str, Any]:
        client = Connection(paths.SYSTEM_SOCKET)
        try:
            client.wait([job_id], any_one=False, timeout_s=300.0 * PATIENCE)
        finally:
            client.close()
        return self.show(job_id)

    def output(self, job_id: int) -> str:
        return Path(self.show(job_id)["stdout"]).read_text()

    def live(self) -> list[dict[str, Any]]:
        return list(ask("status")["jobs"])

    def await_no_jobs(self) -> None:
        wait_for("the end of all jobs", lambda: not self.live(), show=self.live)

    # -- the services -------------------------------------------------------------------------

    def answers(self) -> bool:
        """The controller does, has its launcher, and the launcher gives keys for submissions."""
        client = Connection(paths.SYSTEM_SOCKET)
        try:
            has_key = client.fetch_key() is not None
            is_connected = ask("doctor")["launcher"] == "connected"
        except Unavailable:
            return False
        finally:
            client.close()
        return is_connected and has_key

    def start(self) -> None:
        run("systemctl", "start", "drfd-launcher", "drfd")
        self.await_answer()

    def await_answer(self) -> None:
        wait_for("drfd and its launcher", self.answers, show=lambda: journal("drfd*"))

    def await_units(self) -> None:
        """They answer a moment before systemd knows that they are ready."""
        for name in UNITS:
            wait_for(
                f"{name} to be active",
                lambda name=name: unit(name, "ActiveState") == {"ActiveState": "active"},
                show=lambda: journal("drfd*"),
            )

    def running(self, *users: str) -> list[int]:
        """A job of each, which sleeps."""
        ids = [self.submit(user, "sleep", "1000") for user in users]
        for job_id in ids:
            self.wait_state(job_id, "RUNNING")
        return ids


def demand(
    *, cores_milli: int = 50, memory_bytes: int = 32 << 20, io_bps: int = 0
) -> dict[str, int]:
    """Of a job, so small that many fit."""
    rates = {"read_bps": io_bps, "write_bps": io_bps} if io_bps else {}
    return {"cores_milli": cores_milli, "memory_bytes": memory_bytes, **rates}


def ask(op: str, **fields: Any) -> dict[str, Any]:
    """A request of this process; the reply."""
    client = Connection(paths.SYSTEM_SOCKET)
    try:
        # A submission needs its user's signature, which the client makes.
        return client.submit(**fields) if op == "submit" else client.request(op, **fields)
    finally:
        client.close()


def run(*words: object, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*map(str, words)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, **options
    )  # fmt: skip
    if check and done.returncode != 0:
        raise AssertionError(f"{words}: {done.returncode} {done.stdout}{done.stderr}")
    return done


def unit(name: str, *properties: str) -> dict[str, str]:
    """What systemd knows of one."""
    text = run("systemctl", "show", f"--property={','.join(properties)}", name).stdout
    return dict(line.partition("=")[::2] for line in text.splitlines())


def main_pid(name: str) -> int:
    return int(unit(name, "MainPID")["MainPID"])


def journal(units: str) -> str:
    """The end of what they have logged."""
    return run("journalctl", "--no-pager", "-n", "40", "-u", units, check=False).stdout


def cgroup(job: dict[str, Any]) -> Path:
    return Path("/sys/fs/cgroup", job["cgroup"])


def confinement(job: dict[str, Any]) -> dict[str, object]:
    """What the kernel has of a job: its cgroup, who is in it, and each limit.

    Of a quota's period, only the share of it: a kernel that comes late to the ends of several
    periods doubles both (sched_cfs_period_timer in kernel/sched/fair.c)."""
    place = cgroup(job)
    facts: dict[str, object] = {name: (place / name).read_text() for name in LIMIT_FILES}
    quota, period = (place / "cpu.max").read_text().split()
    facts["cores"] = int(quota) / int(period)
    return {**facts, "inode": place.stat().st_ino, "pids": pids_in(job)}


def pids_in(job: dict[str, Any]) -> list[int]:
    return sorted(int(line) for line in (cgroup(job) / "cgroup.procs").read_text().split())


def gated(gate: Path, then: str) -> tuple[str, str, str]:
    """A job that says its pid and waits for `gate`: each `sleep` is dear on an emulated CPU."""
    return "sh", "-c", f"echo $$; while ! [ -e {gate} ]; do sleep 2; done; {then}"


# -- files ------------------------------------------------------------------------------------

BEFORE = Path("/var/lib/files-before")
#: Where an installation may put something.
_PLACES = ("/etc", "/usr", "/var", "/opt", "/home")
#: What changes there without it: logs, what systemd and log-ins keep, the tests' own.
_OTHERS = (
    *("/var/log/", "/var/lib/systemd/", "/var/lib/private", "/var/lib/sudo", "/var/cache/man"),
    *("/var/lib/drfd-vm/", "/var/lib/left.json", "/var/tmp/", "/home/", "/opt/drfd/", "/root/"),
    str(BEFORE),
)


def listed() -> set[str]:
    """Every path, but of what others change."""
    found = set()
    for place in _PLACES:
        for directory, inner, names in os.walk(place):
            inner[:] = [name for name in inner if not f"{directory}/{name}/".startswith(_OTHERS)]
            found |= {f"{directory}/{name}" for name in (*inner, *names)}
    return {path for path in found if not path.startswith(_OTHERS)}


# -- what a boot leaves to the next one ---------------------------------------------------------

LEFT = Path("/var/lib/left.json")
#: Both of the guest's cores: nothing else runs beside one of these.
ALL = demand(cores_milli=2000)
#: Told to end, it takes its time.
PATIENT = (
    "trap 'echo term; sleep 1; echo end; exit 0' TERM; echo ready; while :; do sleep 0.2; done"
)
#: Its first run is cut short by the end of this boot.
AGAIN = f"[ $DRF_ATTEMPT = 2 ] && exit 0; {PATIENT}"
QUEUED = 4


def left() -> dict[str, Any]:
    return dict(json.loads(LEFT.read_text()))


def leave() -> None:
    """Leave three running jobs, the last to be retried, and then as many that wait."""
    installed = Installed()
    running = [
        installed.submit(user, "sh", "-c", PATIENT, demand=demand(cores_milli=600))
        for user in ("alice", "carol")
    ]
    retry = {"times": 1, "on": ["LOST"]}
    retried = installed.submit(
        "carol", "sh", "-c", AGAIN, demand=demand(cores_milli=600), retry=retry
    )
    for job_id in (*running, retried):
        installed.wait_state(job_id, "RUNNING")
        # Before its trap is set, it would end without a word.
        wait_for(f"a word of job {job_id}", lambda job_id=job_id: installed.output(job_id))
    (installed.work("bob") / "order").unlink(missing_ok=True)
    waiting = [retried + 1 + number for number in range(QUEUED)]
    LEFT.write_text(json.dumps({"running": running, "retried": retried, "waiting": waiting}))
    os.sync()
    for expected in waiting:
        script = "echo $DRF_JOB_ID >>order"
        job_id = installed.submit("bob", "sh", "-c", script, demand=ALL)
        assert job_id == expected


if __name__ == "__main__":
    match sys.argv[1]:
        case "files":
            BEFORE.write_text("\n".join(sorted(listed())))
        case "leave":
            leave()
        case "cut":
            leave()
            Path("/proc/sysrq-trigger").write_text("b")

"""The launcher of Slurm's nodes against a real slurmctld with two nodes."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import failing
from drfd.launcher.protocol import Message, SignalOrder
from drfd.slurm.files import MORE_CONF
from drfd.slurm.settings import GATE_FILE
from launcher.rig import (
    BOOT,
    ROOT,
    WAIT_S,
    Asked,
    Controller,
    LauncherProcess,
    python,
    shell,
    until,
)
from private_slurm import PlainCluster, missing

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

NOBODY = 65534
#: The uid of the launcher, which has no account; root below a directory that only root enters.
_PLACES = [place for path in (ROOT, Path(sys.executable)) for place in path.parents]
LAUNCHER = 64321 if all(place.stat().st_mode & stat.S_IXOTH for place in _PLACES) else os.getuid()
JOURNAL = "a" * 32


class SlurmLauncher(LauncherProcess):
    """drfd.launcher.slurm of this tree, with failpoints, as a user without rights, and its root
    helper; with a directory for jobs of nobody's."""

    def __init__(self, state: Path, cluster: PlainCluster) -> None:
        super().__init__(state)
        self.cluster = cluster
        self.helper: subprocess.Popen[bytes] | None = None
        self.jobs = state.parent / "jobs"
        self.jobs.mkdir()
        os.chown(self.jobs, NOBODY, NOBODY)
        os.chown(self.failpoints, LAUNCHER, LAUNCHER)

    def start(  # type: ignore[override]
        self, *options: str, programs: str = "/usr/bin"
    ) -> subprocess.Popen[bytes]:
        """Start the launcher, and a helper: the one before ends with its launcher."""
        self._start_helper(programs)
        command = [
            *(sys.executable, "-I", "-c"),
            *(BOOT, str(ROOT), "", failing.__file__, str(self.failpoints), "drfd.launcher.slurm"),
            *("--state", str(self.state), "--poll", "2"),
        ]
        started = self._begin([*command, *options], user=LAUNCHER, group=LAUNCHER, extra_groups=[])
        self._processes.append(started)
        return started

    def _start_helper(self, programs: str) -> None:
        self.kill_helper()
        config = self.state / "drfd.toml"
        words = f'config = "{self.cluster.conf}"\ncommands = "{programs}"\nuser = "root"\n'
        config.write_text(f"[slurm]\n{words}")
        self.helper = self._begin(
            python(
                "from drfd.launcher.slurm_root.main import main; main()",
                *("--state", self.state, "--controller", os.getuid(), "--launcher", LAUNCHER),
                *("--allow-uid", NOBODY, "--config", config),
            )
        )

    def kill_helper(self) -> None:
        if self.helper is not None:
            self.helper.kill()
            self.helper.wait()

    def _begin(self, command: list[str], **who: Any) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True, **who
            )

    def clean_up(self) -> None:
        for controller in self._controllers:
            controller.close()
        for started in self._processes:
            started.kill()
            started.wait()
        self.kill_helper()
        shutil.rmtree(self.state)
        shutil.rmtree(self.jobs)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A short path that everybody can enter."""
    path = Path(tempfile.mkdtemp(prefix="drfd-slurm-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def cluster(place) -> Iterator[PlainCluster]:
    # All launchers of this module have the same state, and so the same socket for events.
    (place / "cluster").mkdir()
    state = place / "state"
    cluster = PlainCluster(place / "cluster", state / "events.sock", state / "started")
    try:
        cluster.start(cluster.files)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def slurm(cluster, place) -> Iterator[SlurmLauncher]:
    launcher = SlurmLauncher(place / "state", cluster)
    launcher.start()
    yield launcher
    launcher.clean_up()


_ids = iter(range(1, 1000))


def job(script: str, cwd: Path, **changes: object) -> Asked:
    """A job of nobody's on the first node, under a number of its own."""
    usual = {"id": next(_ids), "uid": NOBODY, "gid": NOBODY, "journal": JOURNAL, "node": "n1"}
    return shell(script, cwd=cwd, **(usual | changes))


def begun(slurm: SlurmLauncher, script: str, **changes: object) -> tuple[Controller, Asked]:
    """A controller that has launched such a job, which is up."""
    controller, asked = slurm.connect(), job(script, slurm.jobs, **changes)
    controller.launch(asked)
    controller.take("launched", id=asked.id)
    return controller, asked


def runs_once(controller: Controller, asked: Asked) -> None:
    """The job, which writes `once` to `runs`, is launched, and has never run before."""
    controller.launch(asked)
    controller.take("launched", id=asked.id, attempt=asked.attempt)
    assert controller.take("exited", id=asked.id, attempt=asked.attempt)["exit_code"] == 0
    assert Path(asked.cwd, "runs").read_text() == "once\n"


def comments(cluster: PlainCluster, key: tuple[int, int]) -> list[str]:
    """The states of all jobs of Slurm's for an attempt."""
    name = f"{JOURNAL}.{key[0]}.{key[1]}"
    return [state for _, state, comment in cluster.jobs() if comment == name]


def remove(controller: Controller, key: tuple[int, int]) -> None:
    controller.ask("remove", key)
    controller.take("removed", id=key[0])


def test_a_job_runs_as_its_user_on_its_node_and_its_end_is_reported(slurm):
    controller = slurm.connect()
    asked = job(
        'id -u; pwd; echo "$SLURMD_NODENAME $A $DRF_JOB_ID"; umask; exit 7', slurm.jobs,
        node="n2", env={"A": "b c", "SBATCH_COMMENT": "x"}, variables={"DRF_JOB_ID": "1"},
        umask=0o027, stdout="100%%n-%j",
    )  # fmt: skip
    controller.launch(asked)
    controller.take("launched", id=asked.id)
    end = controller.take("exited", id=asked.id)
    assert (end["exit_code"], end["signal"], end["oom_killed"]) == (7, None, False)
    out = (slurm.jobs / f"100%n-{asked.id}").read_text().splitlines()
    assert out == [str(NOBODY), str(slurm.jobs), "n2 b c 1", "0027"]
    remove(controller, (asked.id, 1))
    assert controller.list()[-1]["known"] == []


def test_a_job_of_an_account_that_is_gone_fails_alone(slurm):
    controller, gone = slurm.connect(), job("true", slurm.jobs, uid=54321)
    controller.launch(gone)
    assert "no user with uid 54321" in controller.take("launch_failed", id=gone.id)["text"]
    other = job("true", slurm.jobs)
    controller.launch(other)
    controller.take("launched", id=other.id)


def test_a_job_gets_the_signals_that_are_ordered(slurm):
    traps = "trap 'echo usr' USR1; trap 'echo term; exit 3' TERM; echo up > up"
    script = f"{traps}; while :; do sleep 0.1; done"
    controller, asked = slurm.connect(), job(script, slurm.jobs)
    key = (asked.id, 1)
    # One for an attempt that nobody knows is not kept until there is one.
    controller.send(SignalOrder(id=key[0], attempt=1, count=1, signals=(9,)))
    controller.launch(asked)
    controller.take("launched", id=asked.id)
    until("the traps", (slurm.jobs / "up").exists)
    for _ in range(2):
        controller.send(SignalOrder(id=key[0], attempt=1, count=1, signals=(10,)))
    until("the signal", lambda: "usr" in (slurm.jobs / "out").read_text())
    controller.ask("terminate", key)
    assert controller.take("exited", id=asked.id)["exit_code"] == 3
    assert (slurm.jobs / "out").read_text() == "usr\nterm\n"


def test_kill_ends_a_job_that_ignores_sigterm(slurm):
    controller, asked = begun(slurm, "trap '' TERM; touch trapped; while :; do sleep 0.1; done")
    until("its trap", (slurm.jobs / "trapped").exists)
    controller.ask("kill", (asked.id, 1))
    assert controller.take("exited", id=asked.id)["signal"] == 9


@pytest.mark.parametrize("point", failing.SLURM)
def test_a_launcher_that_dies_loses_no_job_and_runs_none_twice(slurm, point):
    controller = slurm.connect()
    (slurm.failpoints / point).write_text("self")
    asked = job("echo once >> runs", slurm.jobs)
    controller.launch(asked)
    is_last = point == "slurm.before-unlink"
    if is_last:
        controller.take("launched", id=asked.id)
        controller.take("exited", id=asked.id)
        controller.ask("remove", (asked.id, 1))
    slurm.process.wait(WAIT_S)
    slurm.start()
    controller = slurm.connect()
    attempt = 1
    if not is_last:
        # The controller repeats what it has not heard of.
        controller.launch(asked)
        last = heard_of(controller, asked)
        if last["report"] == "launch_failed":
            assert (point, last["whose"]) == ("slurm.before-submission", "job")
            remove(controller, (asked.id, 1))
            attempt = 2
            controller.launch(replace(asked, attempt=attempt))
            last = heard_of(controller, asked)
        assert (last["report"], last["exit_code"]) == ("exited", 0)
    remove(controller, (asked.id, attempt))
    assert comments(slurm.cluster, (asked.id, attempt)) == ["COMPLETED"]
    assert (slurm.jobs / "runs").read_text() == "once\n"


def restart_with(cluster: PlainCluster, line: str) -> None:
    """Start slurmctld anew with this line more, and none of an earlier call."""
    conf = cluster.directory / MORE_CONF
    conf.write_text(cluster.files[MORE_CONF] + line)
    cluster.kill("slurmctld", signal.SIGTERM)
    cluster.start_controller()
    until("idle nodes", lambda: "idle" in cluster.ask("sinfo", "-h", "-o", "%T"), cluster.log)


def test_a_job_that_slurmctld_has_no_room_for_waits_for_some(slurm):
    """It keeps no more jobs than MaxJobCount, those that have ended lately included."""
    controller = slurm.connect()
    restart_with(slurm.cluster, f"MaxJobCount={len(slurm.cluster.jobs()) + 2}\n")
    try:
        last = job("sleep 1000", slurm.jobs)
        controller.launch(last)
        controller.take("launched", id=last.id)
        asked = job("echo once >> runs", slurm.jobs)
        controller.launch(asked)
        report = controller.take("launch_failed", id=asked.id)
        assert (report["whose"], report["resource"]) == ("job", "slurm")
        assert not (slurm.jobs / "runs").exists()
    finally:
        restart_with(slurm.cluster, "")
    runs_once(controller, replace(asked, attempt=2))
    assert comments(slurm.cluster, (asked.id, 1)) == []
    controller.ask("kill", (last.id, 1))
    controller.take("exited", id=last.id)


def test_a_job_of_another_user_with_an_attempts_name_says_nothing(slurm):
    controller, asked = begun(slurm, "while [ ! -e go ]; do sleep 0.05; done; exit 5")
    name = f"{JOURNAL}.{asked.id}.1"
    small = ("-c1", "--mem=10", "-o", "/dev/null")
    slurm.cluster.ask("sbatch", f"--comment={name}", *small, "--wrap", "exit 9")
    # The script refuses to start it as a second start of the attempt.
    until("its end", lambda: "CANCELLED" in comments(slurm.cluster, (asked.id, 1)))
    (slurm.jobs / "go").touch()
    assert controller.take("exited", id=asked.id)["exit_code"] == 5


def is_refused(cluster: PlainCluster, state: Path, name: str) -> bool:
    """Whether a further start was refused on the second node, which is opened for that."""
    try:
        if "DRAIN" in cluster.ask("scontrol", "show", "node", "n2"):
            cluster.ask("scontrol", "update", "nodename=n2", "state=resume")
    except subprocess.CalledProcessError:
        return False  # slurmctld starts, or the node is not drained any more
    return any((state / "started").glob(f"{name}.*"))


def test_a_job_whose_start_slurmctld_forgets_does_not_start_twice(slurm):
    """slurmctld is killed before it has written the start, and takes the job for a waiting one."""
    controller = slurm.connect()
    slurm.cluster.ask("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    asked = job("echo once >> runs; sleep 1000", slurm.jobs, node="n2")
    controller.launch(asked)
    until("a job that waits", lambda: comments(slurm.cluster, (asked.id, 1)) == ["PENDING"])
    state = slurm.cluster.directory / "state" / "job_state"
    name = f"{JOURNAL}.{asked.id}.1"
    until("its record", lambda: state.exists() and name.encode() in state.read_bytes())
    waiting = state.read_bytes()
    slurm.cluster.ask("scontrol", "update", "nodename=n2", "state=resume")
    controller.take("launched", id=asked.id)
    until("its first line", (slurm.jobs / "runs").exists)
    slurm.cluster.kill("slurmctld")
    state.write_bytes(waiting)
    state.with_name("job_state.old").unlink(missing_ok=True)
    slurm.cluster.start_controller()
    # It may take up the node as drained, too.
    until("a second start", lambda: is_refused(slurm.cluster, slurm.state, name), slurm.cluster.log)
    end = controller.take("exited", id=asked.id)
    assert (end["loss"], end["exit_code"], end["signal"]) == ("SLURM_FORGOT", None, None)
    assert (slurm.jobs / "runs").read_text() == "once\n"
    until("idle nodes", slurm.cluster.are_idle, slurm.cluster.log)
    remove(controller, (asked.id, 1))


def saved(cluster: PlainCluster, said: str, since_ns: int = 0) -> bytes:
    """slurmctld's file of jobs, written after `since_ns` and with this word in it."""
    path = cluster.directory / "state" / "job_state"

    def is_there() -> bytes | None:
        try:
            is_new = path.stat().st_mtime_ns > since_ns
            data = path.read_bytes()
        except FileNotFoundError:
            return None  # it is just being replaced
        return data if is_new and said.encode() in data else None

    return bytes(until("a state of slurmctld's", is_there, cluster.log))


def set_back(cluster: PlainCluster, jobs: bytes) -> None:
    """Kill slurmctld, and start another that knows of jobs what was saved before."""
    cluster.kill("slurmctld")
    (cluster.directory / "state" / "job_state").write_bytes(jobs)
    (cluster.directory / "state" / "job_state.old").unlink(missing_ok=True)
    cluster.start_controller()


def ran(slurm: SlurmLauncher, controller: Controller, **where: str) -> int:
    """The number of a job that has run, so that Slurm is known to note starts."""
    asked = job("true", slurm.jobs, **where)
    controller.launch(asked)
    controller.take("launched", id=asked.id)
    controller.take("exited", id=asked.id)
    return asked.id


def is_open(cluster: PlainCluster, node: str) -> bool:
    """Open a node, also for a slurmctld that is just starting."""
    try:
        if "DRAIN" in cluster.ask("scontrol", "show", "node", node):
            cluster.ask("scontrol", "update", f"nodename={node}", "state=resume")
        return "DRAIN" not in cluster.ask("scontrol", "show", "node", node)
    except subprocess.CalledProcessError:
        return False


def test_a_job_that_slurm_lets_wait_is_taken_back_and_starts_no_more(slurm):
    """It can be tried elsewhere meanwhile, and its user sees why it waits."""
    # Slurm is known to note starts then.
    ran(slurm, slurm.connect())
    slurm.kill()
    slurm.start("--patience", "1")
    controller = slurm.connect()
    slurm.cluster.ask("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    try:
        asked = job("echo once >> runs", slurm.jobs, node="n2")
        controller.launch(asked)
        said = controller.take("launch_failed", id=asked.id)
        assert (said["whose"], said["resource"]) == ("job", "slurm")
        assert said["text"].startswith("Slurm has let it wait for 1 s; drf doctor tells ")
        until("its end", lambda: comments(slurm.cluster, (asked.id, 1)) == ["CANCELLED"])
        remove(controller, (asked.id, 1))
    finally:
        until("an open node", lambda: is_open(slurm.cluster, "n2"))
    slurm.kill()
    slurm.start()
    controller = slurm.connect()
    runs_once(controller, replace(asked, attempt=2))


def test_a_job_that_gets_the_id_of_one_that_runs_is_submitted_again(slurm):
    """Under the same id, slurmctld would take the end of one for that of the other."""
    controller = slurm.connect()
    first = ran(slurm, controller)
    before = saved(slurm.cluster, f"{JOURNAL}.{first}.1")
    runs = job("touch begun; while [ ! -e go ]; do sleep 0.05; done; exit 3", slurm.jobs)
    controller.launch(runs)
    controller.take("launched", id=runs.id)
    until("its first line", (slurm.jobs / "begun").exists)
    asked = job("echo once >> runs", slurm.jobs)
    slurm.cluster.kill("slurmctld")
    controller.launch(asked)
    set_back(slurm.cluster, before)
    wanted = ("launch_failed", asked.id), ("exited", runs.id)
    short, end = until("both reports", lambda: taken(controller, *wanted), slurm.cluster.log)
    assert "given its id twice" in short["text"]
    assert end["loss"] == "SLURM_FORGOT"
    assert not (slurm.jobs / "runs").exists()
    remove(controller, (asked.id, 1))
    runs_once(controller, replace(asked, attempt=2))


def heard_of(controller: Controller, asked: Asked) -> Message:
    """The report of a job's end, or that it was not launched."""
    kinds = "exited", "launch_failed"
    found = until(
        "an end",
        lambda: [each for kind in kinds for each in taken(controller, (kind, asked.id)) or ()],
    )
    return dict(found[-1])


def taken(controller: Controller, *wanted: tuple[str, int]) -> list[Message] | None:
    """The wanted reports by kind and job, if all are there, in whatever order."""
    found = {(report["report"], report.get("id")): report for report in controller.list()}
    return [found[each] for each in wanted] if found.keys() >= set(wanted) else None


def test_a_slurm_that_takes_jobs_of_others_is_given_none(slurm):
    """Their names can hold lines, with which they write into the lists that root reads."""
    gate = slurm.cluster.directory / GATE_FILE
    text = gate.read_text()
    controller = slurm.connect()
    fault = f"JobSubmitPlugins=lua and {gate}"
    asked = job("touch ran", slurm.jobs)
    try:
        gate.write_text(text.replace("uid == 0 and", "uid == 0 or"))
        heard_of_nodes(controller, fault)
        controller.launch(asked)
        assert fault in controller.take("launch_failed", id=asked.id)["text"]
        # SlurmUser may put a pipe there, at which root's launcher waited for ever.
        gate.unlink()
        os.mkfifo(gate)
        heard_of_nodes(controller, fault)
    finally:
        gate.unlink()
        gate.write_text(text)
    heard_of_nodes(controller, "")
    assert not (slurm.jobs / "ran").exists()
    controller.launch(job("touch ran", slurm.jobs, id=asked.id, attempt=2))
    controller.take("launched", id=asked.id, attempt=2)
    controller.take("exited", id=asked.id, attempt=2)


def heard_of_nodes(controller: Controller, fault: str) -> None:
    """It says that all nodes are away for this reason, or that they are not."""

    def is_said() -> bool:
        controller.list()
        assert controller.nodes is not None
        away = controller.nodes["away"] or ""
        return fault in away and bool(fault) is bool(away)

    until("what it says of nodes", is_said, lambda: controller.nodes)

"""Started by root, the controller gives up root's rights, and so does the process that waits for a
job: what it can still do, and that nothing is lost by that."""

import json
import os
import signal
from pathlib import Path

import pytest

from drfd.launcher.runner.starter import program
from instance import CONFIG, Instance, patient, status_of, wait_for
from kernel_calls import leased

pytestmark = pytest.mark.system


@pytest.fixture
def dropped(lend, users) -> Instance:
    return lend(f'{CONFIG}[daemon]\nuser = "{users[0].pw_name}"\n')


def test_the_controller_is_a_process_of_that_user(dropped, users):
    assert dropped.process is not None
    status = status_of(dropped.process.pid)
    assert set(status["Uid"].split()) == {str(users[0].pw_uid)}
    assert set(status["Gid"].split()) == {str(users[0].pw_gid)}
    assert status["Groups"] == ""
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert set(status_of(dropped.launcher_pid())["Uid"].split()) == {"0"}


def test_it_has_no_way_back_to_the_launchers_files(dropped, users):
    """The state directory stays root's, so the two rooms cannot be exchanged."""
    owners = {path: path.stat().st_uid for path in (dropped.state, dropped.state / "launcher")}
    assert set(owners.values()) == {0}
    assert (dropped.state / "controller").stat().st_uid == users[0].pw_uid
    for path in (dropped.state / "controller").iterdir():
        assert (path.stat().st_uid, path.stat().st_mode & 0o077) == (users[0].pw_uid, 0)


def test_jobs_run_as_their_users_and_survive_the_death_of_both(dropped, users):
    home = dropped.home_for(users[1])
    script = "id -u; while ! [ -e gate ]; do sleep 0.05; done; exit 6"
    job_id = dropped.running("--", "sh", "-c", script, user=users[1].pw_uid, cwd=home)["id"]
    launcher = dropped.launcher_pid()
    os.kill(launcher, signal.SIGKILL)
    wait_for(
        "a launcher that root's supervisor started", lambda: dropped.launcher_pid() != launcher
    )
    dropped.strike("controller")
    (home / "gate").touch()
    job = dropped.wait_end(job_id)
    assert (job["exit_code"], dropped.output(job_id)) == (6, f"{users[1].pw_uid}\n")


def test_a_user_that_does_not_exist_is_a_configuration_error(make_instance):
    instance = make_instance(CONFIG + '[daemon]\nuser = "no-such-user"\n')
    instance.launch()
    assert instance.process is not None
    assert instance.process.wait(patient(120)) == 78
    assert "daemon.user: there is no user no-such-user" in instance.log.read_text()


def test_root_follows_no_link_out_of_the_controllers_room(dropped, users):
    """A controller that was taken over must not become root at the next start."""
    victim = dropped.root / "victim"
    victim.write_text("precious")
    victim.chmod(0o600)
    dropped.stop()
    room = dropped.state / "controller"
    for name in ("x", "journal.sqlite-wal"):
        (room / name).unlink(missing_ok=True)
        (room / name).symlink_to(victim)
    dropped.launch()
    assert dropped.process is not None
    wait_for("its end or its answer", lambda: dropped.is_dead() or dropped.answers())
    assert (victim.stat().st_uid, victim.stat().st_mode & 0o777) == (0, 0o600)
    assert victim.read_text() == "precious"


def test_it_works_whatever_the_umask_of_whoever_starts_it(make_instance, users):
    instance = make_instance(f'{CONFIG}[daemon]\nuser = "{users[0].pw_name}"\n')
    before = os.umask(0o077)
    try:
        instance.start()
    finally:
        os.umask(before)
    home = instance.home_for(users[1])
    job_id = instance.submit("--", "true", user=users[1].pw_uid, cwd=home)
    assert instance.wait_end(job_id)["state"] == "COMPLETED"


def test_nobody_runs_the_controller_as_root_by_accident(make_instance):
    """It reads what every user sends. A warning is easily missed in a log."""
    instance = make_instance()
    # No user drfd can come in here, where there is one.
    closed = instance.root / "closed"
    closed.mkdir(mode=0o700)
    instance.state = closed / "state"
    instance.as_root = False
    instance.launch()
    assert instance.process is not None
    assert instance.process.wait(patient(120)) == 78
    text = instance.log.read_text()
    assert text.startswith("drfd: the controller would run as root: ")
    assert text.count("\n") == 1
    for cure in ("daemon.user", "--as-root"):
        assert cure in text
    instance.as_root = True
    instance.start()
    assert status_of(instance.process.pid)["Uid"].split()[0] == "0"
    assert "warning: the controller runs as root" in instance.log.read_text()


# -- root's process that waits for a job ------------------------------------------------------


@pytest.fixture
def home(instance, users) -> Path:
    return instance.home_for(users[0])


def restricted_runner(home: Path) -> int:
    """The runner, named in the file `runner`, once it has dropped its privileges."""
    pid = int(wait_for("the runner's pid", lambda: (home / "runner").exists()
                       and (home / "runner").read_text()))  # fmt: skip
    wait_for("a runner without privileges", lambda: status_of(pid)["Seccomp"] == "2")
    return pid


def test_the_process_that_waits_for_a_notification_can_do_no_more(instance, users, home):
    """It had all of root's rights beside the user's command, for half a minute."""
    command = "echo $PPID > runner; until [ -e go ]; do sleep 0.05; done"
    words = ("--notify", "end", "--notify-command", command, "--", "true")
    job_id = instance.submit(*words, user=users[0].pw_uid, cwd=home)
    status = status_of(restricted_runner(home))
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert {status["CapEff"], status["CapPrm"]} == {f"{1 << program.KILL:016x}"}
    (home / "go").touch()
    [text] = [
        each["text"] for each in instance.wait_end(job_id)["events"] if each["event"] == "Cleaned"
    ]
    assert text == "notification told"


def test_nor_does_the_one_that_is_to_tell_of_a_start_while_the_user_delays_that(
    instance, users, home
):
    """The user decides how long the exec takes, by a file system of the user's own for instance."""
    program_file = home / "program"
    program_file.write_text("#!/bin/sh\nexec sleep 600\n")
    program_file.chmod(0o755)
    words = ("--notify", "start", "--notify-command", "echo $DRF_STATE > told", "--", program_file)
    with leased(program_file) as is_opened:
        job_id = instance.submit(*map(str, words), user=users[0].pw_uid, cwd=home)
        wait_for("the exec", is_opened)
        text = Path(instance.state, "launcher", "attempts", f"{job_id}.1").read_text()
        records = [json.loads(line) for line in filter(None, text.splitlines())]
        (runner,) = [each["pid"] for each in records if each["record"] == "runner"]
        assert status_of(runner)["Seccomp"] == "2"
        assert not (home / "told").exists()
    wait_for("the notification", lambda: (home / "told").exists() and (home / "told").read_text())
    assert (home / "told").read_text() == "RUNNING\n"

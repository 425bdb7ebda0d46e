"""`drfd install` and `uninstall`: what they write, run, refuse, and which environment they trust.

What they do to a system that runs is in `tests/vm/service`.
"""

import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drfd.common.errors import HostError, Refused
from drfd.install import asked, command
from drfd.install.asked import ANSWERS, CONNECTED, DRAINED
from drfd.install.command import CONFIG, STATE, Target, closing_words, fault_of_files
from drfd_cli.main import VERBS

BIN = Path(sys.executable).parent
UNIT = "/etc/systemd/system"
SERVICES = ("drfd-jobs.service", "drfd-launcher.service", "drfd.service")


class System(Target):
    """Files below a directory; programs are only noted."""

    @property
    def is_staged(self) -> bool:
        return False

    def run(
        self, *words: str, limit_s: float = 900, hint: str = "", is_client: bool = False
    ) -> None:
        print(f"{limit_s:.0f}: {' '.join(words)}{' as drfd' if is_client else ''}")

    def is_active(self, unit: str) -> bool:
        return (self.root / "active" / unit).exists()


@pytest.fixture
def system(tmp_path, monkeypatch) -> System:
    """One that runs systemd, with an environment that is trusted."""
    monkeypatch.setattr(command, "_shared", lambda: {"share/man/man1/drf.1": ".TH\n"})
    monkeypatch.setattr(command, "_answer", lambda: ANSWERS | CONNECTED)
    monkeypatch.setattr(command, "_has_user", lambda name: True)
    monkeypatch.setattr(command, "distrust", lambda: None)
    monkeypatch.setattr(command.service, "has_systemd", lambda: True)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    return System(tmp_path)


def uninstall(system: Target, *, kill_jobs: bool = False, purge: bool = False) -> None:
    command.uninstall(system, kill_jobs=kill_jobs, purge=purge, grace_s=60)


def files_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def runs(said: str) -> list[str]:
    """The programs that were run, with the seconds that each may take."""
    return [line for line in said.splitlines() if line[:1].isdigit()]


# -- installing ------------------------------------------------------------------------------

STARTED = [
    "900: systemd-sysusers /etc/sysusers.d/drfd.conf",
    "900: systemctl daemon-reload",
    f"900: systemctl enable {' '.join(SERVICES)}",
    "900: systemctl start drfd-jobs.service",
    "900: systemctl restart drfd-launcher.service",
    "900: systemctl try-restart drfd-slurm-root.service drfd-slurm-launcher.service",
    "900: systemctl restart drfd.service",
]


def test_an_installation_writes_its_files_and_then_starts_all_but_the_jobs_anew(system, capsys):
    command.install(system, None)
    said = capsys.readouterr().out
    assert runs(said) == STARTED
    assert (
        said.splitlines()[-len(STARTED) - 1 :]
        == [f"write {CONFIG}", *STARTED, "drfd runs; try drf doctor"][-len(STARTED) - 1 :]
    )
    # Again, as for an upgrade: nothing is written, and what the administrator has set stays.
    system.at(CONFIG).write_text("[capacity]\ncores = 4\n")
    command.install(system, None)
    assert capsys.readouterr().out.splitlines() == [*STARTED, "drfd runs; try drf doctor"]


def test_new_defaults_are_pointed_out_where_the_configuration_is_the_administrators(system, capsys):
    command.install(system, None)
    default = "/usr/local/share/drfd/drfd.toml"
    for path in (CONFIG, default):
        system.at(path).write_text("# of an older version\n")
    capsys.readouterr()
    command.install(system, None)
    said = capsys.readouterr().out.splitlines()
    assert said[: -len(STARTED) - 1] == [
        f"write {default}",
        f"note: {CONFIG} is left as it is; this version's default is {default}",
    ]


def test_another_prefix_takes_everything_along_and_is_remembered(system):
    command.install(system, "/opt/local")
    before = files_of(system.root)
    command.install(system, None)
    assert files_of(system.root) == before
    command.install(system, "/usr/local")
    assert not system.at("/opt").exists()
    moved = [path.replace("opt/local/", "usr/local/") for path in before]
    assert files_of(system.root) == sorted(moved)


def test_somebody_elses_program_is_not_replaced_but_that_of_an_interrupted_installation_is(
    system, monkeypatch
):
    program = system.at("/usr/local/bin/drfd")
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    with pytest.raises(Refused, match="/usr/local/bin/drfd is there already") as refusal:
        command.install(system, None)
    assert (refusal.value.code, files_of(system.root)) == ("in-the-way", ["usr/local/bin/drfd"])
    program.unlink()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(System, "run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        command.install(system, None)
    assert os.readlink(program) == str(BIN / "drfd")
    command.install(system, None)
    uninstall(system, purge=True)
    assert files_of(system.root) == []


STILL_DRAINED = "note: the queue is still drained, as it was left: nothing starts until drf undrain"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ANSWERS | CONNECTED, ["drfd runs; try drf doctor"]),
        (ANSWERS | CONNECTED | DRAINED, [STILL_DRAINED, "drfd runs; try drf doctor"]),
        (
            ANSWERS,
            [
                "note: no job starts while the launcher is away: systemctl status drfd-launcher "
                "tells why"
            ],
        ),
        (1, ["note: drfd does not answer yet: systemctl status drfd tells why"]),
    ],
)
def test_the_last_words_say_whether_it_runs_and_is_drained(answer, said):
    """Nothing started after a drain that an earlier journal had left, and nothing said so."""
    assert closing_words(answer) == said


# -- removing --------------------------------------------------------------------------------


def active(system: System, *units: str) -> None:
    for unit in units:
        path = system.root / "active" / unit
        path.parent.mkdir(exist_ok=True)
        path.touch()


def attempt(system: System, launcher: str) -> None:
    path = system.at(f"{STATE}/{launcher}/attempts/7.1")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


STOP = (
    "900: systemctl stop drfd.service drfd-slurm-launcher.service drfd-slurm-root.service "
    "drfd-launcher.service"
)
DISABLE = f"900: systemctl disable {' '.join(SERVICES)}"
#: Its unit refuses a stop until its file has gone, and systemd has been told so.
END = ["900: systemctl daemon-reload", "360: systemctl stop drfd-jobs.service"]


def test_a_removal_undoes_all_but_state_and_configuration(system, capsys):
    command.install(system, None)
    active(system, "drfd-jobs.service", "drfd.slice")
    capsys.readouterr()
    uninstall(system)
    said = capsys.readouterr().out
    assert runs(said) == [STOP, DISABLE, *END, "900: systemctl stop drfd.slice"]
    lines = said.splitlines()
    assert lines.index(f"remove {UNIT}/drfd-jobs.service") < lines.index(END[0])
    assert lines[-2:] == [
        f"note: kept: {each} (--purge removes it)" for each in (STATE, "/etc/drfd")
    ]
    assert [path for path in files_of(system.root) if "active" not in path] == [
        "etc/drfd/drfd.toml"
    ]


def test_the_slice_stays_where_jobs_of_a_private_instance_live_in_it(tmp_path):
    (tmp_path / "drfd-jobs.service").mkdir()
    (tmp_path / "cgroup.procs").touch()
    assert not command._is_shared(tmp_path)
    (tmp_path / "drfd-0123456789.scope").mkdir()
    assert command._is_shared(tmp_path)
    assert not command._is_shared(tmp_path / "gone")


def test_a_purge_leaves_nothing_and_can_be_repeated(system, capsys):
    command.install(system, None)
    for _ in range(2):
        capsys.readouterr()
        uninstall(system, purge=True)
        assert files_of(system.root) == []
        said = capsys.readouterr().out.splitlines()
        assert said[-2:] == ["900: userdel drfd", "900: userdel drfd-slurm"]
    assert said[:-2] == ["900: systemctl daemon-reload"]


@pytest.mark.parametrize(
    ("launchers", "said"),
    [(["launcher"], "1 job is"), (["launcher", "slurm-launcher/own"], "2 jobs are")],
)
def test_jobs_that_run_are_in_the_way(system, launchers, said):
    command.install(system, None)
    for launcher in launchers:
        attempt(system, launcher)
    with pytest.raises(Refused) as refusal:
        uninstall(system, purge=True)
    assert refusal.value.text == f"{said} not over yet"
    assert "--kill-jobs" in refusal.value.hint
    assert system.at(f"{UNIT}/drfd.service").exists()


def test_jobs_are_stopped_in_order_when_that_is_said_by_the_launchers_that_have_some(
    system, capsys
):
    """Without a controller, the end of their unit ends them."""
    shutdown = f"360: {sys.executable} -I -m drfd_cli --socket /run/drfd/drfd.sock shutdown"
    command.install(system, None)
    attempt(system, "slurm-launcher/own")
    active(system, "drfd.service", "drfd-jobs.service")
    capsys.readouterr()
    uninstall(system, kill_jobs=True)
    start = "900: systemctl start drfd-slurm-launcher.service"
    assert runs(capsys.readouterr().out) == [
        start, f"{shutdown} --kill-jobs as drfd", STOP, DISABLE, *END
    ]  # fmt: skip
    command.install(system, None)
    (system.root / "active/drfd.service").unlink()
    capsys.readouterr()
    uninstall(system, kill_jobs=True)
    assert runs(capsys.readouterr().out) == [STOP, DISABLE, *END]


def test_where_dpkg_owns_the_installation_both_refuse(tmp_path):
    mark = tmp_path / "usr/lib/drfd/pyvenv.cfg"
    mark.parent.mkdir(parents=True)
    mark.touch()
    with pytest.raises(Refused, match="dpkg alone changes"):
        command.install(Target(tmp_path), None)
    with pytest.raises(Refused, match="apt purge drfd") as refusal:
        uninstall(Target(tmp_path), kill_jobs=True, purge=True)
    assert refusal.value.code == "packaged"
    assert files_of(tmp_path) == ["usr/lib/drfd/pyvenv.cfg"]


# -- a change of the system ------------------------------------------------------------------


def test_a_file_takes_the_place_of_one_before_and_of_what_a_crash_left(tmp_path):
    """Of a link too, and not of what it leads to."""
    (tmp_path / "target").write_text("new")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / ".link.new").write_text("half")
    Target(tmp_path).write("/link", "new")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["link", "target"]


def test_a_link_is_removed_and_not_where_it_leads_and_a_directory_only_when_it_is_empty(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "empty").mkdir()
    for name in ("/link", "/kept/", "/empty/", "/gone", "/gone/"):
        Target(tmp_path).remove(name)
    assert sorted(os.listdir(tmp_path)) == ["kept"]
    assert os.listdir(tmp_path / "kept") == ["file"]


@pytest.mark.parametrize(
    ("words", "limit_s", "said"),
    [
        (("sleep", "1000"), 0.1, "sleep 1000 is not over after 0 s"),
        (("false",), 900, "false failed: status 1"),
        (("sh", "-c", "echo Job failed. >&2; echo See journalctl. >&2; exit 1"), 900,
         "sh -c .* failed: Job failed. "),
    ],
)  # fmt: skip
def test_a_program_that_fails_or_does_not_end_is_one_line_with_the_way_out(words, limit_s, said):
    with pytest.raises(HostError, match=said) as error:
        Target().run(*words, limit_s=limit_s, hint="the way out")
    assert error.value.hint == "the way out"


#: A daemon that an attacker has taken over says so.
HOSTILE = """
import os, sys
sys.stderr.write("\\x1b[2Jids " + repr((os.getresuid(), os.getresgid(), os.getgroups())))
sys.stderr.write(" terminal " + str(os.getsid(0) != os.getpid()) + "x" * 5000 + "\\nmore")
sys.exit(3)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="not root: there are no rights to give up")
def test_what_asks_the_daemon_has_no_right_of_roots_and_root_takes_a_short_line_of_it(monkeypatch):
    """Root's installation read the daemon's answers with the whole client."""
    try:
        subprocess.run([sys.executable, "-c", ""], check=True, user="nobody", cwd="/")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"other users cannot run {sys.executable}")
    monkeypatch.setattr(command, "USER", "nobody")
    nobody, group = pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid
    with pytest.raises(HostError) as error:
        Target().run(sys.executable, "-I", "-c", HOSTILE, is_client=True)
    said = error.value.text.partition("failed: ")[2]
    ids = f"[2Jids {((nobody,) * 3, (group,) * 3, [])} terminal False"
    assert said.startswith(ids) and len(said) < 300
    assert set(said.removeprefix(ids)) == {"x"}
    words = ("sh", "-c", "id -u; exit 64")
    assert command._run_client(words, 60).returncode == 64
    assert command._run_client(words, 60).stdout == ""


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        ({"launcher": "connected", "draining": False}, ANSWERS | CONNECTED),
        ({"launcher": "connected", "draining": True}, ANSWERS | CONNECTED | DRAINED),
        ({"launcher": "away", "draining": True}, ANSWERS | DRAINED),
        (None, 0),
    ],
)
def test_an_installation_hears_by_a_status_how_the_daemon_is(daemon, monkeypatch, reply, status):
    monkeypatch.setattr(asked, "_TIMES", 1)
    monkeypatch.setattr(asked.time, "sleep", str)
    daemon.replies["doctor"] = reply
    assert asked.main(str(daemon.path)) == status


def test_what_cannot_be_run_or_written_is_named(tmp_path):
    with pytest.raises(HostError, match="cannot run /no/such/program: No such file"):
        Target().run("/no/such/program")
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(HostError, match="cannot write /link/x: File exists"):
        Target(tmp_path).write("/link/x", "")


# -- the conditions for an environment to be trusted with root, and run by all ------------


ME = frozenset({0, os.getuid()})


@pytest.fixture
def tree(tmp_path) -> Path:
    """bin/python → base/python3, lib/module.py; all as they should be."""
    top = tmp_path / "top"
    for name in ("env/bin", "env/lib", "base"):
        (top / name).mkdir(parents=True)
    for name in ("base/python3", "env/lib/module.py"):
        (top / name).write_text("")
        (top / name).chmod(0o755)
    (top / "env/bin/python").symlink_to("../../base/python3")
    for path in (top, *top.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    return top


def look(tree: Path, owners: frozenset[int] = ME) -> str | None:
    env = tree / "env"
    return fault_of_files([str(env / "lib")], [str(env / "bin/python")], owners, str(tree))


def test_what_belongs_to_somebody_else_or_leads_nowhere_is_not_fine(tree):
    assert look(tree) is None
    found = look(tree, frozenset({os.getuid() + 1}))
    assert found == f"{tree}/env/lib/module.py belongs to uid {os.getuid()}, who could change it"
    (tree / "base/python3").unlink()
    assert look(tree) == f"{tree}/base/python3: No such file or directory"
    (tree / "env/bin/python").unlink()
    (tree / "env/bin/python").symlink_to("python")
    assert look(tree) is None


@pytest.mark.parametrize(
    "name", ["env/lib/module.py", "env/lib", "env/bin", "env", ".", "base", "base/python3"]
)
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777], ids=oct)
def test_what_others_can_write_is_not_on_whatever_way_it_is_reached(tree, name, mode):
    """The interpreter behind the link counts, every directory above, and a sticky one."""
    (tree / name).chmod(mode)
    found = look(tree)
    assert found is not None
    assert f"can be written by others than root (mode {mode:o})" in found
    assert os.path.normpath(tree / name) == os.path.normpath(found.split(" can be")[0])


def test_compiled_modules_need_not_be_readable_but_nobody_else_may_write_them(tree):
    """Root's umask may be 077, and Python leaves them when `drfd install` itself is run."""
    cache = tree / "env/lib/__pycache__"
    cache.mkdir(mode=0o700)
    compiled = cache / "module.cpython-311.pyc"
    compiled.write_text("")
    compiled.chmod(0o600)
    assert look(tree) is None
    compiled.chmod(0o620)
    assert "can be written by others" in (look(tree) or "")


@pytest.mark.parametrize(
    ("name", "mode"), [("env/lib/module.py", 0o700), ("env", 0o700), ("base", 0o750)]
)
def test_what_users_cannot_read_is_not(tree, name, mode):
    """`sudo pip` into root's home, or with a umask of 077."""
    (tree / name).chmod(mode)
    assert look(tree) == f"{tree / name} cannot be read by all users (mode {mode:o})"


# -- the commands themselves, on the files of a system that does not run ------------------


def drfd(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-m", "drfd.daemon", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload, no-any-return]


INSTALLED = [
    "etc/drfd/drfd.toml",
    "etc/systemd/system/drfd-jobs.service",
    "etc/systemd/system/drfd-launcher.service",
    "etc/systemd/system/drfd-slurm-launcher.service",
    "etc/systemd/system/drfd-slurm-root.service",
    "etc/systemd/system/drfd.service",
    "etc/systemd/system/drfd.slice",
    "etc/sysusers.d/drfd.conf",
    "usr/local/bin/drf",
    "usr/local/bin/drfd",
    "usr/local/share/bash-completion/completions/drf",
    "usr/local/share/drfd/alerts.yml",
    "usr/local/share/drfd/dashboard.json",
    "usr/local/share/drfd/drfd.toml",
    "usr/local/share/fish/vendor_completions.d/drf.fish",
    *sorted(f"usr/local/share/man/man1/drf-{verb}.1" for verb in VERBS),
    "usr/local/share/man/man1/drf.1",
    "usr/local/share/man/man5/drfd.toml.5",
    "usr/local/share/man/man8/drfd.8",
    "usr/local/share/zsh/site-functions/_drf",
    "var/lib/drfd/installed",
]


@pytest.mark.slow
def test_install_say_it_do_it_do_nothing_and_undo_it(tmp_path):
    """One after the other, since each start of Python takes its time."""
    root = tmp_path / "image"
    dry = drfd("install", "--root", root, "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    assert not root.exists(), "--dry-run has done something"

    done = drfd("install", "--root", root, umask=0o077)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == dry.stdout
    assert files_of(root) == INSTALLED
    plain = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    modes = {path.stat().st_mode & 0o777 for path in plain}
    assert modes == {0o644}, "whatever the umask"
    assert os.readlink(root / "usr/local/bin/drf") == str(BIN / "drf")
    unit = (root / "etc/systemd/system/drfd.service").read_text()
    assert f"ExecStart={sys.executable} -I -m drfd.daemon serve" in unit

    config = root / "etc/drfd/drfd.toml"
    config.write_text('[enforcement]\ngrace = "2m"\ncgroups = false\n')
    again = drfd("install", "--root", root)
    assert (again.returncode, again.stdout) == (0, "")
    assert [line.split(":")[:3] for line in again.stderr.splitlines()] == [
        ["drfd", " warning", " enforcement.grace"],
        ["drfd", " warning", " enforcement.cgroups"],
    ]
    assert config.read_text() == '[enforcement]\ngrace = "2m"\ncgroups = false\n'

    config.write_text("[nonsense]\n")
    refused = drfd("install", "--root", root)
    assert (refused.returncode, refused.stderr.count("\n")) == (78, 1)
    assert "nonsense" in refused.stderr

    removed = drfd("uninstall", "--root", root)
    assert (removed.returncode, removed.stderr) == (0, "")
    assert files_of(root) == ["etc/drfd/drfd.toml"]
    purged = drfd("uninstall", "--root", root, "--purge")
    assert purged.stdout.splitlines() == ["remove /var/lib/drfd", "remove /etc/drfd"]
    assert files_of(root) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_the_running_system_is_for_root_with_systemd(command):
    if os.path.isdir("/run/systemd/system") and os.getuid() == 0:
        pytest.skip("this would be the real thing: see tests/vm")
    done = drfd(command, "--dry-run")
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    if os.getuid() == 0:
        assert (done.returncode, "systemd does not run here" in done.stderr) == (1, True)
    else:
        assert (done.returncode, "only root can do that" in done.stderr) == (77, True)


@pytest.mark.slow
def test_an_interrupt_reaches_a_program_that_a_step_waits_for(tmp_path):
    """By a real signal, to a real process."""
    program = (
        "from drfd.install import command; "
        "command.install = lambda *_: command.Target().run('sleep', '1000'); "
        f"from drfd.daemon.main import main; main(['install', '--root', {str(tmp_path)!r}])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "run sleep 1000\n"
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.count("\n")) == (130, 1)
    assert said.startswith("drfd: interrupted")

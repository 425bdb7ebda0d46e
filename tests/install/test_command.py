"""`drfd install` and `drfd uninstall` themselves, on the files of a system that does not run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drfd.daemon.main import main
from drfd_cli.main import VERBS

BIN = Path(sys.executable).parent


def drfd(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-m", "drfd.daemon", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload, no-any-return]


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


INSTALLED = [
    "etc/drfd/drfd.toml",
    "etc/systemd/system/drfd-jobs.service",
    "etc/systemd/system/drfd-launcher.service",
    "etc/systemd/system/drfd.service",
    "etc/systemd/system/drfd.slice",
    "etc/sysusers.d/drfd.conf",
    "usr/local/bin/drf",
    "usr/local/bin/drfd",
    "usr/local/share/bash-completion/completions/drf",
    "usr/local/share/drfd/drfd.toml",
    "usr/local/share/fish/vendor_completions.d/drf.fish",
    *sorted(f"usr/local/share/man/man1/drf-{verb}.1" for verb in VERBS),
    "usr/local/share/man/man1/drf.1",
    "usr/local/share/man/man5/drfd.toml.5",
    "usr/local/share/man/man8/drfd.8",
    "usr/local/share/zsh/site-functions/_drf",
    "var/lib/drfd/install.json",
]


@pytest.mark.slow
def test_install_say_it_do_it_do_nothing_and_undo_it(tmp_path: Path) -> None:
    """One after the other, since each start of Python takes its time."""
    root = tmp_path / "image"
    dry = drfd("install", "--root", root, "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    assert not root.exists(), "--dry-run has done something"

    done = drfd("install", "--root", root, umask=0o077)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == dry.stdout
    assert files(root) == INSTALLED
    plain = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    modes = {path.stat().st_mode & 0o777 for path in plain}
    assert modes == {0o644}, "whatever the umask"
    assert os.readlink(root / "usr/local/bin/drf") == str(BIN / "drf")
    unit = (root / "etc/systemd/system/drfd.service").read_text()
    assert f"ExecStart={sys.executable} -I -m drfd.daemon serve" in unit

    config = root / "etc/drfd/drfd.toml"
    config.write_text('[enforcement]\ngrace = "2m"\n')
    again = drfd("install", "--root", root)
    assert again.stdout == "write /etc/systemd/system/drfd-jobs.service\n"
    assert config.read_text() == '[enforcement]\ngrace = "2m"\n'
    jobs_unit = (root / "etc/systemd/system/drfd-jobs.service").read_text()
    assert "\nTimeoutStopSec=125\n" in jobs_unit
    third = drfd("install", "--root", root)
    assert third.stdout == "note: nothing has changed since the last installation\n"

    config.write_text("[nonsense]\n")
    refused = drfd("install", "--root", root)
    assert (refused.returncode, refused.stderr.count("\n")) == (78, 1)
    assert "nonsense" in refused.stderr

    removed = drfd("uninstall", "--root", root)
    assert (removed.returncode, removed.stderr) == (0, "")
    assert files(root) == ["etc/drfd/drfd.toml"]
    purged = drfd("uninstall", "--root", root, "--purge")
    assert purged.stdout.splitlines() == ["remove /var/lib/drfd", "remove /etc/drfd"]
    assert files(root) == []
    share = sorted(str(path.relative_to(root)) for path in (root / "usr/local/share").rglob("*"))
    assert share == ["usr/local/share/man"], "as a system has it without us"


@pytest.mark.slow
def test_a_prefix_is_remembered(tmp_path: Path) -> None:
    drfd("install", "--root", tmp_path, "--prefix", "/opt/local")
    assert (tmp_path / "opt/local/bin/drf").is_symlink()
    again = drfd("install", "--root", tmp_path)
    assert again.stdout == "note: nothing has changed since the last installation\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_the_running_system_is_for_root_with_systemd(command: str) -> None:
    if os.path.isdir("/run/systemd/system") and os.getuid() == 0:
        pytest.skip("this would be the real thing: see tests/vm")
    done = drfd(command, "--dry-run")
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    if os.getuid() == 0:
        assert (done.returncode, "systemd does not run here" in done.stderr) == (1, True)
    else:
        assert (done.returncode, "only root can do that" in done.stderr) == (77, True)


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_an_interrupt_is_one_line_and_no_traceback(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It printed fifteen frames of Python."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"drfd.install.command.{command}", interrupted)
    with pytest.raises(SystemExit) as ended:
        main([command, "--root", "/nonexistent"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == (
        "drfd: interrupted: what is printed above is done, and the same command does the rest\n"
    )


@pytest.mark.slow
def test_an_interrupt_reaches_a_program_that_a_step_waits_for(tmp_path: Path) -> None:
    """By a real signal, to a real process."""
    program = (
        "from pathlib import Path; from drfd.install import command, steps; "
        "command.install = lambda *_, **__: steps.perform("
        "steps.RunProgram(('sleep', '1000')), Path('/'), lambda text: print(text, flush=True)); "
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

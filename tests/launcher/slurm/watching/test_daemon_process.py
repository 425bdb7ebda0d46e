"""Which process a daemon is, by its pid file."""

from __future__ import annotations

import subprocess
from pathlib import Path

from drfd.launcher.slurm.watching.daemon_process import running_process
from launcher.rig import until


def begun() -> subprocess.Popen[bytes]:
    """A process that is called sleep by now."""
    process = subprocess.Popen(["sleep", "1000"])
    comm = Path(f"/proc/{process.pid}/comm")
    until("its name", lambda: comm.read_text() == "sleep\n")
    return process


def test_a_process_is_the_same_until_it_ends_and_another_after_that(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    first, second = begun(), begun()
    try:
        pid_file.write_text(f"{first.pid}\n")
        found = running_process(str(pid_file), "sleep")
        assert found is not None
        assert found == running_process(str(pid_file), "sleep")
        assert running_process(str(pid_file), "slurmctld") is None
        pid_file.write_text(f"{second.pid}\n")
        other = running_process(str(pid_file), "sleep")
        assert other is not None
        assert other != found
        second.kill()
        # A zombie is no process that answers.
        until("its end", lambda: running_process(str(pid_file), "sleep") is None)
    finally:
        for process in (first, second):
            process.kill()
            process.wait()


def test_of_what_is_no_pid_file_nothing_is_said(tmp_path: Path) -> None:
    for text in ("", "0", "-1", "x", "9" * 30, "\xff"):
        (tmp_path / "pid").write_bytes(text.encode("latin-1"))
        assert running_process(str(tmp_path / "pid"), "sleep") is None
    for path in ("", str(tmp_path / "none"), str(tmp_path)):
        assert running_process(path, "sleep") is None

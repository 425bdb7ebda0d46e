"""What the controller's process may do, if somebody took it over: next to nothing."""

from __future__ import annotations

import os
import re
import signal
from importlib.resources import files
from pathlib import Path

import pytest

from vm.service.installed import Installed, main_pid, run

#: With its ids, in its mount and network namespaces, without capabilities: as one who is in it.
AS_DRFD = (
    "setpriv", "--reuid=drfd", "--regid=drfd", "--clear-groups", "--inh-caps=-all",
    "--bounding-set=-all", "--no-new-privs",
)  # fmt: skip


def as_drfd(script: str) -> str:
    """What a shell with the rights of the running controller says; its errors too."""
    words = ("nsenter", "-t", main_pid("drfd"), "-m", "-n", "--", *AS_DRFD, "sh", "-c", script)
    done = run(*words, check=False)
    return done.stdout + done.stderr


def status_of(name: str) -> dict[str, str]:
    lines = Path(f"/proc/{main_pid(name)}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)


def test_it_has_no_capabilities_and_can_get_none(installed: Installed) -> None:
    status = status_of("drfd")
    names = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    assert {status[name] for name in names} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert "0" not in status["Uid"].split() + status["Gid"].split()
    assert status["Groups"].strip() in ("", status["Gid"].split()[0])


def test_it_cannot_read_what_a_user_keeps_to_herself(installed: Installed) -> None:
    secret = installed.work("alice") / "secret"
    secret.write_text("private\n")
    secret.chmod(0o600)
    os.chown(secret, installed.work("alice").stat().st_uid, -1)
    said = as_drfd(f"cat {secret}; cat /etc/shadow; ls /var/lib/drfd/launcher/attempts")
    assert said.count("Permission denied") == 3 and "private" not in said
    seen = installed.login("alice", "cat secret")
    assert seen == "private\n"


def test_it_can_write_its_two_directories_and_nothing_else(installed: Installed) -> None:
    places = ("/etc", "/home", "/home/alice/work", "/usr/local/bin", "/var/lib/drfd",
              "/var/lib/drfd/launcher", "/var/tmp/..", "/sys/fs/cgroup", "/dev", "/run",
              "/opt/drfd")  # fmt: skip
    own = ("/var/lib/drfd/controller", "/run/drfd", "/tmp")
    script = "; ".join(f"(: >{place}/mark) 2>/dev/null && echo {place}" for place in places + own)
    assert as_drfd(script).split() == list(own)
    assert not Path("/tmp/mark").exists(), "its /tmp is its own"
    as_drfd("rm -f " + " ".join(f"{place}/mark" for place in own))


def test_it_reaches_no_network_and_no_process_of_a_user(installed: Installed) -> None:
    job_id = installed.submit("alice", "sleep", "1000")
    job = installed.wait_state(job_id, "RUNNING")
    pid = Path("/sys/fs/cgroup", job["cgroup"], "cgroup.procs").read_text().split()[0]
    said = as_drfd(f"kill -9 {pid}; cat /proc/{pid}/environ; ls -l /proc/{pid}/cwd; ip -o link")
    assert "not permitted" in said
    assert said.count("ermission denied") == 2
    links = [line for line in said.splitlines() if re.match(r"\d+: ", line)]
    assert [" lo:" in link for link in links] == [True]
    assert installed.show(job_id)["state"] == "RUNNING"
    installed.as_user("alice", "cancel", select={"ids": [job_id]})
    assert installed.wait_end(job_id)["signal"] == signal.SIGTERM


def test_the_process_that_keeps_the_jobs_unit_alive_can_do_nothing(installed: Installed) -> None:
    """It sleeps. Jobs have none of this: see test_identity."""
    keeper = main_pid("drfd-jobs")
    status = status_of("drfd-jobs")
    assert {status[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    place = Path(f"/proc/{keeper}/cgroup").read_text()
    assert place == "0::/drfd.slice/drfd-jobs.service/keeper\n"


@pytest.mark.parametrize("name", ["drfd", "drfd-launcher", "drfd-jobs"])
def test_its_exposure_is_no_more_than_what_the_documents_say(
    installed: Installed, name: str
) -> None:
    written = files("drfd").joinpath("docs/decisions/02-identity-and-trust.md").read_text()
    (limit,) = re.findall(rf"`{name}` scores (\d+\.\d)", written)
    said = run("systemd-analyze", "security", "--no-pager", name).stdout
    (exposure,) = re.findall(r"Overall exposure level for \S+: (\d+\.\d)", said)
    assert float(exposure) <= float(limit), said

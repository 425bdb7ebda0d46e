"""The guest is the machine that the other tests here take it for."""

from __future__ import annotations

import pytest

from vm.rig import IS_FULL, SCRIPTS, Finished, Guest

pytestmark = pytest.mark.vm

#: Both boots say on standard output what they find, and the second one ends in its own way.
SCRIPT = """
fact() { echo "$DRFD_VM_BOOT $*"; }
fact pid 1: "$(cat /proc/1/comm)"
fact cgroups: "$(stat -fc %T /sys/fs/cgroup)"
if [ "$DRFD_VM_BOOT" = 1 ]; then
    # This command is one of the last things that a boot starts, but not the last one.
    while [ "$(systemctl is-system-running)" = starting ]; do sleep 0.5; done
    fact units: "$(systemctl is-system-running)"
    fact version 1: "$(awk '$3 == "cgroup"' /proc/self/mounts | wc -l)"
    fact controllers: "$(cat /sys/fs/cgroup/cgroup.controllers)"
    for user in alice bob carol; do
        fact "$user": "$(su -l "$user" -c 'id -un; id -u; cut -d/ -f3 /proc/self/cgroup' | xargs)"
    done
    echo before >/var/tmp/before
    systemctl reboot
    sleep 600  # The first boot's command ends with the system, not before it.
else
    fact left: "$(cat /var/tmp/before)"
    echo complaint >&2
    exit 7
fi
"""


@pytest.fixture(scope="module")
def finished(guest: Guest) -> Finished:
    return guest.run(SCRIPT, timeout_s=1800)


@pytest.fixture(scope="module")
def facts(finished: Finished) -> dict[str, str]:
    """What each boot has found: "1 cgroups" → "cgroup2fs"."""
    return dict(line.split(": ", 1) for line in finished.stdout.splitlines())


def test_systemd_is_process_1_and_all_its_units_came_up(facts: dict[str, str]) -> None:
    assert (facts["1 pid 1"], facts["1 units"]) == ("systemd", "running")


def test_cgroups_are_of_version_2_alone(facts: dict[str, str]) -> None:
    assert (facts["1 cgroups"], facts["1 version 1"]) == ("cgroup2fs", "0")
    assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(facts["1 controllers"].split())


@pytest.mark.parametrize("user", ["alice", "bob", "carol"])
def test_a_user_logs_in_into_a_slice_of_her_own(facts: dict[str, str], user: str) -> None:
    name, uid, slice_of_user = facts[f"1 {user}"].split()
    assert (name, slice_of_user) == (user, f"user-{uid}.slice")
    assert int(uid) >= 1000


def test_it_reboots_and_keeps_its_disk_meanwhile(facts: dict[str, str]) -> None:
    assert (facts["2 pid 1"], facts["2 cgroups"]) == ("systemd", "cgroup2fs")
    assert facts["2 left"] == "before"


def test_what_a_command_says_and_how_it_ends_come_out(finished: Finished) -> None:
    assert finished.status == 7
    assert finished.stderr == "run-in-vm: the guest has rebooted (boot 2)\ncomplaint\n"


@pytest.mark.skipif(not IS_FULL, reason="takes a minute; DRFD_VM_FULL=1 runs it")
def test_the_kernel_keeps_to_its_limits(guest: Guest) -> None:
    done = guest.run(["/srv/check-guest"], timeout_s=900,
                     copy={SCRIPTS / "check-guest": "/srv/check-guest"})  # fmt: skip
    assert done.status == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout and done.stdout.count("\nok ") > 20

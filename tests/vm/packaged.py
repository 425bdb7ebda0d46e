"""Debian's package on a system: stories of it, from its installation to its purge.

One is run in the guest, as root, with the system's Python: `packaged.py STORY VERSION FILE...`.
Each function of a story is a claim, which the present boot makes true or fails; those that hold are
printed as JSON, which `tests/vm/test_package.py` compares.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SERVICES = ("drfd", "drfd-launcher", "drfd-jobs")
CONFIG = Path("/etc/drfd/drfd.toml")
#: A unit of `drfd install`, which is in the way of the package's.
OTHERS_UNIT = Path("/etc/systemd/system/drfd.service")
GATE = Path("/run/gate-of-the-job")
#: What is kept for the next boot.
KNOWN = Path("/var/lib/packaged.json")
#: Nothing that will come takes longer, on emulated processors and a busy machine either.
LONGEST_S = 900.0
#: And so does no program.
_PROGRAM_S = 1800.0
#: Of the guest's packages, those for Python alone, which would be replaced as well.
NOT_NEEDED = (
    *("python3-pip", "python3-venv", "python3-setuptools", "python3-pkg-resources"),
    "python3-wheel",
)
#: What is added to the version by the package to upgrade to, and by one that refuses to install.
NEWER_SUFFIX = ".post1"
BROKEN_SUFFIX = f"{NEWER_SUFFIX}+broken"

RUNS = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}
GONE = {"LoadState": "not-found", "ActiveState": "inactive", "MainPID": "0", "UnitFileState": ""}

#: Where an installation may put something.
_PLACES = ("/etc", "/usr", "/var", "/opt", "/run/drfd", "/sys/fs/cgroup/drfd.slice")
#: What changes there without the package, and what dpkg and apt have for themselves.
_OTHERS = (
    *("/var/log/", "/var/lib/private", "/var/lib/systemd/timers", "/var/lib/systemd/timesync"),
    *("/var/lib/systemd/random-seed", "/var/lib/systemd/linger", "/var/lib/systemd/catalog"),
    *("/var/cache/man", "/var/cache/apt", "/var/cache/debconf", "/var/lib/apt"),
    *("/var/lib/drfd-vm/", "/var/tmp/", str(KNOWN)),
)

#: What this boot and those before have seen.
known: dict[str, Any] = {}


def main() -> None:
    story, version, *files = sys.argv[1:]
    boot = int(os.environ["DRFD_VM_BOOT"])
    known.update(json.loads(KNOWN.read_text()) if boot > 1 else begun(version, files))
    for claim in STORIES[story][boot - 1]:
        try:
            claim()
        except Exception:
            traceback.print_exc()
            print(json.dumps(known["held"]))
            sys.exit(1)
        known["held"].append(claim.__name__)
    if boot < len(STORIES[story]):
        KNOWN.write_text(json.dumps(known))
        os.sync()
        run("systemctl", "reboot")
        # The system's end ends it: until then this is not over.
        time.sleep(600)
    print(json.dumps(known["held"]))


def begun(version: str, files: list[str]) -> dict[str, Any]:
    # Debian's man-db makes its index anew after each change, which takes long and says nothing.
    Path("/var/lib/man-db/auto-update").unlink(missing_ok=True)
    return {"held": [], "version": version, "files": files, "before": listed()}


# -- its life -----------------------------------------------------------------------------------


def an_installation_by_drfd_install_is_in_the_way() -> None:
    OTHERS_UNIT.write_text("[Service]\nExecStart=/opt/drfd/bin/python -I -m drfd.daemon serve\n")
    said = fails("apt-get", "-q", "-y", "install", known["files"][0])
    OTHERS_UNIT.unlink()
    assert "/etc/systemd/system/drfd.service is there, from drfd install" in said
    assert status() == "in ", "wanted, and nothing of it is there"


def installed_it_runs_and_starts_at_boot() -> None:
    install(0)
    assert states() == [RUNS] * 3
    await_answer()
    assert doctor() == known["version"]
    assert programs() == {os.path.realpath("/usr/bin/python3")}


def purged_it_leaves_nothing() -> None:
    await_no_attempt()
    purge()
    assert set(listed()) ^ set(known["before"]) == set()


def installed_without_systemd_nothing_starts() -> None:
    """As in an image that is being made."""
    hidden = f"mount -t tmpfs none /run && exec dpkg -i {known['files'][0]}"
    succeeds("unshare", "--mount", "sh", "-c", hidden)
    run("systemctl", "daemon-reload")
    assert status() == f"ii {known['version']}"
    assert states() == [{**RUNS, "ActiveState": "inactive"}] * 3


def it_runs_from_the_next_boot_on() -> None:
    await_answer()
    assert states() == [RUNS] * 3
    assert doctor() == known["version"]


def with_a_wrong_configuration_an_upgrade_waits_for_another() -> None:
    """It names the key, and what ran before runs on: that is found before anything is restarted."""
    submit_two()
    text = CONFIG.read_text()
    CONFIG.write_text(text.replace("[enforcement]\n", '[enforcement]\ngrace = "often"\n'))
    said = fails("apt-get", "-q", "-y", "install", known["files"][1])
    assert "grace" in said
    assert status() == f"iF {known['version']}{NEWER_SUFFIX}"
    assert_all_run_on()


def a_job_runs_on_through_an_upgrade() -> None:
    CONFIG.write_text(CONFIG.read_text().replace("often", "47s"))
    succeeds("dpkg", "--configure", "-a")
    await_answer()
    assert status() == f"ii {known['version']}{NEWER_SUFFIX}"
    assert confined() == known["job"]
    assert states() == [RUNS] * 3
    assert doctor() == f"{known['version']}{NEWER_SUFFIX}"
    before, after = known["services"], services()
    assert [name for name in SERVICES if before[name] == after[name]] == ["drfd-jobs"]
    known["services"] = after


def it_is_not_removed_while_a_job_runs() -> None:
    said = fails("apt-get", "-q", "-y", "remove", "drfd")
    assert "drfd: jobs are not over yet (1): wait for them" in said
    assert status() == f"ii {known['version']}{NEWER_SUFFIX}"
    assert_all_run_on()


def an_upgrade_that_dpkg_gives_up_leaves_the_job_and_the_version() -> None:
    """The services may be restarted."""
    said = fails("apt-get", "-q", "-y", "install", known["files"][2])
    assert "no such luck" in said
    await_answer()
    assert status() == f"ii {known['version']}{NEWER_SUFFIX}"
    assert doctor() == f"{known['version']}{NEWER_SUFFIX}"
    assert confined() == known["job"]
    assert services()["drfd-jobs"] == known["services"]["drfd-jobs"]


def after_all_that_the_job_ends_as_it_would_have() -> None:
    GATE.touch()
    assert run("drf", "wait", known["id"]).returncode == 7
    assert output(known["id"]) == f"{known['job']['pid']}\n"


def after_a_reboot_it_goes_on_with_its_queue() -> None:
    await_answer()
    assert states() == [RUNS] * 3
    assert doctor() == f"{known['version']}{NEWER_SUFFIX}"
    assert shown(known["held_id"])["state"] == "HELD"


def removed_it_keeps_configuration_and_state_alone() -> None:
    await_no_attempt()
    run("systemctl", "disable", "drfd-launcher")
    succeeds("apt-get", "-q", "-y", "remove", "drfd")
    assert status() == f"rc {known['version']}{NEWER_SUFFIX}"
    assert [each["LoadState"] for each in services().values()] == ["not-found"] * 3
    left = set(listed()) - set(known["before"])
    kept = ("/etc/drfd", "/var/lib/drfd", "/var/lib/dpkg/info/drfd.")
    helper = "/var/lib/systemd/deb-systemd-helper-"
    wanted = "/etc/systemd/system/multi-user.target.wants/"
    others = {path for path in left if not path.startswith((*kept, helper))}
    assert others <= {f"{wanted}{name}.service" for name in SERVICES}
    assert {str(CONFIG), "/var/lib/drfd/controller/journal.sqlite"} <= left


def installed_again_it_goes_on_with_configuration_and_queue() -> None:
    """And the service that was disabled is so still."""
    install(1)
    assert 'grace = "47s"' in CONFIG.read_text()
    assert services()["drfd-launcher"]["UnitFileState"] == "disabled"
    run("systemctl", "enable", "--now", "drfd-launcher")
    await_answer()
    run("drf", "release", known["held_id"])
    assert run("drf", "wait", known["held_id"]).returncode == 0
    assert submit("bob", "--hold", "--", "true") == known["held_id"] + 1


# -- the Python of the next release -------------------------------------------------------------


def a_job_runs_on_while_debian_12_gets_the_python_of_13() -> None:
    install(0)
    await_answer()
    submit_two()
    assert programs() == {"/usr/bin/python3.11"}
    _, repository = known["files"]
    Path("/etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{repository} ./\n")
    succeeds("apt-get", "-q", "-y", "update")
    succeeds("apt-get", "-q", "-y", "-o", "Dpkg::Options::=--force-confold", "install", "python3",
             *(f"{name}-" for name in NOT_NEEDED))  # fmt: skip
    await_answer()
    assert status() == f"ii {known['version']}"
    assert Path("/etc/debian_version").read_text().startswith("13")
    assert confined() == known["job"]
    assert states() == [RUNS] * 3
    assert services()["drfd-jobs"] == known["services"]["drfd-jobs"]
    assert programs() == {"/usr/bin/python3.13"}


def that_python_runs_it_after_a_reboot_too() -> None:
    await_answer()
    assert states() == [RUNS] * 3
    assert programs() == {"/usr/bin/python3.13"}
    run("drf", "release", known["held_id"])
    assert run("drf", "wait", known["held_id"]).returncode == 0


def purged_it_leaves_nothing_of_its_own() -> None:
    await_no_attempt()
    purge()
    assert [path for path in set(listed()) - set(known["before"]) if "drfd" in path] == []


STORIES: dict[str, list[list[Callable[[], None]]]] = {
    "life": [
        [
            an_installation_by_drfd_install_is_in_the_way,
            installed_it_runs_and_starts_at_boot,
            purged_it_leaves_nothing,
            installed_without_systemd_nothing_starts,
        ],
        [
            it_runs_from_the_next_boot_on,
            with_a_wrong_configuration_an_upgrade_waits_for_another,
            a_job_runs_on_through_an_upgrade,
            it_is_not_removed_while_a_job_runs,
            an_upgrade_that_dpkg_gives_up_leaves_the_job_and_the_version,
            after_all_that_the_job_ends_as_it_would_have,
        ],
        [
            after_a_reboot_it_goes_on_with_its_queue,
            removed_it_keeps_configuration_and_state_alone,
            installed_again_it_goes_on_with_configuration_and_queue,
            purged_it_leaves_nothing,
        ],
    ],
    "python": [
        [
            a_job_runs_on_while_debian_12_gets_the_python_of_13,
            after_all_that_the_job_ends_as_it_would_have,
        ],
        [that_python_runs_it_after_a_reboot_too, purged_it_leaves_nothing_of_its_own],
    ],
}

# -- steps --------------------------------------------------------------------------------------


def submit_two() -> None:
    """One job that runs until its gate opens, and one that is held."""
    known["id"] = submit("alice", "-c", "0.1", "-m", "64M", "--", "sh", "-c", GATED)
    known["held_id"] = submit("bob", "-c", "0.1", "-m", "64M", "--hold", "--", "true")
    wait_for("the job's first word", lambda: output(known["id"]))
    known["job"], known["services"] = confined(), services()
    assert known["job"]["is in it"]


def assert_all_run_on() -> None:
    """The job, and the services with the same processes."""
    assert confined() == known["job"]
    assert services() == known["services"]


def install(number: int) -> None:
    succeeds("apt-get", "-q", "-y", "install", known["files"][number])


def purge() -> None:
    succeeds("apt-get", "-q", "-y", "purge", "drfd")
    assert list(services().values()) == [GONE] * 3
    assert [run("getent", base, "drfd").stdout for base in ("passwd", "group")] == ["", ""]
    # A runner that waited for another job ends when it sees that its launcher has ended.
    wait_for("the end of all processes", lambda: not processes())


# -- programs -----------------------------------------------------------------------------------


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. What it says is on standard error, too, in case of a time-out."""
    began_s = time.monotonic()
    done = subprocess.run(
        [*map(str, words)],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROGRAM_S, check=False,
    )  # fmt: skip
    took_s = time.monotonic() - began_s
    print(f"{words}: {done.returncode} after {took_s:.0f} s", file=sys.stderr)
    print(done.stdout + done.stderr, file=sys.stderr, flush=True)
    return done


def succeeds(*words: object) -> None:
    assert run(*words).returncode == 0


def fails(*words: object) -> str:
    """What it says; of what dpkg says, apt passes some on to standard output."""
    done = run(*words)
    assert done.returncode != 0
    return done.stdout + done.stderr


def status() -> str:
    """What dpkg says of the package."""
    return run("dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Version}", "drfd").stdout


def unit(name: str, fact: str) -> str:
    return run("systemctl", "show", "--value", "-p", fact, name).stdout.strip()


def services() -> dict[str, dict[str, str]]:
    """Of each service: whether it runs and starts at boot, and its process."""
    facts = ("LoadState", "ActiveState", "UnitFileState", "MainPID")
    found = {}
    for name in SERVICES:
        text = run("systemctl", "show", "-p", ",".join(facts), name).stdout
        found[name] = dict(line.split("=", 1) for line in text.splitlines())
    return found


def states() -> list[dict[str, str]]:
    """Of each service, all but its process."""
    return [
        {name: value for name, value in service.items() if name != "MainPID"}
        for service in services().values()
    ]


def programs() -> set[str]:
    """What runs the two daemons."""
    pids = [unit(name, "MainPID") for name in ("drfd", "drfd-launcher")]
    return {os.readlink(f"/proc/{pid}/exe") for pid in pids}


def processes() -> list[str]:
    """Those of drfd's Python."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].startswith(b"/usr/lib/drfd/"):
            found.append(b" ".join(words).decode())
    return found


# -- drfd ---------------------------------------------------------------------------------------


def submit(user: str, *words: str) -> int:
    """Submit as a user does, in a log-in session; the id."""
    script = " ".join(f"'{word}'" for word in ("drf", "submit", "-q", *words))
    done = run("su", "-l", user, "-c", script)
    return int(done.stdout)


GATED = f"echo $$; while ! [ -e {GATE} ]; do sleep 2; done; exit 7"


def shown(job: int) -> dict[str, Any]:
    return dict(json.loads(run("drf", "show", "--json", job).stdout))


def output(job: int) -> str:
    path = Path(shown(job)["stdout"])
    return path.read_text() if path.exists() else ""


def confined() -> dict[str, Any]:
    """Of the running job: its attempt, its process, and the cgroup that this is in."""
    facts = shown(known["id"])
    place = Path("/sys/fs/cgroup", facts["cgroup"])
    pid = int(output(known["id"]).split()[0])
    return {
        **{name: facts[name] for name in ("state", "attempt", "cgroup")},
        "pid": pid,
        "inode": place.stat().st_ino,
        "is in it": str(pid) in (place / "cgroup.procs").read_text().split(),
        "memory": (place / "memory.max").read_text(),
    }


def doctor() -> str:
    """The version that a user's `drf doctor` tells of a daemon that enforces limits."""
    found = json.loads(run("su", "-l", "alice", "-c", "drf doctor --json").stdout)
    assert (found["enforcement"], found["launcher"]) == ("cgroup-v2", "connected")
    return str(found["version"])


def await_answer() -> None:
    def answers() -> bool:
        done = run("drf", "doctor", "--json")
        return done.returncode == 0 and json.loads(done.stdout)["launcher"] == "connected"

    wait_for("drfd and its launcher", answers)


def await_no_attempt() -> None:
    """What is known of a job goes a moment after its end; until then no removal is possible."""
    attempts = Path("/var/lib/drfd/launcher/attempts")
    wait_for("no attempt to be left", lambda: not os.listdir(attempts))


def wait_for(what: str, is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + LONGEST_S
    while not is_so():
        if time.monotonic() > deadline_s:
            journal = run("journalctl", "--no-pager", "-n", "60", "-u", "drfd*").stdout
            raise AssertionError(f"waited in vain for {what}\n{journal}")
        time.sleep(0.5)


def listed() -> list[str]:
    """Every path, but of what others change."""
    found = set()
    for place in _PLACES:
        for directory, inner, names in os.walk(place):
            found |= {directory, *(f"{directory}/{name}" for name in (*inner, *names))}
    return sorted(path for path in found if not f"{path}/".startswith(_OTHERS))


if __name__ == "__main__":
    main()

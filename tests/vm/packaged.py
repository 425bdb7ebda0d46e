"""Debian's package on a system: stories of it, from its installation to its purge.

One is run in the guest, as root, with the system's Python: `packaged.py STORY FILE...` does what
the present boot has to do, and the last boot prints what all have seen, as JSON: step → fact →
value. `tests/vm/test_package.py` says what the facts must be.

- `life OLDER NEWER BROKEN`: the package is installed, purged, and installed in an image without
  systemd; upgraded while a job runs, also with a wrong configuration and to a package that refuses;
  after a reboot removed, installed again and purged.
- `python DEB REPOSITORY`: Debian's Python becomes that of the repository.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SERVICES = ("drfd", "drfd-launcher", "drfd-jobs")
CONFIG = Path("/etc/drfd/drfd.toml")
#: A unit of `drfd install`, which is in the way of the package's.
OTHERS_UNIT = Path("/etc/systemd/system/drfd.service")
GATE = Path("/run/gate-of-the-job")
#: What is kept for the next boot.
FACTS = Path("/var/lib/packaged.json")
#: Nothing that will come takes longer, on emulated processors and a busy machine either.
LONGEST_S = 900.0
#: And so does no program.
_PROGRAM_S = 1800.0
#: Of the guest's packages, those for Python alone, which would be replaced as well.
NOT_NEEDED = (
    *("python3-pip", "python3-venv", "python3-setuptools", "python3-pkg-resources"),
    "python3-wheel",
)

#: Where an installation may put something.
_PLACES = ("/etc", "/usr", "/var", "/opt", "/run/drfd", "/sys/fs/cgroup/drfd.slice")
#: What changes there without the package, and what dpkg and apt have for themselves.
_OTHERS = (
    *("/var/log/", "/var/lib/private", "/var/lib/systemd/timers", "/var/lib/systemd/timesync"),
    *("/var/lib/systemd/random-seed", "/var/lib/systemd/linger", "/var/lib/systemd/catalog"),
    *(
        "/var/cache/man",
        "/var/cache/apt",
        "/var/cache/debconf",
        "/var/lib/apt",
        "/var/lib/drfd-vm/",
        "/var/tmp/",
    ),
    str(FACTS),
)

Facts = dict[str, dict[str, Any]]


def main() -> None:
    story, *files = sys.argv[1:]
    steps: dict[str, list[Callable[..., Facts]]] = {
        "life": [life_in_image, life_to_upgrade, life_to_purge],
        "python": [next_python, rebooted],
    }
    boot = int(os.environ["DRFD_VM_BOOT"])
    known = [json.loads(FACTS.read_text())] if boot > 1 else []
    facts = steps[story][boot - 1](*known, *files)
    if boot < len(steps[story]):
        FACTS.write_text(json.dumps(facts))
        os.sync()
        run("systemctl", "reboot")
        # The system's end ends it: until then this is not over.
        time.sleep(600)
    else:
        print(json.dumps(facts))


def life_in_image(older: str, newer: str, broken: str) -> Facts:
    facts = begun()
    OTHERS_UNIT.write_text("[Service]\nExecStart=/opt/drfd/bin/python -I -m drfd.daemon serve\n")
    facts["in the way"] = install(older)
    OTHERS_UNIT.unlink()

    facts["installed"] = {**install(older), **services()}
    await_answer()
    facts["installed"] |= {"doctor": doctor(), "programs": programs()}
    facts["purged at once"] = purged()

    # As in an image that is being made: nothing is started, and the next boot does it.
    hidden = f"mount -t tmpfs none /run && exec dpkg -i {older}"
    facts["without systemd"] = result(run("unshare", "--mount", "sh", "-c", hidden))
    run("systemctl", "daemon-reload")
    facts["without systemd"] |= services()
    return facts


def life_to_upgrade(facts: Facts, older: str, newer: str, broken: str) -> Facts:
    await_answer()
    facts["booted"] = {"doctor": doctor(), **services()}
    job, held = submit_two()
    facts["with a job"] = {"job": confined(job), "held": held, **services()}
    facts["not removed"] = {**apt("remove", "drfd"), **services()}

    # A wrong configuration is found before anything is restarted.
    configure_grace("often")
    facts["not configured"] = {**install(newer), "job": confined(job), **services()}
    CONFIG.write_text(CONFIG.read_text().replace("often", "47s"))
    facts["upgraded"] = result(run("dpkg", "--configure", "-a"))
    await_answer()
    facts["upgraded"] |= {
        "job": confined(job), "doctor": doctor(), "stop": unit("drfd-jobs", "TimeoutStopUSec"),
        **services(),
    }  # fmt: skip
    facts["given up"] = {**install(broken), "job": confined(job), **services()}

    # Without a change of the configuration, and with one.
    facts["reconfigured"] = {**result(run("dpkg-reconfigure", "drfd")), **services()}
    CONFIG.write_text(CONFIG.read_text().replace("47s", "48s"))
    facts["changed"] = {
        **result(run("dpkg-reconfigure", "drfd")), "stop": unit("drfd-jobs", "TimeoutStopUSec"),
        "job": confined(job), **services(),
    }  # fmt: skip
    facts["ended"] = ended(job)
    return facts


def life_to_purge(facts: Facts, older: str, newer: str, broken: str) -> Facts:
    await_answer()
    held = facts["with a job"]["held"]
    facts["rebooted"] = {"doctor": doctor(), "held": shown(held)["state"], **services()}
    await_no_attempt()
    run("systemctl", "disable", "drfd-launcher")
    # As the set-up does where the configuration has nodes of Slurm's.
    run("systemctl", "enable", "drfd-slurm-launcher")
    facts["removed"] = {**apt("remove", "drfd"), "files": listed(), **services()}
    facts["again"] = {**install(newer), "config": CONFIG.read_text(), **services()}
    run("systemctl", "enable", "--now", "drfd-launcher")
    await_answer()
    run("drf", "release", held)
    facts["again"] |= {
        "wait": run("drf", "wait", held).returncode, "next": submit("bob", "--hold", "--", "true"),
    }  # fmt: skip
    await_no_attempt()
    facts["purged"] = purged()
    return facts


def next_python(deb: str, repository: str) -> Facts:
    facts = begun()
    install(deb)
    await_answer()
    job, held = submit_two()
    facts["with a job"] = {
        "job": confined(job), "held": held, "programs": programs(), **services(),
    }  # fmt: skip
    Path("/etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{repository} ./\n")
    apt("update")
    facts["upgraded"] = apt(
        *("-o", "Dpkg::Options::=--force-confold", "install"),
        *("python3", *(f"{name}-" for name in NOT_NEEDED)),
    )
    await_answer()
    facts["upgraded"] |= {
        "job": confined(job), "release": Path("/etc/debian_version").read_text(),
        "programs": programs(), **services(),
    }  # fmt: skip
    facts["ended"] = ended(job)
    return facts


def rebooted(facts: Facts, deb: str, repository: str) -> Facts:
    await_answer()
    run("drf", "release", facts["with a job"]["held"])
    facts["booted"] = {
        "wait": run("drf", "wait", facts["with a job"]["held"]).returncode,
        "programs": programs(), "doctor": doctor(), **services(),
    }  # fmt: skip
    await_no_attempt()
    facts["purged"] = purged()
    new = set(facts["purged"]["files"]) - set(facts["before"]["files"])
    facts["purged"]["files"] = sorted(path for path in new if "drfd" in path)
    return facts


# -- steps --------------------------------------------------------------------------------------


def begun() -> Facts:
    # Debian's man-db makes its index anew after each change, which takes long and says nothing.
    Path("/var/lib/man-db/auto-update").unlink(missing_ok=True)
    return {"before": {"files": listed(), "at": time.time()}}


def submit_two() -> tuple[int, int]:
    """One job that runs until its gate opens, and one that is held."""
    job = submit("alice", "-c", "0.1", "-m", "64M", "--", "sh", "-c", gated(7))
    held = submit("bob", "-c", "0.1", "-m", "64M", "--hold", "--", "true")
    wait_for("the job's first word", lambda: shown(job)["state"] == "RUNNING" and output(job))
    return job, held


def ended(job: int) -> dict[str, Any]:
    GATE.touch()
    return {"wait": run("drf", "wait", job).returncode, "output": output(job)}


def configure_grace(grace: str) -> None:
    """It changes a unit."""
    text = CONFIG.read_text()
    CONFIG.write_text(text.replace("[enforcement]\n", f'[enforcement]\ngrace = "{grace}"\n'))


def purged() -> dict[str, Any]:
    return {
        **apt("purge", "drfd"), "files": listed(),
        "accounts": [run("getent", base, "drfd").stdout for base in ("passwd", "group")],
        "left": processes(), "at": time.time(), **services(),
    }  # fmt: skip


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


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """How a program that changes the package ended, and what dpkg says of the package then."""
    form = "${db:Status-Abbrev}${Version}"
    status = run("dpkg-query", "-W", "-f", form, "drfd").stdout
    # What dpkg says, apt passes on to standard output.
    return {"status": done.returncode, "said": done.stdout + done.stderr, "is": status}


def apt(*words: str) -> dict[str, Any]:
    return result(run("apt-get", "-q", "-y", *words))


def install(package: str) -> dict[str, Any]:
    return apt("install", package)


def unit(name: str, fact: str) -> str:
    return run("systemctl", "show", "--value", "-p", fact, name).stdout.strip()


def services() -> dict[str, Any]:
    """Of each service: whether it runs and starts at boot, its process, and what that runs."""
    facts = ("LoadState", "ActiveState", "UnitFileState", "MainPID")
    found = {}
    for name in SERVICES:
        text = run("systemctl", "show", "-p", ",".join(facts), name).stdout
        found[name] = dict(line.split("=", 1) for line in text.splitlines())
    return {"services": found}


def programs() -> dict[str, str]:
    """What runs the two daemons."""
    pids = {name: unit(name, "MainPID") for name in ("drfd", "drfd-launcher")}
    return {name: os.readlink(f"/proc/{pid}/exe") for name, pid in pids.items()}


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


def gated(status: int) -> str:
    return f"echo $$; while ! [ -e {GATE} ]; do sleep 0.5; done; exit {status}"


def shown(job: int) -> dict[str, Any]:
    return dict(json.loads(run("drf", "show", "--json", job).stdout))


def output(job: int) -> str:
    return Path(shown(job)["stdout"]).read_text()


def confined(job: int) -> dict[str, Any]:
    """Of a running job: its attempt, its process, and the cgroup that this is in."""
    facts = shown(job)
    place = Path("/sys/fs/cgroup", facts["cgroup"])
    pid = int(output(job).split()[0])
    return {
        **{name: facts[name] for name in ("state", "attempt", "cgroup")},
        "pid": pid,
        "inode": place.stat().st_ino,
        "is in it": str(pid) in (place / "cgroup.procs").read_text().split(),
        "memory": (place / "memory.max").read_text(),
    }


def doctor() -> dict[str, Any]:
    found = json.loads(run("su", "-l", "alice", "-c", "drf doctor --json").stdout)
    return {name: found[name] for name in ("version", "enforcement", "launcher")}


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

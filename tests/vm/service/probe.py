"""All that a process has from those that started it, as JSON on standard output."""

import ctypes
import json
import os
import resource

LIMITS = {
    name.removeprefix("RLIMIT_"): getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
}
SETS = ("Inh", "Prm", "Eff", "Bnd", "Amb")

IOPRIO_GET, PR_GET_PDEATHSIG, PR_GET_TIMERSLACK, PR_GET_SECUREBITS = 252, 2, 30, 27
libc = ctypes.CDLL(None)


def read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def environment() -> dict[str, str]:
    """As it was given: Python may add to its own."""
    return dict(pair.split("=", 1) for pair in read("/proc/self/environ").split("\0") if pair)


def main() -> None:
    # Before anything else is opened.
    listed = os.listdir("/proc/self/fd")
    open_fds = sorted(int(fd) for fd in listed if os.path.exists(f"/proc/self/fd/{fd}"))
    lines = (line.partition(":") for line in read("/proc/self/status").splitlines())
    status = {name: value.strip() for name, _, value in lines}
    parent_death = ctypes.c_int()
    libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(parent_death))
    umask = os.umask(0)
    facts = {
        "uids": status["Uid"].split(),
        "gids": status["Gid"].split(),
        "groups": sorted(map(int, status["Groups"].split())),
        "capabilities": {name: status[f"Cap{name}"] for name in SETS},
        "securebits": libc.prctl(PR_GET_SECUREBITS),
        "no new privileges": status["NoNewPrivs"],
        "seccomp": status["Seccomp"],
        "cwd": os.getcwd(),
        "umask": oct(umask),
        "environment": environment(),
        "limits": {name: resource.getrlimit(number) for name, number in LIMITS.items()},
        "blocked signals": status["SigBlk"],
        "pending signals": status["ShdPnd"],
        "ignored signals": status["SigIgn"],
        "descriptors": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in open_fds},
        "cgroup": read("/proc/self/cgroup"),
        "oom_score_adj": read("/proc/self/oom_score_adj"),
        "coredump_filter": read("/proc/self/coredump_filter"),
        "personality": read("/proc/self/personality"),
        "loginuid": read("/proc/self/loginuid"),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "policy": os.sched_getscheduler(0),
        "processors": sorted(os.sched_getaffinity(0)),
        "io priority": libc.syscall(IOPRIO_GET, 1, 0),
        "timer slack": libc.prctl(PR_GET_TIMERSLACK),
        "signal at parent's death": parent_death.value,
        "leads its session": os.getsid(0) == os.getpid(),
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}")
                       for name in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")},
    }  # fmt: skip
    print(json.dumps(facts))


main()

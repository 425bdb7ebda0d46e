"""Environment variables of a job: those of its submitter, and those that drfd sets.

The submitter's are passed on except for secrets and variables of a login session. Those that drfd
sets are a closed set of names: the launcher accepts no others from the controller, so that whoever
controls the controller cannot put a library or a path into another user's job.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_OPENMP = "OMP_NUM_THREADS"

#: Thread counts that default to OMP_NUM_THREADS, so they are not set if the submitter sets that.
_AFTER_OPENMP = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
#: Thread counts that one runtime each reads. Left out: VECLIB_MAXIMUM_THREADS (macOS only) and
#: JAVA_TOOL_OPTIONS (prints a line into the job's output); the JVM and .NET respect CPU quotas.
_ALONE = (
    "NUMBA_NUM_THREADS",
    "JULIA_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "GOMAXPROCS",
    # From Python 3.13 on: the result of os.cpu_count() and the defaults that derive from it.
    "PYTHON_CPU_COUNT",
)


def thread_counts(threads: int, env: Mapping[str, str]) -> dict[str, str]:
    """Return variables that tell programs to start so many threads, except those set in `env`.

    Most programs start one thread for each CPU of the machine, and few respect CPU quotas. A job
    that declares fewer CPUs would have more threads than its quota can run at once.
    """
    names = [_OPENMP, *_ALONE]
    if _OPENMP not in env:
        names += _AFTER_OPENMP
    return {name: str(threads) for name in names if name not in env}


#: Lists of the GPUs that are allocated to a job, and the order in which CUDA numbers GPUs.
DEVICE_LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
DEVICE_ORDER = "CUDA_DEVICE_ORDER"
#: Lists that ROCm applies below HIP's own list, so that both would renumber the devices.
BELOW_DEVICE_LISTS = ("ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
#: Prefix of the variable for each countable resource.
GRES_PREFIX = "DRF_GRES_"

_OWN = re.compile(r"DRF_[A-Z0-9_]{1,128}", re.ASCII)


def may_set(name: str) -> bool:
    """Return whether drfd may set this variable, overriding the submitter's."""
    return name in (*DEVICE_LISTS, DEVICE_ORDER) or _OWN.fullmatch(name) is not None


def may_hide(name: str) -> bool:
    """Return whether drfd may remove this variable of the submitter's."""
    return name in BELOW_DEVICE_LISTS


def threads_of(cores_milli: int) -> int:
    """Return the number of threads for so many milli-cores: the whole cores, at least one."""
    return max(1, cores_milli // 1000)


#: TOKENIZERS_PARALLELISM holds no token.
_SECRET = re.compile(
    r"TOKENS?(?:_|$)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|(?:API|ACCESS|PRIVATE)_?KEY|_(?:PWD|PAT)$",
    re.IGNORECASE,
)
_SESSION = re.compile(
    r"SSH_\w+|XDG_SESSION_\w+|XDG_RUNTIME_DIR|XDG_VTNR|XDG_SEAT|DBUS_\w+|DISPLAY|WAYLAND_DISPLAY|"
    r"XAUTHORITY|WINDOWID|TMUX\w*|STY|TERM_SESSION_ID|GPG_AGENT_INFO|SUDO_\w+|INVOCATION_ID|"
    r"NOTIFY_SOCKET|LISTEN_\w+|WATCHDOG_\w+|JOURNAL_STREAM|MAINPID|DRFD_\w+|DRF_\w+|_|SHLVL|OLDPWD"
)


def capture(env: Mapping[str, str], keep: Collection[str]) -> dict[str, str]:
    """Return the variables for the job. `keep` names secrets that are passed on all the same."""
    return {
        name: value
        for name, value in env.items()
        if name in keep or not (_SECRET.search(name) or _SESSION.fullmatch(name))
    }


def as_given(env: Mapping[str, str]) -> dict[str, str]:
    """Return this process's variables without LC_CTYPE if Python has added it (PEP 538).

    Python does so where the locale is C, and a job must see the variables of its submitter.
    """
    kept = dict(env)
    try:
        with open("/proc/self/environ", "rb") as file:
            given = file.read().split(b"\0")
    except OSError:
        return kept
    if not any(variable.startswith(b"LC_CTYPE=") for variable in given):
        kept.pop("LC_CTYPE", None)
    return kept


def is_secret(name: str) -> bool:
    """Return whether a variable looks like a secret, which is passed on only if it is named."""
    return bool(_SECRET.search(name))


def not_text(env: Mapping[str, str]) -> list[str]:
    """Return the names of variables that are not UTF-8, which no message can carry."""
    return [name for name, value in env.items() if not _is_text(name + value)]


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True

"""The layout of a plan: what root has decided of an attempt, for the compiled program.

`AttemptPlan` is the one list of its fields. `encode` writes them in this order, and `header` makes
of them plan.h, the struct and its reader, when the program is compiled. In a plan comes first the
length of the rest, in four bytes, then each field with a NUL after it. Numbers are hexadecimal; a
list has its length first. It holds nothing of the payload. It needs no other module of drfd.
"""

from __future__ import annotations

import functools
import struct
from typing import NamedTuple, get_type_hints


class AttemptPlan(NamedTuple):
    """What root has decided; plan.py says what of."""

    #: Whether root's rights are dropped; those of the attempt's parent, as bits.
    drops: bool
    effective: int
    permitted: int
    #: The attempt, as its file is called.
    name: str
    #: Whether it is not the job that is begun, but the command that notifies its owner; and whether
    #: a job's start is told to its owner.
    notifies: bool
    tells_start: bool
    leaves_keyring: bool
    joins_keyring: bool
    resets_oom_score: bool
    empties_output: bool
    sends_outputs: bool
    most_output: int
    #: Limits that the job inherits: number, soft and hard value of each.
    limits: tuple[int, ...]
    timer_slack_ns: int
    #: How long the start, the exec, the killing of the rest may take, and all of it; 0 for ever.
    start_ms: int
    exec_ms: int
    sweep_ms: int
    whole_ms: int
    #: See `Killing` in confinement/interface.py.
    pids_max: str
    freezer: str
    oom_control: str
    event_control: str
    #: Path, key, name and least number of each counter (`Counter`) that is put on record at the
    #: end, and directories of cgroups that are removed then, in this order.
    counters: list[str]
    directories: list[str]
    failpoints: str
    #: Path, text and line of each limit (`CgroupSetting`).
    settings: list[str]
    #: See `Entrance` in confinement/interface.py.
    cgroup: str
    entries: list[str]
    cpus: tuple[int, ...]
    processes: int
    #: The uid that is the process' login uid, "" for none.
    login: str
    #: The private space, "" for none. Directories below it, and what they cover.
    place: str
    shm: str
    names: tuple[str, str]
    targets: tuple[str, str]
    uid: int
    gid: int
    groups: tuple[int, ...]
    #: What %j, %A, %a, %x and %u stand for in the names of output files.
    signs: tuple[str, str, str, str, str]
    #: See `Variables` in runner/identity.py.
    hidden: list[str]
    defaults: list[str]
    openmp_defaults: list[str]
    wait_defaults: list[str]
    own: list[str]


def encode(plan: AttemptPlan) -> bytes:
    """Raises ValueError if a text contains a NUL."""
    words: list[str] = []
    for field in plan:
        if isinstance(field, str):
            words.append(field)
        elif isinstance(field, int):
            words.append(f"{field:x}")
        elif isinstance(field, list):
            words.append(f"{len(field):x}")
            words += field
        else:
            words += _words(field)
    text = "\0".join((*words, ""))
    if text.count("\0") != len(words):
        raise ValueError("a text holds a NUL")
    data = text.encode(errors="surrogateescape")
    return struct.pack("=I", len(data)) + data


@functools.lru_cache(maxsize=1000)
def _words(values: tuple[int, ...] | tuple[str, ...]) -> list[str]:
    """The numbers are mostly those of the last job. RLIM_INFINITY, which is negative here, is as
    the kernel has it."""
    numbers = [f"{each & 0xFFFF_FFFF_FFFF_FFFF:x}" for each in values if isinstance(each, int)]
    texts = [each for each in values if isinstance(each, str)]
    return texts or [f"{len(numbers):x}", *numbers]


#: Type of a field → its declaration and how it is read, in C.
_IN_C: dict[object, tuple[str, str]] = {
    bool: ("unsigned long {0}", "next_number(&from, 16)"),
    int: ("unsigned long {0}", "next_number(&from, 16)"),
    str: ("char *{0}", "next(&from)"),
    tuple[int, ...]: ("unsigned long {0}_count, *{0}", "counted_numbers(&from, &plan.{0}_count)"),
    list[str]: ("char **{0}", "counted_texts(&from)"),
    tuple[str, str]: ("char **{0}", "next_texts(&from, 2)"),
    tuple[str, str, str, str, str]: ("char **{0}", "next_texts(&from, 5)"),
}


def header() -> str:
    """Return plan.h."""
    fields = [(name, *_IN_C[kind]) for name, kind in get_type_hints(AttemptPlan).items()]
    return "\n".join(
        (
            "struct plan {",
            *(f"\t{declared.format(name)};" for name, declared, _ in fields),
            "};\n\nstatic struct plan read_plan(int fd)\n{",
            "\tstruct texts from = read_texts(fd);\n\tstruct plan plan;\n",
            *(f"\tplan.{name} = {read.format(name)};" for name, _, read in fields),
            "\treturn plan;\n}\n",
        )
    )

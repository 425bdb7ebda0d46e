"""The layout of a plan: what root has decided of an attempt, for the compiled program.

`OwnPlan` and `SharedPlan` are the one list of its fields. `encode` writes them in this order, and
`header` makes of them plan.h, the struct and its reader, when the program is compiled. In a plan
comes first the length of the rest, in four bytes, then each field with a NUL after it. Numbers are
hexadecimal; a list has its length first. It holds nothing of the payload. It needs no other module
of drfd.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple, get_type_hints


class OwnPlan(NamedTuple):
    """What each attempt has of its own."""

    #: The attempt, as its file is called.
    name: str
    #: See `ProcessLimits` in confinement/interface.py.
    cpus: tuple[int, ...]
    processes: int
    #: The private space, "" for none.
    place: str
    #: What %j, %A, %a, %x and %u stand for in the names of output files.
    signs: tuple[str, str, str, str, str]
    #: See `own_variables` in runner/identity.py.
    own: list[str]


class SharedPlan(NamedTuple):
    """What alike attempts have in common but for the name of their cgroups."""

    #: Number of `directories`, from the last one on, that are made; and path, text and line of each
    #: limit; here and below, what `CgroupPlan` of confinement/interface.py says.
    makes: int
    settings: list[str]
    cgroup: str
    entries: list[str]
    #: Whether root's rights are dropped; those of the attempt's parent, as bits.
    drops: bool
    effective: int
    permitted: int
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
    pids_max: str
    freezer: str
    oom_control: str
    event_control: str
    #: Path, key, name and least number of each counter (`Counter`) that is put on record at the
    #: end, and directories of cgroups that are removed then, in this order.
    counters: list[str]
    directories: list[str]
    failpoints: str
    #: The uid that is the process' login uid, "" for none.
    login: str
    #: Options of the mount of the private space's shared memory; directories of the space, and what
    #: they cover.
    shm: str
    names: tuple[str, str]
    targets: tuple[str, str]
    uid: int
    gid: int
    groups: tuple[int, ...]
    #: See `Variables` in runner/identity.py.
    hidden: list[str]
    defaults: list[str]
    openmp_defaults: list[str]
    wait_defaults: list[str]


def encode(own: OwnPlan, shared: list[str], cgroup: str) -> bytes:
    """Return a plan. `shared` is what `encode_shared` has returned for any attempt alike, and
    `cgroup` the name of this one's. Raises ValueError if a text contains a NUL."""
    text = _text(_all_words(own)) + cgroup.join(shared)
    data = text.encode(errors="surrogateescape")
    return struct.pack("=I", len(data)) + data


def encode_shared(shared: SharedPlan, cgroup: str) -> list[str]:
    """Return the text of what alike attempts share, cut where the names of their cgroups are.
    `cgroup` is the name of one: the last such part of each path. Raises ValueError if a text
    contains a NUL."""
    cut, name = [""], f"/{cgroup}"
    for word in _all_words(shared):
        above, found, below = _text([word]).rpartition(name)
        # Only what is below the directory of a cgroup can follow its name.
        if found and above.startswith("/") and below[0] in "/\0":
            cut[-1] += f"{above}/"
            cut.append("")
        else:
            below = f"{word}\0"
        cut[-1] += below
    return cut


def _text(words: list[str]) -> str:
    text = "\0".join((*words, ""))
    if text.count("\0") != len(words):
        raise ValueError("a text holds a NUL")
    return text


def _all_words(fields: Iterable[object]) -> list[str]:
    words: list[str] = []
    for field in fields:
        if isinstance(field, str):
            words.append(field)
        elif isinstance(field, int):
            words.append(f"{field:x}")
        elif isinstance(field, list):
            words.append(f"{len(field):x}")
            words += field
        else:
            assert isinstance(field, tuple)
            # RLIM_INFINITY, which is negative here, is as the kernel has it.
            numbers = [f"{each & 0xFFFF_FFFF_FFFF_FFFF:x}" for each in field if type(each) is int]
            words += field if len(numbers) < len(field) else [f"{len(numbers):x}", *numbers]
    return words


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
    kinds = get_type_hints(OwnPlan) | get_type_hints(SharedPlan)
    fields = [(name, *_IN_C[kind]) for name, kind in kinds.items()]
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

"""From a submit request and its sender to the specification of a job: checks and defaults."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from msgspec import to_builtins
from msgspec.structs import replace

from drfd.common.errors import NotPermitted, Refused, printable
from drfd.common.indices import read_group
from drfd.common.paths import private_place
from drfd.common.units import AXES, DISK_AXES, show_apart, show_cores
from drfd.core.fairness.rules import Rules
from drfd.core.model.job import (
    COMMENT_LENGTH,
    DEPENDENCY_BYTES,
    Actor,
    Dependency,
    JobSpec,
    RequiredOutcome,
    UserGroup,
    command_text,
)
from drfd.core.model.options import Demand, cores_end
from drfd.core.model.resources import NOTHING, kind_of, with_gres
from drfd.daemon.config import Defaults, UserLimits
from drfd.devices.gpu import GPU
from drfd.host.disks import Disk, disk_of
from drfd.journal.submissions import Payload
from drfd.payload.pack import encode, raw, readable, usual_output
from drfd.payload.unpack import signs_in
from drfd.protocol import requests as parts
from drfd.protocol.limits import NAME_LENGTH
from drfd.protocol.requests import SubmitRequest

#: The longest argument or variable that the kernel accepts, in bytes (MAX_ARG_STRLEN, execve(2)),
#: and the longest path (PATH_MAX).
MAX_WORD_BYTES, _MAX_PATH_BYTES = 128 << 10, 4095


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitTerms:
    """The configuration and the properties of the machine that a submission depends on."""

    rules: Rules
    defaults: Defaults
    limits: UserLimits
    disks: Sequence[Disk]
    takes_root: bool
    #: Whether the launcher runs no jobs of this user.
    is_refused: bool = False
    #: Bytes of the largest GPU that is given out, if the sizes of all are known.
    largest_gpu_bytes: int | None = None
    #: Unix time before which no batch job for Slurm starts.
    slurm_begin_s: int = 0
    #: Whether each job has its own /tmp.
    has_private_tmp: bool = False
    #: Whether the kernel divides cores between jobs with ranges of them.
    has_ranges: bool = True


def spec_for(request: SubmitRequest, actor: Actor, gid: int, terms: SubmitTerms) -> JobSpec:
    """Return the specification of the job. Raises Refused for an invalid request, and NotPermitted
    if the user may not submit; the core decides whether the demand can be met."""
    rules, defaults, disks = terms.rules, terms.defaults, terms.disks
    _check_sizes(request, terms.limits)
    if not request.argv:
        raise Refused("no-command", "there is nothing to run", hint="drf submit -- COMMAND")
    if actor.uid == 0 and not terms.takes_root:
        raise NotPermitted(
            "root", "jobs of root are not taken here", hint="submit as an ordinary user"
        )
    if not actor.has_account:
        raise NotPermitted(
            "no-account",
            f"uid {actor.uid} has no account on this machine, or none that can be looked up now",
            hint="jobs run as a user whom the machine knows",
        )
    if terms.is_refused:
        raise NotPermitted(
            "system-account",
            f"{actor.user} (uid {actor.uid}) is a system account, of which no jobs run here",
            hint="an administrator names it in daemon.system_users and restarts drfd and its "
            "launchers, or you submit as an ordinary user",
        )
    hidden = private_place(request.cwd) if terms.has_private_tmp else None
    if hidden is not None:
        raise Refused(
            "private-tmp",
            f"the directory {request.cwd} is not seen by jobs: each has a {hidden} of its own here "
            "([enforcement] private_tmp)",
            hint="submit from another directory, such as your home",
        )
    asked = request.demand
    refuse_beyond_gpus(asked, terms.largest_gpu_bytes)
    refuse_range(asked, has_ranges=terms.has_ranges)
    amounts = _declared(asked, defaults, disks, request.cwd)
    most = asked.cores_max_milli
    if most is None:
        # The default upper end might stand below a lower end that was given.
        is_default = asked.cores_milli is None and terms.has_ranges
        most = defaults.cores_max_milli if is_default else 0
    demand = replace(
        with_gres(NOTHING.with_amounts(amounts), asked.gres, asked.gres_memory),
        node=_node_for(request, rules.axes.home),
        features=tuple(sorted(set(request.features))),
    )
    limit, notify, retry = request.time_limit_s, request.notify, request.retry
    is_for_slurm = "DRF_SLURM" in request.env and request.attach is None
    earliest_s = terms.slurm_begin_s if is_for_slurm else 0
    usual = usual_output(is_array=request.array is not None)
    called = readable(request.name or request.argv[0].rsplit("/", 1)[-1])
    name = (called if request.name else printable(called))[:NAME_LENGTH] or "job"
    comment = readable(request.comment or "")[:COMMENT_LENGTH] or None
    return JobSpec(
        **{
            **request.requested(),
            "comment": comment,
            "retry": retry if retry is not None and retry.times else None,
        },
        name=name,
        user=actor.user,
        uid=actor.uid,
        gid=gid,
        pool=rules.pool_for(actor.user, request.pool),
        demand=demand,
        cores_max_milli=cores_end(demand.cores_milli, most, rules.capacity.cores_milli),
        time_limit_s=(limit or None) if limit is not None else defaults.time_limit_s,
        command=command_text(request.argv),
        cwd=request.cwd,
        stdout=request.stdout or f"{usual}.out",
        stderr=request.stderr or f"{usual}.err",
        attach=request.attach,
        after=dependencies(request.after),
        begin_s=max(request.begin_s or 0, earliest_s) or None,
        notify=() if notify is None else tuple(notify.on),
        group=None if request.group is None else UserGroup(*read_group(request.group)),
        cancel_if_never=(request.if_never or defaults.if_never) == "cancel",
    )


def payload_of(request: SubmitRequest) -> Payload:
    """Return the bytes that the request's user has signed."""
    return Payload(*encode(to_builtins(request)), request.proof, request.key)


def _node_for(request: SubmitRequest, home: str) -> str:
    """Return the only node that will do, or "". What drfd itself keeps of a job's terminal and
    output is kept on the controller's own node alone, if there are others. Raises Refused."""
    named = request.node or ""
    if not home or named == home:
        return named
    for is_wanted, what in (
        (request.attach is not None, "a terminal, or `drf run`"),
        (request.output_max_bytes is not None, "--output-max"),
    ):
        if is_wanted and named:
            raise Refused(
                "not-on-node",
                f"{what} is for jobs on {home} alone, not on {named}",
                hint=f"submit it without that, or leave out --node {named}",
            )
        if is_wanted:
            return home
    return named


def refuse_beyond_gpus(demand: Demand, largest_bytes: int | None) -> None:
    """Raise Refused if more memory is declared on each GPU than the largest of them has, as far as
    that is known."""
    asked = demand.gres_memory.get(GPU, 0)
    if largest_bytes is not None and asked > largest_bytes:
        more, most = show_apart(asked, largest_bytes)
        raise Refused(
            "too-big",
            f"--gres: {more} of memory of a {GPU} are asked for, and the largest here has {most}: "
            "no job could ever have them",
            hint="ask for less",
        )


def size_of(request: SubmitRequest) -> int:
    """Estimate how many bytes of a submission the journal writes for the job alone. The rest may be
    that of other jobs (`drfd.journal.submissions`)."""
    paths = request.cwd, request.stdout or "", request.stderr or ""
    texts = (*request.argv, *request.features, *paths, request.comment or "")
    return sum(map(len, texts)) + len(texts) + DEPENDENCY_BYTES * len(request.after)


def dependencies(asked: list[parts.DependencyPart]) -> tuple[Dependency, ...]:
    """Return the dependencies of a request whose task names have been replaced by ids."""
    found: dict[Dependency, None] = {}
    for each in asked:
        assert isinstance(each.id, int)
        found[Dependency(each.id, RequiredOutcome(each.want))] = None
    return tuple(found)


def refuse_range(asked: Demand, *, has_ranges: bool) -> None:
    """Raise Refused for a range of cores where the kernel divides none."""
    if asked.cores_max_milli and not has_ranges:
        raise Refused(
            "no-ranges",
            "-c: jobs cannot have ranges of cores here, because there are no cgroups in which the "
            "kernel would divide idle cores",
            hint=f"write -c {show_cores(asked.cores_milli or 1000)}",
        )


def _declared(asked: Demand, defaults: Defaults, disks: Sequence[Disk], cwd: str) -> dict[str, int]:
    """Return the amounts by axis. Rates without a disk's name are for the disk of the working
    directory, or for the first disk if the directory is on none."""
    names = [disk.name for disk in disks]
    for name in asked.disks:
        if name not in names:
            raise Refused(
                "no-such-disk",
                f"--io: there is no disk {name!r} here",
                hint=f"disks: {', '.join(names)}" if names else "no disk is managed here",
            )
    given = asked.amounts
    own = _own_disk(disks, cwd) if disks else ""
    if own in asked.disks and not given.keys().isdisjoint(DISK_AXES):
        raise Refused(
            "bad-value",
            f"--io: the disk {own} is given twice; without a name it is that of {cwd}",
        )
    amounts = dict[str, int]()
    for disk in sorted(disks, key=attrgetter("name")) or (None,):
        for name, row in AXES.items():
            default, keys = getattr(defaults, row.field, 0), [name]
            if row.is_of_disks:
                default = 0 if disk is None else min(default, getattr(disk, row.field))
                name = f"{name}:{disk.name}" if disk is not None else name
                keys = [name, *keys] if disk is None or disk.name == own else [name]
            least = next((given[key] for key in keys if key in given), None)
            axis = name if len(disks) > 1 else kind_of(name)
            amounts[axis] = default if least is None else least
    return amounts


def _own_disk(disks: Sequence[Disk], cwd: str) -> str:
    """Return the name of the disk that rates without a disk's name are for."""
    return ((disk_of(os.fsdecode(raw(cwd)), disks) if len(disks) > 1 else None) or disks[0]).name


def _check_sizes(request: SubmitRequest, limits: UserLimits) -> None:
    env = [*request.env, *request.env.values()]
    size_bytes = 0
    for what, texts, most in (
        ("the command", request.argv, limits.command_bytes),
        ("the environment", env, limits.environment_bytes),
        ("the script", [request.script or ""], limits.script_bytes),
    ):
        # An environment has a hundred texts: they are looked at together, here and below.
        size = len("".join(texts).encode()) + len(texts)
        if size > most:
            raise Refused("too-long", f"{what} has {size} bytes; {most} are the most")
        size_bytes += size
    if size_bytes > MAX_WORD_BYTES:
        _check_words(request)
    if "" in request.env or "=" in "".join(request.env):
        raise Refused("bad-request", "a variable's name is empty or holds an equals sign")
    texts = [*request.argv, *env, request.cwd, request.stdout or "", request.stderr or ""]
    texts += request.notify.argv if request.notify is not None else []
    if "\0" in "".join([*texts, request.attach or ""]):
        raise Refused("bad-request", "no argument, variable or path can hold a NUL character")
    for option, pattern in (("-o", request.stdout), ("-e", request.stderr)):
        if pattern is not None:
            _check_output(option, pattern, request.cwd)


def _check_output(option: str, pattern: str, cwd: str) -> None:
    """Raise Refused if the path of an output file could not be opened when a name stands for each
    of its signs: at each launch, it is compared with those of the user's jobs that run."""
    path = pattern if pattern.startswith("/") else f"{cwd}/{pattern}"
    size = len(raw(path)) + NAME_LENGTH * len(signs_in(pattern))
    if size > _MAX_PATH_BYTES:
        raise Refused(
            "too-long",
            f"{option}: the file's path may get {size} bytes ({NAME_LENGTH} for each %-sign); "
            f"{_MAX_PATH_BYTES} are the most",
            hint=f"name a file with a shorter path, or fewer %-signs, with {option}",
        )


def _check_words(request: SubmitRequest) -> None:
    variables = [f"{name}={value}" for name, value in request.env.items()]
    for word in (*request.argv, *variables):
        if len(word.encode()) >= MAX_WORD_BYTES:
            raise Refused(
                "too-long",
                f"an argument or variable has {len(word.encode())} bytes; "
                f"{MAX_WORD_BYTES - 1} are the most",
            )

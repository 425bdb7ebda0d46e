"""Scripts written for Slurm in `drf submit`: their options, and what is said of them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from drfd.client.connection import Connection, count_resources
from drfd.client.submission import with_way
from drfd.client.words import parse_features
from drfd.common.errors import Refused
from drfd.common.units import MAIN, show_cores, show_duration, show_size
from drfd.payload.environment import DEFAULT_PATH
from drfd_cli import output
from drfd_cli.slurm import SLURM_NAMES, host_name
from drfd_cli.slurm.grammar import refusal
from drfd_cli.slurm.sbatch_options import (
    Translation,
    called_commands,
    in_slurms_words,
    read_lines,
    translate,
)

if TYPE_CHECKING:
    from drfd.protocol.replies import CoresAndMemory, MachineView

#: A directory with Slurm's commands, each of which calls drf.
NAMES = os.path.join(os.path.dirname(__file__), "names")
#: The first line of a script for bash as a login shell.
_LOGIN_SHELL = re.compile(
    r"#![^\n]*(?:/|[ \t])bash[ \t](?:[^\n]*[ \t])?(?:--login|-[a-z]*l[a-z]*)[ \t]*(?:\n|$)"
)
#: What bash makes of such a command, unless PATH has one by then.
_FUNCTION = (
    '() {{ if type -P {name} >/dev/null; then command {name} "$@"; '
    'else "{names}/{name}" "$@"; fi\n}}'
)


def lines_of(script: str, name: str, check: Callable[[list[str]], None]) -> Translation | None:
    """Return what the #SBATCH lines of a script ask for, or None if it has none. `check` raises
    ValueError for words that are no options of `drf submit`. Raises Refused."""
    options = read_lines(script, name)
    if options is None:
        return None
    made = translate(options, host_name())
    try:
        check(made.words)
    except ValueError as error:
        hint = "drf submit --ignore-sbatch leaves out these lines"
        raise Refused(
            "bad-value", f"{name}: #SBATCH {in_slurms_words(str(error))}", hint=hint
        ) from None
    return made


def resolve(
    made: Translation, asked: Mapping[str, Any], client: Connection, script: str | None
) -> dict[str, object]:
    """Return the options of `drf submit` or `drf run` in `asked` with those that Slurm's options
    ask for, and print in one warning what has no effect. Raises Refused for a directory that is not
    there."""
    found = dict(asked)
    if found["pool"] is None and made.partitions:
        found["pool"] = pool_of(made, client)
    found |= on_machines(made, found, client)
    found |= whole_machine(made, found, client)
    check_begun(made.begun, client)
    check_counted(made, client)
    if made.is_singleton:
        found["after"] = (*(found["after"] or ()), *_namesakes(found["name"], client))
    if made.mail_on and found.get("notify") is None:
        try:
            if found.get("notify_command") is None:
                with_way({}, os.environ)
            found["notify"] = list(dict.fromkeys(made.mail_on))
        except Refused:
            made.unsupported.append("--mail-type (no mail here, and no ~/.config/drfd/notify)")
    if made.signal and found.get("warn") is not None:
        limit_s = found["time"]
        if limit_s is None:
            limit_s = client.request("hello").get("time_limit_s", 0)
        if not limit_s or found["warn"][1] >= limit_s:
            # Scripts keep it when their limit is made shorter for a test.
            limit = show_duration(limit_s) if limit_s else "none"
            made.unsupported.append(f"{made.signal} (the time limit is {limit})")
            found["warn"] = None
    if made.directory is not None:
        path, fault = made.directory.value, "there is no such directory"
        if not os.path.isdir(path):
            option, does = "--chdir=DIR", "runs it elsewhere"
            raise made.refusal(made.directory, f"--chdir={path}", fault, option, does)
        found["cwd"] = path
    if made.unsupported:
        output.say(f"without effect here: {', '.join(made.unsupported)}")
    made.is_for_login_shell = script is not None and _LOGIN_SHELL.match(script) is not None
    for name in () if script is None else called_commands(script, os.environ):
        if not (name in SLURM_NAMES and shutil.which(name, path=NAMES)) and not shutil.which(name):
            output.say(f"the script calls {name}, and there is no such command here{_cure(name)}")
    uses_tmpdir = script is not None and "SLURM_TMPDIR" in script
    if uses_tmpdir and client.request("hello").get("private_tmp"):
        # It is empty at first, and removed with the job.
        made.variables.setdefault("SLURM_TMPDIR", "/tmp")  # noqa: S108  # the job's own
    return found


def _cure(name: str) -> str:
    if name in SLURM_NAMES:
        return " (drf slurm-names DIR makes one)"
    if name in ("mpirun", "mpiexec"):
        return "; an MPI, such as Open MPI, must be in your PATH"
    if name not in ("module", "ml"):
        return "; put it into your PATH, or have the script read the file that defines it"
    return "; what it loads must be in your PATH"


def variables(env: Mapping[str, str], made: Translation) -> dict[str, str]:
    """Return the job's variables: those of its submitter that it keeps, and Slurm's that are known
    before it has a number. The daemon adds the others to a job with DRF_SLURM. Of Slurm's commands
    those that its PATH lacks are found at the end of it."""
    found = {
        name: value
        for name, value in env.items()
        if not name.startswith("SLURM_") and (made.kept is None or name in made.kept)
    }
    for names, value in (
        ("NNODES JOB_NUM_NODES", "1"),
        ("NODEID PROCID LOCALID", "0"),
        ("SUBMIT_HOST JOB_NODELIST NODELIST CLUSTER_NAME", host_name()),
    ):
        found |= dict.fromkeys((f"SLURM_{name}" for name in names.split()), value)
    found |= {"SLURMD_NODENAME": host_name(), "DRF_SLURM": "1", "SLURM_SUBMIT_DIR": os.getcwd()}
    found |= made.variables
    path = found.get("PATH") or DEFAULT_PATH
    own = [name for name in SLURM_NAMES if shutil.which(name, path=path) is None]
    own = [name for name in own if shutil.which(name, path=NAMES) is not None]
    if own:
        found["PATH"] = f"{path}:{NAMES}"
    if own and made.is_for_login_shell:
        # Such a shell sets PATH anew, and keeps functions.
        found |= {f"BASH_FUNC_{name}%%": _FUNCTION.format(name=name, names=NAMES) for name in own}
    program = os.path.realpath(shutil.which(sys.argv[0]) or "")
    if NAMES in found.get("PATH", "") and os.path.basename(program) == "drf":
        found["DRF_PROGRAM"] = program
    return found


def pool_of(made: Translation, client: Connection) -> str | None:
    """Return the first of the partitions that is a pool. If none is, return None, and warn unless
    the partition is that of sinfo."""
    names = made.partitions
    paths = [node["path"] for node in client.request("shares")["nodes"]]
    known = {path.rsplit(".", 1)[-1] for path in paths if "." in path} | set(paths)
    found = next((name for name in names if name in known), None)
    if found is None and MAIN not in names:
        made.unsupported.append(
            f"--partition={','.join(names)} (no such pool; drf shares lists them)"
        )
    return found


def on_machines(
    made: Translation, asked: Mapping[str, Any], client: Connection
) -> dict[str, object]:
    """Return the machine and the features that Slurm's options ask for, where there are several
    machines and `asked`, the options of drf, do not say otherwise. Raises Refused."""
    if not made.placed or not machines(client):
        return {}
    found: dict[str, object] = {}
    for name, given in made.placed.items():
        written = f"--{name}={given.value}"
        made.unsupported.remove(written)
        if name == "constraint":
            try:
                features = parse_features(given.value)
            except Refused:
                fault = "drfd knows features that a machine must all have, joined by &"
                raise refusal(given.where, written, fault, name=made.command) from None
            if not asked["constraint"]:
                found["constraint"] = tuple(features)
        elif re.search(r"[,\[/]", given.value):
            fault = "asks for several machines; drfd runs a job on one"
            raise made.refusal(given, written, fault, "--nodelist=NAME", "names one")
        elif asked["node"] is None:
            found["node"] = given.value
    return found


def machines(client: Connection) -> list[MachineView]:
    """Return the machines, if there are several."""
    return [each for each in client.request("nodes")["nodes"] if each["name"]]


def whole_machine(
    made: Translation, asked: Mapping[str, Any], client: Connection
) -> dict[str, int]:
    """Return the cores and the memory of the whole machine, as far as Slurm's options ask for them
    and `asked`, the options of drf, do not say otherwise. Of several machines it is one that will
    do."""
    cores = made.has_all_cores and asked["cores"] is None
    memory = made.has_all_memory and asked["memory"] is None
    if not cores and not memory:
        return {}
    shares = client.request("shares")
    capacity, external = shares["capacity"], shares.get("external")
    named = [
        each["capacity"]
        for each in machines(client)
        if asked.get("node") in (None, each["name"])
        and set(asked.get("constraint") or ()) <= set(each["features"])
    ]
    if named:
        # Of several machines, that with the most cores.
        capacity = max(named, key=lambda each: (each["cores"], each["memory"]))
    elif external is not None:
        _warn_of_outside(external["kept"], cores=cores, memory=memory)
    found = {"cores": int(capacity["cores"] * 1000)} if cores else {}
    return found | ({"memory": int(capacity["memory"])} if memory else {})


def _warn_of_outside(kept: CoresAndMemory, *, cores: bool, memory: bool) -> None:
    """Say what keeps a job that asks for the whole machine from starting."""
    held = [show_cores(int(kept["cores"] * 1000)) + " cores"] if cores and kept["cores"] else []
    held += [show_size(kept["memory"])] if memory and kept["memory"] else []
    if held:
        output.say(
            f"it asks for the whole machine, of which processes outside drfd hold "
            f"{' and '.join(held)} now: it waits until they use none"
        )


def check_counted(made: Translation, client: Connection) -> None:
    """Raise Refused if Slurm's options ask for a resource that is not counted here."""
    if not made.counted:
        return
    counts = count_resources(client, client.request("shares")["capacity"]["gres"])
    for name, given in made.counted.items():
        if name not in counts:
            has = ", ".join(f"{count} {each}" for each, count in counts.items())
            fault = f"this machine counts no {name}{f', but {has}' if has else ''}"
            option = given.value.partition("=")[0]
            none = "0" if option.startswith("--gpus") else "none"
            raise made.refusal(given, given.value, fault, f"{option}={none}", "runs it without")


def check_begun(labels: Iterable[str], client: Connection) -> None:
    """Raise Refused if one of these jobs, which must have started, still waits."""
    for label in labels:
        reply = client.request("show", id=int(label) if label.isdecimal() else label)
        view = reply.get("job")
        if view is None or (view["started_at"] is None and view["ended_at"] is None):
            raise Refused(
                "bad-value",
                f"--dependency=after:{label}: it has not started, and the start of a job cannot be "
                "waited for",
                hint=f"afterany:{label} waits for its end",
            )


def _namesakes(name: str | None, client: Connection) -> list[tuple[int, str]]:
    user = client.request("hello")["user"]
    if name is None:
        return []
    ids = {
        job["array_id"] or job["id"]
        for job in client.jobs("status", select={"user": user})
        if job["name"] == name
    }
    return [(each, "any") for each in sorted(ids)]

"""The fields of a submit request, from option values that have been read.

A job takes the working directory, the umask, and the command that notifies its owner from the
submitting process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from drfd.client.shell_lines import name_of
from drfd.client.words import Gres, Ref
from drfd.common.errors import Refused
from drfd.common.units import Range
from drfd.payload.pack import output_fields

#: The disk's name, or None for the disk of the working directory; bytes read and written per
#: second.
Rates = tuple[str | None, int | Range, int | Range]

_WHEN = ("start", "end", "fail")
#: Usual places of sendmail, which an ordinary user's PATH often lacks.
SENDMAIL = ("/usr/sbin/sendmail", "/usr/lib/sendmail")
#: A shell program; $0 is sendmail. A line break in the subject would begin another header.
_MAIL = """\
subject=$(printf '%s (%s): %s' "$DRF_JOB_ID" "$DRF_JOB_NAME" "$DRF_STATE" | tr -d '\\r\\n')
{
printf 'To: %s\\nSubject: drf job %s\\n\\n' "${DRF_MAIL_TO:-$USER}" "$subject"
if [ "$DRF_STATE" != RUNNING ]; then
printf '%s\\nran for %s s\\n' "$DRF_REASON" "$DRF_ELAPSED"
printf 'output: %s\\n' "$DRF_STDOUT"
[ "$DRF_STDERR" = "$DRF_STDOUT" ] || printf 'errors: %s\\n' "$DRF_STDERR"
fi
} | "$0" -i -t
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job to submit. A field that is None takes the daemon's default."""

    argv: list[str]
    env: dict[str, str]
    #: None for the directory of this process.
    cwd: str | None = None
    #: In thousandths of a core.
    cores: int | Range | None = None
    #: In bytes.
    mem: int | None = None
    io: tuple[Rates, ...] = ()
    #: Countable resources, in one or several lists.
    gres: tuple[tuple[Gres, ...], ...] = ()
    #: Of several machines, the only one that will do, and the features that it must have.
    node: str | None = None
    constraint: tuple[str, ...] = ()
    #: In seconds; 0 for no limit.
    time: int | None = None
    name: str | None = None
    pool: str | None = None
    priority: int = 0
    #: Jobs to wait for, each with `ok`, `any` or `fail`.
    after: tuple[tuple[Ref, str], ...] | None = None
    #: Earliest start in Unix time; 0 for now.
    begin: int | None = None
    retry: int | None = None
    #: Outcomes after which to retry.
    retry_on: list[str] | None = None
    #: A signal, and how many seconds before the time limit it is sent.
    warn: tuple[int, int] | None = None
    #: "keep" or "cancel", if a dependency can never be met.
    if_never: str | None = None
    #: Text that is run in place of argv[0], through its #! line.
    script: str | None = None
    #: Indices of an array, such as `0-999%50`.
    array: str | None = None
    #: A group of the user's own jobs, such as `sweep`, or `sweep%2` for two at once.
    group: str | None = None
    hold: bool = False
    preemptible: bool = False
    stdout: str | None = None
    #: None for the file of the output.
    stderr: str | None = None
    append: bool = False
    #: How much a run may write to these files, in bytes; None for no limit.
    output_max: int | None = None
    #: Socket of an attached `drf run`.
    attach: str | None = None
    #: `start`, `end` and `fail`, joined by commas.
    notify: str | None = None
    notify_command: str | None = None

    def fields(self) -> dict[str, object]:
        """Return the fields of the request."""
        umask = os.umask(0o077)
        os.umask(umask)
        retry, warn = self.retry, self.warn
        given: dict[str, object] = {
            "argv": self.argv,
            "cwd": _working_directory() if self.cwd is None else os.path.abspath(self.cwd),
            "demand": demand_fields(self.cores, self.mem, self.io, self.gres),
            "node": self.node,
            "features": list(dict.fromkeys(self.constraint)) or None,
            "name": self._usual_name() if self.name is None else self.name,
            "pool": self.pool,
            "time_limit_s": self.time,
            "priority": self.priority,
            "umask": umask,
            "env": self.env,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "append": self.append or None,
            "output_max_bytes": self.output_max,
            "script": self.script,
            "attach": self.attach,
            "notify": find_notice(self.notify, self.notify_command, os.environ),
            "array": self.array,
            "group": self.group,
            "held": self.hold,
            "preemptible": self.preemptible,
            "after": dependencies(self.after),
            "begin_s": self.begin,
            "retry": None if retry is None else {"times": retry, "on": self.retry_on or []},
            "warn": None if warn is None else {"signal": warn[0], "before_s": warn[1]},
            "if_never": self.if_never,
        }
        given |= output_fields(given)
        return {key: value for key, value in given.items() if value is not None}

    def _usual_name(self) -> str | None:
        """Return the name of a script, or of a line of the shell, or None: then the daemon takes
        the program's."""
        return name_of(self.argv) if self.script is None else Path(self.argv[0]).name


def demand_fields(
    cores: int | Range | None,
    mem: int | None,
    io: tuple[Rates, ...],
    gres: tuple[tuple[Gres, ...], ...],
) -> dict[str, object]:
    """Return the `demand` of a request, without values that are None.

    The last rates of a disk, and the last number and memory of a countable resource count: the
    command line comes after the lines of a script.
    """
    by_disk = {
        disk: _ends("read", "bps", read) | _ends("write", "bps", write) for disk, read, write in io
    }
    demand: dict[str, object] = _ends("cores", "milli", cores) | {"memory_bytes": mem}
    demand |= by_disk.pop(None, {})
    demand["disks"] = by_disk or None
    counted = [each for some in gres for each in some]
    counts = {each.name: each.count for each in counted if each.count is not None}
    memory = {each.name: each.memory_bytes for each in counted if each.memory_bytes is not None}
    demand["gres"], demand["gres_memory"] = counts or None, memory or None
    return {key: value for key, value in demand.items() if value is not None}


def _ends(name: str, unit: str, amount: int | Range | None) -> dict[str, object]:
    """Return the fields for an amount, or for both ends of a range."""
    if not isinstance(amount, Range):
        return {f"{name}_{unit}": amount}
    return {f"{name}_{unit}": amount.least, f"{name}_max_{unit}": amount.most}


def dependencies(after: tuple[tuple[Ref, str], ...] | None) -> list[dict[str, object]] | None:
    """Return the `after` of a request, or None if none was given."""
    return None if after is None else [{"id": job_id, "want": want} for job_id, want in after]


def find_notice(
    when: str | None, command: str | None, environ: Mapping[str, str]
) -> dict[str, object] | None:
    """Return the request's `notify`, or None if no notification is wanted.

    Raises Refused if `when` cannot be read, or if there is no way to notify.
    """
    if when is None and command is None:
        return None
    on = [word.strip() for word in ("end" if when is None else when).split(",")]
    strange = [word for word in on if word not in _WHEN]
    if strange:
        raise Refused(
            "bad-value", f"--notify: {strange[0][:40]!r} is none of start, end, fail",
            hint="write --notify end or --notify start,fail",
        )  # fmt: skip
    return {"on": list(dict.fromkeys(on)), "argv": _argv(command, environ)}


def _argv(command: str | None, environ: Mapping[str, str]) -> list[str]:
    if command is not None:
        if not command.strip():
            raise Refused("bad-value", "--notify-command is empty")
        return ["sh", "-c", command]
    own = _config_directory(environ) / "drfd" / "notify"
    if own.is_file() and os.access(own, os.X_OK):
        return [str(own)]
    # Imported here: it is slow to load and seldom needed.
    import shutil

    sendmail = shutil.which("sendmail", path=environ.get("PATH")) or next(
        (path for path in SENDMAIL if os.access(path, os.X_OK)), None
    )
    if sendmail is None:
        raise Refused(
            "no-notice",
            f"there is no way to tell you: neither --notify-command, nor an executable {own}, "
            "nor sendmail for mail",
            hint="for instance --notify-command 'echo $DRF_JOB_ID $DRF_STATE >> ended'",
        )
    return ["sh", "-c", _MAIL, sendmail]


def _config_directory(environ: Mapping[str, str]) -> Path:
    named = environ.get("XDG_CONFIG_HOME", "")
    if named.startswith("/"):
        return Path(named)
    return Path(environ.get("HOME") or "/nonexistent") / ".config"


def _working_directory() -> str:
    try:
        cwd = os.getcwd()
    except OSError as error:
        raise Refused("cwd", f"the current directory cannot be used: {error.strerror}") from None
    if not os.access(cwd, os.X_OK):
        raise Refused(
            "cwd", f"you may not enter the current directory {cwd}, so a job could not start in it"
        )
    return cwd

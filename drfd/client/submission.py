"""A submit request, from the values of its options.

A job takes the working directory, the umask, and the command that notifies its owner from the
submitting process. Imports must stay few: `drf submit` loads this module.
"""

from __future__ import annotations

import os

from drfd.client.option_values import fields_of
from drfd.common.errors import Refused
from drfd.payload.pack import output_fields
from drfd.payload.submitter import config_directory, output_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from drfd.client.option_values import Values
    from drfd.payload.pack import Submission

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


def submission(
    argv: Sequence[str],
    env: Mapping[str, str],
    values: Values,
    *,
    cwd: str | None = None,
    script: str | None = None,
    attach: str | None = None,
) -> dict[str, object]:
    """Return the fields of a submit request. A field that is missing takes the daemon's default.

    `values` are those of the options, by key. `cwd` is None for the directory of this process;
    `script` is the text that is run in place of argv[0], through its #! line; `attach` is the
    socket of an attached `drf run`. Raises Refused.
    """
    umask = os.umask(0o077)
    os.umask(umask)
    usual = None if script is None else os.path.basename(argv[0])
    if script is None and argv and argv[0].endswith("sh"):
        # Imported here: most commands are no line for a shell.
        from drfd.client.shell_lines import name_of

        usual = name_of(argv)
    where = _working_directory() if cwd is None else os.path.abspath(cwd)
    found = {
        "argv": list(argv),
        "cwd": where,
        "demand": {},
        "name": usual,
        "umask": umask,
        "env": dict(env),
        "script": script,
        "attach": attach,
        **fields_of(values),
    }
    found = completed(found, os.environ)
    found |= output_fields(found, output_directory(where, os.environ))
    return {key: value for key, value in found.items() if value is not None}


def completed(fields: Submission, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a submission with what its options leave out of one. Raises Refused."""
    found = dict(fields)
    if "notify" in found:
        found["notify"] = with_way(found["notify"], environ)
    if "times" not in fields.get("retry", {"times": 0}):
        raise Refused("bad-value", "--retry-on says when to try again; --retry N how often")
    return found


def with_way(notify: Submission, environ: Mapping[str, str]) -> Submission:
    """Return the `notify` of a request with what it leaves out: that it is for the end, and the
    command. Raises Refused if there is no way to notify."""
    found = {"on": ["end"], **notify}
    return found if "argv" in found else {**found, "argv": _way(environ)}


def _way(environ: Mapping[str, str]) -> list[str]:
    own = f"{config_directory(environ)}/notify"
    if os.path.isfile(own) and os.access(own, os.X_OK):
        return [own]
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

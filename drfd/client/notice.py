"""How a job's owner is to be told: by a command, by ~/.config/drfd/notify, or by mail."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drfd.errors import Refused

_WHEN = ("start", "end", "fail")
#: Where mail systems put it; often not in an ordinary user's PATH.
_SENDMAIL = ("/usr/sbin/sendmail", "/usr/lib/sendmail")
#: $0 is sendmail. A line break in the name would begin another header.
_MAIL = """\
name=$(printf %s "$DRF_JOB_NAME" | tr -d '\\r\\n')
{
printf 'To: %s\\nSubject: drf job %s (%s): %s\\n\\n' "$USER" "$DRF_JOB_ID" "$name" "$DRF_STATE"
if [ "$DRF_STATE" != RUNNING ]; then
printf '%s\\nran for %s s\\n' "$DRF_REASON" "$DRF_ELAPSED"
printf 'output: %s\\nerrors: %s\\n' "$DRF_STDOUT" "$DRF_STDERR"
fi
} | "$0" -i -t
"""


def find_notice(
    when: str | None, command: str | None, environ: Mapping[str, str]
) -> dict[str, Any] | None:
    """The request's `notify`; None: nobody is to be told. Raises Refused when there is no way."""
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
        if len(command) > 4096:
            raise Refused("too-long", "--notify-command has more than 4096 signs")
        return ["sh", "-c", command]
    own = _config_directory(environ) / "drfd" / "notify"
    if own.is_file() and os.access(own, os.X_OK):
        return [str(own)]
    # Slow to load, and seldom needed.
    import shutil

    sendmail = shutil.which("sendmail", path=environ.get("PATH")) or next(
        (path for path in _SENDMAIL if os.access(path, os.X_OK)), None
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

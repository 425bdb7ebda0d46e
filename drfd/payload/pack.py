"""Encoding of a payload: the user's part of a job, as one string of bytes.

The client encodes it to sign it (`drfd.payload.signature`), and the controller when the submission
comes in: equal submissions give equal bytes, whoever encodes them. The journal, the launcher and
the runner pass on these bytes, the last two as a sealed file in memory, and only the job's own
process reads them, after it has become the user. So root parses nothing that a user has written.

    drfd-payload-2 NUL
    umask, directory, output, error output, attach, argument count, notice word count,
        variable count, count of the interpreter's words, 1 or 0 for a script, each with a NUL
        after it
    the arguments, the words of the notice, the variables as NAME=VALUE by name, the interpreter's
        words (`drfd.payload.scripts`), each with a NUL
    the script, to the end

`drfd.payload.unpack` decodes it. Imports must stay few: `drf submit` loads this module.
"""

from __future__ import annotations

from drfd.payload.raw_bytes import raw

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    #: The fields of a request to submit a job, as JSON has them, or some of them.
    Submission = Mapping[str, Any]

MAGIC = b"drfd-payload-2"
#: Number of NULs before the arguments.
FIELDS = 11


def encode(fields: Submission) -> tuple[bytes, bytes]:
    """Encode the payload of a submission with these fields of the wire, in two parts, which follow
    each other: up to the arguments, and what jobs with other arguments have in common with it.
    Raises ValueError if such a job could not be started: a text other than the script contains a
    NUL."""
    usual = usual_output(is_array=fields.get("array") is not None)
    stdout, stderr = fields.get("stdout") or f"{usual}.out", fields.get("stderr") or f"{usual}.err"
    env, script = fields.get("env") or {}, fields.get("script")
    words, notice = fields["argv"], (fields.get("notify") or {}).get("argv", ())
    variables = [f"{name}={value}" for name, value in sorted(env.items())]
    content, interpreter = ("", ()) if script is None else _start_of(script, env)
    counts = [str(len(each)) for each in (words, notice, variables, interpreter)]
    has_script, umask = "0" if script is None else "1", fields.get("umask", 0o022)
    texts = [f"{umask:o}", fields["cwd"], stdout, stderr, fields.get("attach") or ""]
    own = _joined([*texts, *counts, has_script, *words])
    shared = _joined([*notice, *variables, *interpreter])
    return b"".join((MAGIC, b"\0", own)), shared + raw(content)


def _joined(texts: list[str]) -> bytes:
    text = "\0".join((*texts, ""))
    if text.count("\0") != len(texts):
        raise ValueError("a text holds a NUL")
    return raw(text)


def _start_of(script: str, env: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    from drfd.payload import scripts

    return scripts.start_of(script, env.get(scripts.VARIABLE))


def of_request(fields: Submission) -> bytes:
    """Return the whole payload, as `encode` does its parts."""
    return b"".join(encode(fields))


def output_fields(fields: Submission, directory: str = "") -> dict[str, str]:
    """Return the fields `stdout` and `stderr` for a submission with these fields; files without a
    name are in the directory (`output_directory`). What ends with a
    slash is a directory, and the files in it have their usual names. The errors go to the file of
    the output unless another was asked for, so that a job has one file.

    Clients send this. In a request without `stderr` the errors go to a file of their own, so that
    clients and daemons of different releases encode, and sign, the same payload.
    """
    usual = usual_output(is_array=fields.get("array") is not None)
    stdout, stderr = fields.get("stdout"), fields.get("stderr")
    stdout = stdout or directory
    found = {}
    if stdout:
        found["stdout"] = stdout = f"{stdout}{usual}.out" if stdout.endswith("/") else stdout
    if stderr and stderr.endswith("/"):
        stderr = f"{stderr}{usual}.err"
    return {**found, "stderr": stderr or stdout or f"{usual}.out"}


def usual_output(*, is_array: bool) -> str:
    """Return the default pattern of output files, without the ending."""
    return "drf-%A_%a" if is_array else "drf-%j"

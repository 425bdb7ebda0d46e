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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    #: The fields of a request to submit a job, as JSON has them, or some of them.
    Submission = Mapping[str, Any]

# In Python each byte that is not UTF-8 is a lone surrogate (PEP 383), which neither a message nor
# the journal can hold. Between a client and the job's payload the byte 0xNN is the private
# character U+10FFNN; texts that have such characters themselves are refused.
_PRIVATE, _SURROGATE = 0x10FF00, 0xDC00
_BYTES = range(0x80, 0x100)
_TO_CARRIED = {_SURROGATE + byte: _PRIVATE + byte for byte in _BYTES}
_TO_SURROGATES = {_PRIVATE + byte: _SURROGATE + byte for byte in _BYTES}
#: How these characters begin in UTF-8, and in JSON that escapes them.
MARKS = (b"\xf4\x8f", b"\\udbff")


def carried(text: str) -> str:
    """Return the text as a message carries it. Raises UnicodeEncodeError for a text that holds such
    a private character itself."""
    data = text.encode(errors="surrogatepass")
    if MARKS[0] in data:
        for at, char in enumerate(text):
            if ord(char) in _TO_SURROGATES:
                raise UnicodeEncodeError("utf-8", text, at, at + 1, "reserved")
    # What begins a surrogate in UTF-8 is rare otherwise.
    return text.translate(_TO_CARRIED) if b"\xed" in data else text


def restored(value: Any) -> Any:
    """Return a value of a message with Python's surrogates in its texts."""
    match value:
        case str():
            return value.translate(_TO_SURROGATES)
        case list():
            return [restored(each) for each in value]
        case dict():
            return {restored(key): restored(each) for key, each in value.items()}
    return value


def raw(text: str) -> bytes:
    """Return the bytes that a text of a message, or of this process, stands for."""
    data = text.encode(errors="surrogateescape")
    if MARKS[0] in data:
        data = text.translate(_TO_SURROGATES).encode(errors="surrogateescape")
    return data


def readable(text: str) -> str:
    """Return a text of a message with \\xNN for each such byte."""
    return raw(text).decode(errors="backslashreplace")


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

"""The environment that a job takes along: all but secrets and what dies with a session."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

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
    """The variables for the job; `keep` names secrets that are meant to go along."""
    return {
        name: value
        for name, value in env.items()
        if name in keep or not (_SECRET.search(name) or _SESSION.fullmatch(name))
    }


def as_given(env: Mapping[str, str]) -> dict[str, str]:
    """This process's variables without what Python has added: LC_CTYPE, where the locale is C
    (PEP 538). The program of the job shall find what its submitter has."""
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
    """Does it look like one? Such a variable stays behind unless it is named."""
    return bool(_SECRET.search(name))


def not_text(env: Mapping[str, str]) -> list[str]:
    """Names of variables that no message can carry: they are not UTF-8."""
    return [name for name, value in env.items() if not _is_text(name + value)]


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True

"""The submitter's environment: which of its variables a job gets, and the places that it names.

All are passed on except for secrets and variables of a login session. Names are compared without
regular expressions, which take longer to load than a submission lasts: `drf submit` loads this
module.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: The variable that names the daemon's socket, and that of the system's daemon.
SOCKET, SYSTEM_SOCKET = "DRFD_SOCKET", "/run/drfd/drfd.sock"

#: What the names of secrets contain, in lower case, and how they end. TOKENIZERS_PARALLELISM holds
#: no token.
_SECRET_PARTS = (
    *("token_", "tokens_", "secret", "passw", "passphrase", "credential"),
    *("apikey", "api_key", "accesskey", "access_key", "privatekey", "private_key"),
)
_SECRET_ENDS = ("token", "tokens", "_pwd", "_pat")
#: How names of directories and files end: TIKTOKEN_CACHE_DIR, AWS_SHARED_CREDENTIALS_FILE.
_PATH_ENDS = ("_dir", "_directory", "_file", "_home", "_path")
#: Variables of a login session: whole names, and prefixes before letters, digits and underscores.
_SESSION = frozenset(
    (
        *("XDG_RUNTIME_DIR", "XDG_VTNR", "XDG_SEAT", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"),
        *("WINDOWID", "TMUX", "STY", "TERM_SESSION_ID", "GPG_AGENT_INFO", "INVOCATION_ID"),
        *("NOTIFY_SOCKET", "JOURNAL_STREAM", "MAINPID", "_", "SHLVL", "OLDPWD"),
    )
)
#: Those of them that a job attached to the session's terminal keeps: windows, agent and bus.
ATTACHED = (
    *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR"),
    "DBUS_SESSION_BUS_ADDRESS",
)
_SESSION_PREFIXES = (
    *("SSH_", "XDG_SESSION_", "DBUS_", "TMUX", "SUDO_", "LISTEN_", "WATCHDOG_", "DRFD_", "DRF_"),
)


def capture(env: Mapping[str, str], keep: Collection[str]) -> dict[str, str]:
    """Return the variables for the job. `keep` names secrets that are passed on all the same."""
    return {
        name: value
        for name, value in env.items()
        if name in keep or not (is_secret(name) or _is_of_session(name))
    }


def config_directory(env: Mapping[str, str]) -> str:
    """Return the directory of the user's own configuration, which need not be there."""
    named = env.get("XDG_CONFIG_HOME", "")
    base = named if named.startswith("/") else f"{env.get('HOME') or '/nonexistent'}/.config"
    return f"{base}/drfd"


def output_directory(cwd: str, env: Mapping[str, str]) -> str:
    """Return the directory, with a slash, of output files that were not named, as a pattern, or ""
    for that of the job. Where anybody may make files, somebody else's could have their names, and
    the user's own is taken if there is one."""
    try:
        if not os.stat(cwd).st_mode & stat.S_IWOTH:
            return ""
    except OSError:
        return ""
    there = state = env.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    if not state.startswith("/"):
        return ""
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    is_own = os.access(there, os.W_OK | os.X_OK) and not os.stat(there).st_mode & stat.S_IWOTH
    return f"{state}/drfd/output/".replace("%", "%%") if is_own else ""


def user_socket(env: Mapping[str, str]) -> str:
    """Return the path at which the user's own daemon listens."""
    if runtime := env.get("XDG_RUNTIME_DIR"):
        return f"{runtime}/drfd.sock"
    state = env.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return f"{state}/drfd/drfd.sock"


def addressed(env: Mapping[str, str], socket: str) -> dict[str, str]:
    """Return the variables with the address of the daemon that the job is submitted to, so that
    `drf` inside the job talks to the same one. That of the system is found without it. An address
    that was given for the job alone stays."""
    named = env.get(SOCKET)
    if named is None and socket == SYSTEM_SOCKET:
        return dict(env)
    if named is not None and named != os.environ.get(SOCKET):
        return dict(env)
    return {**env, SOCKET: os.path.abspath(socket)}


def _is_of_session(name: str) -> bool:
    return name in _SESSION or any(
        name.startswith(prefix) and name[len(prefix) :].replace("_", "a").isalnum()
        for prefix in _SESSION_PREFIXES
    )


def as_given(env: Mapping[str, str]) -> dict[str, str]:
    """Return this process's variables without LC_CTYPE if Python has added it (PEP 538). Python
    does so where the locale is C, and a job must see the variables of its submitter."""
    kept = dict(env)
    if "LC_CTYPE" not in kept:
        return kept
    try:
        with open("/proc/self/environ", "rb") as file:
            given = file.read().split(b"\0")
    except OSError:
        return kept
    if not any(variable.startswith(b"LC_CTYPE=") for variable in given):
        kept.pop("LC_CTYPE", None)
    return kept


def is_secret(name: str) -> bool:
    """Return whether a variable looks like a secret, which is passed on only if it is named."""
    # The upper case of some letters is that of others, such as ſ, and the lower case of İ has a dot
    # of its own.
    word = name.upper().lower().replace("\u0307", "").removesuffix("\n")
    if word.endswith(_PATH_ENDS):
        return False
    return word.endswith(_SECRET_ENDS) or any(part in word for part in _SECRET_PARTS)

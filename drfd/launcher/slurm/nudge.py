"""How slurmctld is brought to look at its queue at once.

Slurm starts no batch job while it is submitted: slurmctld looks at its queue when its loop, which
sleeps for a second, finds that something was submitted (`_slurmctld_background`), and when the
epilog of a job has ended on a node (`_slurm_rpc_epilog_complete`). No setting changes that, and
none of Slurm's commands asks for it. So the launcher tells slurmctld, as a slurmd does, that an
epilog has ended: of job 0, which cannot be. slurmctld finds no such job, changes nothing, and looks
at its queue.

A slurmctld that was killed gives out ids again that it has forgotten, and a node runs nothing under
the id of a job that has ended in the same second. So one that has just started is left alone, and
so are submissions whose ids are not greater than all that were seen.

The message has the same form in the protocols of 22.05 and 23.02, and one of the two is understood
by each version that gets it (`_PROTOCOLS`). slurmctld answers to it only in the protocol of 24.05
and later ones, so there is nothing to wait for. Other versions get none, and look at their queue
within the second, as without it. Munge attests that it is root's.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from drfd.launcher.slurm.commands import Answer, Commands

#: Numbers of the protocol in which slurmctlds get the message, by their version: that of 22.05, and
#: that of 23.02, the oldest that 24.11 understands.
_PROTOCOLS = {"22.05": 38 << 8, "24.11": 39 << 8}
#: Numbers in Slurm's protocol: that an epilog has ended; munge; the kind of a credential's payload
#: that is nothing but the number of the message.
_EPILOG_COMPLETE, _MUNGE, _PLAIN = 6012, 101, 1
#: The job, and the name of a node: slurmctld only logs them (at the level debug).
_NO_JOB, _NODE = 0, "drfd"
#: Words of CommunicationParameters with which slurmctld takes no such payload.
_STRICT = ("block_null_hash", "block_zero_hash")
#: The word with which Slurm has IPv6 alone. Without EnableIPv6 it has IPv4 alone.
_NO_IPV4 = "disableipv4"
#: Seconds for which a credential is kept (munge takes it for 300), for which the connection may be
#: waited for, and for which nothing is sent after that has failed.
_FRESH_S, _CONNECT_S, _PAUSE_S = 200.0, 0.1, 10.0

#: Seconds for which a slurmctld has run before it is told anything.
_SETTLE_S = 10.0

_HOST = re.compile(r"([^(]+)(?:\(([^)]+)\))?")
_USER = re.compile(r".*\(([0-9]{1,10})\)", re.ASCII)
_MUNGE_PROGRAM, _GETENT = "/usr/bin/munge", "/usr/bin/getent"


@dataclass(frozen=True, slots=True)
class Controller:
    """A slurmctld, where its configuration says it is."""

    host: str
    port: int
    #: The uid of its user, who alone can read the credential.
    uid: int
    #: The socket of its munged; None for munge's default.
    munge: str | None
    #: The number of the protocol in which it is told.
    protocol: int
    #: Whether it listens to IPv4, too, if it listens to IPv6.
    has_ipv4: bool = True

    def credential_words(self) -> list[str]:
        """The command that prints a credential for the message; its input is `PAYLOAD`."""
        words = [_MUNGE_PROGRAM, f"--restrict-uid={self.uid}"]
        return words if self.munge is None else [*words, f"--socket={self.munge}"]

    def address_of(self, hosts: str) -> str | None:
        """Return the address at which it listens, of those that `getent ahosts` prints; None if
        there is none. With EnableIPv6 it listens at both kinds."""
        found = [line.split()[0] for line in hosts.splitlines() if line.strip()]
        return min(found, key=lambda each: (":" in each) is self.has_ipv4, default=None)


#: What the credential attests beside the uid.
PAYLOAD = bytes((_PLAIN,)) + struct.pack("!H", _EPILOG_COMPLETE)


def read_controller(found: Mapping[str, str]) -> Controller | None:
    """Read the settings of a running slurmctld. None if it would not understand the message."""
    communication = found.get("CommunicationParameters", "").lower()
    host = _HOST.fullmatch(found.get("SlurmctldHost[0]", ""))
    port, user = found.get("SlurmctldPort", ""), _USER.fullmatch(found.get("SlurmUser", ""))
    protocol = _PROTOCOLS.get(".".join(found.get("SLURM_VERSION", "").split(".")[:2]))
    if (
        host is None
        or user is None
        or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16)
        or protocol is None
        or found.get("AuthType", "") != "auth/munge"
        or any(word in communication for word in _STRICT)
    ):
        return None
    words = dict(word.partition("=")[::2] for word in found.get("AuthInfo", "").split(","))
    return Controller(
        host=host[2] or host[1],
        port=int(port),
        uid=int(user[1]),
        munge=words.get("socket"),
        protocol=protocol,
        has_ipv4=_NO_IPV4 not in communication,
    )


def message(credential: str, protocol: int) -> bytes:
    """Return what is sent: a header, the credential and that an epilog has ended, after their
    length."""
    body = struct.pack("!II", _NO_JOB, 0) + _text(_NODE)
    # The version, flags, what it is, its length; nothing is forwarded or returned, no address.
    header = struct.pack("!HHHIHHH", protocol, 0, _EPILOG_COMPLETE, len(body), 0, 0, 0)
    whole = header + struct.pack("!I", _MUNGE) + _text(credential) + body
    return struct.pack("!I", len(whole)) + whole


def _text(text: str) -> bytes:
    data = text.encode() + b"\0"
    return struct.pack("!I", len(data)) + data


@dataclass(slots=True)
class Nudge:
    """Sends the message, with a credential that was made before: each is good for one."""

    commands: Commands
    _controller: Controller | None = None
    #: Its address, by the machine's tables of names.
    _address: str | None = None
    #: Whether the address is being asked for.
    _asks: bool = False
    _credential: str | None = None
    _made_mono_s: float = 0.0
    _runs: bool = False
    #: When slurmctld started, in seconds since 1970, and whether that is long enough ago.
    _boot_s: int = 0
    _is_settled: bool = False
    #: The greatest id of a job that was submitted, or has started, since it is known when.
    _most_id: int = 0
    #: Whether there was a submission since the last message.
    _is_wanted: bool = False
    #: When the next credential may be asked for.
    _due_mono_s: float = 0.0

    def see(self, found: Mapping[str, str], boot_s: int) -> None:
        """Take over the settings of the slurmctld that runs, and when it started."""
        if boot_s != self._boot_s:
            self._boot_s, self._is_settled, self._most_id = boot_s, False, 0
        controller = read_controller(found)
        if controller != self._controller:
            self._controller, self._address, self._credential = controller, None, None
        self.keep_ready()

    def keep_ready(self) -> None:
        """Prepare for the next submission, from time to time."""
        self._ask_for_address()
        if self._is_settled:
            self.prepare()
        elif self._boot_s and time.time() - self._boot_s >= _SETTLE_S:
            self._is_settled = True
            self._begin()

    def saw(self, number: int) -> None:
        """Note the id of a job that was submitted, or has started."""
        self._most_id = max(self._most_id, number)

    @property
    def _is_ready(self) -> bool:
        return self._controller is not None and self._address is not None and self._is_settled

    def _begin(self) -> None:
        """Tell slurmctld for the first time, if that may be: there may have been submissions."""
        if self._is_ready:
            self._is_wanted = True
            self.prepare()
            self._send()

    def prepare(self) -> None:
        """Have a credential made, because a message will be sent soon."""
        now = time.monotonic()
        is_there = self._credential is not None and now < self._made_mono_s + _FRESH_S
        if self._controller is None or not self._is_ready or self._runs or is_there:
            return
        self._credential = None
        if now < self._due_mono_s:
            return
        self._runs = True
        with suppress(OSError):
            payload = os.memfd_create("payload")
            try:
                os.write(payload, PAYLOAD)
                os.lseek(payload, 0, os.SEEK_SET)
                words = self._controller.credential_words()
                self.commands.run(words, self._take_credential, stdin=payload)
            finally:
                os.close(payload)
            return
        self._fail()

    def submitted(self, number: int) -> None:
        """Have slurmctld look at its queue, in which the job with this id waits."""
        is_new = number > self._most_id
        self.saw(number)
        if is_new and self._is_ready:
            self._is_wanted = True
            self.prepare()
            self._send()

    def _ask_for_address(self) -> None:
        """Ask for the address, if it is not known: the loop must not wait for a server of names,
        which may be away at first."""
        controller = self._controller
        if controller is not None and self._address is None and not self._asks:
            self._asks = True
            words = (_GETENT, "ahosts", controller.host)
            self.commands.run(words, partial(self._take_address, controller))

    def _take_address(self, controller: Controller, answer: Answer) -> None:
        self._asks = False
        if controller == self._controller and answer.is_good:
            self._address = controller.address_of(answer.output)
            self._begin()

    def _take_credential(self, answer: Answer) -> None:
        self._runs = False
        if answer.is_good and answer.output.startswith("MUNGE:"):
            self._credential, self._made_mono_s = answer.output.strip(), time.monotonic()
            self._send()
        else:
            self._fail()

    def _send(self) -> None:
        if not self._is_wanted or self._credential is None:
            return
        if self._controller is None or self._address is None:
            return
        self._is_wanted = False
        data, self._credential = message(self._credential, self._controller.protocol), None
        try:
            place = self._address, self._controller.port
            with socket.create_connection(place, timeout=_CONNECT_S) as connection:
                connection.sendall(data)
        except OSError:
            self._fail()

    def _fail(self) -> None:
        """Leave it to slurmctld for some time to find jobs by itself: it, or munged, is away."""
        self._runs, self._is_wanted, self._credential = False, False, None
        self._due_mono_s = time.monotonic() + _PAUSE_S

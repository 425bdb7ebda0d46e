"""What the launcher of Slurm's nodes asks of the helper.

A request is one message (SOCK_SEQPACKET). Two descriptors come with SUBMIT, of sealed files: the
order, as the controller's message, and its payload. Each request has one answer, with descriptors
of the output and the error output. `code` is the command's exit code, or null without one. If
`was_run` is false, nothing was submitted, and the error output is a `launch_failed` record.

First the helper sends the listening socket for the controller and the one for datagrams of Slurm's
scripts.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from drfd.launcher.protocol import Number

#: In the directory of both: the helper's socket, the launcher's own directory, and that in which
#: Slurm's event script notes starts.
SOCKET_NAME, OWN_NAME, STARTS_NAME = "root.sock", "own", "started"
#: Largest number of requests that have no answer yet.
MOST_AT_ONCE = 32

#: List all jobs; list the nodes and the configuration, each before a NUL;
#: have all nodes register with slurmctld; submit an attempt.
JOBS, NODES, REGISTER, SUBMIT = "jobs", "nodes", "register", "submit"
#: About one of Slurm's jobs. END cancels it; KILL sends SIGKILL to its steps; SIGNAL sends `signal`
#: to all of its processes.
END, KILL, SIGNAL, SUSPEND, RESUME = "end", "kill", "signal", "suspend", "resume"

#: Fields of each job, each node and each allocation. What may hold anything comes last.
JOB_FIELDS = (
    *("JobID", "UserID", "State", "exit_code", "StartTime", "EndTime", "NodeList"),
    "Comment",
)
NODE_FIELDS = ("%N", "%T", "%c", "%m", "%X", "%Y", "%E")


class RootRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    number: Number
    do: Literal["jobs", "nodes", "register", "submit", "end", "kill", "signal", "suspend", "resume"]
    #: drfd's id of the job, which its name in Slurm holds, and Slurm's id.
    job: Number = 0
    slurm_id: Number = 0
    signal: Annotated[int, Meta(ge=0, le=64)] = 0


class RootAnswer(Struct, frozen=True, kw_only=True):
    number: int
    code: int | None
    was_run: bool

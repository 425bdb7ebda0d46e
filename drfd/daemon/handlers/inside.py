"""`drf exec`: a process of the owner's is moved into a running job, where it executes a command.

Only the owner may ask for that. An administrator may stop a job, but not act as its user; and what
its user has not signed is refused by the launcher.
"""

from __future__ import annotations

from drfd.common.errors import NotPermitted, Refused
from drfd.core.decisions.job_requests import owns
from drfd.core.model.job import Actor, Job, JobState
from drfd.daemon.launcher_link.link import Links, launcher_away
from drfd.daemon.lookup.lookup import Lookup
from drfd.launcher.protocol import OUT_OF_REACH
from drfd.protocol.replies import ExecReply
from drfd.protocol.requests import ExecRequest

#: What is said of a job that no command can be run in, by its state.
_NOT_RUNNING = {
    JobState.SUSPENDED: ("is suspended", "drf resume {0}"),
    JobState.STOPPING: ("is being stopped", ""),
    JobState.CLEANING: ("has just ended", ""),
    JobState.ENDED: ("has ended", ""),
}
_WAITS = ("does not run yet", "drf why {0}")
#: What to do if a signature is missing, because drf had no key or is no drf that signs.
NO_KEY_HINT = (
    "try again in a moment: the launcher has not written your key yet, and drf doctor shows whether"
    " it runs"
)


async def join(
    lookup: Lookup, links: Links, actor: Actor, request: ExecRequest, *, is_signed: bool
) -> ExecReply:
    """Have a process moved into a job, and return when it is there. `is_signed`: whether that needs
    its user's signature. Raises Refused, NotPermitted, Unavailable."""
    job_id = lookup.id_of(request.id)
    array = lookup.any_array(job_id)
    if array is not None:
        hint = f"for instance {array.id}_{array.index_of(array.id + 1)}"
        raise Refused("is-array", f"{array.id} is an array: name one of its tasks", hint=hint)
    job = lookup.any_job(job_id)
    _insist_on_owner(job, actor)
    _insist_on_running(job)
    if job.attempt != request.attempt:
        raise Refused("begun-again", f"job {job.label} has begun again meanwhile", hint="try again")
    link = links.of(job)
    if link is None:
        raise launcher_away()
    if not link.nodes.are_all and not link.nodes.has_home:
        raise Refused(
            "not-on-node",
            f"job {job.label} runs on node {job.node}, and commands run inside jobs of the "
            "daemon's own machine alone",
        )
    if not link.hello.get("exec", False):
        raise Refused(
            "no-cgroups",
            "jobs have no cgroups here, so nothing can be run inside one",
            hint="drf doctor says why",
        )
    if is_signed and request.proof is None:
        raise Refused(
            "not-signed",
            "commands are taken here with their user's signature, and this one has none",
            hint=NO_KEY_HINT,
        )
    problem = await link.join(job, (request.pid, request.start_ticks), request.proof)
    if problem is not None:
        code = "out-of-reach" if problem == OUT_OF_REACH else "not-begun"
        raise Refused(code, f"not run inside job {job.label}: {problem}")
    return {"id": job.id, "attempt": job.attempt}


def _insist_on_owner(job: Job, actor: Actor) -> None:
    owner = job.spec.user
    if not owns(actor, job.spec):
        raise NotPermitted(
            "not-yours", f"job {job.label} belongs to {owner}: only {owner} runs commands inside it"
        )


def _insist_on_running(job: Job) -> None:
    if job.state is not JobState.RUNNING:
        what, hint = _NOT_RUNNING.get(job.state, _WAITS)
        raise Refused("not-running", f"job {job.label} {what}", hint=hint.format(job.label))

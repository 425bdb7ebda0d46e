"""From a job back to the fields of the submit request that would make it again.

Environment and script are for the job's user alone, not even for administrators. Who submits again
signs again: the client first compares the signature of the first submission, so that it signs
nothing that its user has not submitted.
"""

from __future__ import annotations

from drfd.common.errors import NotPermitted, Refused
from drfd.core.decisions.job_requests import owns
from drfd.core.model import stimuli as st
from drfd.core.model.job import JobSpec, JobState
from drfd.daemon.engine.engine import Engine
from drfd.daemon.lookup.lookup import Lookup
from drfd.journal.records import Payload
from drfd.protocol.replies import SubmissionReply
from drfd.protocol.requests import Ref


def find_submission(engine: Engine, lookup: Lookup, actor: st.Actor, ref: Ref) -> SubmissionReply:
    """Return the submission of a job, of an array, or of one task as an array of its own.

    Raises NotPermitted for another user's job, and Refused if its environment is not kept any more.
    """
    job_id = lookup.id_of(ref)
    array = lookup.any_array(job_id)
    job = array.common if array is not None else lookup.any_job(job_id)
    spec = job.spec
    label = str(job_id) if array is not None else job.label
    if not owns(actor, spec):
        raise NotPermitted(
            "not-yours", f"job {label} belongs to {spec.user}, who alone may submit it again"
        )
    payload = engine.journal.payload_again(job_id if job.array_id is None else job.array_id)
    if payload is None:
        raise Refused(
            "not-kept",
            f"the environment and the script of job {label} are not kept any more",
            hint=f"drf show {label} has its command: submit it anew",
        )
    fields = submission_fields(spec, payload)
    if array is not None:
        fields["array"] = array.whole.indices
    elif job.array_index is not None:
        fields["array"] = str(job.array_index)
    if array is not None:
        is_live = array.id in engine.ledger.arrays
        state = "not over" if is_live else "over"
    else:
        is_live, state = job.state is not JobState.ENDED, job.shown_state
    reply: SubmissionReply = {
        "label": label, "state": state, "live": is_live, "submission": fields,
        "proof": payload.proof,
    }  # fmt: skip
    if is_live or spec.after:
        reply["conditions"] = {
            "after": [{"id": each.job_id, "want": each.want.value} for each in spec.after],
            "begin_s": spec.begin_s or 0,
            "held": job.state is JobState.HELD,
        }
    if is_live:
        reply["awaited"] = bool(engine.ledger.dependents.get(job_id))
    return reply


def submission_fields(spec: JobSpec, payload: Payload) -> dict[str, object]:
    """Return the fields of a submit request, without those about conditions of the start: the jobs
    that it waited for have ended, and its begin time has come."""
    demand, notify, retry, warn = spec.demand, spec.notify, spec.retry, spec.warn
    rates: dict[str, object] = {"read_bps": demand.read_bps, "write_bps": demand.write_bps}
    if demand.disks:
        named = {name: {"read_bps": r, "write_bps": w} for name, r, w in demand.disks}
        rates = {"disks": named}
    is_own_pool = spec.pool == f"root.{spec.user}"
    given: dict[str, object] = {
        "argv": list(spec.argv),
        "cwd": spec.cwd,
        "demand": {
            "cores_milli": demand.cores_milli, "memory_bytes": demand.memory_bytes,
            "gres": dict(demand.gres), **rates,
        },
        "name": spec.name,
        "pool": None if is_own_pool else spec.pool.removeprefix("root."),
        "time_limit_s": spec.time_limit_s or 0,
        "priority": spec.priority,
        "umask": spec.umask,
        "env": payload.env,
        "stdout": spec.stdout,
        "stderr": spec.stderr,
        "append": spec.append or None,
        "output_max_bytes": spec.output_max_bytes,
        "script": payload.script,
        "attach": spec.attach,
        "notify": None if notify is None else {"on": list(notify.on), "argv": list(notify.argv)},
        "group": None if spec.group is None else str(spec.group),
        "preemptible": spec.preemptible,
        "if_never": "cancel" if spec.cancel_if_never else "keep",
        "retry": None if retry is None else {"times": retry.times, "on": [*retry.on]},
        "warn": None if warn is None else {"signal": warn.signal, "before_s": warn.before_s},
    }  # fmt: skip
    return {key: value for key, value in given.items() if value is not None}

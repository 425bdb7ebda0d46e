"""From a request about jobs to what is asked of the core for each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from drfd.core import stimuli as st
from drfd.daemon.submission import dependencies
from drfd.errors import Refused
from drfd.wire import messages as msg

#: What may be asked for jobs and arrays.
Wish = (
    st.CancelAsked
    | st.HoldAsked
    | st.ReleaseAsked
    | st.SuspendAsked
    | st.ResumeAsked
    | st.SignalAsked
    | st.ChangeAsked
)
#: For which one, when and by whom.
Ask = Callable[[st.Now, int, st.Actor], Wish]
Request = msg.Cancel | msg.Hold | msg.Release | msg.Suspend | msg.Resume | msg.Signal | msg.Set


def asking(request: Request) -> Ask:
    match request:
        case msg.Cancel():
            return st.CancelAsked
        case msg.Hold():
            return st.HoldAsked
        case msg.Release():
            return st.ReleaseAsked
        case msg.Suspend():
            return st.SuspendAsked
        case msg.Resume():
            return st.ResumeAsked
        case msg.Signal():
            return partial(st.SignalAsked, signal=request.signal)
        case msg.Set():
            return partial(st.ChangeAsked, change=_change(request))


def _change(request: msg.Set) -> st.Change:
    demand = request.demand
    if "\0" in (request.name or ""):
        raise Refused("bad-request", "a name cannot hold a NUL character")
    return st.Change(
        name=request.name,
        pool=request.pool,
        priority=request.priority,
        time_limit_s=request.time_limit_s,
        cores_milli=demand.cores_milli,
        memory_bytes=demand.memory_bytes,
        read_bps=demand.read_bps,
        write_bps=demand.write_bps,
        disks=tuple((name, each.read_bps, each.write_bps) for name, each in demand.disks.items())
        or None,
        gres=tuple(demand.gres.items()) or None,
        after=None if request.after is None else dependencies(request.after),
        begin_s=request.begin_s,
    )

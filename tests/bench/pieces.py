"""Where the time of a job goes: of one that starts cold, and of each in an array with two slots.

strace writes down when the processes of drfd speak to each other, to the disk and to the kernel's
cgroups, and the job's own first system calls. What it costs is told beside: the whole with and
without it. Each piece ends with what its name says, and begins where the one above it ended.
"""

from __future__ import annotations

import re
import shutil
import statistics
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

from tests.bench.figures import Chosen, Figure, end_well
from tests.bench.place import Place

#: Seconds between the end of a job and the next submission.
_GAP_S = 0.3
_CALLS = (
    "recvfrom,recvmsg,sendto,sendmsg,write,fdatasync,mkdir,rmdir,clone,clone3,fork,vfork,"
    "setresuid,execve,wait4,exit_group"
)
_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
_TOOK = re.compile(r" <(\d+\.\d+)>$")
_FORKS = ("clone", "clone3", "fork", "vfork")
_GETS, _PUTS = ("recvfrom", "recvmsg"), ("sendto", "sendmsg")
#: Seconds of the trace in which a job is looked for.
_WINDOW_S = 0.4
_FIRST = "… runs its first instruction"


@dataclass(frozen=True)
class Call:
    """A system call, with the Unix times of its begin and end."""

    pid: int
    name: str
    #: Arguments and result.
    text: str
    begin_s: float
    end_s: float

    def is_a(self, names: Iterable[str], texts: Iterable[str]) -> bool:
        return self.name in names and all(text in self.text for text in texts)


#: Names of pieces, with their ends (Unix time).
Story = list[tuple[str, float]]


@dataclass(frozen=True)
class Whole:
    """What is measured in one drfd; medians in milliseconds."""

    #: From a submission to the first instruction, and of an array, how long a slot is taken.
    start_ms: float
    slot_ms: float
    #: When each job that was submitted alone was submitted, by its id (Unix time).
    sent_s: dict[int, float]


def pieces(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """What each piece takes, as a part of the whole."""
    if shutil.which("strace") is None:
        print("(no strace, which tells the pieces: the Debian package strace)", flush=True)
        return
    bare = _measure(place, 10 * chosen.runs)
    trace = place.instance.root / "trace"
    traced = Place(2)
    # strace in the background: the daemon is our own child, as it is without.
    traced.instance.before = [
        *("strace", "-D", "-f", "--seccomp-bpf", "-ttt", "-T", "-s", "8192"),
        *("-e", f"trace={_CALLS}", "-o", str(trace)),
    ]
    try:
        traced.start()
        seen = _measure(traced, 10 * chosen.runs)
        assert traced.instance.process is not None
        controller = traced.instance.process.pid
    finally:
        traced.destroy()
    told = Told(trace.read_text(errors="replace"), controller)
    alone = [told.story(id_, sent_s) for id_, sent_s in seen.sent_s.items()]
    tasks = [told.story(id_, None) for id_ in sorted(told.launched_s.keys() - seen.sent_s.keys())]
    yield from _pieces("cold start of a job", seen.start_ms, bare.start_ms, alone)
    yield from _pieces("a slot's time for a task", seen.slot_ms, bare.slot_ms, tasks)


def _measure(place: Place, count: int) -> Whole:
    found: list[float] = []
    sent_s: dict[int, float] = {}
    with closing(place.connect()) as connection, place.stamps() as (path, stamps):
        fields = place.fields(place.stamp, stdout=path)
        for _ in range(count):
            time.sleep(_GAP_S)
            now_s, begin_ns = time.time(), time.monotonic_ns()
            job = connection.submit(**fields)
            found.append((next(stamps) - begin_ns) / 1e6)
            sent_s[job["id"]] = now_s
            end_well(connection, job["id"])
        begin_s = time.perf_counter()
        end_well(connection, connection.submit(**fields, array=f"1-{10 * count}")["id"])
        slot_ms = 2 * (time.perf_counter() - begin_s) * 1000 / (10 * count)
    return Whole(statistics.median(found), slot_ms, sent_s)


class Told:
    """What strace has written, in the order in which the calls ended."""

    def __init__(self, text: str, controller: int) -> None:
        self._calls = sorted(_calls(text), key=lambda call: call.end_s)
        self._controller = controller
        #: When the launcher was told to launch each job.
        self.launched_s = {
            int(id_): call.begin_s
            for call in self._calls
            if call.pid == controller and call.name == "sendmsg"
            for id_ in re.findall(r'"launch","id":(\d+),', call.text)
        }

    def story(self, id_: int, sent_s: float | None) -> Story:
        """The pieces of a job, in order; before them, when the first began. `sent_s`: when the job
        was submitted; None for a task of an array, which begins with the order to launch it.
        A piece that cannot be told is left out, and its time counts to the next one."""
        begin_s = self.launched_s[id_] if sent_s is None else sent_s
        window = self._between(begin_s, begin_s + _WINDOW_S)
        ours = [call for call in window if call.pid == self._controller]
        others = [call for call in window if call.pid != self._controller]
        order = _first(others, _GETS, f'"launch","id":{id_},')
        taken = _first(others, _GETS, f'"id":{id_},', '"created"')
        if order is None or taken is None:
            return [("", begin_s)]
        launcher = [call for call in window if call.pid == order.pid]
        runner = [call for call in window if call.pid == taken.pid]
        fork = _first(runner, _FORKS, after_s=taken.end_s)
        child = 0 if fork is None else int(fork.text.rpartition("= ")[2])
        # The compiled starter goes on as another child of the runner's, in a cgroup of version 2.
        again = _first([call for call in window if call.pid == child], ["clone3"], "CLONE_PARENT")
        if again is not None:
            child = int(again.text.rpartition("= ")[2])
        job = [call for call in window if call.pid == child]
        story: Story = [("", begin_s)]

        def add(what: str, call: Call | None, *, is_begin: bool = False) -> None:
            if call is not None:
                story.append((what, call.begin_s if is_begin else call.end_s))

        if sent_s is not None:
            commit = _first(ours, ["fdatasync"])
            add("controller has read the submission", _first(ours, ["recvfrom"], '"op":"submit"'))
            add("… has decided", commit, is_begin=True)
            add("… has it on disk", commit)
            launch = _first(ours, _PUTS, f'"launch","id":{id_},')
            add("… has ordered the launch", launch, is_begin=True)
        handed = _first(launcher, _PUTS, f'"id":{id_},', "created")
        add("launcher has read the order", order)
        add("… has made the cgroup", _last(launcher, ["mkdir"], f"/job-{id_}-1"))
        add("… has set limits, and told a runner", handed, is_begin=True)
        add("runner has read it", taken)
        add("… has begun the job's process", fork)
        moved = _last(runner, ["write"], f', "{child}", ') or _last(job, ["write"], ', "0", 1')
        add("that is in its cgroups", moved)
        add("… has the user's rights", _last(job, ["setresuid"]))
        program = _last(job, ["execve"], "stamp")
        add("… is recorded and released", program, is_begin=True)
        add("… has executed its program", program)
        if program is not None:
            add(_FIRST, _first(job, ["write"], after_s=program.end_s), is_begin=True)
        add("job ends", _first(job, ["exit_group"]), is_begin=True)
        add("runner has reaped it", _first(runner, ["wait4"], f"= {child}"))
        add("… has recorded the end", _first(runner, ["write"], '"ended"', after_s=taken.end_s))
        add("launcher has removed the cgroup", _last(launcher, ["rmdir"], f"/job-{id_}-1"))
        report = _first(launcher, _PUTS, f'"ended","id":{id_},')
        add("… has reported the end", report, is_begin=True)
        heard = _first(ours, _GETS, f'"ended","id":{id_},')
        add("controller has read that", heard)
        if heard is not None:
            commit = _first(ours, ["fdatasync"], after_s=heard.end_s)
            add("… has decided what comes next", commit, is_begin=True)
            add("… has that on disk", commit)
            sign = '"launch"' if sent_s is None else '"done":true'
            what = "… has ordered the next launch" if sent_s is None else "… has told the user"
            add(what, _first(ours, _PUTS, sign, after_s=heard.end_s), is_begin=True)
        return story

    def _between(self, begin_s: float, end_s: float) -> list[Call]:
        first, last = (bisect_left(self._calls, at_s, key=_end_of) for at_s in (begin_s, end_s))
        return self._calls[first:last]


def _first(
    calls: list[Call], names: Iterable[str], *texts: str, after_s: float = 0.0
) -> Call | None:
    return next((call for call in calls if call.end_s > after_s and call.is_a(names, texts)), None)


def _last(calls: list[Call], names: Iterable[str], *texts: str) -> Call | None:
    return _first(calls[::-1], names, *texts)


def _end_of(call: Call) -> float:
    return call.end_s


def _calls(text: str) -> Iterator[Call]:
    """Those that have succeeded; one that another process interrupted has two lines."""
    open_ones: dict[int, tuple[str, str, float]] = {}
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        pid, at_s, rest = int(found[1]), float(found[2]), found[3]
        took = _TOOK.search(rest)
        rest = rest if took is None else rest[: took.start()]
        name, _, arguments = rest.replace('\\"', '"').partition("(")
        if resumed := re.match(r"<\.\.\. (\w+) resumed>(.*)", rest):
            begun = open_ones.pop(pid, None)
            if begun is not None and begun[0] == resumed[1]:
                rest = begun[1] + resumed[2].replace('\\"', '"')
                yield Call(pid, begun[0], rest, begun[2], at_s)
        elif rest.endswith("<unfinished ...>"):
            open_ones[pid] = (name, arguments, at_s)
            if name == "exit_group":
                yield Call(pid, name, "", at_s, at_s)
        elif name.isidentifier():
            yield Call(pid, name, arguments, at_s, at_s + (0.0 if took is None else float(took[1])))


def _pieces(what: str, traced_ms: float, bare_ms: float, stories: list[Story]) -> Iterator[Figure]:
    """The whole, and the median of each piece that most of the stories have."""
    pieces_ms: dict[str, list[float]] = {}
    for story in stories:
        for (_, begin_s), (name, end_s) in pairwise(story):
            pieces_ms.setdefault(name, []).append((end_s - begin_s) * 1000)
    yield Figure(
        what=f"{what}, traced", value=traced_ms, unit="ms", baseline=bare_ms,
        baseline_what="the same, not traced",
    )  # fmt: skip
    medians = {
        name: statistics.median(found)
        for name, found in pieces_ms.items()
        if len(found) > len(stories) / 2
    }
    whole_ms = sum(medians.values())
    for name, median in medians.items():
        yield Figure(
            what=f"  {name}", value=median, unit="ms", baseline=whole_ms,
            baseline_what="all these pieces",
        )  # fmt: skip

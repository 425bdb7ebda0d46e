"""The Standard Workload Format of the Parallel Workloads Archive, version 2.2.

Lines of 18 numbers, -1 where something is not known; comments begin with a semicolon. Processors
are cores. Memory is given in kilobytes for each processor: as requested, or else as used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from drfd.core.resources import Resources
from drfd.sim.rows import Bad, Found, collect, number, seconds
from drfd.sim.workload import Workload

FIELDS = 18
#: The status of a job that was cancelled.
_CANCELLED = "5"


def read_swf(lines: Iterable[str], *, source: str) -> Workload:
    reader = _Reader()
    work = collect(reader.found(lines), source=source, kind="Standard Workload Format")
    notes = []
    if reader.unmeasured:
        notes.append(f"{reader.unmeasured} jobs say nothing of memory, and ask for none here")
    if reader.used:
        notes.append(f"{reader.used} jobs ask for the memory that they used: no other is recorded")
    return Workload(jobs=work.jobs, source=source, kind=work.kind, bad=work.bad, notes=tuple(notes))


def is_swf(line: str) -> bool:
    """Does a file begin like this?"""
    return line.startswith(";") or len(_numbers(line)) == FIELDS


def _numbers(line: str) -> list[str]:
    words = line.split()
    return words if all(word.lstrip("-").replace(".", "", 1).isdigit() for word in words) else []


class _Reader:
    def __init__(self) -> None:
        #: Jobs without any memory, and jobs of which only the use is known.
        self.unmeasured = self.used = 0

    def found(self, lines: Iterable[str]) -> Iterator[tuple[int, Callable[[], Found]]]:
        for at, line in enumerate(lines, start=1):
            words = line.partition(";")[0].split()
            if words:
                yield at, lambda words=words: self._job(words)  # type: ignore[misc]

    def _job(self, words: list[str]) -> Found:
        if len(words) != FIELDS:
            raise Bad(f"it has {len(words)} fields, not {FIELDS}")
        job, submit, _, run, allocated, _, used, asked, limit, memory, status, user, group = words[
            :13
        ]
        if run.startswith("-") and status == _CANCELLED:
            raise Bad("it was cancelled before it started")
        processors = number(allocated if _is_unknown(asked) else asked, "processors")
        if not processors:
            raise Bad("it has no processors")
        submit_s, run_s = seconds(submit, "the submission"), seconds(run, "the run time")
        limit_s = None if _is_unknown(limit) else seconds(limit, "the requested time")
        each_kb = 0.0
        if not _is_unknown(memory):
            each_kb = number(memory, "the requested memory")
        elif not _is_unknown(used):
            each_kb = number(used, "the used memory")
            self.used += 1
        if not each_kb:
            self.unmeasured += 1
        return Found(
            name=job,
            submit_s=submit_s,
            run_s=run_s,
            demand=Resources(
                cores_milli=round(processors * 1000),
                memory_bytes=round(each_kb * processors) << 10,
            ),
            limit_s=limit_s,
            user="unknown" if _is_unknown(user) else f"u{user}",
            group=None if _is_unknown(group) else f"g{group}",
        )


def _is_unknown(field: str) -> bool:
    """-1, or 0 where 0 says nothing."""
    return field.startswith("-") or field in ("0", "0.0")

"""The program of a process that keeps the account of promises up to date, reads it, or checks it.

The controller starts it with `python -m` for each task, and gives the task as JSON on the command
line. It prints one JSON object: the reply, or an error. It reads the journal and writes the
account's file alone. If it is killed, the next one goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from drfd.common.errors import DrfdError, short_of_memory
from drfd.daemon.accounting.messages import Answer, Task
from drfd.daemon.accounting.report import report
from drfd.daemon.error_message import ErrorMessage
from drfd.journal.promises import AccountFile, Hour
from drfd.linux import own_process
from drfd.protocol.replies import LedgerCheckReply, LedgerReply

#: Niceness: everything else has precedence.
_NICE = 19
#: The part (1/n) of the machine's memory that a worker may use, and the least limit in bytes.
_MEMORY_PART, _LEAST_MEMORY_BYTES = 10, 512 << 20


def main() -> None:
    most_bytes = own_process.part_of_memory(_MEMORY_PART, _LEAST_MEMORY_BYTES)
    own_process.become_helper(nice=_NICE, most_bytes=most_bytes)
    task = msgspec.json.decode(sys.argv[1], type=Task)
    try:
        answer = Answer(reply=answer_to(task))
    except (DrfdError, MemoryError) as found:
        error = found if isinstance(found, DrfdError) else short_of_memory()
        answer = Answer(failure=ErrorMessage.of(error))
    sys.stdout.buffer.write(msgspec.json.encode(answer))


def answer_to(task: Task) -> LedgerReply | LedgerCheckReply:
    """Do the task. Raises HostError."""
    with AccountFile(Path(task.journal)) as file:
        if task.checks:
            found = file.check()
            fault = found.fault
            return {
                "hours": found.hours,
                "compared": found.compared,
                "events": found.events,
                "gone": found.gone,
                "fault": fault and {"begin": fault.begin_ms / 1000, "text": fault.text},
            }
        book = file.catch_up(forget_before_ms=task.forget_before_ms, now_ms=task.now_ms)
        begin_ms = file.begin_ms()

        def hours() -> Iterator[Hour]:
            yield from file.hours(task.since_ms, task.until_ms)
            for hour in book.close_at(task.now_ms):
                if hour.end_ms > task.since_ms and hour.begin_ms < task.until_ms:
                    yield hour

        reply = report(hours(), task.user)
        reply["events"] = file.last_seq()
        reply["begin"] = None if begin_ms is None else begin_ms / 1000
        return reply


if __name__ == "__main__":
    main()

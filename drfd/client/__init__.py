"""The Python interface: submit jobs, wait for them, query and control them, as `drf` does.

    import drfd.client

    with drfd.client.connect() as client:
        job = client.submit(["python3", "train.py"], cores=4, memory="16G", time="2h")
        [ended] = client.wait(job)

It needs the standard library alone. Errors are `DrfdError`: `Refused`, `NotPermitted` or
`Unavailable`.
"""

from drfd.client.client import Client, connect
from drfd.client.values import (
    Amounts,
    JobInfo,
    Node,
    Reason,
    Row,
    Shares,
    Snapshot,
    UsagePoints,
    Use,
)
from drfd.common.errors import DrfdError, NotPermitted, Refused, Unavailable

#: Names in the first version of the interface.
Job, Usage = JobInfo, UsagePoints

__all__ = [
    "Amounts",
    "Client",
    "DrfdError",
    "Job",
    "JobInfo",
    "Node",
    "NotPermitted",
    "Reason",
    "Refused",
    "Row",
    "Shares",
    "Snapshot",
    "Unavailable",
    "Usage",
    "UsagePoints",
    "Use",
    "connect",
]

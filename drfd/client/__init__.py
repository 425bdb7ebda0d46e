"""Jobs from Python: submit, wait, look and act, as `drf` does.

    import drfd.client

    with drfd.client.connect() as client:
        job = client.submit(["python3", "train.py"], cores=4, memory="16G", time="2h")
        [ended] = client.wait(job)

Standard library only. What goes wrong is one of `drfd.errors`.
"""

from drfd.client.client import Client, connect
from drfd.client.snapshots import Row, Snapshot, Usage, Use
from drfd.client.values import Amounts, Job, Node, Reason, Shares
from drfd.errors import DrfdError, NotPermitted, Refused, Unavailable

__all__ = [
    "Amounts",
    "Client",
    "DrfdError",
    "Job",
    "Node",
    "NotPermitted",
    "Reason",
    "Refused",
    "Row",
    "Shares",
    "Snapshot",
    "Unavailable",
    "Usage",
    "Use",
    "connect",
]

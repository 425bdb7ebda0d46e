"""The Python interface: submit jobs, wait for them, query and control them, as `drf` does.

    import drfd.client

    with drfd.client.connect() as client:
        job = client.submit(["python3", "train.py"], cores=4, memory="16G", time="2h")
        [ended] = client.wait(job)

It needs only the standard library. Errors are `DrfdError`: `Refused`, `NotPermitted` or
`Unavailable`.

A module is imported at the first use of one of its names, so that `drf` loads only what it needs.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from drfd.client.client import Client as Client
    from drfd.client.client import connect as connect
    from drfd.client.values import Amounts as Amounts
    from drfd.client.values import JobInfo as JobInfo
    from drfd.client.values import Node as Node
    from drfd.client.values import Reason as Reason
    from drfd.client.values import Shares as Shares
    from drfd.client.values import Snapshot as Snapshot
    from drfd.client.values import UsagePoints as UsagePoints
    from drfd.client.values import Use as Use
    from drfd.common.errors import DrfdError as DrfdError
    from drfd.common.errors import NotPermitted as NotPermitted
    from drfd.common.errors import Refused as Refused
    from drfd.common.errors import Unavailable as Unavailable

_CLIENT, _VALUES, _ERRORS = "drfd.client.client", "drfd.client.values", "drfd.common.errors"
#: The module of each name of the interface.
_MODULES = {
    **dict.fromkeys(("Client", "connect"), _CLIENT),
    **dict.fromkeys(("Amounts", "JobInfo", "Node", "Reason", "Shares"), _VALUES),
    **dict.fromkeys(("Snapshot", "UsagePoints", "Use"), _VALUES),
    **dict.fromkeys(("DrfdError", "NotPermitted", "Refused", "Unavailable"), _ERRORS),
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

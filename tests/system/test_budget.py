"""What a user makes a real daemon keep: refused in time, and counted for about what it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drfd.client.connection import Connection
from drfd.common.errors import Refused
from instance import CONFIG, Instance

pytestmark = pytest.mark.system

MIB = 1 << 20
#: As fast as they come: what is measured is what is kept.
LIMITS = '[limits]\nstored_bytes_per_user = "{}"\nsubmissions_per_second = 100000\n'
#: A request has no more of them.
ARGUMENTS, DEPENDENCIES = 32_768, 1_000


def resident_bytes(instance: Instance) -> int:
    assert instance.process is not None
    status = Path(f"/proc/{instance.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def submitted(client: Connection, **more: Any) -> int:
    request = {"argv": ["true"], "cwd": "/", "held": True} | more
    return int(client.request("submit", **request)["id"])


@pytest.mark.parametrize(
    ("most_bytes", "request_of"),
    [
        # No two alike: these would be kept once.
        (16 * MIB, lambda at: {"argv": [str(at), *["a"] * (ARGUMENTS - 1)]}),
        (8 * MIB, lambda at: {"argv": [str(at), *[""] * (ARGUMENTS - 1)]}),
        (6 * MIB, lambda at: {"after": [{"id": each + 1} for each in range(DEPENDENCIES)]}),
        (16 * MIB, lambda at: {"name": "n" * 256, "stdout": "/" + "o" * 4000}),
        (8 * MIB, lambda at: {}),
    ],
    ids=["arguments", "empty arguments", "dependencies", "paths", "nothing"],
)
def test_memory_grows_by_no_more_than_three_times_what_is_charged(
    make_instance: Callable[..., Instance],
    most_bytes: int,
    request_of: Callable[[int], dict[str, Any]],
) -> None:
    """400 waiting jobs with 100,000 arguments took 2.8 GB and were charged 40 MB; with empty ones,
    or with 1,000 dependencies, hundreds of megabytes, and nothing."""
    instance = make_instance(CONFIG + LIMITS.format(most_bytes)).start()
    client = Connection(instance.socket)
    try:
        for _ in range(DEPENDENCIES):
            submitted(client)
        before = resident_bytes(instance)
        with pytest.raises(Refused) as refusal:
            for at in range(20_000):
                submitted(client, **request_of(at))
        grown = resident_bytes(instance) - before
        # Dependencies have a bound of their own, which may come first.
        assert refusal.value.code in ("too-long", "too-many-dependencies")
        assert at >= 20, "budgets are for what is not usual"
        assert grown < 3 * most_bytes, f"{grown} bytes for {at} jobs"
        # Whoever has used up the budget makes room with a cancellation.
        client.request("cancel", select={"ids": [DEPENDENCIES + 1, DEPENDENCIES + 2]})
        submitted(client)
        # The last ones first: what others wait for takes long to cancel.
        ids = [*range(DEPENDENCIES + 1, DEPENDENCIES + at + 1)]
        client.request("cancel", select={"ids": ids})
    finally:
        client.close()


def test_a_request_with_more_arguments_is_refused(make_instance: Callable[..., Instance]) -> None:
    instance = make_instance(CONFIG).start()
    client = Connection(instance.socket)
    try:
        submitted(client, argv=[""] * ARGUMENTS)
        with pytest.raises(Refused):
            submitted(client, argv=[""] * (ARGUMENTS + 1))
    finally:
        client.close()

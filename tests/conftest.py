"""What every test shares: where the machine allows what."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from drfd.launcher.cgroup_v1 import REQUIRED, USED
from drfd.launcher.hierarchy import find_mounts
from instance import CONFIG, Instance

# A busy machine is no failure, and the same examples are tried every time.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")


def _missing() -> str | None:
    """What a system test needs and this machine lacks."""
    if os.getuid() != 0:
        return "not root"
    mounts = find_mounts(Path("/proc/self/mountinfo").read_text(), USED)
    absent = [name for name in REQUIRED if name not in mounts]
    return f"no cgroup v1 controller {', '.join(absent)}" if absent else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = _missing()
    if missing is not None:
        for item in items:
            if item.get_closest_marker("system"):
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture
def make_instance() -> Iterator[Callable[..., Instance]]:
    """Instances that are destroyed after the test, however it ends."""
    made: list[Instance] = []

    def make(config: str = CONFIG) -> Instance:
        made.append(Instance(config))
        return made[-1]

    yield make
    for instance in made:
        instance.destroy()


@pytest.fixture
def instance(make_instance: Callable[..., Instance]) -> Instance:
    return make_instance().start()

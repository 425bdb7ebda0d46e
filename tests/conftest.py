"""What every test shares: where the machine allows what."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from instance import CONFIG, Instance
from kernel import Kernel

# A busy machine is no failure, and the same examples are tried every time.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = Kernel().missing()
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

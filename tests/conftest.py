"""What every test shares: where the machine allows what."""

from __future__ import annotations

import asyncio
import inspect
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from instance import CONFIG, Instance
from kernel import Kernel
from seeds import FULL_EXAMPLES, QUICK_EXAMPLES

if TYPE_CHECKING:
    from fakes import Bench, Clock

pytest_plugins = ["quick"]

# A busy machine is no failure, and the same examples are tried every time.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=FULL_EXAMPLES,
)
settings.register_profile("quick", settings.get_profile("steady"), max_examples=QUICK_EXAMPLES)
settings.load_profile("steady")

# A shell that runs its tests in the background ignores these, and a program that a test starts and
# interrupts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _ignored in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_ignored) is signal.SIG_IGN:
        signal.signal(_ignored, signal.SIG_DFL)


#: No coroutine test takes longer, in seconds.
COROUTINE_MOST_S = 120


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    given = {name: pyfuncitem.funcargs[name] for name in names}

    async def bounded() -> None:
        async with asyncio.timeout(COROUTINE_MOST_S):
            await pyfuncitem.obj(**given)

    asyncio.run(bounded())
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = Kernel().missing()
    if missing is not None:
        for item in items:
            if item.get_closest_marker("system"):
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A machine of 9 cores and 18 GiB; every test that uses it ends with books that agree."""
    from fakes import Bench

    bench = Bench()
    yield bench
    bench.check()


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
def instance(make_instance) -> Instance:
    return make_instance().start()


@pytest.fixture
def clock() -> Clock:
    from fakes import Clock

    return Clock()


@pytest.fixture
def in_berlin(monkeypatch) -> Iterator[None]:
    """Local time whose clocks are set back by an hour on 2026-10-25 at 03:00: that week has 169
    hours."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()

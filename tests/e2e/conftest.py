"""What end-to-end tests share: daemons that serve one test after the other, and terminals."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emulator import Emulator, close_all
from instance import Instance, idle, instance, lend

__all__ = ["idle", "instance", "lend", "seat"]


@pytest.fixture
def seat() -> Iterator[Callable[..., Emulator]]:
    """Start a program in a terminal of its own that speaks to this instance, with a home there."""
    made: list[Emulator] = []

    def start(at: Instance, *command: object, **options: Any) -> Emulator:
        home = {"XDG_STATE_HOME": str(at.work / "state"), "PS1": "$ ", "TERM": "linux"}
        env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        env |= {"DRFD_SOCKET": str(at.socket), **home, **options.pop("env", {})}
        made.append(Emulator(*command, **{"env": env, "cwd": at.work, **options}))
        return made[-1]

    yield start
    close_all(made)

"""The script that builds Debian's package, as a module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[1] / "packaging/debian/build.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drfd_debian_build", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

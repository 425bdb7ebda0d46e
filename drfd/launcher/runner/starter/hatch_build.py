"""The step of the build that compiles the starter of jobs, for pyproject.toml.

With a C compiler the wheel holds the program and is one for this machine's platform. Without, or on
an architecture that the sources do not know, it is a wheel for all, and jobs are started by Python.
"""

from __future__ import annotations

import sysconfig
from importlib import util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_HERE = "drfd/launcher/runner/starter"


class StarterHook(BuildHookInterface):  # type: ignore[misc]  # hatchling is there at builds alone
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sources = _load(Path(self.root, _HERE, "sources.py"))
        try:
            sources.compile_starter(sources.PROGRAM)
        except sources.NotCompiled as why:
            self.app.display_warning(f"jobs will be started by Python: {why}")
            return
        # .gitignore names it, so it would be left out.
        build_data["artifacts"].append(f"/{_HERE}/{sources.PROGRAM.name}")
        build_data["pure_python"] = False
        # Any Python 3 will do: no module of ours is compiled.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


def _load(path: Path) -> Any:
    """Load a module without the package that it is in, which needs what is not there at a build."""
    spec = util.spec_from_file_location("drfd_starter_sources", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

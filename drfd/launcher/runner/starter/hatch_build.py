"""The step of the build that compiles the starter of jobs, for pyproject.toml.

With a C compiler the wheel holds the program and is one for this machine's platform. Without, or on
an architecture that the sources do not know, it is a wheel for all, and jobs are started by Python.

A wheel's program is compiled in a directory of its own, since a builder may not be allowed to write
to the sources. An editable installation has it beside the sources that it runs.
"""

from __future__ import annotations

import sysconfig
import tempfile
from importlib import util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_HERE = "drfd/launcher/runner/starter"


class StarterHook(BuildHookInterface):  # type: ignore[misc]  # hatchling is there at builds alone
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sources = _load(Path(self.root, _HERE, "sources.py"))
        program = sources.PROGRAM
        if version != "editable":
            # It is removed with this object.
            self._place = tempfile.TemporaryDirectory(prefix="drfd-starter-")
            program = Path(self._place.name, program.name)
        try:
            sources.compile_starter(program)
        except sources.NotCompiled as why:
            self.app.display_warning(f"jobs will be started by Python: {why}")
            return
        if version != "editable":
            build_data["force_include"][str(program)] = f"{_HERE}/{program.name}"
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

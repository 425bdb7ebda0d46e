"""The steps of the build that compile the program that starts jobs, and make the man pages, for
pyproject.toml.

The wheel holds the program, so it is one for the program's architecture. Where no C compiler is, or
not the C library's headers, the build asks for one that is a package of PyPI.

A wheel's program is compiled in a directory of its own, since a builder may not be allowed to write
to the sources. An editable installation has it beside the sources that it runs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_HERE = "drfd/launcher/runner/starter"


#: What makes the man pages, besides drfd's own dependencies: their help texts are in its code.
_MANUAL = ("docutils", "myst-docutils")


class StarterHook(BuildHookInterface):  # type: ignore[misc]  # hatchling is there at builds alone
    def dependencies(self) -> list[str]:
        needed = [*self.metadata.core.dependencies, *_MANUAL]
        with tempfile.TemporaryDirectory(prefix="drfd-starter-") as place:
            compiler = _module(self.root, "compiler")
            try:
                compiler.compile_starter(Path(place, "trial"))
            except compiler.NotCompiled:
                needed.append(compiler.ZIG)
        return needed

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compiler, program = _module(self.root, "compiler"), _module(self.root, "sources").PROGRAM
        # It is removed with this object.
        self._place = tempfile.TemporaryDirectory(prefix="drfd-build-")
        if version != "editable":
            program = Path(self._place.name, program.name)
        compiler.compile_starter(program)
        if version != "editable":
            build_data["force_include"][str(program)] = f"{_HERE}/{program.name}"
        share = Path(self._place.name, "share")
        make = [sys.executable, "-B", "packaging/man_pages.py", self._place.name]
        subprocess.run(make, cwd=self.root, check=True)
        build_data["shared_data"][str(share)] = "share"
        build_data["pure_python"] = False
        # Any Python 3 will do, and any C library: the program is linked to none.
        build_data["tag"] = f"py3-none-manylinux_2_17_{compiler.machine_of(program)}"


def _module(root: str, name: str) -> Any:
    """Return a module of drfd's that needs nothing but Python."""
    sys.path.insert(0, root)
    return import_module(f"drfd.launcher.runner.starter.{name}")

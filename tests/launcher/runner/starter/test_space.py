"""A job with a /tmp of its own sees nothing of the machine's, whatever /var/tmp is there."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from launcher.rig import AttemptFiles, Driver, order
from starters import COMPILED, WAYS

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="not root: cannot mount"),
]

#: In a mount namespace of its own, so that the machine keeps what it has.
_ALONE = ("unshare", "--mount", "--propagation", "private", "sh", "-ec")
_ONE = "mount -t tmpfs none {0}; touch {0}/outside; "
#: What is done there, and whether jobs have one directory under both names.
MACHINES = {
    "two": (_ONE.format("/tmp") + _ONE.format("/var/tmp"), False),
    # One directory is mounted at both, as guides to hardening have recommended.
    "first at both": (_ONE.format("/tmp") + "mount --bind /tmp /var/tmp; ", False),
    "second at both": (_ONE.format("/var/tmp") + "mount --bind /var/tmp /tmp; ", False),
    "link": (_ONE.format("/tmp") + "mount -t tmpfs none /var; ln -s /tmp /var/tmp; ", True),
}


def _with_tests(commands: str, work: Path) -> str:
    """These commands, after which what is tested is still there, if it is below /tmp itself."""
    for above in (Path("/tmp"), Path("/var/tmp")):
        for part in (Path(__file__), Path(sys.prefix)):
            if part.is_relative_to(above):
                top = above / part.relative_to(above).parts[0]
                kept = work / "kept"
                kept.mkdir(exist_ok=True)
                keep = f"mount --bind {top} {kept}; "
                return f"{keep}{commands}mkdir -p {top}; mount --bind {kept} {top}; "
    return commands


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_of_the_machines_is_seen(
    machine: str, way: str, request: pytest.FixtureRequest
) -> None:
    commands, is_one = MACHINES[machine]
    with tempfile.TemporaryDirectory(prefix="drfd-test-", dir="/opt") as place:
        work, program = Path(place), None
        if way == COMPILED:
            program = Path(shutil.copy(request.getfixturevalue("starter"), work))
        for each in ("space", "space/tmp", "space/var"):
            (work / each).mkdir()
        files = AttemptFiles(work / "attempts")
        prepare = _with_tests(commands, work)
        driver = Driver(program, before=(*_ALONE, f'{prepare} exec "$@"', "sh"))
        script = "touch /tmp/first /var/tmp/second; ls -A /tmp; echo; ls -A /var/tmp"
        asked = order("sh", "-c", script, cwd=work)
        driver.reap(driver.start(asked, files, space=work / "space"))
        attempt = files.over()
        driver.close()
        files.clean_up()
        assert attempt.failed is None
        seen = [part.split() for part in (work / "out").read_text().split("\n\n")]
    both = ["first", "second"]
    assert seen == ([both, both] if is_one else [["first"], ["second"]])

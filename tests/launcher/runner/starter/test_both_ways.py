"""What a job sees, and why it is not run, does not depend on how its process is begun."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drfd.launcher.protocol import SHARE, AttemptLimits, Ceilings
from launcher.rig import AttemptFiles, Driver, order

#: Each example runs two jobs.
pytestmark = pytest.mark.slow

#: Text without NUL, also with bytes that are not UTF-8.
_texts = st.text(
    st.one_of(
        st.sampled_from("ab %/=:\n\"'\\$*"),
        st.characters(min_codepoint=1, max_codepoint=0x24F),
        st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF, categories=["Cs"]),
    ),
    max_size=12,
)
_names = st.one_of(
    st.sampled_from(
        [
            *("OMP_NUM_THREADS", "GOMAXPROCS", "MKL_NUM_THREADS", "HOME", "USER", "SHELL", "PWD"),
            *("INVOCATION_ID", "LISTEN_FDS", "DRF_GRES_GPU", "DRF_GRES", "DRF_JOB_ID", "LANG"),
            *("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"),
            *("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED"),
        ]
    ),
    st.text("ABC_x", min_size=1, max_size=4),
)
_parts = st.sampled_from(
    ["%j", "%A", "%a", "%x", "%u", "%%", "%", "%q", "out", ".", "sub/", "none/", "%%j", "é"]
)
_outputs = st.one_of(
    st.lists(_parts, min_size=1, max_size=4).map("".join),
    st.sampled_from(["/dev/null", "out", "pipe", "/dev/full", "/dev", "/dev/stdin", ""]),
)
#: First lines of scripts, as they are meant and as nobody means them.
_heads = st.one_of(
    st.sampled_from(["/bin/sh", "/bin/bash -u", " /usr/bin/env bash", "/usr/bin/env -S bash -e"]),
    st.lists(
        st.sampled_from(
            ["/bin/bash", "env", "/usr/bin/env", "-S", "-u", "-c", "--", "-", "perl", "\t", "", "é"]
        ),
        max_size=5,
    ).map(" ".join),
)
_SHOW = (
    'env -0; umask; pwd; printf "<%s>" "$@"; ulimit -c; ulimit -n; '
    "cat /proc/self/oom_score_adj; ls sub >&2"
)
_programs = st.sampled_from(
    [
        ("sh", "-c", _SHOW, "zero"),
        ("/bin/sh", "-c", _SHOW, "zero"),
        *(("none",), ("./none",), ("/etc/passwd",), ("sub",), ("",), ("./sub/plain",)),
        ("false",),
    ]
)


@st.composite
def orders(draw: st.DrawFn) -> dict[str, Any]:
    env = draw(st.dictionaries(_names, _texts, max_size=6))
    if draw(st.booleans()):
        env["PATH"] = draw(st.sampled_from(["/usr/bin:/bin", "", "/none::/bin", "/bin/", "/none"]))
    script = draw(st.sampled_from([None, None, f"#!/bin/sh\n{_SHOW}\n", _SHOW, "#!/none\n", ""]))
    if script and draw(st.booleans()):
        script = f"#!{draw(_heads)}\n{_SHOW}\n"
        env["DRF_SCRIPT"] = draw(st.sampled_from(["", "/own/x.sh", 'a"b', "a\nb", "/etc/passwd"]))
    array_id = draw(st.integers(0, 2))
    return {
        "argv": draw(_programs) + tuple(draw(st.lists(_texts, max_size=3))),
        "env": env,
        "script": script,
        "stdout": draw(_outputs),
        "stderr": draw(_outputs),
        "umask": draw(st.sampled_from([0o022, 0o077, 0, 0o777, 0o227])),
        "cwd": draw(st.sampled_from(["", "", "/", "//", "/sub/..", "/none", "/out-of"])),
        "name": draw(st.text("ab/% é", max_size=4)),
        "array_id": array_id,
        "array_index": 3 * array_id,
        "threads": draw(st.integers(0, 3)),
        "limits": AttemptLimits(cores_milli=1000, memory_bytes=64 << 20, pids=1000, cores_by=SHARE),
        "most": draw(st.sampled_from([None, Ceilings(cores_milli=3000)])),
        "hidden": draw(st.sampled_from([(), ("ROCR_VISIBLE_DEVICES",)])),
        "variables": draw(st.sampled_from([{}, {"DRF_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": ""}])),
        "empties_output": draw(st.booleans()),
        "output_max_bytes": draw(st.sampled_from([0, 0, 1 << 40])),
    }


@pytest.fixture(scope="module")
def drivers(starter: Path) -> Iterator[tuple[Driver, Driver]]:
    found = Driver(starter), Driver()
    yield found
    for each in found:
        each.close()


def seen(driver: Driver, asked: dict[str, Any], top: Path) -> object:
    """All that is left of a job: its records, and its files with their modes."""
    work = top / "work"
    shutil.rmtree(top, ignore_errors=True)
    (work / "sub").mkdir(parents=True)
    (work / "sub" / "plain").write_text("echo\n")
    (work / "out").write_text("before\n")
    files = AttemptFiles(top / "attempts")
    given = {**asked, "cwd": f"{work}{asked['cwd']}"}
    argv = given.pop("argv")
    driver.reap(driver.start(order(*argv, **given), files))
    attempt = files.over()
    files.clean_up()
    ended = attempt.ended and (attempt.ended["exit_code"], attempt.ended["signal"])
    left = {str(path.relative_to(work)): content(path) for path in sorted(work.rglob("*"))}
    return attempt.failed, attempt.running is not None, ended, left


def content(path: Path) -> object:
    """Its mode, and if it is a file its variables and lines in any order. The number of a script's
    descriptor, which shells name in their complaints, may differ."""
    mode = path.stat().st_mode
    if not path.is_file():
        return mode
    path.chmod(0o600)
    text = re.sub(rb"/proc/self/fd/\d+", b"SCRIPT", path.read_bytes())
    return mode, sorted(re.split(rb"[\0\n]", text))


@settings(max_examples=40)
@given(orders())
def test_a_job_is_the_same_in_both_ways(
    drivers: tuple[Driver, Driver], asked: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory(prefix="drfd-") as place:
        compiled, forked = (seen(driver, asked, Path(place, "top")) for driver in drivers)
    assert compiled == forked

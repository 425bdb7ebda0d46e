"""A user's own defaults and presets, in ~/.config/drfd/config.toml."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob
from cli.drf import ROOT, Drf
from drfd_cli.submitting.personal import _FLAGS, _LISTS, _NOT_OF_RUN, _VALUES
from drfd_cli.words import complete

NAMES = """\
memory = "1G"
time = "2h"
output = "logs/"

[preset.gpu]
cores = 4
memory = "16G"
gres = ["gpu=1", "tape"]
preemptible = true
hold = false
notify_command = "true"
notify = ["end", "fail"]

[preset."at night"]
begin = "now"
"""


@pytest.fixture
def home(tmp_path: Path, plain: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory, in whose `work` the user is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "work" / "logs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def write(home: Path, text: str) -> Path:
    path = home / ".config" / "drfd" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def request_of(drf: Drf, daemon: CannedDaemon) -> Any:
    def run(*words: object) -> dict[str, Any]:
        daemon.replies = {"submit": {"id": 42}}
        result = drf("submit", *words)
        assert (result.code, result.err) == (0, "")
        request: dict[str, Any] = daemon.requests[-1]
        return request

    return run


def test_the_users_own_defaults_count_where_nothing_is_said(home: Path, request_of: Any) -> None:
    write(home, NAMES)
    asked = request_of("--", "true")
    assert (asked["demand"], asked["time_limit_s"]) == ({"memory_bytes": 1 << 30}, 7200)
    assert (asked["stdout"], asked["stderr"]) == ("logs/drf-%j.out",) * 2


def test_a_preset_wins_over_defaults_and_options_win_over_both(home: Path, request_of: Any) -> None:
    write(home, NAMES)
    asked = request_of("-t", "5m", "--preset", "gpu", "--gres", "gpu=2", "--", "true")
    assert asked["demand"] == {
        "cores_milli": 4000, "memory_bytes": 16 << 30, "gres": {"gpu": 2, "tape": 1}
    }  # fmt: skip
    assert (asked["time_limit_s"], asked["preemptible"], asked["held"]) == (300, True, False)
    assert asked["notify"] == {"on": ["end", "fail"], "argv": ["sh", "-c", "true"]}
    assert request_of("--preset", "at night", "--", "true")["begin_s"] == 0


def test_a_range_among_the_defaults_is_replaced_as_a_whole(home: Path, request_of: Any) -> None:
    write(home, 'cores = "1..4"\nio = "data=10M..20M"\n[preset.big]\ncores = "8.."\n')
    script = home / "job.sh"
    script.write_text("#!/bin/sh\n#DRF -c 2..6\ntrue\n")
    for words, ends in (
        (["--", "true"], (1000, 4000)),
        (["--preset", "big", "--", "true"], (8000, "all")),
        (["-c", "3", "--", "true"], (3000, None)),
        ([script], (2000, 6000)),
        (["-c", "5", script], (5000, None)),
    ):
        demand = request_of(*words)["demand"]
        assert (demand["cores_milli"], demand.get("cores_max_milli")) == ends
        assert demand["disks"]["data"]["read_max_bps"] == 20 << 20


def test_lines_of_a_script_stand_between(home: Path, request_of: Any) -> None:
    write(home, NAMES)
    script = home / "job.sh"
    script.write_text("#!/bin/sh\n#DRF -m 3G -t 3h --preset gpu\ntrue\n")
    asked = request_of("-t", "4h", script)
    assert asked["demand"] == {
        "cores_milli": 4000, "memory_bytes": 3 << 30, "gres": {"gpu": 1, "tape": 1}
    }  # fmt: skip
    assert asked["time_limit_s"] == 4 * 3600
    script.write_text("#!/bin/sh\n#DRF --preset gpu\ntrue\n")
    assert "cores_milli" not in request_of("--preset", "at night", script)["demand"]


def test_the_directory_of_the_configuration_is_that_of_xdg(
    home: Path, request_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, NAMES)
    other = home / "other" / "drfd"
    other.mkdir(parents=True)
    (other / "config.toml").write_text('memory = "5G"\noutput = "~/out-%x"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(other.parent))
    asked = request_of("--", "true")
    assert (asked["demand"], asked["stdout"]) == ({"memory_bytes": 5 << 30}, f"{home}/out-%x")


def test_an_array_gets_its_usual_files_in_the_directory(home: Path, request_of: Any) -> None:
    write(home, NAMES)
    assert request_of("--array", "0-3", "--", "true")["stdout"] == "logs/drf-%A_%a.out"


def test_run_takes_what_it_can(home: Path, drf: Drf, daemon: CannedDaemon, ended: MakeJob) -> None:
    write(home, NAMES)
    daemon.replies = {"submit": {"id": 42}, "wait": {"done": True, "ended": [ended()]}}
    assert drf("run", "--preset", "gpu", "--", "true").err == ""
    asked = daemon.requests[0]
    assert asked["demand"]["cores_milli"] == 4000 and "stdout" not in asked
    assert "preemptible" not in asked or asked["preemptible"] is False


def test_a_preset_may_turn_warnings_off(home: Path, request_of: Any) -> None:
    write(home, "warnings = false\n")
    request_of("--", "no-such-command-here")


def test_a_dry_run_says_where_values_come_from(home: Path, drf: Drf, daemon: CannedDaemon) -> None:
    path = write(home, NAMES)
    daemon.replies = {"submit": {"expected_start_at": None, "reason": None}}
    result = drf("submit", "--dry-run", "--preset", "gpu", "-t", "1h", "--", "true")
    assert result.err.splitlines() == [
        f"drf: --mem=16G is from {path}, line 7: preset.gpu.memory",
        f"drf: --output=logs/ is from {path}, line 3: output",
        f"drf: --cores=4 is from {path}, line 6: preset.gpu.cores",
        f"drf: --gres=gpu=1 is from {path}, line 8: preset.gpu.gres",
        f"drf: --gres=tape is from {path}, line 8: preset.gpu.gres",
        f"drf: --preemptible is from {path}, line 9: preset.gpu.preemptible",
        f"drf: --notify-command=true is from {path}, line 11: preset.gpu.notify_command",
        f"drf: --notify=end,fail is from {path}, line 12: preset.gpu.notify",
    ]


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("coers = 4", [], ", line 1: coers: unknown key (did you mean cores?)"),
        ("\n[preset.a]\n\nmem = 1", [], "line 4: preset.a.mem: unknown key (did you mean memory?"),
        ("name = 'x'", [], ", line 1: name: unknown key (it can stand in a preset)"),
        ("[presets.gpu]", [], ", line 1: presets: unknown key (known keys: "),
        ("preset = {a = {zzz = 1}}", [], ": preset.a.zzz: unknown key (known keys: "),
        ("preset.a = 1", [], ": preset: a preset is a table ([preset.gpu] with keys below)"),
        ('\ncores = "many"', [], ", line 2: cores: 'many' is not a number (write 4 or 0.5)"),
        ("memory = 4096", [], ", line 1: memory: memory must be at least 1M (write 4096M for "),
        ("cores = true", [], ", line 1: cores: True is not a text or a number"),
        ("cores = ''", [], ", line 1: cores: '' is not a text or a number"),
        ("io = [1, []]", [], ", line 1: io: [] is not a text or a number"),
        ("warnings = 'no'", [], ", line 1: warnings: 'no' is not true or false"),
        ("colour = 'red'", [], ", line 1: colour: 'red' is not a choice (auto, always or never)"),
        ("cores = ", [], " is not TOML: "),
        (NAMES, ["--preset", "gpus"], "--preset: there is no preset 'gpus' in "),
        (NAMES, ["--preset", "gpus"], "config.toml (did you mean gpu?)"),
        ("", ["--preset", "x"], "config.toml (write [preset.x] into "),
        (None, ["--preset", "x"], "config.toml (write [preset.x] into "),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["submit", "run"])
def test_a_bad_file_is_refused_with_the_place_and_the_cure(
    home: Path, drf: Drf, daemon: CannedDaemon, verb: str, text: str | None, words: list[str],
    told: str,
) -> None:  # fmt: skip
    path = home / ".config" / "drfd" / "config.toml"
    if text is not None:
        write(home, text)
    result = drf(verb, *words, "--", "true")
    assert (result.code, result.out, daemon.requests) == (78, "", [])
    assert result.err.count("\n") == 1
    assert told in result.err and str(path) in result.err


def test_other_verbs_and_the_help_work_with_a_bad_file(
    home: Path, drf: Drf, daemon: CannedDaemon, refuse: Any
) -> None:
    write(home, "coers = 4")
    daemon.replies = {"status": {"jobs": [], "counts": {}, "draining": False}}
    assert drf("status").code == 0
    assert drf("submit", "--help").code == 0


@pytest.mark.parametrize(("colour", "is_coloured"), [("always", True), ("never", False)])
def test_colours_are_as_the_user_likes_them(
    home: Path, drf: Drf, daemon: CannedDaemon, job: MakeJob, colour: str, is_coloured: bool
) -> None:
    write(home, f'colour = "{colour}"')
    reply = {"counts": {"RUNNING": 1}, "draining": False, "jobs": [job()]}
    daemon.replies = {"status": reply}
    assert ("\x1b[" in drf("status").out) == is_coloured
    assert "\x1b[" not in drf("status", "--color", "never").out
    assert "\x1b[" in drf("--color", "always", "status").out


# -- the light path -----------------------------------------------------------------------------

_PROGRAM = """\
import os, sys
sys.argv[0] = "drf"
leave, os._exit = os._exit, lambda code: sys.exit(code)
from drfd_cli.start import main
try:
    main()
finally:
    print(*(name for name in ("click", "tomllib") if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("text", "loaded"),
    [
        (None, ""),
        ('memory = "1G"\ntime = "2h"\n', "tomllib"),
        ('memory = "1G"\ntime = "2h"\npriority = 1\n[preset.x]\n', "click tomllib"),
    ],
)
def test_the_light_path_knows_them_and_loads_what_it_needs(
    daemon: CannedDaemon, home: Path, text: str | None, loaded: str
) -> None:
    if text is not None:
        write(home, text)
    daemon.replies = {"submit": {"id": 42}}
    env = {"DRFD_SOCKET": str(daemon.path), "PATH": "/usr/bin:/bin", "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "submit", "-m", "2G", "--", "true"],
        capture_output=True, text=True, timeout=60, cwd=home, env=env, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if text is not None and "priority" in text:
        assert (done.returncode, daemon.requests) == (78, [])
        return
    assert (done.returncode, done.stderr.split("\n")[-2]) == (0, loaded)
    [asked] = daemon.requests
    assert asked["demand"] == {"memory_bytes": 2 << 30}
    assert asked.get("time_limit_s") == (None if text is None else 7200)


def test_every_key_is_an_option_of_submit() -> None:
    from drfd_cli.commands.submit import command

    known = {name for param in command.params for name in param.opts}
    options = {*_VALUES.values(), *(each for each, _ in (*_LISTS.values(), *_FLAGS.values()))}
    assert options <= known


def test_every_option_that_run_lacks_is_known() -> None:
    from drfd_cli.commands.run import command

    known = {name for param in command.params for name in param.opts}
    options = {*_VALUES.values(), *(each for each, _ in (*_LISTS.values(), *_FLAGS.values()))}
    assert options - known == _NOT_OF_RUN


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a file another user's."""

    def give(path: Path) -> None:
        if os.getuid() == 0:
            os.chown(path, 65534, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 0)

    return give


def test_a_file_of_another_user_is_ignored_with_a_line(
    home: Path, drf: Drf, daemon: CannedDaemon, others: Callable[[Path], None]
) -> None:
    """As with `sudo` that keeps HOME: whose home it is must not choose what root's jobs run."""
    path = write(home, NAMES)
    others(path)
    daemon.replies = {"submit": {"id": 42}, "status": {"jobs": [], "ended": []}}
    result = drf("submit", "--", "true")
    assert (result.code, result.err) == (0, f"drf: {path} is not yours, so it is ignored\n")
    request = daemon.requests[-1]
    assert not request.get("demand") and "notify" not in request
    result = drf("submit", "--preset", "gpu", "--", "true")
    assert (result.code, result.out) == (78, "") and f"{path} is not yours" in result.err
    assert complete._values("preset", "submit", []) == []


@pytest.mark.skipif(os.getuid() != 0, reason="takes two users")
def test_a_file_in_another_users_home_is_not_ones_own(tmp_path: Path) -> None:
    """As after `su`: HOME is the home of before, into which the new user may not look."""
    program = (
        f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'cli')]!r}\n"
        "from drfd_cli.submitting import personal\n"
        "import os\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(personal.read({'HOME': sys.argv[1]}))\n"
    )
    path = write(tmp_path, 'memory = "1G"\n')
    words = [sys.executable, "-P", "-c", program, str(tmp_path)]
    tmp_path.chmod(0o700)
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "None\n"
    # A file that only cannot be read is the caller's own mistake.
    for place in (tmp_path, *tmp_path.parents[:2]):
        place.chmod(0o755)
    path.chmod(0)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "cannot read" in done.stderr


def test_a_configured_directory_is_made(home: Path, request_of: Any, drf: Drf) -> None:
    """One that depends on the job, or on where it is submitted, is left to its submitter."""
    more = '[preset.x]\noutput = "~/%x/"\n[preset.y]\noutput = "~/b%%/o"\nerror = "other/"\n'
    write(home, f'output = "~/made/deep/"\n{more}')
    assert request_of("--", "true")["stdout"] == f"{home}/made/deep/drf-%j.out"
    assert (home / "made" / "deep").is_dir()
    assert request_of("--preset", "x", "--", "true")["stdout"] == f"{home}/%x/drf-%j.out"
    assert "there is no directory other" in drf("submit", "--preset", "y", "--", "true").err
    assert sorted(each.name for each in home.iterdir()) == [".config", "b%", "made", "work"]
    (home / "made" / "deep").rmdir()
    (home / "made" / "deep").write_text("")
    assert f"there is no directory {home}/made/deep" in drf("submit", "--", "true").err

"""Completion: what is offered at each place of a command line, how soon, and in which shells."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from canned import CannedDaemon, Message
from cli.drf import LIGHT_DRF, Drf
from drfd_cli.main import VERBS, cli
from drfd_cli.words import complete
from drfd_cli.words.make_table import make_table
from drfd_cli.words.shells import PLACES, SCRIPTS
from drfd_cli.words.table import load

RECENT: Message = {
    "recent": [
        {"id": 43, "name": "eval", "state": "PENDING", "live": True},
        {"id": 42, "name": "train", "state": "RUNNING", "live": True},
        {"id": 41, "name": "train", "state": "FAILED", "live": False},
        {"id": 39, "name": "bad\x1b[2J", "state": "HELD", "live": True},
    ],
    "pools": ["lab", "lab.vision"], "users": ["alice", "bob"], "gres": ["gpu", "license"],
}  # fmt: skip
TABLE = make_table(cli)
#: Completes a command line whose last word is the one at the cursor; the values.
Offered = Callable[..., list[str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, daemon: CannedDaemon) -> Path:
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DRFD_SOCKET", str(daemon.path))
    daemon.replies = {"recent": RECENT}
    return tmp_path


@pytest.fixture
def offered(home: Path) -> Offered:
    def run(*words: str, shell: str = "fish") -> list[str]:
        found = complete.complete(shell, ["drf", *words], len(words), TABLE)
        return [value for value, _ in found]

    return run


def test_verbs_and_options_are_offered_with_what_they_do(offered: Offered, home: Path) -> None:
    assert {*VERBS, "help"} == {*offered("")}
    assert complete.complete("zsh", ["drf", "su"], 1, TABLE) == [
        ("submit", VERBS["submit"]), ("suspend", VERBS["suspend"]),
    ]  # fmt: skip
    assert "--mem" in offered("submit", "--m")
    assert offered("--sock") == ["--socket"]
    assert offered("help", "wai") == ["wait"]
    assert offered("no-such-verb", "") == []


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["log", ""], ["43", "42", "41", "39"]),
        (["log", "4"], ["43", "42", "41"]),
        (["log", "e"], ["eval"]),
        (["log", "t"], []),
        (["log", "@"], ["@-1"]),
        (["wait", "42", "4"], ["43", "42", "41"]),
        (["cancel", ""], ["43", "42", "39"]),
        (["retry", ""], ["41"]),
        (["suspend", ""], ["42"]),
        (["release", ""], ["39"]),
        (["signal", "USR"], ["USR1", "USR2"]),
        (["signal", "USR1", ""], ["42"]),
        (["submit", "--after", ""], ["43", "42", "41", "39"]),
        (["submit", "-p", "lab"], ["lab", "lab.vision"]),
        (["submit", "--gres", ""], ["gpu", "license"]),
        (["status", "-u", "a"], ["alice"]),
        (["status", "-s", "RU"], ["RUNNING"]),
        (["status", "--state=RU"], ["--state=RUNNING"]),
        (["cancel", "--name", "t"], ["train"]),
        (["submit", "-o", "x"], [":files"]),
        (["submit", ""], [":files"]),
        (["submit", "-c", "4", "--", ""], [":command 5"]),
        (["submit", "job.sh", ""], [":files"]),
        (["run", ""], [":command 2"]),
        (["exec", ""], ["42"]),
        (["exec", "42", "--", ""], [":command 4"]),
        (["run", "-c", "4", "make", "al"], [":command 4"]),
        (["submit", "-n", ""], []),
        (["doctor", ""], []),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_each_place_has_its_words(offered: Offered, words: list[str], values: list[str]) -> None:
    assert offered(*words) == values


def test_bash_splits_words_at_equals_signs(offered: Offered) -> None:
    assert offered("submit", "--pool", "=", "", shell="bash") == ["lab", "lab.vision"]
    assert offered("submit", "--pool", "=", "lab", "--", "", shell="bash") == [":command 6"]


def test_presets_come_from_the_users_own_configuration(home: Path) -> None:
    (home / ".config/drfd").mkdir(parents=True)
    (home / ".config/drfd/config.toml").write_text("[preset.gpu]\ncores = 4\n[presets.big]\n")
    assert complete._values("preset", "submit", []) == [("gpu", ""), ("big", "")]


def test_names_cannot_write_to_the_terminal(home: Path) -> None:
    found = dict(complete.complete("zsh", ["drf", "log", "39"], 2, TABLE))
    assert found == {"39": "bad?[2J HELD"}


def test_without_a_daemon_nothing_is_offered_nor_said(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRFD_SOCKET", "/nowhere/s")
    complete.main(["bash", "2", "drf", "log", ""], lambda: TABLE)
    assert capfd.readouterr() == ("", "")


def test_a_table_of_another_version_is_made_anew(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(load(lambda: TABLE)) == {"", *VERBS, "help"}
    assert load(dict) == json.loads(json.dumps(TABLE)), "it was stored"
    stored = home / ".cache/drfd/completion.json"
    assert stored.stat().st_mode & 0o777 in (0o644, 0o600, 0o640)
    stored.write_text('{"stamp": "old", "table": {}}')
    assert "submit" in load(lambda: TABLE)
    stored.write_text("damaged")
    assert "submit" in load(lambda: TABLE)


def test_another_users_cache_is_neither_read_nor_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `sudo` that keeps HOME: links there may lead anywhere."""
    load(lambda: TABLE)
    stored = home / ".cache/drfd/completion.json"
    for path in (stored, stored.parent, stored.parent.parent, home):
        with monkeypatch.context() as patch:
            if os.getuid() == 0:
                os.chown(path, 65534, -1)
            else:
                patch.setattr(os, "geteuid", lambda: 0)
            if path != stored:
                stored.unlink(missing_ok=True)
            if path == home:
                shutil.rmtree(home / ".cache")
            assert load(dict) == {}, path
            if path != stored:
                assert not stored.exists(), path
        if os.getuid() == 0:
            os.chown(path, 0, -1)


def test_no_link_is_followed_when_the_table_is_stored(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    stored = home / ".cache/drfd/completion.json"
    stored.parent.mkdir(parents=True)
    planted = stored.with_name(f"{stored.name}.{os.getpid()}")
    planted.symlink_to(other)
    assert load(dict) == {}
    assert (other.read_text(), stored.exists()) == ("kept", False)
    planted.unlink()
    load(dict)
    assert stored.stat().st_mode & 0o777 == 0o600


def test_what_is_printed_cannot_write_to_the_terminal(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = {"": {"about": "", "options": {}, "arguments": []}, "a\x1b[2J": {"about": "b\x07"}}
    complete.main(["fish", "1", "drf", ""], lambda: table)
    assert capfd.readouterr() == ("a?[2J\tb?\n", "")


def test_it_takes_the_light_path(home: Path) -> None:
    """Within 100 ms: neither click nor the client library is loaded, once there is a table."""
    heavy = ("click", "rich", "msgspec", "json", "re", "drfd_cli.main", "drfd.client.connection")
    program = LIGHT_DRF.replace("main()", f"main()\nprint(*({heavy} & sys.modules.keys()))")
    program = program.replace(str(heavy), "{" + str(heavy).strip("()") + "}")
    said = [
        subprocess.run(
            [sys.executable, "-c", program, "_complete", "bash", "2", "drf", "log", "43"],
            capture_output=True, text=True, timeout=60,
        )
        for _ in range(2)
    ]  # fmt: skip
    # The first one makes the table.
    assert said[0].stdout.startswith("43\teval PENDING\n")
    assert (said[1].stdout, said[1].stderr) == ("43\teval PENDING\n\n", "")


# -- the shells ------------------------------------------------------------------------------


@pytest.fixture
def program(home: Path) -> Path:
    """A drf in a directory of its own."""
    load(lambda: TABLE)
    path = home / "bin" / "drf"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\n{LIGHT_DRF}")
    path.chmod(0o755)
    return path


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "kind", "offered"),
    [
        (["su"], "9", ["submit", "suspend"]),
        (["log", "4"], "9", ["43", "42", "41"]),
        (["log", "4"], "63", ["43  (eval PENDING)", "42  (train RUNNING)", "41  (train FAILED)"]),
        (["log", "43"], "63", ["43"]),
        (["submit", "a"], "9", ["a file"]),
        (["submit", "--", "drf"], "9", ["drf"]),
    ],
)
def test_bash(program: Path, words: list[str], kind: str, offered: list[str]) -> None:
    (program.parent / "a file").touch()
    line = " ".join(words)
    script = (
        f"source /dev/stdin <<'END'\n{SCRIPTS['bash']}\nEND\n"
        f"COMP_WORDS=(drf {line}); COMP_CWORD={len(words)}; COMP_TYPE={kind}\n"
        '_drf_completion drf; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{program.parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True, text=True, env=env, cwd=program.parent, timeout=60,
    )  # fmt: skip
    assert (done.stdout.splitlines(), done.stderr) == (offered, "")


@pytest.mark.parametrize(("shell", "check"), [("zsh", "-n"), ("fish", "--no-execute")])
def test_other_shells_can_read_their_scripts(home: Path, shell: str, check: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell} here")
    script = home / "script"
    script.write_text(SCRIPTS[shell])
    assert subprocess.run([shell, check, str(script)], timeout=60).returncode == 0


# -- drf completion --------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_is_printed(drf: Drf, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert drf("completion", shell).out == SCRIPTS[shell]
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    assert drf("completion").out == SCRIPTS[shell]
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    result = drf("completion")
    assert (result.code, result.out) == (2, "")
    assert "say for which shell: bash, zsh, fish" in result.err


@pytest.mark.parametrize("shell", SCRIPTS)
def test_it_is_set_up_in_the_users_home_once(
    drf: Drf, home: Path, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from drfd_cli.commands import completion

    monkeypatch.setattr(completion, "_BASH_COMPLETION", home / "none")
    startup = {"bash": home / ".bashrc", "zsh": home / ".zshrc"}.get(shell)
    if startup is not None:
        startup.write_text("alias x=y")
    for _ in range(2):
        assert drf("completion", shell, "--install").code == 0
    place = home / ".local" / PLACES[shell]
    if shell == "fish":
        place = home / ".config/fish/completions/drf.fish"
    assert place.read_text() == SCRIPTS[shell]
    assert (home / ".cache/drfd/completion.json").exists()
    if startup is not None:
        first, second = startup.read_text().splitlines()
        assert first == "alias x=y"
        assert str(place) in second


def test_where_bash_looks_by_itself_its_startup_file_stays(
    drf: Drf, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from drfd_cli.commands import completion

    monkeypatch.setattr(completion, "_BASH_COMPLETION", home)
    assert drf("completion", "bash", "--install").code == 0
    assert not (home / ".bashrc").exists()

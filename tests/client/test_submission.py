"""How an owner is to be told: found at the submission, or refused there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from drfd.client import submission as notice
from drfd.client.submission import find_notice
from drfd.common.errors import Refused


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment without any way to tell."""
    monkeypatch.setattr(notice, "_SENDMAIL", (str(tmp_path / "none"),))
    return {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}


def program(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_nobody_is_told_who_has_not_asked(home: dict[str, str]) -> None:
    assert find_notice(None, None, home) is None


def test_a_command_is_the_shells(home: dict[str, str]) -> None:
    assert find_notice("start, fail,start", "echo hi", home) == {
        "on": ["start", "fail"],
        "argv": ["sh", "-c", "echo hi"],
    }
    assert find_notice(None, "x", home) == {"on": ["end"], "argv": ["sh", "-c", "x"]}


def test_the_users_own_program_comes_before_mail(home: dict[str, str], tmp_path: Path) -> None:
    mail = program(tmp_path / "bin" / "sendmail")
    found = find_notice("end", None, home)
    assert found is not None
    assert (found["argv"][0], found["argv"][3]) == ("sh", mail)
    own = program(tmp_path / ".config" / "drfd" / "notify")
    assert find_notice("end", None, home) == {"on": ["end"], "argv": [own]}
    other = program(tmp_path / "xdg" / "drfd" / "notify")
    named = home | {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    assert find_notice("end", None, named) == {"on": ["end"], "argv": [other]}


def test_without_any_way_it_is_refused_with_the_ways_there_could_be(
    home: dict[str, str], tmp_path: Path
) -> None:
    program(tmp_path / ".config" / "drfd" / "notify", mode=0o644)
    with pytest.raises(Refused) as refusal:
        find_notice("end", None, home)
    assert refusal.value.code == "no-notice"
    assert str(tmp_path / ".config" / "drfd" / "notify") in refusal.value.text
    assert "--notify-command" in refusal.value.hint


@pytest.mark.parametrize(
    ("when", "command"), [("foo", "x"), ("", "x"), ("end,", "x"), ("end", " "), ("end", "x" * 4097)]
)
def test_what_cannot_be_meant_is_refused(home: dict[str, str], when: str, command: str) -> None:
    with pytest.raises(Refused):
        find_notice(when, command, home)


def mailed(sendmail: str, directory: Path, **told: str) -> str:
    argv = find_notice("end", None, {"PATH": str(Path(sendmail).parent), "HOME": "/none"})
    assert argv is not None
    env = {"PATH": "/usr/bin:/bin", "USER": "alice", "OUT": str(directory / "mail"), **told}
    subprocess.run(argv["argv"], env=env, check=True, timeout=30)
    return (directory / "mail").read_text()


def test_mail_says_what_has_become_of_the_job(tmp_path: Path) -> None:
    """And nothing in it begins a header of its own."""
    sendmail = program(tmp_path / "bin" / "sendmail", '#!/bin/sh\n{ echo "$@"; cat; } > "$OUT"\n')
    text = mailed(
        sendmail, tmp_path, DRF_JOB_ID="7", DRF_JOB_NAME="a\nBcc: b$(x)", DRF_STATE="TIMEOUT",
        DRF_REASON="ran %s", DRF_ELAPSED="60", DRF_STDOUT="/o", DRF_STDERR="/e",
    )  # fmt: skip
    assert text.splitlines() == [
        "-i -t",
        "To: alice",
        "Subject: drf job 7 (aBcc: b$(x)): TIMEOUT",
        "",
        "ran %s",
        "ran for 60 s",
        "output: /o",
        "errors: /e",
    ]
    forged = mailed(
        sendmail, tmp_path, DRF_JOB_ID="7\nBcc: x", DRF_JOB_NAME="a", DRF_STATE="R\r\nBcc: y"
    )
    assert forged.splitlines()[2:4] == ["Subject: drf job 7Bcc: x (a): RBcc: y", ""]
    start = mailed(sendmail, tmp_path, DRF_JOB_ID="7", DRF_JOB_NAME="a", DRF_STATE="RUNNING")
    assert start.splitlines()[2:] == ["Subject: drf job 7 (a): RUNNING", ""]
    other = mailed(
        sendmail, tmp_path, DRF_JOB_ID="7", DRF_JOB_NAME="a", DRF_STATE="RUNNING", DRF_MAIL_TO="b@c"
    )
    assert other.splitlines()[1] == "To: b@c"

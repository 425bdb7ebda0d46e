"""The client in Python's own types: what it sends, moments and ids as people write them (moments
in the time zone of whoever types them), and how an owner is to be told."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from canned import CannedDaemon, Message
from drfd.client import submission as notice
from drfd.client.client import connect
from drfd.client.submission import find_notice
from drfd.client.words import Gres, parse_after, parse_begin, parse_gres
from drfd.common.errors import Refused
from drfd.common.units import show_gres_word
from seeds import examples

# -- what is sent ------------------------------------------------------------------------------


def test_each_job_gets_the_variables_that_the_program_has_at_its_submission(
    daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.replies["submit"] = {"ok": True, "id": 1}
    with connect(daemon.path) as client:
        for value, export in (("1", ()), ("1", ()), ("2", ()), ("2", ("MY_TOKEN",))):
            monkeypatch.setenv("SEED", value)
            monkeypatch.setenv("MY_TOKEN", "secret")
            client.submit(["true"], export=export)
    found = [asked["env"] for asked in daemon.asked("submit", times=4)]
    assert [env["SEED"] for env in found] == ["1", "1", "2", "2"]
    assert ["MY_TOKEN" in env for env in found] == [False, False, False, True]


@pytest.mark.parametrize(
    ("verb", "options", "sent"),
    [
        ("submit", {"group": "sweep%2"}, {"group": "sweep%2"}),
        ("set", {"group": ""}, {"group": ""}),
        ("status", {"group": "sweep"}, {"select": {"group": "sweep"}}),
        # A range is sent as its two ends, ...
        (
            "submit",
            {"cores": "2..8", "io": ["50M..200M/20M", "data=1M.."]},
            {"demand": {
                "cores_milli": 2000, "cores_max_milli": 8000,
                "read_bps": 50 << 20, "read_max_bps": 200 << 20, "write_bps": 20 << 20,
                "disks": {"data": {"read_bps": 1 << 20, "read_max_bps": "all",
                                   "write_bps": 1 << 20, "write_max_bps": "all"}},
            }},
        ),
        ("set", {"cores": "2.."}, {"demand": {"cores_milli": 2000, "cores_max_milli": "all"}}),
        ("set", {"cores": 2}, {"demand": {"cores_milli": 2000}}),
        # ... and the memory on each GPU in bytes.
        (
            "submit",
            {"gres": {"gpu": 2}, "gres_memory": {"gpu": "20G"}},
            {"demand": {"gres": {"gpu": 2}, "gres_memory": {"gpu": 20 << 30}}},
        ),
        ("set", {"gres_memory": {"gpu": 0}}, {"demand": {"gres_memory": {"gpu": 0}}}),
    ],
)  # fmt: skip
def test_options_are_sent_as_the_daemon_takes_them(
    daemon: CannedDaemon, verb: str, options: dict[str, Any], sent: Message
) -> None:
    daemon.replies = {
        "submit": {"id": 1},
        "set": {"done": [1], "failed": []},
        "status": {"jobs": [], "counts": {}, "draining": False},
    }
    about = {"submit": [["true"]], "set": [1], "status": []}[verb]
    with connect(daemon.path) as client:
        getattr(client, verb)(*about, **options)
    (asked,) = daemon.asked(verb)
    assert {name: asked[name] for name in sent} == sent


# -- moments -----------------------------------------------------------------------------------


@pytest.fixture(params=["Europe/Berlin", "America/New_York", "Asia/Kathmandu"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def local(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


#: A Friday in November, in the afternoon.
NOW = "2026-11-20 14:30:10"
#: Moments, when they are written, and when they are.
MOMENTS = [
    ("18:00", NOW, "2026-11-20 18:00:00"),
    ("14:30:11", NOW, "2026-11-20 14:30:11"),
    ("14:30", NOW, "2026-11-21 14:30:00"),
    ("9:05", NOW, "2026-11-21 09:05:00"),
    ("00:00", NOW, "2026-11-21 00:00:00"),
    ("today 23:59", NOW, "2026-11-20 23:59:00"),
    ("tomorrow", NOW, "2026-11-21 00:00:00"),
    ("tomorrow 08:00", NOW, "2026-11-21 08:00:00"),
    ("2026-11-21", NOW, "2026-11-21 00:00:00"),
    ("2026-11-21T08:00", NOW, "2026-11-21 08:00:00"),
    ("2026-11-21 08:00:30", NOW, "2026-11-21 08:00:30"),
    ("2028-02-29", NOW, "2028-02-29 00:00:00"),
    ("now+2h", NOW, "2026-11-20 16:30:10"),
    ("now+90", NOW, "2026-11-20 14:31:40"),
    ("now + 1 minute", NOW, "2026-11-20 14:31:10"),
    ("+10s", NOW, "2026-11-20 14:30:20"),
    ("10s", NOW, "2026-11-20 14:30:20"),
    ("10 min", NOW, "2026-11-20 14:40:10"),
    ("1h30m", NOW, "2026-11-20 16:00:10"),
    ("3pm", NOW, "2026-11-20 15:00:00"),
    ("12:05 am", NOW, "2026-11-21 00:05:00"),
    ("tomorrow 3:30 PM", NOW, "2026-11-21 15:30:00"),
    ("2026-11-21 8 a.m.", NOW, "2026-11-21 08:00:00"),
    # Days follow each other also after the last of a month, ...
    ("tomorrow", "2026-12-31 12:00:00", "2027-01-01 00:00:00"),
    ("08:00", "2028-02-28 12:00:00", "2028-02-29 08:00:00"),
    # ... and may have another length: summer time ends at night, here or there.
    *(
        ("08:00", f"2026-{eve} 12:00:00", f"2026-{day} 08:00:00")
        for eve, day in [
            ("10-24", "10-25"), ("10-31", "11-01"), ("03-28", "03-29"), ("03-07", "03-08"),
        ]
    ),
]  # fmt: skip


def test_a_moment_is_what_the_clock_on_the_wall_says(zone: str) -> None:
    found = [(word, now, parse_begin(word, local(now))) for word, now, _ in MOMENTS]
    assert found == [(word, now, local(moment)) for word, now, moment in MOMENTS]
    assert parse_begin("now", 1e9) == 0


#: 02:45 and 02:50 in Berlin, in the night in which the clocks are set back, both times.
@pytest.mark.parametrize(
    ("now_s", "starts_s"),
    [
        (1_792_889_100, 1_792_889_400), (1_792_892_700, 1_792_893_000),
        # 02:55 of the first, and of the second.
        (1_792_889_700, 1_792_893_000), (1_792_893_300, 1_792_979_400),
    ],
)  # fmt: skip
def test_of_two_equal_times_of_the_day_the_next_one_is_meant(
    in_berlin: None, now_s: int, starts_s: int
) -> None:
    assert parse_begin("02:50", now_s) == starts_s


@pytest.mark.parametrize(
    "word",
    [
        "", " ", "soon", "25:00", "12:60", "12:00:60", "8", "2026-02-30", "2026-13-01",
        "2026-11-20T", "T08:00", "today", "2026-11-20", "2020-01-01", "now+", "now-1h", "now+0",
        "tomorrow08:00", "18:00 tomorrow", "١٨:٠٠", "13pm", "0am", "3 foo", "pm",
        "+", "+10x", "9999999-01-01",
    ],
)  # fmt: skip
def test_what_is_no_moment_to_come_is_refused_in_one_line(word: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_begin(word, local(NOW))
    assert str(refused.value).count("\n") == 0
    assert refused.value.hint


# -- jobs and countables -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("5-7", [(5, "ok"), (6, "ok"), (7, "ok")]),
        ("5-5:any", [(5, "any")]),
        ("1_2:fail, 8-9:any", [("1_2", "fail"), (8, "any"), (9, "any")]),
        ("7-5", "not a range of job ids (write the lower id first: 5-9)"),
        ("1_2-5", "not a range of job ids"),
        ("5-", "not ID or ID:HOW (write 5, 5-9, 5:any or 5:fail)"),
        ("0-3", "not ID or ID:HOW"),
        ("1-1001", "more than 1000 jobs (wait for an array"),
    ],
)
def test_a_job_may_wait_for_a_range_of_ids_or_is_told_the_cure(
    text: str, wanted: list[tuple[Any, str]] | str
) -> None:
    if isinstance(wanted, list):
        assert parse_after(text) == wanted
        return
    with pytest.raises(Refused) as refusal:
        parse_after(text)
    assert wanted in str(refusal.value)


@examples(30)
@given(
    some.lists(
        some.tuples(
            some.sampled_from(["gpu", "license", "memory_key", "a-b"]),
            some.integers(0, 1 << 20),
            some.none() | some.integers(1 << 20, 1 << 60),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_lists_of_countables_are_read_as_they_are_written(
    asked: list[tuple[str, int, int | None]],
) -> None:
    parts = [(name, count, memory if name == "gpu" else None) for name, count, memory in asked]
    words = [show_gres_word(*part) for part in parts]
    assert parse_gres(",".join(words)) == tuple(Gres(*part) for part in parts)
    assert parse_gres(" , ".join(words)) == tuple(Gres(*part) for part in parts)


@examples(100)
@given(some.text("gpumeoryG=,1.0 -", max_size=30))
def test_no_list_of_countables_is_read_by_chance(text: str) -> None:
    """It is refused with what to write, or its resources have names and amounts that can be."""
    try:
        found = parse_gres(text)
    except Refused as refusal:
        assert refusal.code == "bad-value" and refusal.hint
        return
    assert found and all(each.name not in ("", "memory") for each in found)
    assert all(each.memory_bytes is None or each.name == "gpu" for each in found)


# -- notices -----------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment without any way to tell."""
    monkeypatch.setattr(notice, "SENDMAIL", (str(tmp_path / "none"),))
    return {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}


def program(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_command_is_the_shells_and_nobody_is_told_who_has_not_asked(home: dict[str, str]) -> None:
    assert find_notice(None, None, home) is None
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
    ("when", "command"), [("foo", "x"), ("", "x"), ("end,", "x"), ("end", " ")]
)
def test_what_cannot_be_meant_is_refused(home: dict[str, str], when: str, command: str) -> None:
    with pytest.raises(Refused):
        find_notice(when, command, home)


@pytest.mark.parametrize(
    ("told", "mail"),
    [
        (
            {"DRF_JOB_NAME": "a\nBcc: b$(x)", "DRF_STATE": "TIMEOUT", "DRF_REASON": "ran %s",
             "DRF_ELAPSED": "60", "DRF_STDOUT": "/o", "DRF_STDERR": "/e"},
            ["-i -t", "To: alice", "Subject: drf job 7 (aBcc: b$(x)): TIMEOUT", "",
             "ran %s", "ran for 60 s", "output: /o", "errors: /e"],
        ),
        (
            {"DRF_JOB_ID": "7\nBcc: x", "DRF_STATE": "R\r\nBcc: y"},
            ["-i -t", "To: alice", "Subject: drf job 7Bcc: x (a): RBcc: y", "",
             "", "ran for  s", "output: "],
        ),
        (
            {"DRF_STATE": "RUNNING", "DRF_MAIL_TO": "b@c"},
            ["-i -t", "To: b@c", "Subject: drf job 7 (a): RUNNING", ""],
        ),
    ],
    ids=["ended", "forged", "started"],
)  # fmt: skip
def test_mail_says_what_has_become_of_the_job(
    tmp_path: Path, told: dict[str, str], mail: list[str]
) -> None:
    """And nothing in it begins a header of its own."""
    program(tmp_path / "sendmail", '#!/bin/sh\n{ echo "$@"; cat; } > "$OUT"\n')
    found = find_notice("end", None, {"PATH": str(tmp_path), "HOME": "/none"})
    assert found is not None
    env = {"PATH": "/usr/bin:/bin", "USER": "alice", "OUT": str(tmp_path / "mail")}
    about = {"DRF_JOB_ID": "7", "DRF_JOB_NAME": "a"}
    subprocess.run(found["argv"], env=env | about | told, check=True, timeout=30)
    assert (tmp_path / "mail").read_text().splitlines() == mail

"""The client in Python's own types: what it sends, moments and ids as people write them (moments
in the time zone of whoever types them), and how an owner is to be told."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from canned import Message
from drfd.client import connection as connection_module
from drfd.client import submission as notice
from drfd.client.client import connect, job_fields
from drfd.client.connection import Connection, choose
from drfd.client.option_values import taken
from drfd.client.shell_lines import line_in, name_of
from drfd.client.submission import with_way
from drfd.client.words import Gres, parse_after, parse_begin, parse_gres
from drfd.common.errors import ConfigError, DrfdError, HostError, NotPermitted, Refused, Unavailable
from drfd.common.units import show_gres_word
from drfd.payload.signature import KEY_BYTES
from drfd.protocol.job_options import BY_KEY
from fakes import Clock
from seeds import examples

# -- what is sent ------------------------------------------------------------------------------


def test_each_job_gets_the_variables_that_the_program_has_at_its_submission(daemon, monkeypatch):
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
            {"cores": "2..8", "io": ["50M/20M", "data=1M"]},
            {"demand": {
                "cores_milli": 2000, "cores_max_milli": 8000,
                "read_bps": 50 << 20, "write_bps": 20 << 20,
                "disks": {"data": {"read_bps": 1 << 20, "write_bps": 1 << 20}},
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
def test_options_are_sent_as_the_daemon_takes_them(daemon, verb, options, sent):
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
def zone(request, monkeypatch) -> Iterator[str]:
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
    ("11/21-08:00", NOW, "2026-11-21 08:00:00"),
    ("1/2", NOW, "2027-01-02 00:00:00"),
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


def test_a_moment_is_what_the_clock_on_the_wall_says(zone):
    found = [(word, now, parse_begin(word, local(now))) for word, now, _ in MOMENTS]
    assert found == [(word, now, local(moment)) for word, now, moment in MOMENTS]
    assert parse_begin("now", 1e9) == 0


@pytest.mark.parametrize(
    "word",
    [
        "", " ", "soon", "25:00", "12:60", "12:00:60", "8", "2026-02-30", "2026-13-01",
        "2026-11-20T", "T08:00", "today", "2026-11-20", "2020-01-01", "now+", "now-1h", "now+0",
        "tomorrow08:00", "18:00 tomorrow", "١٨:٠٠", "13pm", "0am", "3 foo", "pm",
        "+", "+10x", "9999999-01-01",
    ],
)  # fmt: skip
def test_what_is_no_moment_to_come_is_refused_in_one_line(word):
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
def test_a_job_may_wait_for_a_range_of_ids_or_is_told_the_cure(text, wanted):
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
def test_lists_of_countables_are_read_as_they_are_written(asked):
    parts = [(name, count, memory if name == "gpu" else None) for name, count, memory in asked]
    words = [show_gres_word(*part) for part in parts]
    assert parse_gres(",".join(words)) == tuple(Gres(*part) for part in parts)
    assert parse_gres(" , ".join(words)) == tuple(Gres(*part) for part in parts)


@pytest.mark.parametrize("given_s", [90.5, [1], {}])
def test_what_is_no_time_is_refused_in_words(given_s):
    with pytest.raises(Refused, match=r"is not a time \(write 90s, 30m, 2h30m, 1:30:00 or 2d\)"):
        job_fields(["true"], {"time": given_s})


# -- notices -----------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch) -> dict[str, str]:
    """An environment without any way to tell."""
    monkeypatch.setattr(notice, "SENDMAIL", (str(tmp_path / "none"),))
    return {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}


def program(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_the_users_own_program_comes_before_mail(home, tmp_path):
    mail = program(tmp_path / "bin" / "sendmail")
    found = with_way({"on": ["end"]}, home)
    assert (found["argv"][0], found["argv"][3]) == ("sh", mail)
    own = program(tmp_path / ".config" / "drfd" / "notify")
    assert with_way({"on": ["end"]}, home) == {"on": ["end"], "argv": [own]}
    other = program(tmp_path / "xdg" / "drfd" / "notify")
    named = home | {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    assert with_way({"on": ["end"]}, named) == {"on": ["end"], "argv": [other]}


def test_without_any_way_it_is_refused_with_the_ways_there_could_be(home, tmp_path):
    program(tmp_path / ".config" / "drfd" / "notify", mode=0o644)
    with pytest.raises(Refused) as refusal:
        with_way({"on": ["end"]}, home)
    assert refusal.value.code == "no-notice"
    assert str(tmp_path / ".config" / "drfd" / "notify") in refusal.value.text
    assert "--notify-command" in refusal.value.hint


@pytest.mark.parametrize(
    ("key", "text"),
    [("notify", "foo"), ("notify", ""), ("notify", "end,"), ("notify_command", " ")],
)
def test_what_cannot_be_meant_is_refused(key, text):
    with pytest.raises(Refused):
        taken(BY_KEY[key], text)


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
def test_mail_says_what_has_become_of_the_job(tmp_path, told, mail):
    """And nothing in it begins a header of its own."""
    program(tmp_path / "sendmail", '#!/bin/sh\n{ echo "$@"; cat; } > "$OUT"\n')
    found = with_way({"on": ["end"]}, {"PATH": str(tmp_path), "HOME": "/none"})
    assert found is not None
    env = {"PATH": "/usr/bin:/bin", "USER": "alice", "OUT": str(tmp_path / "mail")}
    about = {"DRF_JOB_ID": "7", "DRF_JOB_NAME": "a"}
    subprocess.run(found["argv"], env=env | about | told, check=True, timeout=30)
    assert (tmp_path / "mail").read_text().splitlines() == mail


#: A socket at which nobody listens.
NOBODY = Path("/nowhere/drfd.sock")
JOB: Message = {"argv": ["true"], "cwd": "/", "env": {}}


@pytest.fixture
def clock(clock, monkeypatch) -> Clock:
    monkeypatch.setattr(connection_module, "time", clock)
    return clock


@pytest.fixture
def client(daemon, clock) -> Iterator[Connection]:
    client = Connection(daemon.path)
    yield client
    client.close()


# -- which daemon ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "variables", "is_systems", "found", "starts"),
    [
        # The option, the variable, the system's, and the user's own, which alone is started.
        ("/option", {"DRFD_SOCKET": "/variable"}, True, "/option", False),
        (None, {"DRFD_SOCKET": "/variable"}, True, "/variable", False),
        (None, {"DRFD_SOCKET": ""}, False, "run/drfd.sock", True),
        (None, {}, False, "run/drfd.sock", True),
        # Its directory is enough: it may be in a restart.
        (None, {}, True, "system/drfd.sock", False),
        # Started inside a job it would be in the job's cgroup, and end with the job.
        (None, {"DRF_JOB_ID": "1"}, False, "run/drfd.sock", False),
    ],
)
def test_which_daemon_is_asked_and_whether_it_is_started(
    monkeypatch, tmp_path, option, variables, is_systems, found, starts
):
    monkeypatch.delenv("DRFD_SOCKET", raising=False)
    system = tmp_path / "system"
    monkeypatch.setattr(connection_module, "SYSTEM_SOCKET", str(system / "drfd.sock"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if is_systems:
        system.mkdir()
    started: list[Path] = []
    chosen = choose(option, start=started.append)
    assert Path(chosen.path) == tmp_path / found
    if not Path(found).is_absolute():
        with pytest.raises((Unavailable, FileNotFoundError)):
            chosen.request("hello")
    assert started == ([tmp_path / found] if starts else [])
    assert choose(option, start=None).path == chosen.path


# -- one request, one reply --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "kind"),
    [
        *((kind.__name__, kind) for kind in (Refused, NotPermitted, HostError, ConfigError)),
        ("Unavailable", Unavailable), ("Moonstruck", DrfdError),
    ],
)  # fmt: skip
def test_a_refusal_becomes_the_exception_that_it_was_and_the_connection_goes_on(
    client, daemon, refuse, named, kind
):
    refused = refuse(named, "some-code", "what is wrong", "the way out")
    daemon.replies = {"show": refused, "hello": {}}
    with pytest.raises(DrfdError) as error:
        client.request("show", id=1)
    assert type(error.value) is kind
    told = (error.value.code, error.value.text, error.value.hint)
    assert told == ("some-code", "what is wrong", "the way out")
    assert client.request("hello") == {}
    assert daemon.connections == 1


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\n",
        b"[1, 2]\n",
        b"null\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"ok": 1' + b"0" * 5000 + b"}\n",
        b"{}\n",
        b'{"ok": false}\n',
        b'{"ok": false, "error": "no"}\n',
        b'{"ok": false, "error": {"kind": ["x"], "code": 1, "text": null}}\n',
    ],
    ids=lambda reply: repr(reply[:24]),
)
def test_whatever_is_no_reply_of_drfd_is_an_error_of_ours_and_no_crash(client, daemon, reply):
    """Something else may listen there: exit code 69 and one line."""
    daemon.replies = {"hello": reply}
    with pytest.raises(DrfdError) as error:
        client.request("hello")
    assert str(error.value).isprintable()


def test_a_request_after_a_restart_finds_the_new_daemon(client, daemon):
    """A program may ask now, and again in the evening."""
    daemon.replies = {"hello": {}}
    client.request("hello")
    daemon.stop()
    daemon.start()
    assert client.request("hello") == {}
    assert daemon.connections == 2


def test_the_reply_to_an_interrupted_request_is_not_taken_for_the_next_ones(client, daemon):
    """A notebook goes on after ^C."""
    daemon.replies = {"wait": {"done": True}, "hello": {}}
    client.send("wait", ids=[1])
    assert client.request("hello") == {}


def test_a_refusal_at_the_door_is_read_though_the_request_could_not_be_sent(monkeypatch):
    """A daemon that refuses the connection hangs up before the request is there. This was taken for
    a lost answer, so that drf asked again for a minute before it said why."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(connection_module, "_open", lambda path: ours)
    with ours, theirs:
        error = {"kind": "Refused", "code": "too-many", "text": "full", "hint": ""}
        theirs.sendall(json.dumps({"ok": False, "error": error}).encode() + b"\n")
        theirs.close()
        with pytest.raises(Refused, match="full"):
            Connection("there").submit()


# -- many submissions --------------------------------------------------------------------------


def test_what_was_not_answered_is_asked_for_again_under_its_key(client, daemon):
    keys: list[str] = []
    daemon.on_key = keys.append
    daemon.replies = {"submit": [{"id": 1}, None, {"id": 1}, {"id": 2}]}
    replies = list(client.submit_all({"argv": ["true"]} for _ in range(2)))
    assert [each["id"] for each in replies] == [1, 2]
    assert keys[:2] == keys[2:], "the reply was lost, and both are asked for again"


def test_what_is_too_long_for_one_request_is_sent_in_several(client, daemon):
    """And what cannot be sent is refused in its place."""
    numbers = iter(range(1000))
    daemon.replies = {"submit": lambda _: {"id": next(numbers)}}
    jobs = [{"argv": ["x" * (400 << 10)]}] * 5 + [{"argv": ["\ud800"]}, {"argv": ["true"]}]
    replies = list(client.submit_all(jobs))
    refusal = replies.pop(5)
    assert isinstance(refusal, Refused)
    assert refusal.code == "bad-value"
    assert [each["id"] for each in replies] == list(range(6))


def test_all_that_came_before_an_error_of_the_jobs_is_answered_first(client, daemon):
    """However many are sent together, and also where one of them cannot be sent."""
    numbers = iter(range(1000))
    daemon.replies = {"submit": lambda _: {"id": next(numbers)}}

    def jobs() -> Iterator[dict[str, object]]:
        yield {"argv": ["\ud800"]}
        for _ in range(300):
            yield {"argv": ["true"]}
        raise KeyError("no such input")

    found = []
    with pytest.raises(KeyError, match="no such input"):
        for each in client.submit_all(jobs()):
            found.append(each)
    assert isinstance(found.pop(0), Refused)
    assert [each["id"] for each in found] == list(range(300))


def test_submissions_wait_for_a_daemon_that_was_there_before(client, daemon, clock):
    """It is being restarted. Another connection of the program waits for it, too."""
    with pytest.raises(Unavailable, match="no drfd answers"):
        list(Connection(NOBODY).submit_all([{"argv": ["true"]}]))
    assert clock.now_s == 1000
    daemon.replies = {"hello": {}}
    client.request("hello")
    daemon.stop()
    for until_s, connection in (1060, client), (1120, client.another()):
        with pytest.raises(Unavailable, match="no drfd answers"):
            connection.submit(**JOB)
        assert clock.now_s == pytest.approx(until_s, abs=1)


# -- the key for signatures --------------------------------------------------------------------


@pytest.fixture
def keys(daemon, refuse, monkeypatch) -> list[bytes | None]:
    """Have the daemon, as if another user's, take signed submissions only. What is in the key file
    each time that it is read."""
    keys: list[bytes | None] = []
    monkeypatch.setattr(connection_module, "peer_of", lambda connected: (os.getuid() + 1, 0, 0))
    monkeypatch.setattr(connection_module, "read_key", lambda path: keys.pop(0))
    daemon.replies = {
        "hello": {"key_file": "/keys/1"},
        "submit": lambda job: {"id": 7} if "proof" in job else refuse(code="not-signed"),
    }
    return keys


@pytest.mark.parametrize(("away_s", "patience_s"), [(None, 30), (10.0, 20), (3600.0, 5)])
def test_a_launcher_is_waited_for_for_as_long_as_a_restart_takes(
    client, daemon, clock, away_s, patience_s
):
    """One that is away for long is hardly waited for. The daemon is asked again each time, so that
    it has the launcher write the key."""
    daemon.replies["hello"] = {"key_file": "/nosuch/key", "launcher_away_s": away_s}
    began_s = clock.now_s
    assert client.fetch_key() is None
    assert clock.now_s - began_s == pytest.approx(patience_s, abs=0.3)
    assert len(daemon.requests) > 5 * patience_s


def test_a_submission_is_signed_and_a_key_that_could_not_be_had_is_asked_for_again(
    client, daemon, keys, monkeypatch
):
    keys += [None, bytes(KEY_BYTES)]
    monkeypatch.setattr(connection_module, "_KEY_PATIENCE_S", -1.0)
    monkeypatch.setattr(connection_module, "_LEAST_KEY_PATIENCE_S", -1.0)
    with pytest.raises(Refused) as error:
        client.submit(**JOB)
    assert error.value.code == "not-signed"
    assert client.submit(**JOB)["id"] == 7
    assert [each["op"] for each in daemon.requests] == ["hello", "submit"] * 2


# -- waiting over restarts ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout_s", "until_s"), [(None, pytest.approx(1060, abs=1)), (10.0, pytest.approx(1010))]
)
def test_a_wait_gives_up_after_its_timeout_or_when_the_daemon_stays_away(
    client, daemon, clock, timeout_s, until_s
):
    """Who says --timeout 10 has somebody waiting for them."""

    def leave(request: object) -> None:
        daemon.path.unlink()

    daemon.replies = {"wait": leave}
    with pytest.raises(Unavailable):
        client.wait([1], any_one=False, timeout_s=timeout_s)
    assert clock.now_s == until_s


def test_what_is_left_of_the_timeout_is_asked_for_after_a_restart(client, daemon):
    daemon.replies = {"wait": [None, {"done": False, "ended": []}]}
    client.wait([1], any_one=False, timeout_s=1000.0)
    assert [asked["timeout_s"] for asked in daemon.requests] == [1000, 1000 - 0.2]


def test_a_refusal_of_a_wait_is_not_retried(client, daemon, refuse):
    daemon.replies = {"wait": refuse("NotPermitted")}
    with pytest.raises(NotPermitted):
        client.wait([1], any_one=False, timeout_s=None)
    assert len(daemon.requests) == 1


# -- the name of a line -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("curl -O x/y", "curl"),
        ("cd /data && ./bin/fit --all | tail", "fit"),
        ("set -e; export A=b; A=1 B=2 nice time train.py", "train.py"),
        ("for i in 1 2; do render $i; done", "render"),
        ("if [ -f x ]; then\nmake\nfi", "make"),
        ("( sleep 1 )", "sleep"),
        ("$PROGRAM x", None),
        ("'my program' x", None),
        ("cd /tmp", None),
        ("", None),
        ("x" * 41, None),
    ],
)
def test_the_name_is_the_first_command_that_does_something(line, name):
    assert name_of(["sh", "-c", line]) == name
    assert name_of(["/bin/bash", "-euo", "-c", line]) == name


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["bash", "-lc", "x y", "z"], "x y"),
        (["sh", "script.sh"], None),
        (["bash", "--login", "-c", "x"], None),
        (["sh", "-c"], None),
        (["sh"], None),
        (["python", "-c", "x"], None),
        ([], None),
    ],
)
def test_only_a_shell_with_c_has_a_line(argv, line):
    assert line_in(argv) == line

"""Other people's words on our terminal: they may not move the cursor, forge rows, or hide."""

import json
import threading
import unicodedata

import pytest
from rich.cells import cell_len

from canned import MakeJob, Message
from drfd_cli.output import clean
from seeds import seeds

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
HOSTILE = {
    "escape sequences": "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "8-bit escape sequences": "\x9b31mred\x9d0;title\x9c",
    "a line break": "x\n 99   forged   root   RUNNING\r\nmore",
    "other line breaks": "a\x0bb\x0cc\x85d\u2028e\u2029f",
    "backspaces": "good\b\b\b\bevil",
    "NUL and tab": "a\0b\tc",
    "turned writing": f"{BIDI}gpj.exe",
    "rich markup": "[red]x[/red] [/x] [link=http://x]y[/link]",
    "an open bracket": "[/",
    "ten kilobytes": "x" * 10_000,
    "ten kilobytes of wide signs": "\u6f22" * 10_000,
    "invisible signs": "a\u200bb\ufeffc\u00add\U000e0041",
    "marks without end": "a" + "\u0301" * 500,
    "a lone surrogate": "a\udcffb",
    "percent and braces": "%s %(x)s {0} {x!r}",
}


def harmless(text: str) -> str:
    """The text, once nothing is in it that a terminal obeys."""
    for sign in text.replace("\n", ""):
        assert unicodedata.category(sign) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}, (
            f"{sign!r} reaches the terminal"
        )
    return text


@pytest.fixture(params=HOSTILE.values(), ids=HOSTILE.keys())
def word(request) -> str:
    text = request.param
    assert isinstance(text, str)
    return text


def everywhere(job: MakeJob, word: str) -> Message:
    """A job that has the word in every place that somebody else fills."""
    return job(
        name=word, user=word, pool=f"root.{word}", reason={"code": "RESOURCES", "text": word},
        cwd=word, argv=[word, word], stdout=word, stderr=f"{word}2", cgroup=word,
    )  # fmt: skip


def test_status_has_one_row_for_one_job(drf, daemon, job, word):
    """A name cannot forge a second row. (Only the last column, the reason, may take more lines.)"""
    reply = {"counts": {"RUNNING": 1}, "draining": False}
    daemon.replies = {"status": reply | {"jobs": [job(name=word, user=word, pool=word)]}}
    result = drf("status")
    lines = harmless(result.out).splitlines()
    assert (result.code, result.err) == (0, "")
    blank, heading, _, row, *rest = lines
    assert (heading.split()[0], row.split()[0]) == ("ID", "42"), "the job's id is not to be seen"
    assert rest == [blank, "1 RUNNING"]
    assert max(map(cell_len, lines)) <= 160


@pytest.mark.parametrize("verb", ["status", "show", "why"])
def test_a_job_full_of_it_is_harmless(drf, daemon, job, word, verb):
    hostile = everywhere(job, word)
    events = [{"at": 1.0, "event": "LaunchFailed", "text": word}]
    daemon.replies = {
        "status": {"jobs": [hostile], "counts": {"RUNNING": 1}, "draining": False},
        "show": {"job": hostile, "events": events},
        "why": {"job": hostile},
    }
    result = drf(verb, 42)
    assert (result.code, result.err) == (0, "")
    lines = harmless(result.out).splitlines()
    assert len(result.out) < 20_000
    if verb == "why":
        assert len(lines) == 1
    if verb == "show":
        assert [line.partition(" ")[0] for line in lines[:-1]] == [
            "job", "state", "why", "demand", "limit", "used", "submitted", "started", "ended",
            "cgroup", "command", "directory", "output", "errors", "events",
        ]  # fmt: skip


def replies_with(word: str, job: MakeJob, ended: MakeJob) -> dict[str, Message]:
    """What the daemon says to each verb, with the word wherever somebody else's may stand."""
    error = {"kind": "NotPermitted", "code": word, "text": word, "hint": word}
    reason = {"code": word, "text": word}
    waiting = job(state="PENDING", started_at=None, stdout="/nowhere/at/all", reason=reason)
    disk = {"name": word, "path": word, "device": "8:0", "read": 1, "write": 1, "guess": False}
    doctor = {
        "version": "0.1.0", "enforcement": "none", "controls": {"cores": word},
        "disks": [disk | {"problem": word, "filesystem": word, "control": {"read": word}}],
        "warnings": [word], "stuck_jobs": [], "cures": [word], "launcher": "connected",
        "external": None, "windows": [], "limit_hours": [], "strays": [],
    }  # fmt: skip
    acted = {"done": [2], "failed": [{"id": 1, "error": error}]}
    return {
        "show": {"job": waiting, "events": []},
        "wait": {"done": True, "ended": [ended("LAUNCH_FAILED", 125, text=word)]},
        "submit": {"id": 42, "expected_start_at": 1_700_000_060.0, "reason": reason},
        "doctor": doctor,
        "reload": {"warnings": [word]},
        **dict.fromkeys(("cancel", "hold", "release", "suspend", "resume"), acted),
    }


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        ("log 42", 1, 0, 1), ("wait 42", 125, 1, 1), ("submit -w -- true", 125, 1, 1),
        ("submit --dry-run -- true", 0, 2, 0), ("doctor", 0, 7, 0), ("reload", 0, 1, 1),
        *((f"{verb} 1 2", 77, 1, 1) for verb in ("cancel", "hold", "release", "suspend", "resume")),
    ],
)  # fmt: skip
def test_a_reply_full_of_it_has_as_many_lines_as_ever_and_is_harmless(
    drf, daemon, job, ended, word, words, code, out, err
):
    daemon.replies = replies_with(word, job, ended)
    result = drf(*words.split())
    counts = (harmless(result.out).count("\n"), harmless(result.err).count("\n"))
    assert (result.code, *counts) == (code, out, err)


@pytest.mark.parametrize("verb", ["show 1", "drain", "undrain", "shutdown", "doctor", "shares"])
def test_a_refusal_of_any_verb_is_one_harmless_line(drf, daemon, refuse, word, verb):
    words = verb.split()
    daemon.replies = {words[0].removeprefix("un"): refuse("Refused", word, word, word)}
    result = drf(*words)
    assert (result.code, result.out, harmless(result.err).count("\n")) == (1, "", 1)
    assert len(result.err) < 3000


def shares_with(word: str) -> Message:
    amount = {"cores": 1.0, "memory": 1, "read": 0, "write": 0, "gres": {}}
    node = {
        "path": f"root.{word}", "weight": 1.0, "entitlement": 1.0, "usage": amount,
        "dominant_resource": word, "dominant_share": 1.0, "satisfaction": 1.0,
        "running": 1, "pending": 0,
    }  # fmt: skip
    return {"capacity": amount, "free": amount, "nodes": [node]}


def test_shares_are_harmless(drf, daemon, word):
    daemon.replies = {"shares": shares_with(word)}
    result = drf("shares")
    assert (result.code, result.err) == (0, "")
    assert max(map(cell_len, harmless(result.out).splitlines())) <= 160


# Each takes a second, after which the client tells why the job waits.
@pytest.mark.slow
def test_the_wait_and_the_end_of_a_run_are_harmless(spawn, finish, daemon, job, ended, word):
    asked = threading.Event()

    def status(request: object) -> Message:
        asked.set()
        return {"jobs": [job(state="PENDING", reason={"code": "RESOURCES", "text": word})]}

    def wait(request: object) -> Message:
        asked.wait(20)
        return {"done": True, "ended": [ended("LAUNCH_FAILED", 125, text=word)]}

    daemon.replies = {"submit": {"id": 42}, "status": status, "wait": wait}
    result = finish(spawn("run", "--", "true"))
    assert (result.code, result.out) == (125, "")
    lines = harmless(result.err).splitlines()
    assert [line[:14] for line in lines if line] in (
        ["drf: job 42 wa", "drf: job 42 LA"],
        ["drf: job 42 LA"],
    )


@pytest.mark.parametrize("words", [["status"], ["shares"]], ids=lambda words: words[0])
def test_lines_for_programs_have_as_many_columns_as_their_header(drf, daemon, job, word, words):
    daemon.replies = {
        "status": {"jobs": [everywhere(job, word)], "counts": {}, "draining": False},
        "shares": shares_with(word),
    }
    result = drf(*words, "--parsable")
    assert (result.code, result.err) == (0, "")
    header, line = harmless(result.out.replace("\t", "|TAB|")).splitlines()
    assert header.count("|TAB|") == line.count("|TAB|")


def test_a_script_with_a_hostile_name_is_harmless(drf, daemon, word):
    name = word.replace("\0", "").encode("utf-8", "surrogateescape").decode(errors="replace")
    result = drf("submit", name)
    assert (result.code, result.out, harmless(result.err).count("\n")) == (1, "", 1)


def test_json_carries_it_all_and_is_still_one_plain_line(drf, daemon, job, word):
    """Programs get what there is; a terminal that sees it gets ASCII."""
    hostile = everywhere(job, word)
    daemon.replies = {"status": {"jobs": [hostile], "counts": {}, "draining": False}}
    result = drf("status", "--json")
    assert json.loads(result.out)["jobs"] == [hostile]
    assert result.out.isascii()
    assert harmless(result.out).count("\n") == 1


def test_ordinary_words_of_any_language_are_left_alone():
    for text in ("train-2024_v1.0", "ünïcödé", "日本語", "Привет", "שלום", "😀", "a b", "[x]"):
        assert clean(text) == text


def test_what_is_too_long_is_cut_visibly():
    assert clean("x" * 300, 10) == "x" * 9 + "…"
    assert clean("x" * 10, 10) == "x" * 10


@pytest.mark.parametrize("encoding", seeds(["ascii", "latin-1", "utf-8"], quick=1))
@pytest.mark.parametrize("words", [["status"], ["show", "42"], ["why", "42"]], ids=lambda w: w[0])
def test_a_terminal_of_any_encoding_shows_what_it_can(spawn, finish, daemon, job, encoding, words):
    strange = job(name="日本語…", reason={"code": "RESOURCES", "text": "für é"})
    daemon.replies = {
        "status": {"jobs": [strange], "counts": {}, "draining": False},
        "show": {"job": strange, "events": []},
        "why": {"job": strange},
    }
    process = spawn(*words, env={"PYTHONIOENCODING": encoding})
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert "42" in out.decode(encoding, "replace")

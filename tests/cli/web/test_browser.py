"""The page in a real browser: what is seen, by whom, and what it must never do."""

import base64
import http.client
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from canned_snapshots import AT_S, HOSTILE, hostile, node, row, snapshot, three_jobs
from cli.web.conftest import Page
from instance import wait_for

pytestmark = pytest.mark.slow

#: Seconds for what comes in a moment on an idle machine.
PATIENCE_S = 120.0
#: As few of Chromium's own requests as it can be told to make. The sandbox needs rights that a
#: container and root do not give.
_ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-default-apps", "--no-default-browser-check",
    "--disable-features=Translate,OptimizationHints,MediaRouter", "--hide-scrollbars",
)  # fmt: skip


def missing() -> str:
    """Return which program is missing, or empty text."""
    names = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    packages = "Debian's chromium and chromium-driver"
    return f"{' and '.join(names)} not found ({packages})" if names else ""


class Browser:
    """A session of Chromium. All that it writes is below `place`."""

    def __init__(self, place: Path) -> None:
        home = place / "home"
        home.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        environment = {
            "HOME": str(home), "PATH": os.environ["PATH"], "TMPDIR": str(place), "TZ": "UTC",
            "LANG": "C.UTF-8", "XDG_RUNTIME_DIR": str(home),
        }  # fmt: skip
        self._log = (place / "chromedriver.log").open("wb")
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={self._port}"],
            env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip
        self._session = ""
        try:
            wait_for("chromedriver", self._is_ready)
            options = {"args": [*_ARGUMENTS, f"--user-data-dir={place / 'profile'}"]}
            asked = {
                "browserName": "chrome", "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL"},
            }  # fmt: skip
            made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": asked}})
            self._session = f"/session/{made['sessionId']}"
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._session:
            with suppress(Exception):
                self._call("DELETE", self._session)
        # What a browser that did not end in time has left.
        with suppress(psutil.Error):
            for process in psutil.Process(self._driver.pid).children(recursive=True):
                process.kill()
        self._driver.kill()
        self._driver.wait()
        self._log.close()

    def _is_ready(self) -> bool:
        assert self._driver.poll() is None, "chromedriver has ended"
        try:
            return bool(self._call("GET", "/status")["ready"])
        except OSError:
            return False

    def _call(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            data = json.dumps({} if body is None else body) if method == "POST" else None
            connection.request(method, path, data, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise AssertionError(f"{method} {path}: {value['error']}: {value['message']}")
        return value

    def open(self, url: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": url})

    @property
    def url(self) -> str:
        return str(self._call("GET", f"{self._session}/url"))

    def run(self, script: str, *args: object) -> Any:
        body = {"script": script, "args": list(args)}
        return self._call("POST", f"{self._session}/execute/sync", body)

    def run_async(self, script: str, *args: object) -> Any:
        """Return what the script gives to its last argument, a function."""
        self._call("POST", f"{self._session}/timeouts", {"script": int(PATIENCE_S * 1000)})
        body = {"script": script, "args": list(args)}
        return self._call("POST", f"{self._session}/execute/async", body)

    def devtools(self, command: str, **params: object) -> Any:
        body = {"cmd": command, "params": params}
        return self._call("POST", f"{self._session}/goog/cdp/execute", body)

    def press(self, *keys: str) -> None:
        """Press keys one after the other: characters, or code points of the protocol's table."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self._call("POST", f"{self._session}/actions", {"actions": [source]})

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def has(self, text: str) -> bool:
        return bool(self.run("return document.body.innerText.includes(arguments[0])", text))

    def console(self) -> list[str]:
        """Return the messages of the console since the last call."""
        found = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [str(each["message"]) for each in found]

    def look(self, width: int, height: int, *, is_dark: bool) -> None:
        """Show the page as a screen of this size does, by a user who likes it dark or light."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


#: The file axe.min.js of axe-core, which judges whether people can use a page without seeing it.
_AXE = "DRFD_AXE"
TAB, ENTER = "\ue004", "\ue007"
VIEWS = {
    "machine": "Cores", "queue": "align-reads", "history": "exit code 3",
    "job/40": "step 399",
}  # fmt: skip
MARKUP = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    if (lacking := missing()) and os.environ.get("DRFD_BROWSER") == "required":
        raise AssertionError(lacking)
    if lacking:
        pytest.skip(lacking)
    found = Browser(tmp_path_factory.mktemp("browser") / "chromium")
    yield found
    found.close()


@pytest.fixture
def shown(browser, page) -> Iterator[Page]:
    """The page in the browser, as of the link, on a large light screen."""
    browser.look(1280, 900, is_dark=False)
    browser.console()
    browser.open(page.link)
    wait_for("the first snapshot", lambda: browser.has("atlas"))
    yield page
    # No violation of the policy, no error of the script, no file that is not there.
    assert browser.console() == []


def visit(browser: Browser, view: str) -> None:
    browser.run("location.hash = arguments[0]", view)
    wait_for(f"the view {view}", lambda: browser.has(VIEWS[view]))


def test_the_token_is_not_in_the_address_nor_in_reach_of_a_script(browser, shown):
    assert browser.url == f"http://127.0.0.1:{shown.port}{shown.place}"
    assert browser.run("return document.cookie") == ""
    assert shown.token not in browser.run("return document.documentElement.outerHTML")
    browser.open(browser.url)
    wait_for("the page again, by its cookie", lambda: browser.has("atlas"))


def test_each_view_shows_what_the_daemon_tells(browser, shown):
    assert "as alice" in browser.text("header")
    # Names are told as paths, the largest share first.
    wait_for("the shares", lambda: browser.has("lab.bob"))
    shares = browser.run("return [...document.querySelectorAll('#shares b')].map(e => e.innerText)")
    assert shares == ["lab.alice", "lab.bob", "carol"]
    told = browser.text("#shares .bar")
    assert "50 % of gpu; entitled to 50 %; 1 running, 1 waiting" in told
    assert "9.1 used, 13 of 16 allocated, 2.2 outside" in browser.text("#bars")
    visit(browser, "queue")
    assert len(browser.run("return [...document.querySelectorAll('#running tbody tr')]")) == 3
    waiting = browser.text("#waiting")
    assert "needs 8 cores, 3 free; job 40 (bob) holds 5" in waiting
    assert "about 2023-11-14 23:23" in waiting
    visit(browser, "history")
    assert "FAILED" in browser.text("#ended")
    visit(browser, "job/40")
    job = browser.text("#view-job")
    assert job.startswith("Job 40: align-reads")
    assert "reads [1].fq" in job
    assert "Launched" in job
    assert browser.run("return document.querySelectorAll('#job figure .curve').length") == 4


def test_a_waiting_job_has_its_reason_and_its_forecast(browser, lab, serve):
    waiting = next(each for each in three_jobs()["pending"] if each["id"] == 45)
    job = waiting | {"argv": ["fit"], "cwd": "/", "stdout": None, "stderr": None}
    lab.replies["show"] = {"job": job | {"expected_start_at": None}, "events": []}
    job |= {"expected_start_certainty": "limits"}
    lab.replies["why"] = {"job": job, "notes": [], "advice": None}
    browser.look(1280, 900, is_dark=False)
    browser.open(f"{serve().link}#job/45")
    wait_for("the forecast", lambda: browser.has("by 2023-11-14 23:23"))
    text = browser.text("#view-job")
    assert "needs 8 cores, 3 free; job 40 (bob) holds 5 until 14:05" in text
    assert "only its owner is told where it is" in text


def test_a_new_snapshot_appears_by_itself_and_leaves_the_focus(browser, shown, lab):
    visit(browser, "queue")
    browser.run(
        "[...document.querySelectorAll('#waiting a')].find(e => e.innerText === '45').focus()"
    )
    now = three_jobs()
    now["at"] = AT_S + 30
    now["running"].append(row(99, "dave", name="brand-new"))
    del now["running"][0]
    lab.replies["snapshots"] = {"snapshot": now}
    lab.hang_up()
    wait_for("the new job", lambda: browser.has("brand-new"))
    assert not browser.has("align-reads")
    assert browser.run("return document.activeElement.innerText") == "45"


def test_hostile_words_are_shown_as_text(browser, lab, serve, output):
    """Markup, control characters, reversed text and long words, wherever others choose words."""
    output.write_text(f"{MARKUP}\n\x1b]0;owned\x07\x1b[31mred\u202e\n")
    words = [*HOSTILE, MARKUP]
    queue = hostile()
    queue["running"] += [row(98, MARKUP, name=MARKUP, pool=f"root.{MARKUP}", state=MARKUP)]
    queue["nodes"] += [node(f"root.{MARKUP}", running=1, dominant_share=0.2)]
    queue["notices"] = [{"code": "x", "text": each} for each in words]
    queue["host"] = MARKUP
    lab.replies["snapshots"] = {"snapshot": queue}
    show: Any = lab.replies["show"]
    show["job"] |= {"name": MARKUP, "user": MARKUP, "argv": words, "cwd": MARKUP}
    show["events"] = [{"at": AT_S, "event": each, "text": each} for each in words]
    past: Any = lab.replies["history"]
    past["jobs"][0] |= {"name": MARKUP, "user": MARKUP, "outcome": {"code": "x", "text": MARKUP}}
    page = serve()
    browser.look(360, 740, is_dark=False)
    browser.console()
    browser.open(page.link)
    for view in VIEWS:
        browser.run("location.hash = arguments[0]", view)
        where = f"#view-{view.partition('/')[0]}"
        wait_for(
            f"the words in {view}",
            lambda where=where: MARKUP in browser.run(
                "return document.querySelector(arguments[0]).textContent", where),
        )  # fmt: skip
        made = "return document.querySelectorAll('main img, main script, main style').length"
        assert browser.run(made) == 0
        assert "owned" not in browser.run("return document.title.replace(arguments[0], '')", MARKUP)
        text = browser.run("return document.body.textContent")
        assert not set(text) & set("\x1b\x07\u202e\u2069\x9b\u200b")
        assert is_within(browser), view
    assert browser.console() == []


def is_within(browser: Browser) -> bool:
    """Return whether nothing of the page is wider than the screen."""
    wide = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    return bool(browser.run(wide))


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_view_is_wider_than_the_screen(browser, shown, width):
    browser.look(width, 740, is_dark=False)
    for view in VIEWS:
        visit(browser, view)
        assert is_within(browser), view


#: Of the words in cells that are shown, those that take more than one line.
BROKEN = """
const found = [];
for (const cell of document.querySelectorAll('section:not([hidden]) :is(th, td)')) {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    for (const word of walker.currentNode.data.matchAll(/\\S+/g)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, word.index);
      range.setEnd(walker.currentNode, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(each => each.top)).size > 1) found.push(word[0]);
    }
  }
}
return found;
"""


def ordinary() -> Any:
    """A queue with names as people choose them, and long reasons."""
    queue = three_jobs()
    names = ["bigone", "nf-NFCORE_RNASEQ_ALIGN_(sample-12)", "train-resnet50-b128-lr0.001-seed7"]
    for at, each in enumerate([*queue["running"], *queue["pending"]]):
        each |= {"name": names[at % 3], "user": ["cloudsdk", "anne-marie.von-der-heide"][at % 2]}
    for each in queue["pending"]:
        each["expected_start_certainty"] = "estimated"
        each["reason"]["text"] = " ".join([each["reason"]["text"]] * 3)
    return queue


@pytest.mark.parametrize("width", [390, 1280])
def test_no_word_in_a_cell_is_broken(browser, lab, serve, width):
    lab.replies["snapshots"] = {"snapshot": ordinary()}
    past: Any = lab.replies["history"]
    past["jobs"][0]["name"] = "nf-NFCORE_RNASEQ_ALIGN_(sample-12)"
    browser.look(width, 900, is_dark=False)
    browser.open(serve().link)
    wait_for("the first snapshot", lambda: browser.has("atlas"))
    for view, words in {**VIEWS, "queue": "bigone"}.items():
        browser.run("location.hash = arguments[0]", view)
        wait_for(f"the view {view}", lambda words=words: browser.has(words))
        assert browser.run(BROKEN) == [], view
        assert is_within(browser), view


def test_dark_and_light_follow_the_browser(browser, shown):
    ground = "return getComputedStyle(document.body).backgroundColor"
    assert browser.run(ground) == "rgb(255, 255, 255)"
    browser.look(1280, 900, is_dark=True)
    wait_for("a dark ground", lambda: browser.run(ground) == "rgb(18, 22, 28)")


def test_the_keyboard_reaches_everything(browser, shown):
    focused = "return document.activeElement.innerText"
    names = []
    for _ in range(4):
        browser.press(TAB)
        names.append(browser.run(focused))
    assert names == ["To the content", "Machine", "Queue", "History"]
    browser.run("document.querySelector('nav a[href=\"#queue\"]').focus()")
    browser.press(ENTER)
    wait_for("the queue", lambda: browser.has("align-reads"))
    assert browser.run("return document.querySelector('[aria-current]').innerText") == "Queue"
    while browser.run(focused) != "40":
        before = browser.run(focused)
        browser.press(TAB)
        assert browser.run(focused) != before
    browser.press(ENTER)
    wait_for("the job", lambda: browser.has("step 399"))
    assert browser.run(focused).startswith("Job 40")
    browser.press(TAB)
    assert browser.run("return document.activeElement.tagName") == "PRE"


def test_nothing_is_loaded_from_elsewhere(browser, shown):
    for view in VIEWS:
        visit(browser, view)
    script = "return performance.getEntriesByType('resource').map(e => e.name)"
    loaded = browser.run(script)
    assert loaded
    own = f"http://127.0.0.1:{shown.port}{shown.place}"
    assert [each for each in loaded if not each.startswith(own)] == []


def test_an_empty_machine_has_words_for_it(browser, lab, serve):
    lab.replies |= {
        "snapshots": {"snapshot": snapshot()},
        "history": {"jobs": [], "after": None},
    }
    browser.open(serve().link)
    wait_for("no shares", lambda: browser.has("Nobody holds or waits for anything."))
    told = {"queue": "No job waits.", "history": "No job has ended."}
    for view, words in told.items():
        browser.run("location.hash = arguments[0]", view)
        wait_for(words, lambda words=words: browser.has(words))


def test_the_page_says_when_the_connection_is_gone(browser, page):
    browser.open(page.link)
    wait_for("the first snapshot", lambda: browser.has("live,") or browser.has("no word from"))
    wait_for("a word that it is the last", lambda: browser.has("no word from the daemon since"))
    page.process.kill()
    wait_for("the message", lambda: browser.has("connection lost; trying again"))


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_no_violations(browser, shown, width, is_dark):
    file = os.environ.get(_AXE, "")
    if not file:
        pytest.skip(f"{_AXE} does not name the file axe.min.js of the npm package axe-core")
    axe = Path(file).read_text()
    browser.look(width, 900, is_dark=is_dark)
    for view in VIEWS:
        visit(browser, view)
        browser.run(f"{axe}\n;window.axe = axe;")
        found = browser.run_async(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document).then(r => done(r.violations.map("
            "v => [v.id, v.nodes.map(n => n.html + n.failureSummary)])), e => done(String(e)))"
        )
        assert found == [], view

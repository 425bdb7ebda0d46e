"""Headless Chromium, through chromedriver and the WebDriver protocol (W3C), with the standard
library alone."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

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


def wait_for(what: str, is_so: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := is_so()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
    return found


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

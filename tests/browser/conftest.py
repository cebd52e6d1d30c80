"""A real Chromium, driven by its DevTools protocol through a pipe: no driver and no port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 60.0


class Browser:
    """One Chromium with one tab; what it says on the console is kept."""

    def __init__(self, program: str, profile: Path) -> None:
        self._read, theirs_write = os.pipe()
        theirs_read, self._write = os.pipe()
        as_root = ("--no-sandbox",) if os.geteuid() == 0 else ()
        flags = [*FLAGS, *as_root, f"--user-data-dir={profile}", "about:blank"]
        # The browser reads from 3 and writes to 4; a shell can give it those, by way of 8 and 9,
        # because ours may be 3 and 4 themselves.
        moved = f"exec 8<&{theirs_read} 9>&{theirs_write}; exec 3<&8 4>&9 8<&- 9>&-; "
        self._process = subprocess.Popen(
            ["bash", "-c", moved + 'exec "$0" "$@"', program, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs_read, theirs_write),
            start_new_session=True,
        )
        os.close(theirs_read)
        os.close(theirs_write)
        self._held = b""
        self._last = 0
        self._session: str | None = None
        self.said: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self._loaded = False
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(
        self,
        file: Path,
        *,
        width: int = 1280,
        height: int = 800,
        scheme: str = "light",
        scripts: bool = True,
    ) -> None:
        """Open a page from a file and wait until it is loaded and drawn."""
        self.said, self.requests, self.dialogs = [], [], []
        self.resize(width, height)
        self._call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self._call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._loaded = False
        self._call("Page.navigate", url=file.as_uri())
        until = time.monotonic() + PATIENCE
        while not self._loaded:
            self._receive(until)
        if scripts:
            self.settle()

    def resize(self, width: int, height: int) -> None:
        """Make the window this large."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def settle(self) -> None:
        """Wait until what was asked for is on the screen."""
        self.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))")

    def run(self, expression: str) -> Any:
        """Return what a JavaScript expression is in the page."""
        told = self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in told:
            raise AssertionError(told["exceptionDetails"])
        return told["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key where the focus is."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else None)
        down = {"type": "keyDown", "key": key} | ({} if text is None else {"text": text})
        if key in ("Enter", "Tab"):
            down["windowsVirtualKeyCode"] = {"Enter": 13, "Tab": 9}[key]
        self._call("Input.dispatchKeyEvent", **down)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def click(self, selector: str) -> None:
        """Click with the mouse in the middle of an element."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def wheel(self, selector: str, by: float) -> None:
        """Turn the wheel over an element."""
        x, y = self.middle(selector)
        self._call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=by)
        self.settle()

    def type(self, text: str) -> None:
        """Write where the focus is."""
        self._call("Input.insertText", text=text)
        self.settle()

    def middle(self, selector: str) -> tuple[float, float]:
        """Scroll to an element and return where its middle is."""
        place = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f" return [b.x + b.width / 2, b.y + b.height / 2]; }})"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        return place[0], place[1]

    def screenshot(self) -> bytes:
        """Return what is on the screen as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def pdf(self) -> bytes:
        """Return the page as printed."""
        return base64.b64decode(self._call("Page.printToPDF")["data"])

    def close(self) -> None:
        """End it."""
        self._session = None
        try:
            self._send("Browser.close", {})
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = self._send(method, params)
        until = time.monotonic() + PATIENCE
        while True:
            message = self._receive(until)
            if message.get("id") == number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return dict(message["result"])

    def _send(self, method: str, params: dict[str, Any]) -> int:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        return self._last

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            piece = os.read(self._read, 1 << 16)
            if not piece:
                raise ConnectionError(f"Chromium ended with {self._process.wait()}")
            self._held += piece
        text, self._held = self._held.split(b"\0", 1)
        message = json.loads(text)
        self._keep(message.get("method"), message.get("params", {}))
        return dict(message)

    def _keep(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.said.append(json.dumps(params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.said.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.said.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])
            self._send("Page.handleJavaScriptDialog", {"accept": True})
        elif method == "Page.loadEventFired":
            self._loaded = True


@pytest.fixture
def injected_runs_not(browser: Browser, tmp_path: Path) -> Callable[[Path], None]:
    """Fail where what is put into a page all the same runs."""

    def check(page: Path) -> None:
        broken = tmp_path / "broken.html"
        injected = "<img src=x onerror=alert(1)><script>alert(2)</script></main>"
        broken.write_text(page.read_text().replace("</main>", injected))
        browser.open(broken)
        assert browser.dialogs == []
        assert any("Content Security Policy" in said for said in browser.said)

    return check


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A Chromium that all tests of pages share."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("there is no Chromium here; on Debian: apt-get install chromium")
    made = Browser(program, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()

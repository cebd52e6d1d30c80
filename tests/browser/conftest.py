"""A real Chromium, driven by its DevTools protocol through a pipe: no driver and no port."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from typing import Any

import pytest

FLAGS = (
    *("--headless", "--disable-gpu", "--no-first-run", "--no-default-browser-check"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars"),
    "--remote-debugging-pipe",
)
PATIENCE = 60.0


class Browser:
    """One Chromium with one tab; what it says on the console is kept."""

    def __init__(self, program, profile):
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
        self._held, self._last, self._loaded = b"", 0, False
        self._session: str | None = None
        self.said: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, file, *, width=1280, height=800, scheme="light", scripts=True):
        """Open a page from a file and wait until it is loaded and drawn."""
        self.said, self.requests, self.dialogs = [], [], []
        self.resize(width, height)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)
        self._call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._loaded = False
        self._call("Page.navigate", url=file.as_uri())
        until = time.monotonic() + PATIENCE
        while not self._loaded:
            self._receive(until)
        if scripts:
            self.settle()

    def is_quiet(self, page):
        """Return whether nothing was said on the console, asked for, or shown as a dialog."""
        return (self.said, self.dialogs, self.requests) == ([], [], [page.as_uri()])

    def resize(self, width, height):
        size: dict[str, Any] = {"width": width, "height": height, "deviceScaleFactor": 1}
        self._call("Emulation.setDeviceMetricsOverride", **size, mobile=width < 600)

    def settle(self):
        """Wait until what was asked for is on the screen."""
        self.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))")

    def run(self, expression):
        """Return what a JavaScript expression is in the page."""
        how: dict[str, Any] = {"awaitPromise": True, "returnByValue": True}
        told = self._call("Runtime.evaluate", expression=expression, **how)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def count(self, selector):
        return int(self.run(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def text(self, selector):
        return str(self.run(f"document.querySelector({json.dumps(selector)}).textContent"))

    def texts(self, selector):
        found = f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"
        return list(self.run(found))

    def is_seen(self, selector):
        return bool(self.run(f"document.querySelector({json.dumps(selector)}).checkVisibility()"))

    def box(self, selector):
        """Return left, top, right and bottom of an element."""
        box = "(b => [b.left, b.top, b.right, b.bottom])"
        found = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        return list(self.run(f"{box}({found})"))

    def press(self, *keys):
        """Press keys where the focus is."""
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else None)
            down = {"type": "keyDown", "key": key} | ({} if text is None else {"text": text})
            if key in ("Enter", "Tab"):
                down["windowsVirtualKeyCode"] = {"Enter": 13, "Tab": 9}[key]
            self._call("Input.dispatchKeyEvent", **down)
            self._call("Input.dispatchKeyEvent", type="keyUp", key=key)
            self.settle()

    def click(self, selector):
        """Click with the mouse in the middle of an element."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def move(self, x, y):
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def wheel(self, selector, by):
        x, y = self.middle(selector)
        self._call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=by)
        self.settle()

    def type(self, text):
        """Write where the focus is."""
        self._call("Input.insertText", text=text)
        self.settle()

    def middle(self, selector):
        """Scroll to an element and return where its middle is."""
        scroll = "e => { e.scrollIntoView({block: 'center'}); }"
        self.run(f"({scroll})(document.querySelector({json.dumps(selector)}))")
        left, top, right, bottom = self.box(selector)
        return (left + right) / 2, (top + bottom) / 2

    def screenshot(self):
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def pdf(self):
        return base64.b64decode(self._call("Page.printToPDF")["data"])

    def close(self):
        self._session = None
        try:
            self._send("Browser.close", {})
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def _call(self, method, **params):
        number = self._send(method, params)
        until = time.monotonic() + PATIENCE
        while (message := self._receive(until)).get("id") != number:
            pass
        assert "error" not in message, (method, message)
        return dict(message["result"])

    def _send(self, method, params):
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        return self._last

    def _receive(self, until):
        while b"\0" not in self._held:
            if not select.select([self._read], [], [], max(until - time.monotonic(), 0))[0]:
                raise TimeoutError("Chromium does not answer")
            piece = os.read(self._read, 1 << 16)
            if not piece:
                raise ConnectionError(f"Chromium ended with {self._process.wait()}")
            self._held += piece
        text, self._held = self._held.split(b"\0", 1)
        message = json.loads(text)
        method, params = message.get("method"), message.get("params", {})
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.said.append(json.dumps(params))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])
            self._send("Page.handleJavaScriptDialog", {"accept": True})
        elif method == "Page.loadEventFired":
            self._loaded = True
        return dict(message)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A Chromium that all tests of pages share."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("Chromium is not installed; on Debian: apt-get install chromium")
    made = Browser(program, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def hostile_trace(hostile):
    """What writes a trace of three steps that wait so many microseconds for their loader."""
    names = ["aten::mm", *hostile[:2], *(f"aten::op{i:02}" for i in range(30))]

    def write(path, *, loading):
        events: list[dict[str, Any]] = []

        def add(name, ts, dur, cat="cpu_op", tid=1):
            events.append({"ph": "X", "pid": 1, "tid": tid, "cat": cat, "name": name})
            events[-1] |= {"ts": ts, "dur": dur}

        begin, wall = 0.0, loading + 40 * len(names) + 100
        for number in range(3):
            first = begin + loading + 20
            add(f"ProfilerStep#{number}", begin, wall, "user_annotation")
            add("enumerate(DataLoader)#_Loader.__next__", begin + 10, loading, "user_annotation")
            add("phase.forward", first, 40 * len(names), "user_annotation")
            for i, name in enumerate(names):
                add(name, first + 40 * i, 5 + i)
            add(hostile[0], first, 50, tid=f"thread {hostile[1]}")
            begin += wall + 5
        path.write_text(json.dumps({"traceEvents": events, "pytorch_version": hostile[0]}))
        return path

    return write

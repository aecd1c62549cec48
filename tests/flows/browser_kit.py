"""A page in real headless Chromium, driven by its DevTools protocol."""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--remote-debugging-port=0",
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=127.0.0.1",
)
"""It reaches this machine and nothing else."""
TEXT = "(document.body?.innerText ?? '')"


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._sent = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result."""
        self._sent += 1
        self._socket.send(json.dumps({"id": self._sent, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=30))
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, url: str) -> None:
        """Goes to a page."""
        self.call("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """Evaluates JavaScript and returns its value."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = 20) -> Any:
        """The first true value of an expression."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.ask(expression)):
            assert time.monotonic() < deadline, f"{expression} on a page that reads: {self.ask(TEXT)}"
            time.sleep(0.05)
        return found

    def click(self, expression: str) -> None:
        """Clicks the middle of an element as a mouse does."""
        self.wait_for(f"!!({expression})")
        self.ask(f"({expression}).scrollIntoView({{block: 'center'}})")
        box = self.ask(f"({expression}).getBoundingClientRect().toJSON()")
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def write(self, expression: str, text: str) -> None:
        """Writes into a field."""
        self.click(expression)
        self.call("Input.insertText", text=text)

    def picture(self, path: Path, width: int, height: int) -> None:
        """A PNG of the top of the page."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Page]:
    """A browser with one tab; it is gone at the end."""
    assert BROWSER is not None
    process = subprocess.Popen(
        [BROWSER, *OPTIONS, f"--user-data-dir={profile}", "--window-size=1400,1000", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port_file = profile / "DevToolsActivePort"
        deadline = time.monotonic() + 30
        while not (port_file.exists() and port_file.read_text()):
            assert process.poll() is None and time.monotonic() < deadline, "Chromium does not start"
            time.sleep(0.05)
        with urllib.request.urlopen(f"http://127.0.0.1:{port_file.read_text().split()[0]}/json") as answer:
            (tab,) = [target for target in json.load(answer) if target["type"] == "page"]
        with connect(tab["webSocketDebuggerUrl"], max_size=None) as socket:
            yield Page(socket)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)

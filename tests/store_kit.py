"""Object stores on loopback for tests: two servers, and a proxy before one of them that hurts what passes through."""

import contextlib
import http.client
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SECRET = "never-to-be-seen-4711"
MODULES = {"moto": "moto.server", "localbucket": "localbucket"}
START_LIMIT_S = 120.0
HOP = {"connection", "transfer-encoding", "content-length", "server", "date"}


def environment(port: int) -> dict[str, str]:
    """What tells a process where the store is, as people do."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


@contextlib.contextmanager
def serving(kind: str, folder: Path) -> Iterator[int]:
    """A server; its port. Skips where it is not installed."""
    pytest.importorskip("obstore", reason="the extra obstore is not installed")
    if find_spec(MODULES[kind].partition(".")[0]) is None:
        pytest.skip(f"{kind} is not installed: it comes with make setup-dev")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    arguments = {"moto": ["-p", str(port)], "localbucket": ["--port", str(port), str(folder)]}[kind]
    log = folder.parent / f"{kind}-{port}.log"
    with open(log, "w") as out:
        process = subprocess.Popen([sys.executable, "-m", MODULES[kind], *arguments], stdout=out, stderr=out)
    try:
        _wait_for(port, process, log)
        yield port
    finally:
        process.kill()
        process.wait()


def make_bucket(port: int, bucket: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/{bucket}", method="PUT")).close()


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10).close()
                return
            except urllib.error.HTTPError:
                return
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


class Proxy:
    """Passes requests on to a server, unless told otherwise. Everything it counts and does is seen by the test."""

    def __init__(self, port: int, seed: int = 0) -> None:
        self._target = port
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self.drops_conditions = self.is_away = False
        self.error_share = self.lost_share = self.delay_share = 0.0
        """Of requests: answered with 500 or 503 and not done, done and answered with 500, answered late."""
        self.delay_s = 0.5
        self.counts: dict[str, int] = {"requests": 0, "errors": 0, "lost": 0, "delays": 0, "refused": 0}
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        with self._lock:
            dice = [self._dice.random() for _ in range(3)]
        self._count("requests")
        if self.is_away:
            self._count("refused")
            request.close_connection = True
            with contextlib.suppress(OSError):
                request.connection.shutdown(socket.SHUT_RDWR)
            return
        if dice[0] < self.delay_share:
            self._count("delays")
            time.sleep(self.delay_s)
        if dice[1] < self.error_share:
            self._count("errors")
            _answer(request, 500 if dice[2] < 0.5 else 503, [], b"")
            return
        headers = {name: value for name, value in request.headers.items() if name.lower() != "connection"}
        if self.drops_conditions:
            headers = {name: value for name, value in headers.items() if not name.lower().startswith("if-")}
        onward = http.client.HTTPConnection("127.0.0.1", self._target, timeout=60)
        try:
            onward.request(request.command, request.path, body, headers)
            answer = onward.getresponse()
            content = answer.read()
        finally:
            onward.close()
        if dice[2] < self.lost_share:
            self._count("lost")
            _answer(request, 500, [], b"")
            return
        _answer(request, answer.status, answer.getheaders(), content)

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1


def _answer(request: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
    with contextlib.suppress(OSError):
        request.send_response(status)
        length = len(content)
        for name, value in headers:
            if request.command == "HEAD" and name.lower() == "content-length":
                length = int(value)
            if name.lower() not in HOP:
                request.send_header(name, value)
        request.send_header("Content-Length", str(length))
        request.end_headers()
        request.wfile.write(content)


def use_store(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process, and those that it starts, find the store."""
    from assayline.places import home

    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in environment(port).items():
        monkeypatch.setenv(name, value)
    forget_stores(home)


def forget_stores(home: Any) -> None:
    """What was opened with the environment of before is opened anew."""
    home.open_client.cache_clear()
    home._open.cache_clear()

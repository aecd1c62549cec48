"""Object stores on loopback for tests: two servers, and a proxy before one of them that hurts what passes through."""

import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
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
SAID_500, SAID_503, LOST, CLOSED, LATE, GONE = STORE_FAULTS = (
    "500, not done",
    "503, not done",
    "done, answer lost",
    "connection closed, not done",
    "late answer",
    "store gone",
)
"""What a proxy does with one request, but for the last one: it refuses all for a while."""


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


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A killed worker's connection."""


class Proxy:
    """Passes requests on to a server, unless told otherwise. Everything it counts and does is seen by the test."""

    def __init__(self, port: int, seed: int = 0) -> None:
        self._target = port
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self._armed: list[tuple[str, float]] = []
        self._gone_until_s = 0.0
        self.drops_conditions = self.is_away = False
        self.error_share = self.lost_share = self.delay_share = 0.0
        """Of requests: answered with 500 or 503 and not done, done and answered with 500, answered late."""
        self.delay_s = 0.5
        self.added_headers: list[tuple[str, str]] = []
        self.counts: dict[str, int] = {"requests": 0, "errors": 0, "lost": 0, "delays": 0, "refused": 0}
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or a small answer waits 40 ms for its other half

            def handle_any(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        self._server = _QuietServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def arm(self, fault: str, for_s: float = 0.0) -> None:
        """One of STORE_FAULTS for the next request, or the next put where an answer is to be lost."""
        with self._lock:
            if fault == GONE:
                self._gone_until_s = time.monotonic() + for_s
            else:
                self._armed.append((fault, for_s))

    def disarm(self) -> Counter[str]:
        """Forgets the faults that no request has met, and tells them."""
        with self._lock:
            left, self._armed = Counter(fault for fault, _ in self._armed), []
        return left

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        fault, for_s = self._draw(request.command)
        self._count("requests")
        if self.is_away or time.monotonic() < self._gone_until_s or fault == CLOSED:
            self._count("refused")
            _hang_up(request)
            return
        if fault == LATE:
            self._count("delays")
            time.sleep(for_s)
        if fault in (SAID_500, SAID_503):
            self._count("errors")
            _answer(request, 500 if fault == SAID_500 else 503, [], b"")
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
        if fault == LOST:
            self._count("lost")
            if int(for_s * 1000) % 2:
                _hang_up(request)
            else:
                _answer(request, 500, [], b"")
            return
        _answer(request, answer.status, [*answer.getheaders(), *self.added_headers], content)

    def _draw(self, command: str) -> tuple[str, float]:
        """What happens to a request: what was armed for one like it, or else what the dice say; mostly nothing."""
        with self._lock:
            for number, (fault, _) in enumerate(self._armed):
                if fault != LOST or command == "PUT":
                    return self._armed.pop(number)
            dice = [self._dice.random() for _ in range(4)]
        if dice[0] < self.error_share:
            return (SAID_500 if dice[3] < 0.5 else SAID_503), 0.0
        if dice[1] < self.lost_share:
            return LOST, 0.0
        return (LATE, self.delay_s) if dice[2] < self.delay_share else ("", 0.0)

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1


class Google(Proxy):
    """Before a server that speaks S3: takes Google's condition for S3's, and tells a generation, as Google does.

    All else that a run asks is alike in both protocols. It stands for what a client sends and understands, and for
    nothing that Google's own servers do.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.added_headers = [("x-goog-generation", "1")]
        self.conditions = 0

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        if request.headers.get("x-goog-if-generation-match") == "0":
            request.headers["If-None-Match"] = "*"
            self.conditions += 1
        super().handle(request)

    def write_key(self, path: Path) -> None:
        """A service account's key that sends its user here, and asks nobody for a token."""
        named = {"client_email": "", "private_key": "", "private_key_id": ""}
        here = {"gcs_base_url": f"http://127.0.0.1:{self.port}", "disable_oauth": True}
        path.write_text(json.dumps({**named, **here}))


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


def _hang_up(request: BaseHTTPRequestHandler) -> None:
    request.close_connection = True
    with contextlib.suppress(OSError):
        request.connection.shutdown(socket.SHUT_RDWR)


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

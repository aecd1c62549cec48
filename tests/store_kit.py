"""An object store on loopback for tests, and a proxy before it that fails as stores fail."""

import contextlib
import http.client
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR, create_server
from typing import Any

import pytest

SECRET = "never-to-be-seen-4711"
START_LIMIT_S = 60.0
HOP = {"connection", "transfer-encoding", "content-length", "server", "date"}
SAYS_500, SAYS_503, SAYS_403, LOSES, CLOSES, HANGS = "500", "503", "403", "answer lost", "connection closed", "hangs"


def environment(port: int) -> dict[str, str]:
    """Credentials and address of the store, as people give them."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[int]:
    """Serve S3 from a folder; yields the port. Skips if the server or obstore is not installed."""
    for module in ("obstore", "localbucket"):
        pytest.importorskip(module, reason=f"{module} is not installed: make setup-dev")
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.mkdir(parents=True)
    log = folder.parent / f"store-{port}.log"
    with open(log, "w") as out:
        command = [sys.executable, "-m", "localbucket", "--port", str(port), str(folder)]
        process = subprocess.Popen(command, stdout=out, stderr=out, env={"PATH": os.environ["PATH"]})
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not _answers(port):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


def make_bucket(port: int, bucket: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/{bucket}", method="PUT")).close()


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, http.client.HTTPException):
        return False
    return True


class Proxy:
    """Passes requests on to a server, unless it is told to fail. Records what was put."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._armed: list[str] = []
        self.fault: str | None = None
        """Meets every request."""
        self.refused_key: str | None = None
        """Its puts are answered with 500."""
        self.puts: list[str] = []
        """Keys, in the order in which they were stored."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_HEAD = do_POST = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def arm(self, *faults: str) -> None:
        """One of these for each of the next puts."""
        with self._lock:
            self._armed += faults

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        is_put = request.command == "PUT"
        with self._lock:
            fault = self.fault or (self._armed.pop(0) if is_put and self._armed else None)
        if is_put and self.refused_key and request.path.endswith(self.refused_key):
            fault = SAYS_500
        if fault == CLOSES:
            _hang_up(request)
        elif fault == HANGS:
            while self.fault == HANGS:
                time.sleep(0.05)
            _hang_up(request)
        elif fault in (SAYS_500, SAYS_503, SAYS_403):
            _answer(request, int(fault), [], b"")
        else:
            self._pass_on(request, body, fault)

    def _pass_on(self, request: BaseHTTPRequestHandler, body: bytes, fault: str | None) -> None:
        headers = {name: value for name, value in request.headers.items() if name.lower() != "connection"}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._target, timeout=60)) as onward:
            onward.request(request.command, request.path, body, headers)
            answer = onward.getresponse()
            content = answer.read()
        if request.command == "PUT" and answer.status == 200:
            with self._lock:
                self.puts.append(request.path)
        if fault == LOSES:
            _hang_up(request)
        else:
            _answer(request, answer.status, answer.getheaders(), content)


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
        request.connection.shutdown(SHUT_RDWR)

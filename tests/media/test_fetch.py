"""URLs in a prompt file: only where the spec allows, never into the own network, within time and size."""

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from assayline.errors import MediaError
from assayline.media import fetch
from assayline.media.fetch import Fetcher
from assayline.spec.prompts import MediaSpec

CONTENT = b"\x89PNG and so on"


ANSWERS: dict[str, tuple[int, bytes, dict[str, str]]] = {
    "/a.png": (200, CONTENT, {"Content-Type": "image/png"}),
    "/page": (200, b"<html>", {"Content-Type": "text/html; charset=utf-8"}),
    "/large": (200, b"x" * 2_000, {}),
    "/moved": (302, b"", {"Location": "/a.png"}),
    "/inside": (302, b"", {"Location": "http://169.254.169.254/latest/meta-data"}),
    "/round": (302, b"", {"Location": "/round"}),
    "/to-file": (302, b"", {"Location": "file:///etc/passwd"}),
}


class Pages(http.server.BaseHTTPRequestHandler):
    """A server that does what servers do."""

    asked: list[str]

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        path = self.path.partition("?")[0]
        status, content, headers = ANSWERS.get(path, (200 if path == "/slow" else 404, b"x" * 50, {}))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        for at in range(50) if path == "/slow" else ():
            self.wfile.write(content[at : at + 1])
            self.wfile.flush()
            time.sleep(0.1)
        if path != "/slow":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """Address of the server."""
    Pages.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fetcher(**spec: Any) -> Fetcher:
    return Fetcher(MediaSpec(**{"allowed_domains": ["127.0.0.1"], **spec}))


def test_an_allowed_host_is_asked(served):
    assert fetcher().fetch("image", f"{served}/a.png?size=1") == CONTENT
    assert fetcher().fetch("image", f"{served}/moved") == CONTENT
    assert Pages.asked[0] == "/a.png?size=1"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/nothing", "HTTP 404"),
        ("/page", "is text/html, expected image"),
        ("/large", r"has more than 1,000 bytes\. hint: download"),
        ("/inside", "allowed_domains does not allow"),
        ("/round", "redirected more than 3 times"),
        ("/to-file", r"is not an http\(s\) URL"),
    ],
)
def test_fetch_error_describes_the_response(monkeypatch, served, path, words):
    monkeypatch.setattr(fetch, "MOST_BYTES", 1_000)
    with pytest.raises(MediaError, match=words):
        fetcher().fetch("image", served + path)


@pytest.mark.parametrize("path", ["/nothing", "/page", "/large", "/round"])
def test_fetcher_leaves_signatures_out_of_messages(monkeypatch, served, path):
    monkeypatch.setattr(fetch, "MOST_BYTES", 1_000)
    with pytest.raises(MediaError) as caught:
        fetcher().fetch("image", f"{served}{path}?X-Amz-Signature=hush")
    assert f"{path}?…" in str(caught.value) and "hush" not in str(caught.value)


def test_a_server_that_hangs_costs_no_more_than_its_time(monkeypatch, served):
    monkeypatch.setattr(fetch, "TIMEOUT_S", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for url in (f"http://127.0.0.1:{silent.getsockname()[1]}/a", f"{served}/slow"):
            with pytest.raises(MediaError, match=r"took too long \(limit 0.4 s\)"):
                fetcher().fetch("image", url)


def test_nobody_is_asked_unless_the_spec_allows(served):
    before = len(Pages.asked)
    for allowed in ([], ["example.com"]):
        with pytest.raises(MediaError, match="allowed_domains does not allow"):
            fetcher(allowed_domains=allowed).fetch("image", f"{served}/a.png")
    assert len(Pages.asked) == before


NOT_PUBLIC = [
    "127.0.0.1", "10.0.0.7", "192.168.1.1", "0.0.0.0", "100.64.0.1", "::1", "fd00::1", "fe80::1%eth0", "ff0e::1",
    "224.0.0.1",
    # Metadata services of AWS and Google, Alibaba, AWS by IPv6, Azure's WireServer, and Oracle.
    "169.254.169.254", "100.100.100.200", "fd00:ec2::254", "168.63.129.16", "192.0.0.192",
    # Private ones inside IPv6: mapped, compatible, translated, NAT64, its local prefix, 6to4, Teredo.
    "::ffff:169.254.169.254", "::10.0.0.1", "::ffff:0:10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::a83f:8110",
    "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1", "2002:a00:1::1", "2001:0:4136:e378:8000:63bf:f5ff:fffe",
]  # fmt: skip


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_fetcher_refuses_a_host_when_one_of_its_addresses_is_not_public(address, monkeypatch):
    resolve_to(monkeypatch, "93.184.216.34", address)
    for allowed in (["*"], ["pictures.example"]):
        with pytest.raises(MediaError, match=rf"has the address {address}, which is not public"):
            fetcher(allowed_domains=allowed).fetch("image", "http://pictures.example/a.png")


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822", "2002:5db8:d822::1"])
def test_fetcher_asks_a_public_address(address, monkeypatch):
    resolve_to(monkeypatch, address)
    asked: list[Any] = []
    monkeypatch.setattr(fetch.socket, "create_connection", lambda to, timeout: refuse(asked, to))
    with pytest.raises(MediaError, match="ConnectionRefusedError"):
        fetcher(allowed_domains=["*"]).fetch("image", "http://pictures.example/a.png")
    assert asked == [(address, 80)]


def test_fetcher_tries_the_next_address_when_one_does_not_answer(served, monkeypatch):
    """A machine whose route to IPv6 leads nowhere: the packets are lost, and nobody refuses them."""
    port = int(served.rpartition(":")[2])
    shares: list[float] = []

    def connect_or_wait(to: Any, timeout: float) -> socket.socket:
        shares.append(timeout)
        if to[0] == "2606:2800:220:1::1":
            raise TimeoutError
        connection = socket.socket()
        connection.connect(("127.0.0.1", port))
        return connection

    resolve_to(monkeypatch, "2606:2800:220:1::1", "93.184.216.34")
    monkeypatch.setattr(fetch.socket, "create_connection", connect_or_wait)
    found = fetcher(allowed_domains=["*"]).fetch("image", "http://pictures.example/a.png")
    assert found == CONTENT
    assert shares[0] == pytest.approx(fetch.TIMEOUT_S / 2, rel=0.1)


def test_fetcher_says_that_proxies_are_not_used_when_one_is_set(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    resolve_to(monkeypatch, "93.184.216.34")
    monkeypatch.setattr(fetch.socket, "create_connection", lambda to, timeout: refuse([], to))
    with pytest.raises(MediaError, match="hint: proxies are not used here"):
        fetcher(allowed_domains=["*"]).fetch("image", "https://pictures.example/a.png")


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    found = [(0, socket.SOCK_STREAM, 6, "", (address, 80)) for address in addresses]
    monkeypatch.setattr(fetch.socket, "getaddrinfo", lambda *_, **__: found)


def refuse(asked: list[Any], address: Any) -> Any:
    asked.append(address)
    raise ConnectionRefusedError(111, "refused")


@pytest.mark.parametrize("url", ["http://", "http://host:port/a", "http://[::1/a", "http://no-such-host.invalid/a"])
def test_fetch_rejects_an_invalid_url(url):
    with pytest.raises(MediaError):
        fetcher(allowed_domains=["*"]).fetch("image", url)

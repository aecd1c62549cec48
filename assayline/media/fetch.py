"""Media from URLs: only from hosts that the spec allows, never from inside the own network, within time and size.

A prompt file is foreign data. A URL in it must not make this machine ask a cloud's metadata service or a neighbour's
printer: each address that a name stands for is looked at, the connection goes to the very address that was looked at,
and a redirect is looked at like the first URL.
"""

import http.client
import ipaddress
import socket
import ssl
import time
from urllib.parse import SplitResult, urljoin, urlsplit

from assayline.errors import MediaError
from assayline.records import MediaKind
from assayline.spec.media import MediaSpec

MOST_REDIRECTS = 3
CHUNK_BYTES = 2**16
REDIRECTS = frozenset({301, 302, 303, 307, 308})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
"""Allowed by name, these may be asked although they are private."""


class Fetcher:
    """Fetches for one prompt set."""

    def __init__(self, spec: MediaSpec) -> None:
        self._spec = spec

    def fetch(self, kind: MediaKind, url: str) -> bytes:
        """The content of a URL. Raises MediaError, saying what the server, or the spec, said."""
        deadline_s = time.monotonic() + self._spec.fetch_timeout_s
        at = url
        for _ in range(MOST_REDIRECTS + 1):
            content, moved = self._get(kind, at, deadline_s)
            if moved is None:
                return content
            at = urljoin(at, moved)
        raise MediaError(f"The {kind} {url:.200} was redirected more than {MOST_REDIRECTS} times.")

    def _get(self, kind: MediaKind, url: str, deadline_s: float) -> tuple[bytes, str | None]:
        """(content, None), or where it has moved to."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise MediaError(f"The {kind} {url!r:.200} is no URL: {error}.") from None
        host = (parts.hostname or "").lower()
        self._check(kind, url, parts, host)
        connection = _Connection(host, port, parts.scheme == "https", self._find_address(kind, host, port, parts))
        try:
            connection.timeout = _time_left(deadline_s)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={"Accept-Encoding": "identity", "User-Agent": "assayline"})
            channel = connection.sock  # which the connection lets go of when the answer is its last
            answer = connection.getresponse()
            if answer.status in REDIRECTS and (moved := answer.getheader("Location")):
                return b"", moved
            if answer.status != 200:
                raise MediaError(f"The {kind} {url:.200} cannot be fetched: HTTP {answer.status} {answer.reason}.")
            kinds = (answer.getheader("Content-Type") or "").lower()
            if kinds.startswith("text/"):
                raise MediaError(f"The {kind} {url:.200} is {kinds.partition(';')[0]}, expected {kind}.")
            return self._read(kind, url, answer, channel, deadline_s), None
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = "it took too long" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
            raise MediaError(
                f"The {kind} {url:.200} cannot be fetched: {why:.300} (limit {self._spec.fetch_timeout_s:g} s)."
            ) from None
        finally:
            connection.close()

    def _read(
        self, kind: MediaKind, url: str, answer: http.client.HTTPResponse, channel: socket.socket, deadline_s: float
    ) -> bytes:
        content = bytearray()
        while chunk := answer.read1(CHUNK_BYTES):
            content += chunk
            if len(content) > self._spec.fetch_bytes:
                raise MediaError(
                    f"The {kind} {url:.200} is larger than {self._spec.fetch_bytes} bytes (prompts.media.fetch_bytes)."
                )
            channel.settimeout(_time_left(deadline_s))
        return bytes(content)

    def _check(self, kind: MediaKind, url: str, parts: SplitResult, host: str) -> None:
        if parts.scheme not in ("http", "https") or not host:
            raise MediaError(f"The {kind} {url!r:.200} leads to no http(s) URL with a host.")
        allowed = [domain.lower() for domain in self._spec.allowed_domains]
        if host not in allowed and "*" not in allowed:
            given = ", ".join(allowed) or "none"
            raise MediaError(
                f"The {kind} is at {host}, which prompts.media.allowed_domains does not allow (given: {given}). Add "
                "it there, or give files."
            )

    def _find_address(self, kind: MediaKind, host: str, port: int | None, parts: SplitResult) -> str:
        try:
            found = socket.getaddrinfo(host, port or parts.scheme, type=socket.SOCK_STREAM)
        except OSError as error:
            raise MediaError(f"The {kind}'s host {host} is not known: {error.strerror}.") from None
        addresses = [str(address[4][0]) for address in found]
        is_named = host in LOOPBACK_NAMES and host in self._spec.allowed_domains
        if not is_named and not all(ipaddress.ip_address(a.partition("%")[0]).is_global for a in addresses):
            raise MediaError(
                f"The {kind}'s host {host} is inside the own network ({addresses[0]}), where a prompt file may not "
                "send anybody."
            )
        return addresses[0]


class _Connection(http.client.HTTPConnection):
    """A connection to an address that was looked at, for a host by its name."""

    def __init__(self, host: str, port: int | None, is_secure: bool, address: str) -> None:
        super().__init__(host, port or (443 if is_secure else 80))
        self._is_secure = is_secure
        self._address = address

    def connect(self) -> None:
        """As the base class does, but to the address, and not to what the name may stand for by now."""
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        if self._is_secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def _time_left(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s

"""Media from URLs: only from hosts that the spec allows, never from private networks, within limits of time and size.

A prompt file is untrusted. A URL in it must not make this machine ask a cloud's metadata service or a neighbor's
printer: each address that a name resolves to is checked, the connection goes to the checked address itself, and a
redirect is checked like the first URL. No proxy is used, because it would resolve names itself.
"""

import http.client
import ipaddress
import socket
import ssl
import time
from urllib.parse import SplitResult, urljoin, urlsplit
from urllib.request import getproxies

from assayline.errors import MediaError
from assayline.records import MediaKind
from assayline.spec.prompts import MediaSpec
from assayline.words import LOOPBACK, hide_secrets

MOST_REDIRECTS = 3
TIMEOUT_S = 10.0
MOST_BYTES = 50_000_000
CHUNK_BYTES = 2**16
REDIRECTS = frozenset({301, 302, 303, 307, 308})
LOOPBACK_NAMES = frozenset({*LOOPBACK, "[::1]"})
"""Private hosts that are fetched from if the spec allows them by name."""
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All public addresses that IANA allocates. Outside it are IPv4 addresses in several forms, and private networks."""
PROVIDERS = tuple(map(ipaddress.IPv4Network, ("168.63.129.16/32", "192.0.0.0/24")))
"""Public by their numbers, but served by a cloud to its own machines: Azure's WireServer, and Oracle's metadata service
at 192.0.0.192, in a block that IANA reserves for protocols. Other clouds' metadata services have private or link-local
addresses."""


class Fetcher:
    """Fetcher of the media of one prompt set."""

    def __init__(self, spec: MediaSpec) -> None:
        self._spec = spec

    def fetch(self, kind: MediaKind, url: str) -> bytes:
        """Fetch the content of a URL. Raises MediaError if the server or the spec refuses it or a limit is exceeded."""
        deadline_s = time.monotonic() + TIMEOUT_S
        at = url
        for _ in range(MOST_REDIRECTS + 1):
            content, moved = self._get(kind, at, deadline_s)
            if moved is None:
                return content
            at = urljoin(at, moved)
        raise MediaError(f"The {kind} {hide_secrets(url):.200} was redirected more than {MOST_REDIRECTS} times.")

    def _get(self, kind: MediaKind, url: str, deadline_s: float) -> tuple[bytes, str | None]:
        """Return (content, None), or (b"", target) for a redirect."""
        shown = hide_secrets(url)  # for messages, which are stored: links to private files are signed
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise MediaError(f"The {kind} {shown!r:.200} is not a valid URL: {error}.") from None
        host = (parts.hostname or "").lower()
        self._check(kind, shown, parts, host)
        addresses = self._find_addresses(kind, host, port, parts)
        connection = _Connection(host, port, parts.scheme == "https", addresses, deadline_s)
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={"Accept-Encoding": "identity", "User-Agent": "assayline"})
            channel = connection.sock  # the connection drops it if the response is its last
            answer = connection.getresponse()
            if answer.status in REDIRECTS and (moved := answer.getheader("Location")):
                return b"", moved
            if answer.status != 200:
                raise MediaError(f"The {kind} {shown:.200} cannot be fetched: HTTP {answer.status} {answer.reason}.")
            kinds = (answer.getheader("Content-Type") or "").lower()
            if kinds.startswith("text/"):
                raise MediaError(f"The {kind} {shown:.200} is {kinds.partition(';')[0]}, expected {kind}.")
            return self._read(kind, shown, answer, channel, deadline_s), None
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = "it took too long" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
            hint = " hint: proxies are not used here; download the files and give their paths." if getproxies() else ""
            raise MediaError(
                f"The {kind} {shown:.200} cannot be fetched: {why:.300} (limit {TIMEOUT_S:g} s).{hint}"
            ) from None
        finally:
            connection.close()

    def _read(
        self, kind: MediaKind, shown: str, answer: http.client.HTTPResponse, channel: socket.socket, deadline_s: float
    ) -> bytes:
        content = bytearray()
        while chunk := answer.read1(CHUNK_BYTES):
            content += chunk
            if len(content) > MOST_BYTES:
                raise MediaError(
                    f"The {kind} {shown:.200} has more than {MOST_BYTES:,} bytes. hint: download it and give its path."
                )
            channel.settimeout(_time_left(deadline_s))
        return bytes(content)

    def _check(self, kind: MediaKind, shown: str, parts: SplitResult, host: str) -> None:
        if parts.scheme not in ("http", "https") or not host:
            raise MediaError(f"The {kind} {shown!r:.200} is not an http(s) URL with a host.")
        allowed = [domain.lower() for domain in self._spec.allowed_domains]
        if host not in allowed and "*" not in allowed:
            given = ", ".join(allowed) or "none"
            raise MediaError(
                f"The {kind} is at {host}, which prompts.media.allowed_domains does not allow (given: {given}). hint: "
                "add the host there, or give paths of files."
            )

    def _find_addresses(self, kind: MediaKind, host: str, port: int | None, parts: SplitResult) -> list[str]:
        try:
            found = socket.getaddrinfo(host, port or parts.scheme, type=socket.SOCK_STREAM)
        except OSError as error:
            raise MediaError(f"The {kind}'s host {host} cannot be resolved: {error.strerror}.") from None
        addresses = list(dict.fromkeys(str(address[4][0]) for address in found))
        if host in LOOPBACK_NAMES and host in self._spec.allowed_domains:
            return addresses
        for address in addresses:
            if not _is_public(address):
                raise MediaError(
                    f"The {kind}'s host {host} has the address {address}, which is not public. hint: download the file "
                    "and give its path."
                )
        return addresses


def _is_public(address: str) -> bool:
    """Return True if an address is public. An IPv6 address that embeds an IPv4 address counts as the latter."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is None:
            return ip in GLOBAL_UNICAST and ip.is_global
        ip = inner
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in PROVIDERS)


class _Connection(http.client.HTTPConnection):
    """A connection to a host at addresses that were checked."""

    def __init__(self, host: str, port: int | None, is_secure: bool, addresses: list[str], deadline_s: float) -> None:
        super().__init__(host, port or (443 if is_secure else 80))
        self._is_secure = is_secure
        self._addresses = addresses
        self._deadline_s = deadline_s

    def connect(self) -> None:
        """Connect to the checked addresses in turn, without resolving the name again.

        Each address has an equal share of the time that is left.
        """
        for left in range(len(self._addresses), 0, -1):
            try:
                self.sock = socket.create_connection(
                    (self._addresses[-left], self.port), _time_left(self._deadline_s) / left
                )
                break
            except OSError:
                if left == 1:
                    raise
        self.sock.settimeout(_time_left(self._deadline_s))
        if self._is_secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def _time_left(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s

"""The viewer's server: who is answered, and with which headers.

The first URL has a random token. A browser that opens it gets a cookie, without which nothing is answered, so that
neither other users of the machine nor other pages of the browser read or write. A page runs no script but the viewer's
files, and loads nothing from elsewhere.
"""

import contextlib
import hmac
import ipaddress
import logging
import re
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assayline.errors import MachineError, StoreError
from assayline.settings import Settings
from assayline.store.thread import DatabaseReader, DatabaseThread
from assayline.store.viewer import announce_viewer
from assayline.view.pages import QUERY_LIMIT_S, Pages
from assayline.words import LOOPBACK

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self' "
    "'unsafe-inline'; img-src 'self' data:; media-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
TOKEN = "token"
CLOSING_S = 2
"""Seconds that open requests have after Ctrl-C."""


@dataclass(frozen=True)
class Guard:
    """ASGI application that admits requests with the token's cookie to another application."""

    app: ASGIApp
    host: str
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope["type"] != "http":
            return
        answer = self._refuse(Request(scope)) or self.app
        await answer(scope, receive, send_safely)

    @property
    def cookie(self) -> str:
        """Return the cookie's name: a browser sends the cookies of all ports of a host."""
        return f"assayline-{self.port}"

    def _refuse(self, request: Request) -> Response | None:
        """Return the answer to a request that is not admitted; None if it is."""
        if not self._is_own_name(request.headers.get("host", "")):
            return PlainTextResponse("This address is not the viewer's.\n", 421)
        if request.method == "GET" and self._is_token(request.query_params.get(TOKEN)):
            given = request.url.remove_query_params(TOKEN)
            answer = RedirectResponse(f"{given.path}{'?' * bool(given.query)}{given.query}", 303)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
            return answer
        if not self._is_token(request.cookies.get(self.cookie)):
            return PlainTextResponse("Open the URL that `assayline view` printed: it has a token.\n", 403)
        origin = request.headers.get("origin", "")
        if request.method not in ("GET", "HEAD") and origin.partition("://")[2] != request.headers["host"]:
            return PlainTextResponse("This form is not the viewer's.\n", 403)
        return None

    def _is_token(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def _is_own_name(self, header: str) -> bool:
        """Return whether a Host header has an address or a name of this machine, with any port, as of a tunnel.

        Another site's name may resolve to this machine (DNS rebinding), but its pages cannot ask for an address.
        """
        name = re.sub(r":\d*$", "", header).strip("[]").lower()
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return name in {*LOOPBACK, self.host.lower()} | (
            set() if self.host in LOOPBACK else {socket.gethostname().lower()}
        )


def make_guard(settings: Settings, host: str, port: int) -> Guard:
    """Make the viewer's application."""
    pages = Pages(settings, DatabaseReader(settings, QUERY_LIMIT_S))
    return Guard(Starlette(routes=pages.routes, exception_handlers=pages.handlers), host, port)


def open_database(settings: Settings) -> None:
    """Migrate the database if this version cannot read it yet. Raises StoreError without a database."""
    settings.need_database()
    try:
        DatabaseReader(settings, QUERY_LIMIT_S).read(lambda connection: None)
    except StoreError:
        DatabaseThread(settings).run(lambda connection: None)


def serve(settings: Settings, host: str, port: int, path: str, show: Callable[[str], Any]) -> None:
    """Serve until Ctrl-C. `show` gets the URL of `path` with the token once the server listens.

    Raises MachineError for a port or host that is not available, and StoreError.
    """
    open_database(settings)
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise MachineError(
            f"The viewer cannot listen on {host}, port {port}: {error.strerror or error}. hint: pass another --port, "
            "or none for a free one."
        ) from None
    guard = make_guard(settings, host, listener.getsockname()[1])
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{guard.port}"
    show(f"{url}{path}{'&' if '?' in path else '?'}{TOKEN}={guard.token}")
    config = uvicorn.Config(
        guard, lifespan="off", log_level=logging.CRITICAL, access_log=False, timeout_graceful_shutdown=CLOSING_S
    )
    with contextlib.suppress(KeyboardInterrupt), listener, announce_viewer(settings.data_dir, url):
        uvicorn.Server(config).run(sockets=[listener])

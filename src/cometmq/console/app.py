"""The console as an ASGI application: routes, who may send what, errors.

Each visitor has a cookie with a secret.  A form needs the token that belongs to it, and must come
from a page of the console.  Requests go to the cluster with the visitor's own keys, so that brokers
decide what he may do and write his name into their audit log; without access control nobody signs
in.  What brokers refuse leads to the page for signing in.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from cometmq.client import Admin
from cometmq.console import texts
from cometmq.console.routes import ENDPOINTS
from cometmq.console.sessions import Sessions, SignInLimit
from cometmq.console.settings import ConsoleSettings
from cometmq.console.visit import Endpoint, Visit
from cometmq.errors import (
    AccessDenied,
    CometError,
    ConfigError,
    ConnectFailed,
    GroupNotExist,
    LocalProtocolError,
    NoRoute,
    QueryNotFound,
    RequestTimeout,
    TopicNotExist,
)
from cometmq.net.env import Clock

__all__ = ["Console"]

log = logging.getLogger("cometmq.console")

_HERE: Final = Path(__file__).parent
FORM_BYTES_MAX: Final = 5 * 1024 * 1024
"""A test message's body is at most 4 MiB, as brokers have it."""
FORM_FIELDS_MAX: Final = 1_000
_STATUS: Final[tuple[tuple[tuple[type[CometError], ...], int], ...]] = (
    ((ConfigError, LocalProtocolError), 400),
    ((NoRoute, TopicNotExist, GroupNotExist, QueryNotFound), 404),
    ((RequestTimeout,), 504),
    ((ConnectFailed,), 502),
)
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self';"
    " img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Console:
    """The application's state, and what happens around each page."""

    def __init__(self, settings: ConsoleSettings, clock: Clock) -> None:
        self.settings = settings
        self.sessions = Sessions(clock)
        self.sign_ins = SignInLimit(clock)
        self._nobody = Admin(**settings.client_options())
        self._key = secrets.token_bytes(32)
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(texts.FILTERS)
        routes: list[Any] = [
            Route(each.path, self._serving(each), methods=[each.method]) for each in ENDPOINTS
        ]
        self.app = Starlette(
            routes=[*routes, Mount("/static", StaticFiles(directory=_HERE / "static"))],
            exception_handlers={HTTPException: _http_error},
            max_body_size=FORM_BYTES_MAX,
        )

    async def close(self) -> None:
        """Disconnect every client."""
        await self.sessions.close_all()
        await self._nobody.shutdown()

    def _serving(self, endpoint: Endpoint) -> Callable[[Request], Any]:
        async def serve(request: Request) -> Response:
            refusal = self._foreign(request)
            if refusal is not None:
                return refusal
            cookie = request.cookies.get(self.settings.cookie, "")
            visitor = cookie if 20 <= len(cookie) <= 100 else secrets.token_urlsafe(32)
            session = await self.sessions.get(visitor)
            form: dict[str, list[str]] = {}
            if endpoint.method == "POST":
                raw = (await request.body()).decode("utf-8", "replace")
                try:
                    form = parse_qs(raw, keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX)
                except ValueError:
                    return _plain(413, f"a form has at most {FORM_FIELDS_MAX} fields here")
                token = form.get("csrf", [""])[0]
                if not hmac.compare_digest(token.encode(), self._token(visitor).encode()):
                    return _plain(
                        403,
                        "this form is not from a page of this console, or the console was started"
                        " again since; load the page again",
                    )
                if self.settings.is_read_only and not endpoint.path.startswith("/sign-"):
                    return _plain(403, "this console was started with --read-only")
            visit = Visit(
                request,
                self._templates,
                self._nobody if session is None else session.admin,
                session,
                csrf=self._token(visitor),
                note=self._opened(request.cookies.get("cometmq-note", "")),
                visitor=visitor,
                settings=self.settings,
                sessions=self.sessions,
                sign_ins=self.sign_ins,
                form_lists=form,
            )
            response = await self._answer(endpoint, visit)
            self._finish(visit, response, cookie)
            return response

        return serve

    async def _answer(self, endpoint: Endpoint, visit: Visit) -> Response:
        try:
            return await endpoint.handler(visit)
        except AccessDenied as error:
            if visit.session is None:
                target = visit.link() if endpoint.method == "GET" else "/"
                return visit.go(f"/sign-in?next={quote(target)}", "Brokers ask who you are.")
            return visit.show("error.html", status=403, error=str(error))
        except CometError as error:
            status = next((code for kinds, code in _STATUS if isinstance(error, kinds)), 409)
            return visit.show("error.html", status=status, error=str(error))

    def _finish(self, visit: Visit, response: Response, cookie: str) -> None:
        response.headers.update(_HEADERS)
        flags: dict[str, Any] = {
            "httponly": True,
            "samesite": "strict",
            "secure": self.settings.is_https,
        }
        if visit.visitor != cookie:
            response.set_cookie(self.settings.cookie, visit.visitor, path="/", **flags)
        if visit.new_note:
            response.set_cookie("cometmq-note", self._sealed(visit.new_note), max_age=60, **flags)
        elif "cometmq-note" in visit.request.cookies:
            response.delete_cookie("cometmq-note", **flags)

    def _foreign(self, request: Request) -> Response | None:
        """Refuse a request by another name, or one that another site's page sends.

        A page of another site could otherwise reach a console without sign-in by a name of its own
        that leads to this machine.
        """
        host = request.headers.get("host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self.settings.hosts and name.lower() not in self.settings.hosts:
            return _plain(
                421, f"this console is not called {name!r:.100}; start it with --host to allow it"
            )
        if request.method != "GET":
            site = request.headers.get("sec-fetch-site", "same-origin")
            origin = request.headers.get("origin")
            own = f"{request.url.scheme}://{host}"
            if site not in ("same-origin", "none") or origin not in (None, own):
                return _plain(403, "a page of another site sent this")
        return None

    def _token(self, visitor: str) -> str:
        return hmac.digest(self._key, b"csrf" + visitor.encode(), "sha256").hex()

    def _sealed(self, note: str) -> str:
        """A note for a cookie, which nobody else can write."""
        raw = base64.urlsafe_b64encode(note.encode()).decode()
        return f"{raw}.{hmac.digest(self._key, b'note' + raw.encode(), 'sha256').hex()}"

    def _opened(self, sealed: str) -> str:
        raw, _, seal = sealed.partition(".")
        right = hmac.digest(self._key, b"note" + raw.encode(), "sha256").hex()
        if not raw or not hmac.compare_digest(seal.encode(), right.encode()):
            return ""
        try:
            return base64.urlsafe_b64decode(raw).decode()
        except (binascii.Error, ValueError):
            return ""


def _plain(status: int, text: str) -> Response:
    return PlainTextResponse(text + "\n", status, headers=_HEADERS)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _plain(error.status_code, error.detail)

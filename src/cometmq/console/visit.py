"""One request to the console: what a page's function is given, and the answers it can give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from jinja2 import Environment

    from cometmq.client import Admin
    from cometmq.console.sessions import ConsoleSession, Sessions, SignInLimit
    from cometmq.console.settings import ClientKeywords, ConsoleSettings

__all__ = ["ROWS_PER_PAGE", "Endpoint", "Handler", "Visit", "VisitPage"]

T = TypeVar("T")

ROWS_PER_PAGE: Final = 50


class VisitPage(NamedTuple):
    """A part of a long list: the page's number from 1, how many pages and rows there are."""

    number: int
    last: int
    total: int


class Visit:
    """A request, who made it, and its form.

    Args:
        csrf: what a form of this visitor has to have in its field ``csrf``.
        visitor: the secret of his cookie; signing in gives him another.
        form_lists: the values of each field of a POST.
    """

    def __init__(
        self,
        request: Request,
        templates: Environment,
        admin: Admin,
        session: ConsoleSession | None,
        *,
        csrf: str,
        visitor: str,
        settings: ConsoleSettings,
        sessions: Sessions,
        sign_ins: SignInLimit,
        note: str = "",
        form_lists: dict[str, list[str]] | None = None,
    ) -> None:
        self.request = request
        self.admin = admin
        self.session = session
        self.csrf = csrf
        self.visitor = visitor
        self.settings = settings
        self.sessions = sessions
        self.sign_ins = sign_ins
        self.new_note = ""
        self._note = note
        self._templates = templates
        self._form = form_lists or {}

    # -- what was asked ---------------------------------------------------------------------

    def path(self, name: str) -> str:
        """A part of the path that the route names."""
        text: str = self.request.path_params[name]
        return text

    def query(self, name: str, default: str = "") -> str:
        """A parameter of the address, without blanks around it."""
        return self.request.query_params.get(name, default).strip()

    def form(self, name: str, default: str = "") -> str:
        """A field of the form, without blanks around it."""
        values = self._form.get(name)
        return values[0].strip() if values else default

    def raw_form(self, name: str) -> str:
        """A field of the form as it is."""
        values = self._form.get(name)
        return values[0] if values else ""

    def form_list(self, name: str) -> list[str]:
        """All values of a field of the form."""
        return self._form.get(name, [])

    def number(self, name: str, default: int, least: int = 0, most: int = 2**63 - 1) -> int:
        """A whole number among the parameters or fields.

        Raises:
            ConfigError: it is none, or out of range.
        """
        text = self.form(name) or self.query(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and least <= int(text[:20]) <= most):
            raise ConfigError(f"{name} is {text!r:.40}; give a whole number from {least} to {most}")
        return int(text)

    @property
    def keys(self) -> ClientKeywords:
        """The arguments of a client that acts for this visitor."""
        if self.session is None:
            return self.settings.client_options()
        return self.session.keys

    def page_of(self, rows: Sequence[T]) -> tuple[list[T], VisitPage]:
        """The rows of the page that the parameter ``page`` names, and where that is."""
        last = max(1, -(-len(rows) // ROWS_PER_PAGE))
        number = min(self.number("page", 1, least=1), last)
        first = (number - 1) * ROWS_PER_PAGE
        return list(rows[first : first + ROWS_PER_PAGE]), VisitPage(number, last, len(rows))

    @staticmethod
    def quoted(name: str) -> str:
        """A name as a part of a path."""
        return quote(name, safe="")

    # -- what is answered -------------------------------------------------------------------

    def show(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Answer with a page."""
        text = self._templates.get_template(template).render(
            visit=self,
            note=self._note,
            here=self.request.url.path,
            query=dict(self.request.query_params),
            may_change=not self.settings.is_read_only,
            **values,
        )
        return HTMLResponse(text, status)

    def link(self, **changes: str | int) -> str:
        """The address of this page with other parameters."""
        return f"{self.request.url.path}?{urlencode({**self.request.query_params, **changes})}"

    def go(self, path: str, note: str = "") -> Response:
        """Send the browser to another page, which shows a note."""
        self.new_note = note
        return RedirectResponse(path, 303)


Handler: TypeAlias = Callable[[Visit], Awaitable[Response]]


class Endpoint(NamedTuple):
    """A path, its method, and what answers."""

    method: str
    path: str
    handler: Handler

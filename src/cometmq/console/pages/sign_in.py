"""Signing in with an account of the brokers, and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.client import Admin
from cometmq.console.open_cluster import asks_nobody
from cometmq.console.visit import Endpoint
from cometmq.errors import CometError

if TYPE_CHECKING:
    from starlette.responses import Response

    from cometmq.console.visit import Visit

__all__ = ["PAGES"]


async def form(visit: Visit) -> Response:
    """The form."""
    return visit.show("sign_in.html", target=visit.query("next"), user="", error="")


async def sign_in(visit: Visit) -> Response:
    """Ask the brokers whether the keys are right, and begin a session."""
    user, secret, target = visit.form("user"), visit.raw_form("secret"), visit.form("next")

    def refused(status: int, error: str) -> Response:
        return visit.show("sign_in.html", status=status, target=target, user=user, error=error)

    if not user or not secret:
        return refused(400, "Give a user and the secret.")
    client = visit.request.client
    attempts = (f"user {user}", f"address {client.host if client else ''}")
    wait_s = visit.sign_ins.take(attempts)
    if wait_s > 0:
        response = refused(429, f"Too many attempts; try again in {wait_s:.0f} s.")
        response.headers["retry-after"] = str(max(1, round(wait_s)))
        return response
    keys = visit.settings.client_options(user, secret)
    admin = Admin(**keys)
    try:
        if await asks_nobody(visit.settings):  # they would take any keys
            await admin.shutdown()
            return refused(400, "The brokers ask nobody who he is (authenticationEnabled=false).")
        is_super = await admin.sign_in(user)
    except CometError as error:
        await admin.shutdown()
        return refused(403, f"Not signed in: {error}.")
    visit.sign_ins.succeeded(attempts)
    await visit.sessions.close(visit.visitor)
    # Another secret than before, so that nobody can hand a visitor a cookie and wait.
    visit.visitor = await visit.sessions.open(user, admin, keys, is_super=is_super)
    return visit.go(_local(target), f"Signed in as {user}.")


def _local(target: str) -> str:
    """A path of this console; no other site's address."""
    if target.startswith("/") and not target.startswith(("//", "/\\", "/sign-")):
        return target
    return "/"


async def sign_out(visit: Visit) -> Response:
    """End the session."""
    await visit.sessions.close(visit.visitor)
    return visit.go("/sign-in", "Signed out.")


PAGES: Final = (
    Endpoint("GET", "/sign-in", form),
    Endpoint("POST", "/sign-in", sign_in),
    Endpoint("POST", "/sign-out", sign_out),
)

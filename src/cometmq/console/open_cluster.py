"""Tells a cluster that checks who asks from one that serves everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.client import Admin
from cometmq.errors import AccessDenied

if TYPE_CHECKING:
    from cometmq.console.settings import ConsoleSettings

__all__ = ["asks_nobody"]


async def asks_nobody(settings: ConsoleSettings) -> bool:
    """Whether brokers serve who has no keys.

    Raises:
        CometError: no broker answers.
    """
    async with Admin(**settings.client_options()) as nobody:
        try:
            await nobody.sign_in("nobody")
        except AccessDenied:
            return False
    return True

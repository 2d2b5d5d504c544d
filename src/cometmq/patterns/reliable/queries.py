"""Answers receivers that ask for their notices, because a notice may never arrive.

    GET /order-7    [{"id": 12, "topic": "Paid", "state": "sent", "tries": 3, "body": "..."}]

A notice's ``message_group`` is what its receiver asks for, such as an order's number.
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

from cometmq.patterns.outbox import Outbox, OutboxRow

__all__ = ["NoticeQueries"]

_PENDING: Final = ("prepared", "waiting", "dead", "sent")


class NoticeQueries:
    """An ASGI application, for any server or below any framework's path.

    A `Relay` with ``keep_ms`` keeps what was sent so long.  Rows that were dropped are not shown.

    Args:
        outbox: has the notices; with an asyncio engine, or a plain one in threads.
        is_allowed: whether a request, as ASGI's scope, may see a group; None: every request.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        is_allowed: Callable[[MutableMapping[str, Any], str], bool] | None = None,
    ) -> None:
        self._outbox = outbox
        self._is_allowed = is_allowed

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            raise RuntimeError(f"NoticeQueries answers HTTP, not {scope['type']}")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        group = unquote(path.strip("/"))
        if scope["method"] not in ("GET", "HEAD"):
            status, answer = 405, {"error": "ask with GET"}
        elif self._is_allowed is not None and not self._is_allowed(scope, group):
            status, answer = 403, {"error": f"no access to {group!r}"}
        else:
            status, answer = 200, await self._notices(group)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    async def _notices(self, group: str) -> Any:
        if self._outbox.database.is_async:
            rows = await self._outbox.rows_of(group)
        else:
            rows = await asyncio.to_thread(self._outbox.rows_of, group)
        return [_notice(row) for row in rows if row.state in _PENDING]


def _notice(row: OutboxRow) -> dict[str, Any]:
    """A row as JSON; a body that is not text is in Base64."""
    try:
        body = {"body": row.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(row.body).decode()}
    shown = {"id": row.id, "topic": row.topic, "state": row.state, "tries": row.tries}
    return {**shown, "created_ms": row.created_ms, **body}

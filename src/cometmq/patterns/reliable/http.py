"""Posts messages to the URLs of their receivers, which need no client of a broker."""

import asyncio
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from cometmq import Message
from cometmq.errors import CometError, ConfigError
from cometmq.patterns.base.names import OUTBOX_ID
from cometmq.patterns.outbox import SendsMessages

__all__ = ["NOTICE_PAUSES_MS", "HttpCallbacks", "NotAccepted"]

_MINUTE: Final = 60_000
NOTICE_PAUSES_MS: Final = (
    15_000,
    30_000,
    *(minutes * _MINUTE for minutes in (3, 10, 20, 30, 60, 120, 360, 900)),
)
"""``pauses_ms`` of a relay for notices: eleven tries in a day."""
_THREADS: Final = 32


class NotAccepted(CometError):
    """A receiver has answered a notice with another status than 2xx."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without its body."""

    def redirect_request(self, *_: Any) -> None:
        return None


class HttpCallbacks:
    """A transport that posts a message's body; an answer 2xx means that the receiver has it.

    A request has the headers ``Content-Type`` (the message's property ``content-type``) and
    ``Idempotency-Key``, which is equal in every try.

    Args:
        url_of: returns the URL of a message's receiver, or None for a message that is no notice.
        otherwise: sends the others, such as a `Producer`.
        headers_of: further headers, such as a signature over the body.
        timeout_s: how long a receiver may take; rows that are sent with it wait as long.
    """

    def __init__(
        self,
        url_of: Callable[[Message], str | None],
        *,
        otherwise: SendsMessages | None = None,
        headers_of: Callable[[Message], Mapping[str, str]] | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self._url_of = url_of
        self._otherwise = otherwise
        self._headers_of = headers_of
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(_NoRedirect())
        self._threads = ThreadPoolExecutor(_THREADS, "cometmq-http")

    async def send(self, message: Message) -> Any:
        """Post a message, or have the other transport send it.

        Raises:
            NotAccepted: the answer is not 2xx.
            OSError: there is no answer.
            ConfigError: the message has no URL and there is no other transport, or it is not HTTP.
        """
        url = self._url_of(message)
        if url is not None:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._post, url, message)
        if self._otherwise is None:
            raise ConfigError(f"a message of topic {message.topic} has no URL; give otherwise=")
        return await self._otherwise.send(message)

    def _post(self, url: str, message: Message) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"the URL of a receiver is {url!r:.200}; give one of HTTP")
        headers = {
            "Content-Type": message.properties.get("content-type", "application/octet-stream"),
            "Idempotency-Key": message.properties.get(OUTBOX_ID, ""),
            **(self._headers_of(message) if self._headers_of is not None else {}),
        }
        request = urllib.request.Request(url, bytes(message.body), headers, method="POST")  # noqa: S310 - checked above
        try:
            with self._opener.open(request, timeout=self._timeout_s):
                return
        except urllib.request.HTTPError as error:
            error.close()
            raise NotAccepted(f"{url} answered {error.code} {error.reason}") from None

"""Fetches a small text over HTTP, as an address server offers it; blocks the calling thread."""

import http.client
from typing import Final
from urllib.parse import urlsplit

from cometmq.errors import ConnectFailed

__all__ = ["fetch_text"]

TEXT_BYTES_MAX: Final = 64 * 1024
"""More than any list of addresses; the rest of a longer answer is not read."""


def fetch_text(url: str, timeout_ms: int) -> str:
    """Return the text at a URL.

    Raises:
        ConnectFailed: no answer with status 200 came in time; the text names the cause.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_ms / 1000)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            content = answer.read(TEXT_BYTES_MAX)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, UnicodeError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConnectFailed(f"no answer of {url}: {str(cause) or type(error).__name__}") from error
    if answer.status != http.client.OK:
        raise ConnectFailed(f"{url} answered with status {answer.status} {answer.reason}")
    return content.decode("utf-8", "replace")

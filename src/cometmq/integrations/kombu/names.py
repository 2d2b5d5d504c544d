"""Names of topics, groups and tags for the queues, exchanges and routing keys of Kombu.

RocketMQ allows letters, digits, ``_``, ``-``, ``%`` and ``|``.  Other characters become ``%XX``, as
in addresses of pages, and so does ``%`` itself: two different names stay different.  ``%-`` never
results from that, so it marks the names that belong to the transport.
"""

from typing import Final
from urllib.parse import quote, unquote

__all__ = ["MARK", "dead_letter_topic", "escaped", "retry_topic", "unescaped"]

MARK: Final = "%-"


def escaped(name: str) -> str:
    """A legal name for a queue, an exchange, a routing key or a virtual host."""
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")


def unescaped(name: str | None) -> str:
    """The name that `escaped` was given; empty for None."""
    return unquote(name or "")


def retry_topic(group: str) -> str:
    """RocketMQ's topic for the messages that a group gets again."""
    return f"%RETRY%{group}"


def dead_letter_topic(group: str) -> str:
    """RocketMQ's topic for the messages that a group has given up."""
    return f"%DLQ%{group}"

"""Requests of our own about what a group passes over in a backlog.

================ ================================================================
RESCUE 31040     copy the messages of ``topic`` that no member has got to the group's retry topic,
                 which gets at least ``queueCount`` queues
REPLAY 31041     copy dropped messages, of ``topic`` or of all topics
SKIPPED 31042    only show
================ ================================================================

Request: `BacklogHeader`.  Answer: `BacklogBody` as JSON.  A broker that does not know the code
answers REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from cometmq.errors import CodecError
from cometmq.wire.header.header import Header, Int32

__all__ = ["BacklogBody", "BacklogCode", "BacklogHeader", "SkippedView"]


class BacklogCode(IntEnum):
    """The request codes."""

    RESCUE = 31040
    REPLAY = 31041
    SKIPPED = 31042


class BacklogHeader(Header):
    """For which group, and of which topic; None for all."""

    consumer_group: str
    topic: str | None = None
    queue_count: Int32 | None = None


class SkippedView(msgspec.Struct, rename="camel"):
    """Messages of a queue that the group passes over: offsets from `begin` to before `end`.

    ``copied_to`` is the offset before which every wanted message has its copy; None for messages
    that are dropped.
    """

    topic: str
    queue_id: int
    begin: int
    end: int
    reason: str
    at_ms: int
    copied_to: int | None = None


class BacklogBody(msgspec.Struct, rename="camel"):
    """What a broker knows about the skipped messages of a group.

    ``changed`` is how many messages the request has skipped or had copied.  ``unknown_queues`` are
    those from which no member has pulled since the broker's start.  ``obstacle`` says why the group
    cannot skip messages; None where it can.
    """

    ranges: list[SkippedView]
    changed: int = 0
    unknown_queues: list[int] = []
    obstacle: str | None = None
    unfinished: int = 0
    """Messages in the group's retry topic that it has not consumed."""

    def encode(self) -> bytes:
        """Return the body."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, raw: bytes) -> BacklogBody:
        """Read a body.

        Raises:
            CodecError: it is something else.
        """
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.DecodeError as error:
            raise CodecError(f"the answer about skipped messages: {error}") from error

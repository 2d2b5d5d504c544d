"""WHY 31030, a request of our own: what a broker would do with one message for a group.

Request: `WhyHeader`, the group and where the message is.  Answer: `WhyBody` as JSON.  A broker that
does not know the code answers REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec

from cometmq.errors import CodecError
from cometmq.wire.extensions.backlog import SkippedView
from cometmq.wire.header.header import Header, Int32, Int64

__all__ = ["MemberView", "PullOutcome", "WhyBody", "WhyCode", "WhyHeader"]


class WhyCode(IntEnum):
    """The request code."""

    WHY = 31030


class PullOutcome(StrEnum):
    """What a pull of one member that begins at the message gets."""

    DELIVERS = "delivers"
    """The message comes first in the answer."""
    FILTERED = "filtered"
    """The member's filter, or an earlier one of the group, leaves it out."""
    WAITS = "waits"
    """Members with the same filter get the messages of this queue."""
    REFUSED = "refused"
    SKIPPED = "skipped"
    """The group passes over the message in a backlog."""
    GONE = "gone"
    """The queue does not have the offset, or not any more."""


class WhyHeader(Header):
    """For which group, and where the message is."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64


class MemberView(msgspec.Struct, rename="camel"):
    """What one member would get, and how far it has read.

    ``next_offset`` is that of the members with its filter; None before the first commit.
    """

    client_id: str
    outcome: PullOutcome
    reason: str
    next_offset: int | None = None
    wants_topic: bool = True


class WhyBody(msgspec.Struct, rename="camel"):
    """A broker's view of a message; times are ms since 1970 by the broker's clock."""

    now_ms: int
    min_offset: int
    max_offset: int
    group_offset: int | None
    members: list[MemberView]
    is_group_known: bool = True
    lock_owner: str | None = None
    acknowledged_by: str | None = None
    acknowledged_ms: int | None = None
    absent_filters: list[str] = []
    """Filters of the group whose members are away and that want the message."""
    skipped: SkippedView | None = None
    """The range of messages that the group passes over and that has this one."""

    def encode(self) -> bytes:
        """Return the body."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, raw: bytes) -> WhyBody:
        """Read a body.

        Raises:
            CodecError: it is something else.
        """
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.DecodeError as error:
            raise CodecError(f"the answer to WHY: {error}") from error

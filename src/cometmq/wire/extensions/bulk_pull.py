"""BULK_PULL 31001, a request of our own: a long span of one queue in one answer.

Request: the ext fields of a pull, and ``withSizes``. ``maxMsgNums`` and ``maxMsgBytes`` may be far
larger than for a pull; without ``maxMsgBytes`` the span has 4 MiB.

Answer: the codes and ext fields of a pull's answer. If it carries a span, ``msgCount`` is the
number of records, and ``sizesBytes`` the number of bytes before them in the body: with
``withSizes`` the length of each record, 4 bytes big-endian. The records are those of the log::

    |size 0|size 1|...|record 0        |record 1    |...

Without ``msgCount`` it is the answer to an ordinary pull: the broker has few messages, none, or
something to repair. A broker that does not know the code answers REQUEST_CODE_NOT_SUPPORTED. Ours
names its features in the answer to a heartbeat, in a field that other clients ignore.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from cometmq.wire.header.header import Int32, wire_names
from cometmq.wire.header.headers import PullMessageHeader, PullResponseHeader

__all__ = [
    "BULK_PULL_FEATURE",
    "BYTES_DEFAULT",
    "BYTES_MAX",
    "FEATURES_FIELD",
    "BulkPullCode",
    "BulkPullHeader",
    "BulkPullResponseHeader",
    "features_of",
]

FEATURES_FIELD: Final = "cometmqFeatures"
"""Ext field of the answer to a heartbeat: names of features, separated by commas."""
BULK_PULL_FEATURE: Final = "bulkPull"
BYTES_DEFAULT: Final = 4 << 20
BYTES_MAX: Final = 12 << 20
"""Records and their sizes together stay below the 16 MiB of a frame."""


class BulkPullCode(IntEnum):
    """The request code."""

    BULK_PULL = 31001


class BulkPullHeader(
    PullMessageHeader,
    rename=wire_names(
        suspend_timeout_ms="suspendTimeoutMillis", proxy_forward_client_id="proxyFrowardClientId"
    ),
):
    """A pull of a span; ``with_sizes`` asks for the lengths of the records before them."""

    with_sizes: bool | None = None


class BulkPullResponseHeader(PullResponseHeader):
    """Answer to a pull that may carry a span."""

    msg_count: Int32 | None = None
    sizes_bytes: Int32 | None = None


def features_of(ext: dict[str, str]) -> frozenset[str]:
    """Return the features that the answer to a heartbeat names; other brokers name none."""
    return frozenset(ext.get(FEATURES_FIELD, "").split(",")) - {""}

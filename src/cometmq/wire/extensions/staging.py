"""Requests of our own for staged batches: codes, headers and bodies (31010 to 31014).

With them a batch producer stages blocks of messages and publishes them
(`cometmq.broker.extensions.staging.service` serves them).

A *block* is the body of one STAGE request: messages of one queue, laid out as the body of
SEND_BATCH_MESSAGE (`codec.batch`). A *token* names the blocks, counted from 0, that one attempt at
one part of a batch stages on one broker. Its *crc* is zlib's CRC32 over the bodies of its blocks in
their order, its *rows* the number of messages in them.

================== ========================= ============================ =======================
code               header                    body                         answer
================== ========================= ============================ =======================
STAGE 31010        StageHeader               a block                      StageResponseHeader
PUBLISH 31011      PublishHeader             PublishBody                  PublishResponseHeader
DROP 31012         SinkHeader                DropBody                     CountResponseHeader
LIST 31013         SinkHeader, sink optional none                         body: StagedListing
FORGET 31014       SinkHeader                none                         CountResponseHeader
================== ========================= ============================ =======================

A broker that does not know these codes answers REQUEST_CODE_NOT_SUPPORTED. Ours names the feature
in the answer to a heartbeat (`FEATURES_FIELD` of `wire.extensions.bulk_pull`).
"""

from enum import IntEnum
from typing import Final, TypeVar

import msgspec

from cometmq.errors import RemoteProtocolError
from cometmq.wire.header.header import Header, Int32, Int64, wire_names

__all__ = [
    "STAGING_FEATURE",
    "CountResponseHeader",
    "DropBody",
    "PublishBody",
    "PublishHeader",
    "PublishResponseHeader",
    "PublishStatus",
    "SinkEntry",
    "SinkHeader",
    "StageHeader",
    "StageResponseHeader",
    "StagedEntry",
    "StagedListing",
    "StagingCode",
    "TokenClaim",
    "decode_body",
    "encode_body",
]


STAGING_FEATURE: Final = "staging"
"""Name of the feature in the answer to a heartbeat."""


class StagingCode(IntEnum):
    """Request codes of staged batches."""

    STAGE = 31010
    PUBLISH_STAGED = 31011
    DROP_STAGED = 31012
    LIST_STAGED = 31013
    FORGET_SINK = 31014


class PublishStatus:
    """Outcomes of STAGE and PUBLISH_STAGED."""

    STAGED: Final = "STAGED"
    READY: Final = "READY"
    PUBLISHED: Final = "PUBLISHED"
    ALREADY: Final = "ALREADY"


class StageHeader(Header):
    """STAGE 31010: block number `sequence` of a token, for one queue."""

    sink: str
    batch_id: Int64
    part: str
    token: str
    sequence: Int32
    topic: str
    queue_id: Int32
    born_timestamp_ms: Int64


class StageResponseHeader(Header):
    """Answer to 31010: STAGED, or ALREADY when the batch is published (nothing was stored)."""

    status: str


class PublishHeader(Header):
    """PUBLISH_STAGED 31011; with `prepare` the broker only checks that it can publish."""

    sink: str
    batch_id: Int64
    prepare: bool = False


class PublishResponseHeader(Header):
    """Answer to 31011: PUBLISHED, ALREADY or READY (to `prepare`), and the batch's rows here."""

    status: str
    rows: Int64


class SinkHeader(Header):
    """DROP 31012, LIST 31013, FORGET 31014; only a listing may leave the sink out."""

    sink: str | None = None


class CountResponseHeader(Header):
    """Answer to 31012 and 31014: how many tokens were dropped."""

    count: Int64


class TokenClaim(msgspec.Struct, frozen=True):
    """What a part of a batch staged on one broker under a token."""

    token: str
    rows: int
    """How many messages."""
    crc: int
    """CRC32 of all blocks in the order in which they were sent."""


class PublishBody(msgspec.Struct, frozen=True, rename=wire_names()):
    """Body of PUBLISH_STAGED.

    `home` names the broker that decides for the whole cluster.  Only that broker gets `plan`, the
    claims of every broker by name, which serves to finish the batch after its producer has died.
    """

    tokens: list[TokenClaim]
    home: str = ""
    plan: dict[str, list[TokenClaim]] = {}


class DropBody(msgspec.Struct, frozen=True):
    """Body of DROP_STAGED."""

    tokens: list[str]


class SinkEntry(msgspec.Struct, frozen=True, rename=wire_names()):
    """A line of a broker's ledger: the last batch of a sink that was published on it."""

    batch_id: int
    rows: int
    published_ms: int
    home: str = ""
    plan: dict[str, list[TokenClaim]] = {}
    is_complete: bool = True


class StagedEntry(msgspec.Struct, frozen=True, rename=wire_names()):
    """A token that waits to be published or dropped; times in ms since 1970."""

    token: str
    sink: str
    batch_id: int
    part: str
    rows: int
    bytes: int
    crc: int
    updated_ms: int


class StagedListing(msgspec.Struct, frozen=True, rename=wire_names()):
    """Body of the answer to LIST_STAGED."""

    sinks: dict[str, SinkEntry]
    tokens: list[StagedEntry]


_Body = TypeVar("_Body", PublishBody, DropBody, StagedListing)


def encode_body(body: PublishBody | DropBody | StagedListing) -> bytes:
    """The JSON of a body."""
    return msgspec.json.encode(body)


def decode_body(data: bytes, kind: type[_Body]) -> _Body:
    """The body of a request or an answer.

    Raises:
        RemoteProtocolError: it is not JSON of that shape; the text names the field.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"{kind.__name__}: {error}") from error

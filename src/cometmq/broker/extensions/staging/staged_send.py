"""Staged blocks: each waits in `STAGED_TOPIC` until its batch is published.

A block is one record.  REAL_TOPIC and REAL_QID name the queue that its messages are for, and
properties of CometMQ name its token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from cometmq.broker.extensions.staging.tokens import StagedBlock, StagedTokens
from cometmq.broker.send.kinds import Destination, Prepared, Send, SendKind, Shape, real_entries
from cometmq.codec.properties import encode_properties
from cometmq.codec.stored_message import StoredMessage
from cometmq.model import properties as prop
from cometmq.model.names import STAGED_TOPIC
from cometmq.store.base.results import PutResult

__all__ = ["StagedKind", "TokenName", "block_of"]

_SINK: Final = "STAGED_SINK"
_BATCH: Final = "STAGED_BATCH"
_PART: Final = "STAGED_PART"
_TOKEN: Final = "STAGED_TOKEN"  # noqa: S105 - the name of a property
_ROWS: Final = "STAGED_ROWS"


class TokenName(NamedTuple):
    """A token, and the part of a batch of a sink that it stands for."""

    token: str
    sink: str
    batch_id: int
    part: str


class _BlockDetail(NamedTuple):
    name: TokenName
    rows: int


class StagedKind(SendKind):
    """Staged blocks of one broker; a shape's detail is their `_BlockDetail`.

    No property makes a message a block: the request STAGE does.
    """

    def __init__(self, tokens: StagedTokens) -> None:
        self._tokens = tokens

    def destination(self, topic: str, queue_id: int, name: TokenName, rows: int) -> Destination:
        """Return where a block of `rows` messages for a queue goes."""
        return Destination(topic, queue_id, kind=self, detail=_BlockDetail(name, rows))

    def prepare(
        self, topic: str, queue_id: int, shape: Shape, uniq_key: str, now_ms: int
    ) -> Prepared:
        """Put the block into the staged queue; there is one."""
        (token, sink, batch_id, part), rows = shape.detail
        names = {_TOKEN: token, _SINK: sink, _BATCH: str(batch_id), _PART: part, _ROWS: str(rows)}
        return STAGED_TOPIC, 0, 0, real_entries(topic, queue_id) + encode_properties(names)

    def stored(
        self, sends: Sequence[Send], results: Sequence[PutResult], born_host: bytes, now_ms: int
    ) -> None:
        """Add blocks to their tokens."""
        for send, result in zip(sends, results, strict=False):
            detail: _BlockDetail = send.shape.detail
            block = StagedBlock(
                result.physical_offset,
                result.end_offset,
                result.queue_offset,
                send.real_topic,
                send.real_queue_id,
                detail.rows,
            )
            self._tokens.add(detail.name, block, send.body, now_ms)


def block_of(message: StoredMessage, end_offset: int) -> tuple[TokenName, StagedBlock] | None:
    """Return the token and the block of a record of `STAGED_TOPIC`; None when it is no block."""
    names = message.properties
    try:
        name = TokenName(names[_TOKEN], names[_SINK], int(names[_BATCH]), names.get(_PART, ""))
        block = StagedBlock(
            message.physical_offset,
            end_offset,
            message.queue_offset,
            names[prop.REAL_TOPIC],
            int(names[prop.REAL_QUEUE_ID]),
            int(names[_ROWS]),
        )
    except (KeyError, ValueError):
        return None
    return name, block

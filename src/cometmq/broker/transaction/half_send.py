"""Half messages: they wait in RMQ_SYS_TRANS_HALF_TOPIC for the end of their transaction.

REAL_TOPIC and REAL_QID are the last properties of a half message: its commit stores the properties
before them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.base.state import BrokerState, Refusal
from cometmq.broker.send.kinds import (
    CHECK_BYTES_MAX,
    Destination,
    Prepared,
    Send,
    SendKind,
    Shape,
    real_entries,
)
from cometmq.codec.properties import PROPERTIES_BYTES_MAX, find_property
from cometmq.core.transaction.open_transactions import CommitContent, HalfMessage, immunity_s
from cometmq.errors import ResponseCode
from cometmq.model import properties as prop
from cometmq.model.names import HALF_TOPIC
from cometmq.store.base.results import PutResult
from cometmq.wire.header.headers import SendMessageHeader

if TYPE_CHECKING:
    from cometmq.native import NotedHalf

__all__ = ["HalfDetail", "HalfKind"]

_SPECIAL: Final = ("CHECK_TIMES\x01", "TRAN_PREPARED", "__transactionId__")
_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"


class HalfDetail(NamedTuple):
    """The settings that half messages of one shape share."""

    group: str
    """The producer group that is asked for the outcome."""
    immunity_s: int
    has_immunity: bool


class HalfKind(SendKind):
    """Half messages of one broker; a shape's detail is their `HalfDetail`."""

    mark = f"{prop.TRANSACTION_PREPARED}\x01"
    is_transactional = True
    dropped = (prop.TRANSACTION_CHECK_TIMES, prop.TRAN_PREPARED_QUEUE_OFFSET)
    properties_bytes_max = PROPERTIES_BYTES_MAX - CHECK_BYTES_MAX

    def __init__(self, state: BrokerState, added: Callable[[Sequence[HalfMessage]], None]) -> None:
        """`added` is called with half messages that are stored."""
        self._state = state
        self._added = added

    def is_open(self) -> bool:
        """Whether half messages are taken at all."""
        return not self._state.config.reject_transaction_message

    def parse(self, value: str, text: str) -> HalfDetail | None:
        """Return group and immunity; None when the properties need the checks."""
        if value != "true" or any(name in text for name in _SPECIAL):
            return None
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            return None
        group = find_property(raw, prop.PRODUCER_GROUP.encode())
        if group is None:
            return None
        immunity = find_property(raw, _IMMUNITY.encode())
        return HalfDetail(group.decode(), immunity_s(immunity), immunity is not None)

    def check(self, header: SendMessageHeader, target: Destination, now_ms: int) -> None:
        """Make a message with TRAN_MSG=true a half message.

        A delayed retry has that property from its first delivery and is no half message.

        Raises:
            Refusal: half messages are rejected, or this one is not complete.
        """
        properties = target.properties
        if properties.get(prop.TRANSACTION_PREPARED, "").lower() != "true":
            return
        if header.reconsume_times > 0 and target.reason:
            return
        if self._state.config.reject_transaction_message:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._state.address}] sending transaction message is forbidden",
            )
        if target.reason:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: it is transactional and has {target.reason}; a message "
                "cannot wait for both, leave out one",
            )
        group = properties.get(prop.PRODUCER_GROUP)
        if not group:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: it is transactional and has no property PGROUP, which "
                "names the producer group that is asked for the outcome",
            )
        immunity = properties.get(_IMMUNITY)
        seconds = immunity_s(None if immunity is None else immunity.encode())
        target.kind = self
        target.detail = HalfDetail(group, seconds, immunity is not None)

    def prepare(
        self, topic: str, queue_id: int, shape: Shape, uniq_key: str, now_ms: int
    ) -> Prepared:
        """Put the message into the half queue; there is one."""
        added = f"__transactionId__\x01{uniq_key}\x02".encode() + real_entries(topic, queue_id)
        return HALF_TOPIC, 0, shape.tags_code, added

    def stored(
        self, sends: Sequence[Send], results: Sequence[PutResult], born_host: bytes, now_ms: int
    ) -> None:
        """Hand half messages to the transactions, with what their commits store."""
        halves: list[HalfMessage] = []
        for send, result in zip(sends, results, strict=False):
            detail: HalfDetail = send.shape.detail
            real = real_entries(send.real_topic, send.real_queue_id)
            commit = None
            # A producer may have set the two names itself: then they are not at the end.
            if send.properties.endswith(real) and send.index_keys is not None:
                commit = CommitContent(
                    send.real_queue_id,
                    send.body,
                    send.properties[: -len(real)],
                    send.flag,
                    send.sys_flag,
                    born_host,
                    send.reconsume_times,
                    send.shape.tags_code,
                    send.index_keys,
                )
            halves.append(
                HalfMessage(
                    result.queue_offset,
                    result.physical_offset,
                    send.born_ms,
                    detail.group,
                    send.real_topic,
                    send.uniq_key,
                    commit,
                    0,
                    detail.immunity_s,
                    detail.has_immunity,
                )
            )
        self._added(halves)

    def encoded(self, notes: Sequence[NotedHalf]) -> None:
        """Hand half messages that the native core has stored to the transactions."""
        self._added([HalfMessage(*note) for note in notes])

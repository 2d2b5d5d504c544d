"""The fast way of half messages into the store, alone and in runs.

Job: put plain transactional messages to known topics without the checks every topic passed
before, and hand them to the transactions with what their commit will store.  It must not refuse:
whatever is special or wrong takes the checked way (`send.py`), which does it or explains.

As on the fast way of ordinary messages, properties stay the string the client sent.  What makes
it a half message is appended, REAL_TOPIC and REAL_QID last, so that what the commit stores is
what stands before them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from cometmq.broker.base.state import BrokerState
from cometmq.broker.send.send_run import CLIENT_SYS_FLAGS, Look
from cometmq.broker.send.shape_look import Keys, make_shape_look
from cometmq.broker.send.special_send import Send
from cometmq.codec.properties import find_property
from cometmq.core.transaction.open_transactions import HalfMessage, KeptHalf, immunity_s
from cometmq.errors import StoreError
from cometmq.model.names import HALF_TOPIC, RETRY_PREFIX
from cometmq.net.server import ServerConnection
from cometmq.store.base.results import PutItem, PutResult
from cometmq.wire.header.fast_decode import PlainSend, SendCommand

__all__ = [
    "HALF_MARK",
    "HalfKind",
    "HalfLook",
    "make_half_look",
    "put_half",
]

HALF_MARK: Final = "TRAN_MSG\x01true\x02"
_SPECIAL: Final = ("REAL_", "CHECK_TIMES\x01", "TRAN_PREPARED", "__transactionId__")
_CHARS_MAX: Final = 8000

HalfShape = tuple[int, bool, str, int, bool, str | None]
"""What half messages of one producer have in common: tags code, whether a synchronous flush is
awaited, producer group, immunity in seconds and whether it has one, tags."""
HalfLook = Callable[[str], tuple[Keys, HalfShape] | None]
Stored = tuple[PutResult, HalfMessage, str, bool]


def make_half_look(look: Look) -> HalfLook:
    """Build the function that looks at a half message's property string, with its memory."""
    return make_shape_look(lambda text: _look_closer(look, text), lambda shape: shape[5])


def _look_closer(look: Look, text: str) -> tuple[Keys, HalfShape] | None:
    before, mark, after = text.partition(HALF_MARK)
    looked = look(before + after)
    if (
        looked is None
        or not mark
        or before[-1:] not in ("", "\x02")
        or len(text) > _CHARS_MAX
        or any(name in text for name in _SPECIAL)
    ):
        return None
    keys, shape = looked
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return None
    group = find_property(raw, b"PGROUP")
    if group is None:
        return None
    immunity = find_property(raw, b"CHECK_IMMUNITY_TIME_IN_SECONDS")
    seconds = immunity_s(immunity)
    return keys, (shape[1], shape[2], group.decode(), seconds, immunity is not None, shape[0])


def _own(header: PlainSend, uniq_key: str) -> tuple[str, str]:
    """What a half message has more than its committed one keeps, and what both have."""
    return (
        f"REAL_TOPIC\x01{header.topic}\x02REAL_QID\x01{header.queue_id}\x02",
        f"__transactionId__\x01{uniq_key}\x02",
    )


def _half(
    header: PlainSend,
    keys: Keys,
    shape: HalfShape,
    body: bytes,
    real: bytes,
    born_host: bytes,
    physical_offset: int,
    queue_offset: int,
) -> HalfMessage:
    return HalfMessage(
        queue_offset,
        physical_offset,
        header.born_timestamp_ms,
        shape[2],
        0,
        shape[3],
        shape[4],
        -1,
        header.topic,
        KeptHalf(
            header.queue_id,
            body,
            real,
            header.flag,
            header.sys_flag & CLIENT_SYS_FLAGS,
            born_host,
            0,
            shape[0],
            keys,
        ),
    )


def put_half(
    state: BrokerState,
    look: HalfLook,
    suffix: bytes,
    header: PlainSend,
    text: str,
    body: bytes,
    connection: ServerConnection,
    now_ms: int,
) -> Stored | None:
    """Put a half message; where it is, what it is, its id, and whether a flush is awaited.

    None: nothing was stored, it is left to the checked way.
    """
    looked = look(text)
    if (
        looked is None
        or not 0 < len(body) <= state.config.max_message_size
        or header.batch
        or header.reconsume_times
        or state.config.reject_transaction_message
        or header.topic.startswith(RETRY_PREFIX)
    ):
        return None
    keys, shape = looked
    where, common = _own(header, keys[0])
    put: Callable[..., Any] = state.store.put
    try:
        real = text.encode() + suffix + common.encode()
        result = put(
            HALF_TOPIC,
            0,
            body,
            real + where.encode(),
            flag=header.flag,
            sys_flag=header.sys_flag & CLIENT_SYS_FLAGS,
            born_ms=header.born_timestamp_ms,
            born_host=connection.peer_host,
            tags_code=shape[0],
            store_ms=now_ms,
            index_keys=keys,
        )
    except (StoreError, UnicodeEncodeError):
        return None
    half = _half(
        header,
        keys,
        shape,
        body,
        real,
        connection.peer_host,
        result.physical_offset,
        result.queue_offset,
    )
    return result, half, keys[0], shape[1]


class HalfKind:
    """Half messages that arrive together (`special_send`)."""

    __slots__ = ("_look", "_state", "_suffix", "added", "mark")

    def __init__(self, state: BrokerState, look: HalfLook, suffix: bytes) -> None:
        self.mark = HALF_MARK
        self._state = state
        self._look = look
        self._suffix = suffix
        self.added: Callable[[HalfMessage], None] = lambda half: None
        """Told of each half message that was put."""

    def is_open(self) -> bool:
        """Whether half messages are taken at all."""
        return not self._state.config.reject_transaction_message

    def items(
        self, sends: Sequence[Send], now_ms: int
    ) -> tuple[list[PutItem], list[tuple[HalfShape, bytes]]]:
        """What to put, and what the commits will store of it."""
        look, suffix = self._look, self._suffix
        items: list[PutItem] = []
        more: list[tuple[HalfShape, bytes]] = []
        for header, text, body in sends:
            looked = look(text)
            if looked is None:
                break
            keys, shape = looked
            where, common = _own(header, keys[0])
            try:
                real = text.encode() + suffix + common.encode()
            except UnicodeEncodeError:
                break
            items.append(
                (
                    HALF_TOPIC,
                    0,
                    body,
                    real + where.encode(),
                    header.flag,
                    header.sys_flag & CLIENT_SYS_FLAGS,
                    header.born_timestamp_ms,
                    shape[0],
                    keys,
                )
            )
            more.append((shape, real))
        return items, more

    def stored(
        self,
        requests: Sequence[SendCommand],
        items: Sequence[PutItem],
        more: Sequence[tuple[HalfShape, bytes]],
        placed: Sequence[tuple[int, int]],
        born_host: bytes,
        now_ms: int,
    ) -> None:
        """Hand them to the transactions."""
        for request, item, (shape, real), where in zip(requests, items, more, placed, strict=False):
            keys: Any = item[8]
            self.added(_half(request.ext, keys, shape, item[2], real, born_host, *where))

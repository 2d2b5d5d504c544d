"""The fast way of half messages into the store, alone and in runs.

Job: put plain transactional messages to known topics without the checks every topic passed
before, and hand them to the transactions with what their commit will store.  It must not refuse:
whatever is special or wrong takes the checked way (`send.py`), which does it or explains.

As on the fast way of ordinary messages, properties stay the string the client sent.  What makes
it a half message is appended, REAL_TOPIC and REAL_QID last, so that what the commit stores is
what stands before them.  A producer's strings differ in UNIQ_KEY and KEYS only, so what the rest
asks for is remembered by its *shape* (`send_run`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from cometmq.broker.send_run import CLIENT_SYS_FLAGS, RUN_SENDS_MAX, Frame, Look, is_plain_id
from cometmq.broker.state import BrokerState
from cometmq.codec.ids import offset_message_ids
from cometmq.codec.properties import find_property
from cometmq.core.transactions import HalfMessage, KeptHalf, immunity_s
from cometmq.errors import ResponseCode, StoreError
from cometmq.model.names import HALF_TOPIC, RETRY_PREFIX
from cometmq.net.server import ServerConnection
from cometmq.store.results import PutItem, PutResult
from cometmq.wire.fast_decode import PlainSend, SendCommand

__all__ = [
    "HALF_MARK",
    "HalfLook",
    "HalfRuns",
    "Keys",
    "make_half_look",
    "make_shape_look",
    "put_half",
]

HALF_MARK: Final = "TRAN_MSG\x01true\x02"
_SPECIAL: Final = ("REAL_", "CHECK_TIMES\x01", "TRAN_PREPARED", "__transactionId__")
_CHARS_MAX: Final = 8000
_SHAPES_MAX: Final = 1024
_SHAPE_CHARS_MAX: Final = 512
_RESPONSE: Final = 1
_ONEWAY: Final = 2

S = TypeVar("S")
Keys = tuple[str, str | None, str | None]
HalfShape = tuple[int, bool, str, int, bool, str | None]
"""What half messages of one producer have in common: tags code, whether a synchronous flush is
awaited, producer group, immunity in seconds and whether it has one, tags."""
HalfLook = Callable[[str], tuple[Keys, HalfShape] | None]
Stored = tuple[PutResult, HalfMessage, str, bool]
Placed = tuple[SendCommand, Keys, tuple[int, int]]
"""Request, keys, physical and queue offset."""


def make_half_look(look: Look) -> HalfLook:
    """Build the function that looks at a half message's property string, with its memory."""
    return make_shape_look(lambda text: _look_closer(look, text), lambda shape: shape[5])


def make_shape_look(
    closer: Callable[[str], tuple[Keys, S] | None], tags_of: Callable[[S], str | None]
) -> Callable[[str], tuple[Keys, S] | None]:
    """Build a look with a memory: `closer` is asked only about what is new but for the keys.

    It takes a string that ends with a separator; None when it is not plain.
    """
    shapes: dict[tuple[str, str], tuple[S, str | None]] = {}
    known = shapes.get

    def look_at(text: str) -> tuple[Keys, S] | None:
        before, _, rest = text.partition("UNIQ_KEY\x01")
        uniq_key, _, after = rest.partition("\x02")
        head, has_keys, tail = before.partition("KEYS\x01")
        keys, _, between = tail.partition("\x02")
        around = head + between
        found = known((around, after))
        if found is not None and uniq_key and (keys or not has_keys):
            return (uniq_key, keys or None, found[1]), found[0]
        looked = closer(text)
        if (
            looked is not None
            and len(around) + len(after) <= _SHAPE_CHARS_MAX
            # Nothing of the other two may be in what is remembered, nor a name cut in two.
            and not any(f"{name}\x01" in around + after for name in ("UNIQ_KEY", "KEYS"))
            and all(part[-1:] in ("", "\x02") for part in (before, head, between))
            and looked[0][:2] == (uniq_key, keys or None)
        ):
            if len(shapes) >= _SHAPES_MAX:
                shapes.clear()
            shapes[around, after] = looked[1], tags_of(looked[1])
        return looked

    return look_at


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
        or header.place
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


class HalfRuns:
    """Serves half messages that arrive together, from the front of a run on."""

    __slots__ = (
        "_frame",
        "_is_sync_flush",
        "_limits",
        "_look",
        "_state",
        "_stored",
        "_suffix",
        "added",
    )

    def __init__(
        self,
        state: BrokerState,
        limits: dict[str, int],
        look: HalfLook,
        frame: Frame,
        suffix: bytes,
        stored: Callable[[SendCommand, int, PutResult, int, str], bytes],
    ) -> None:
        self._state = state
        self._is_sync_flush = state.config.flush_disk_type == "SYNC_FLUSH"
        self._limits = limits
        self._look = look
        self._frame = frame
        self._suffix = suffix
        self._stored = stored
        self.added: Callable[[HalfMessage], None] = lambda half: None
        """Told of each half message that was put."""

    def serve(
        self, commands: Sequence[Any], start: int, connection: ServerConnection, now_ms: int
    ) -> tuple[int, bytes]:
        """Store half messages from `start` on; the place of the first other, the answers."""
        if self._state.config.reject_transaction_message:
            return start, b""
        items: list[PutItem] = []
        shapes: list[tuple[HalfShape, bytes]] = []
        for request in islice(commands, start, start + RUN_SENDS_MAX):
            if type(request) is not SendCommand or request.flag & _RESPONSE:
                break
            made = self._item(request)
            if made is None:
                break
            items.append(made[0])
            shapes.append(made[1:])
        if not items:
            return start, b""
        born_host = connection.peer_host
        placed = self._state.store.put_many(items, born_host=born_host, store_ms=now_ms)
        waiting: list[Placed] = []
        ready: list[Placed] = []
        for request, item, (shape, real), where in zip(
            islice(commands, start, None), items, shapes, placed, strict=False
        ):
            keys: Any = item[8]
            self.added(_half(request.ext, keys, shape, item[2], real, born_host, *where))
            is_awaited = self._is_sync_flush and shape[1]
            (waiting if is_awaited else ready).append((request, keys, where))
        if waiting:
            self._park(waiting, connection)
        return start + len(placed), self._answers(ready)

    def _item(self, request: SendCommand) -> tuple[PutItem, HalfShape, bytes] | None:
        header = request.ext
        body = request.body
        text = header.properties
        if text[-1:] != "\x02":
            text += "\x02"
        if (
            HALF_MARK not in text
            or not 0 <= header.queue_id < self._limits.get(header.topic, 0)
            or not 0 < len(body) <= self._state.config.max_message_size
            or header.batch
            or header.reconsume_times
            # The group may be at home elsewhere; see `growing`.
            or header.place
        ):
            return None
        looked = self._look(text)
        if looked is None or not is_plain_id(looked[0][0]):
            return None
        keys, shape = looked
        where, common = _own(header, keys[0])
        try:
            real = text.encode() + self._suffix + common.encode()
        except UnicodeEncodeError:
            return None
        item = (
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
        return item, shape, real

    def _answers(self, placed: list[Placed]) -> bytes:
        frame = self._frame
        ids = offset_message_ids(self._state.host, [where[0] for _, _, where in placed])
        frames = [
            frame(message_id, request.ext.queue_id, where[1], keys[0], request.opaque)
            for message_id, (request, keys, where) in zip(ids.split(","), placed, strict=False)
            if not request.flag & _ONEWAY
        ]
        return "".join(frames).encode("latin-1")

    def _park(self, placed: list[Placed], connection: ServerConnection) -> None:
        """Answer all of them when the last one is durable."""
        state = self._state

        def settle(is_durable: bool) -> None:
            if is_durable:
                answers = self._answers(placed)
            else:
                code = ResponseCode.FLUSH_DISK_TIMEOUT
                answers = b"".join(
                    self._stored(request, code, PutResult(*where, 0), request.ext.queue_id, keys[0])
                    for request, keys, where in placed
                    if not request.flag & _ONEWAY
                )
            if answers:
                state.when_topics_saved(lambda: connection.send(answers))

        state.store.when_durable(state.store.max_physical_offset, settle)

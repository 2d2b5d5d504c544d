"""Runs of plain sends: what one read of a socket holds is stored and answered together.

Job: take sends from the front of a run as long as they are plain, put them with one call of the
store and make their answers.  It must not refuse: the first send that is not plain, or that the
store does not take as simply, is left to the single way (`send.py`), which does it or explains.
So a send that is refused has no effect on its neighbours, and answers keep their order.

Properties stay the string the client sent.  The same producers send the same names for ever, so
what a string asks for is remembered by its *shape*: the string without UNIQ_KEY and KEYS, the two
entries that differ from message to message.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import islice, takewhile
from struct import Struct
from typing import Any, Final

from cometmq.broker.base.state import BrokerState
from cometmq.broker.send.run_answers import RunAnswers, waits_for_flush
from cometmq.codec.java_hash import tags_code as hash_tags
from cometmq.model import flags
from cometmq.net.server import Run, ServerConnection
from cometmq.wire.command.codes import LANGUAGE, VERSION
from cometmq.wire.command.command import encode_json_text
from cometmq.wire.header.fast_decode import SendCommand

__all__ = [
    "CLIENT_SYS_FLAGS",
    "FRAME_HEAD_BYTES",
    "RUN_SENDS_MAX",
    "SendRuns",
    "Shape",
    "frame_head",
    "is_plain_id",
    "make_frame",
    "make_look",
]

RUN_SENDS_MAX: Final = 512
"""More sends of one read are several runs, so that what a run gathers stays small."""
_SHAPES_MAX: Final = 1024
_SHAPE_CHARS_MAX: Final = 512
_READY_HEADS: Final = 1024
_FRAME_HEAD: Final = Struct(">II")
FRAME_HEAD_BYTES: Final = _FRAME_HEAD.size
_OWN_SYS_FLAGS: Final = flags.BORN_HOST_V6 | flags.STORE_HOST_V6 | flags.TRANSACTION_MASK
"""Bits of sysFlag that say what the broker did; a client's own are not believed."""
CLIENT_SYS_FLAGS: Final = ~_OWN_SYS_FLAGS
_RESPONSE: Final = 1

PlainItem = tuple[str, int, bytes, bytes, int, int, int, int, tuple[str, str | None, str | None]]
"""A `PutItem` whose index keys hold a UNIQ_KEY."""

Shape = tuple[str | None, int, bool]
"""What the properties of plain messages have in common: tags, their code, and whether a
synchronous flush is awaited (WAIT is not false)."""
Look = Callable[[str], tuple[tuple[str, str | None, str | None], Shape] | None]
Frame = Callable[[str, int, int, str, int], str]
"""``(message_id, queue_id, queue_offset, uniq_key, opaque) -> frame`` of a stored send."""


def make_look() -> Look:
    """Build the function that looks at property strings, with its memory in a local variable.

    It takes a string that ends with a separator, and gives index keys and shape, or None when
    the string is not plain: something special in it, or no UNIQ_KEY.
    """
    shapes: dict[str, Shape] = {}
    known = shapes.get

    def look(text: str) -> tuple[tuple[str, str | None, str | None], Shape] | None:
        # Most producers write KEYS, if any, then UNIQ_KEY, then what is the same every time.
        before, _, after = text.partition("UNIQ_KEY\x01")
        uniq_key, _, rest = after.partition("\x02")
        keys = before[5:-1] if before else None
        is_usual = not before or f"KEYS\x01{keys}\x02" == before
        shape = known(rest) if is_usual else None
        if shape is not None and uniq_key and not (keys and "\x02" in keys):
            return (uniq_key, keys, shape[0]), shape
        looked = _look_closer(text)
        # What is remembered holds for any UNIQ_KEY and KEYS, so the rest must not have its own.
        if (
            looked is not None
            and is_usual
            and len(rest) <= _SHAPE_CHARS_MAX
            and "UNIQ_KEY\x01" not in rest
            and "KEYS\x01" not in rest
            and looked[0][:2] == (uniq_key, keys)
        ):
            if len(shapes) >= _SHAPES_MAX:
                shapes.clear()
            shapes[rest] = looked[1]
        return looked

    return look


def _look_closer(text: str) -> tuple[tuple[str, str | None, str | None], Shape] | None:
    """Look at any property string, of which the last of two equal names counts."""
    # Written out: producers whose own properties always differ come here with every message.
    at = text.rfind("UNIQ_KEY\x01")
    # With the separator at the end, text[at - 1] is one also where a name comes first.
    if (
        at < 0
        or text[at - 1] != "\x02"
        or "DELAY" in text
        or "TRAN_MSG" in text
        or "TIMER_" in text
        or "POP_CK" in text
    ):
        return None
    uniq_key = text[at + 9 : text.find("\x02", at)]
    tags = keys = None
    code = 0
    at = text.rfind("TAGS\x01")
    if at >= 0:
        if text[at - 1] != "\x02":
            return None
        tags = text[at + 5 : text.find("\x02", at)]
        code = hash_tags(tags)
    at = text.rfind("KEYS\x01")
    if at >= 0:
        if text[at - 1] != "\x02":
            return None
        keys = text[at + 5 : text.find("\x02", at)]
    # An empty value is no value, and then an earlier entry of the same name counts.
    if not uniq_key or keys == "" or tags == "":
        return None
    return (uniq_key, keys, tags), (tags, code, waits_for_flush(text))


def is_plain_id(text: str) -> bool:
    """Whether this is nothing but ASCII letters and digits, which JSON holds as they are."""
    return text.encode().isalnum()


def make_frame(region: str, trace_on: bool) -> Frame:
    """Build the function that writes answers as `SendResponseEncoder` does, from one template.

    It is for JSON and plain ids only, and gives text of which every character is one byte
    (latin-1): the answers of a run are joined first and encoded once.
    """
    start = (
        '{"code":0,"extFields":{"MSG_REGION":'
        + encode_json_text(region).decode("latin-1")
        + (',"TRACE_ON":"true"' if trace_on else ',"TRACE_ON":"false"')
        + ',"msgId":"'
    )
    middle = f'"}},"flag":1,"language":"{LANGUAGE}","opaque":'
    tail = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
    ready = [frame_head(size) for size in range(_READY_HEADS)]

    def frame(message_id: str, queue_id: int, queue_offset: int, uniq_key: str, opaque: int) -> str:
        header = (
            f'{start}{message_id}","queueId":"{queue_id}"'
            f',"queueOffset":"{queue_offset}","transactionId":"{uniq_key}{middle}{opaque}{tail}'
        )
        size = len(header)
        return (ready[size] if size < _READY_HEADS else frame_head(size)) + header

    return frame


def frame_head(header_bytes: int) -> str:
    """What stands before a JSON header of a frame without a body, in latin-1."""
    return _FRAME_HEAD.pack(4 + header_bytes, header_bytes).decode("latin-1")


class SendRuns:
    """Serves runs for one broker; `limits` maps the topics that passed all checks to their number
    of queues."""

    __slots__ = ("_answers", "_growing", "_limits", "_look", "_others", "_state", "_suffix")

    def __init__(
        self,
        state: BrokerState,
        limits: dict[str, int],
        look: Look,
        suffix: bytes,
        answers: RunAnswers,
        others: Run,
        growing: Container[str],
    ) -> None:
        """`others` serves a run whose first send is not plain, or serves none of it; `growing`
        has the topics whose message groups move."""
        self._growing = growing
        self._state = state
        self._limits = limits
        self._look = look
        self._suffix = suffix
        self._answers = answers
        self._others = others

    def serve(
        self, commands: Sequence[Any], start: int, connection: ServerConnection, now_ms: int
    ) -> tuple[int, bytes]:
        """Store plain sends from `start` on; the place of the first that was not, the answers."""
        store = self._state.store
        if not store.takes_many(connection.peer_host):
            return start, b""
        items = self._plain(commands, start)
        if not items:
            return self._others(commands, start, connection, now_ms)
        placed = store.put_many(items, born_host=connection.peer_host, store_ms=now_ms)
        end = start + len(placed)
        return end, self._answers.give(commands[start:end], items, placed, connection)

    def _plain(self, commands: Sequence[Any], start: int) -> list[PlainItem]:
        """Give what the store needs of the plain sends from `start` on, up to the first other."""
        look, suffix = self._look, self._suffix
        body_bytes_max = self._state.config.max_message_size
        limit_of = self._limits.get
        growing = self._growing
        items: list[PlainItem] = []
        for request in islice(commands, start, start + RUN_SENDS_MAX):
            if type(request) is not SendCommand or request.flag & _RESPONSE:
                break
            header = request.ext
            topic = header.topic
            queue_id = header.queue_id
            body = request.body
            if (
                not 0 <= queue_id < limit_of(topic, 0)
                or not 0 < len(body) <= body_bytes_max
                or header.batch
                or header.reconsume_times
                or (header.place and topic in growing)
            ):
                break
            text = header.properties
            if text[-1:] != "\x02":
                text += "\x02"
            looked = look(text)
            if looked is None:
                break
            keys, shape = looked
            try:
                properties = text.encode() + suffix
            except UnicodeEncodeError:
                break
            items.append(
                (
                    topic,
                    queue_id,
                    body,
                    properties,
                    header.flag,
                    header.sys_flag & CLIENT_SYS_FLAGS,
                    header.born_timestamp_ms,
                    shape[1],
                    keys,
                )
            )
        if not is_plain_id("".join([item[8][0] for item in items])):
            # The first id that JSON has to escape ends the run.
            return list(takewhile(lambda item: is_plain_id(item[8][0]), items))
        return items

"""The native core and the Python text write the same sends and read the same answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cometmq import native
from cometmq.client.message.send_codec import NativeSendTemplate
from cometmq.errors import CometError
from cometmq.net.channel import SendToken
from cometmq.wire.command.command import RemotingCommand, encode_command, frame_json
from cometmq.wire.frame.connection import Connection
from cometmq.wire.frame.framing import FrameReader
from cometmq.wire.header.fast_decode import PlainSendAnswer, decode_plain_answer
from cometmq.wire.header.fast_encode import SendRequestTemplate, SendResponseEncoder

pytestmark = pytest.mark.skipif(
    native.encode_send_request is None, reason=f"there is nothing to compare: {native.describe()}"
)

INT32 = st.integers(-(2**31), 2**31 - 1) | st.integers(0, 9)
INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9)
PROPERTIES = st.lists(
    st.sampled_from(
        ["KEYS\x01k\x02", "UNIQ_KEY\x01" + "0A" * 16 + "\x02", "ü", "\U0001f600", '"', "\\", "\x00",
         "\x03", "\x1f", "\n", "\x7f", "\ud800", " ", "%d"]
    ) | st.text(max_size=5),
    max_size=4,
).map("".join)  # fmt: skip
NAMES = st.sampled_from(["T", "%", "Größe", 'quoted "', "%RETRY%g", "a\x01b"])
ENCODER = SendResponseEncoder()


def outcome(work: Any) -> Any:
    """What a call gives, or the kind and the text of its error."""
    try:
        return work()
    except CometError as error:
        return type(error), str(error)


@given(
    st.tuples(NAMES, NAMES, NAMES),
    st.booleans(),
    st.tuples(INT32, INT32 | st.integers(2**70, 2**71), INT32, INT64, INT32),
    PROPERTIES,
    st.binary(max_size=20),
    st.fixed_dictionaries(
        {}, optional={"oneway": st.booleans(), "reconsume_times": st.integers(0, 3),
                      "max_reconsume_times": st.integers(0, 3), "group_home": st.just("1,2")}
    ),
)  # fmt: skip
@example(("g", "T", "b"), False, (0, 0, 0, -(2**63), -1), "TAGS\x01a\x02", b"", {})
def test_the_same_frames(
    names: tuple[str, str, str],
    is_batch: bool,
    numbers: tuple[int, ...],
    properties: str,
    body: bytes,
    unusual: dict[str, Any],
) -> None:
    """A frame has the same bytes whoever writes it, and a refusal the same text."""
    ours = NativeSendTemplate(*names, is_batch=is_batch)
    python = SendRequestTemplate(*names, is_batch=is_batch)
    opaque, queue_id, sys_flag, born_ms, flag = numbers
    values = (opaque, queue_id, sys_flag, born_ms, flag, properties, body)
    wanted = outcome(lambda: python.encode(*values, **unusual))
    assert outcome(lambda: ours.encode(*values, **unusual)) == wanted


@pytest.mark.parametrize("size", [2**24 - 300, 2**24])
def test_a_body_that_is_too_long(size: int) -> None:
    """At the limit of a frame both write it or both refuse it."""
    body = bytes(size)
    values = (1, 0, 0, 0, 0, "WAIT\x01true\x02", body)
    ours, python = NativeSendTemplate("g", "T", "b"), SendRequestTemplate("g", "T", "b")
    assert outcome(lambda: ours.encode(*values)) == outcome(lambda: python.encode(*values))


def test_usual_properties_take_the_native_way() -> None:
    """The core writes what producers send, and stops at quotation marks and line ends."""
    assert native.encode_send_request is not None
    parts = SendRequestTemplate("g", "T", "b").parts()
    for text, is_native in (("TAGS\x01ä\x02", True), ('a"', False), ("a\n", False)):
        frame = native.encode_send_request(parts, 7, 0, 0, 0, 0, text, b"body")
        assert (frame is not None) == is_native


class Token(SendToken):
    """A send that keeps its answer."""

    number: int


@st.composite
def answer_frames(draw: st.DrawFn) -> bytes:
    """One frame: a usual answer, or one that differs in a detail."""
    opaque = draw(st.integers(0, 7))
    queue_id, offset = draw(INT32), draw(INT64)
    handle = draw(st.sampled_from([None, None, "handle"]))
    kind = draw(st.integers(0, 9))
    if kind < 4:
        transaction = draw(st.sampled_from(["7F0000", "", "ü", None]))
        return ENCODER.encode(opaque, 0, queue_id, offset, "0A0B", transaction, handle)
    if kind == 4:
        return ENCODER.encode(opaque, 1, queue_id, offset, "0A0B", "7F")
    if kind == 5:
        return ENCODER.encode(opaque, 0, queue_id, offset, "0A0B", "7F", code=draw(st.just(10)))
    ext = {"msgId": "0A", "queueId": str(queue_id), "queueOffset": str(offset)}
    if kind == 6:
        ext |= draw(
            st.sampled_from(
                [{"queueId": "+1"}, {"queueId": "01"}, {"queueId": "1 "}, {"queueId": "x"},
                 {"queueOffset": "9" * 19}, {"msgId": '"'}, {"more": "ü"}, {"more": "\n"}]
            )
        )  # fmt: skip
        return encode_command(RemotingCommand.response(0, None, ext, opaque=opaque))
    if kind == 7:
        body = draw(st.binary(max_size=3))
        remark = draw(st.sampled_from([None, "why"]))
        return encode_command(RemotingCommand.response(0, remark, ext, body, opaque=opaque))
    if kind == 8:
        return encode_command(RemotingCommand.request(40, ext, b"", opaque=opaque))
    text = draw(
        st.sampled_from(
            [b'{"code":0,"extFields":{"msgId":"a","queueId":"1","queueOffset":"2"},"flag":1,'
             b'"opaque":%d}',
             b'{"opaque":%d,"flag":1,"remark":null,"extFields":{"queueId":"1","msgId":"a",'
             b'"more":1,"queueOffset":"2"},"code":0,"version":493,"language":"GO"}',
             b'{"code":0,"extFields":{"msgId":"a","queueId":1,"queueOffset":2},"flag":1,"opaque":%d}',
             b'{"code":0,"extFields":{"msgId":"a","queueId":"1","queueOffset":"2","queueId":"3"},'
             b'"flag":1,"opaque":%d}',
             b'{"code":0,"extFields":null,"flag":1,"opaque":%d}',
             b'{"code":0,"code":0,"extFields":{"msgId":"a","queueId":"1","queueOffset":"2"},'
             b'"flag":3,"opaque":%d}']
        )
    )  # fmt: skip
    return frame_json(text % opaque, b"")


@given(
    st.lists(answer_frames(), max_size=6),
    st.sets(st.integers(0, 7)),
    st.sets(st.integers(0, 7)),
    st.lists(st.integers(0, 600), max_size=4),
    st.none() | st.tuples(st.integers(0, 2000), st.integers(0, 255)),
)
def test_the_same_answers(
    frames: list[bytes],
    sends: set[int],
    others: set[int],
    cuts: list[int],
    spoilt: tuple[int, int] | None,
) -> None:
    """Each send gets the answer that Python reads, in order, whatever the pieces of the stream."""
    data = bytearray(b"".join(frames))
    if spoilt is not None and data:
        data[spoilt[0] % len(data)] = spoilt[1]
    stops = sorted({*(cut for cut in cuts if cut < len(data)), len(data)})
    pieces = [bytes(data[a:b]) for a, b in zip([0, *stops], stops, strict=False)]
    natively, python = (run(pieces, sends, others - sends, is_native=n) for n in (True, False))
    assert natively == python


def run(pieces: list[bytes], sends: set[int], others: set[int], *, is_native: bool) -> Any:
    """What the tokens of requests with these opaques get, and what waits in the end."""
    take = native.take_send_answers
    assert take is not None
    connection: Connection[RemotingCommand, Any] = Connection(FrameReader())
    for opaque in sends:
        connection.start_request(opaque, Token(opaque), 1.0)
    for opaque in others:
        connection.start_request(opaque, opaque, 1.0)
    got: list[Any] = []
    for piece in pieces:
        data = connection.join_data(piece)
        taken: list[Any] = []
        end = 0
        if is_native:
            end = connection.take_answers(
                lambda data, waiting, taken=taken: take(  # type: ignore[misc]
                    data, waiting, taken, SendToken, PlainSendAnswer
                ),
                data,
            )
        got += [(token.number, answer) for token, answer in taken]
        for command in connection.parse_data(data, end):
            token = connection.take_request(command.opaque) if command.is_response else None
            if type(token) is Token:
                got.append((token.number, read(command)))
            else:
                got.append((token, command.code, command.opaque, command.remark))
    fault = None if connection.fault is None else str(connection.fault)
    return got, fault, sorted(connection._waiting)


def read(command: RemotingCommand) -> Any:
    """The answer in the fast form, or what stands for it."""
    try:
        return decode_plain_answer(command.raw_ext) if command.code == 0 else command.code
    except ValueError:
        return command.code, command.ext_fields if command.has_ext_fields else None


def test_usual_answers_take_the_native_way() -> None:
    """The core takes the answers of our broker to a producer's sends, and no more."""
    assert native.take_send_answers is not None
    frames = [ENCODER.encode(n, 0, 3, n + 100, "0A0B", "7F") for n in (5, 6, 7)]
    data = b"".join(frames)
    waiting = {5: (Token(5), 1.0), 6: (Token(6), 1.0), 7: ("a pull", 1.0)}
    taken: list[Any] = []
    end = native.take_send_answers(data, waiting, taken, SendToken, PlainSendAnswer)
    assert end == len(frames[0]) + len(frames[1])
    assert [(token.number, answer.queue_offset) for token, answer in taken] == [(5, 105), (6, 106)]
    assert list(waiting) == [7]


def test_an_error_leaves_each_request_waiting_or_taken() -> None:
    """If an answer cannot be made, its request still waits, and those before it are taken."""
    assert native.take_send_answers is not None
    data = b"".join(ENCODER.encode(n, 0, 3, n, "0A0B", "7F") for n in (5, 6))
    waiting = {5: (Token(5), 1.0), 6: (Token(6), 1.0)}
    taken: list[Any] = []

    class Fails(PlainSendAnswer):
        def __post_init__(self) -> None:
            if self.queue_offset == 6:
                raise MemoryError

    with pytest.raises(MemoryError):
        native.take_send_answers(data, waiting, taken, SendToken, Fails)
    assert [token.number for token, _ in taken] == [5]
    assert list(waiting) == [6]

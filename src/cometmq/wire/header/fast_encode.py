"""Fast encoders of the hottest frames: sends, pulls, and the answers to both.

Such frames differ in a few numbers only. The constant parts of the JSON header are prepared once,
and joining them with the numbers takes a third of the time that a dictionary and its encoding
take. The bytes are those that ``encode_command`` writes; tests compare the two. Binary headers take
the ordinary way.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from cometmq.errors import LocalProtocolError, ResponseCode
from cometmq.wire.command.codes import LANGUAGE, VERSION, RequestCode
from cometmq.wire.command.command import (
    BINARY,
    BINARY_HEAD_BYTES,
    FRAME_BYTES_MAX,
    FRAME_HEAD,
    encode_json_text,
    encode_response,
    encode_response_parts,
)
from cometmq.wire.header.headers import PullResponseHeader, SendResponseHeader

__all__ = [
    "PullRequestTemplate",
    "SendRequestTemplate",
    "SendResponseEncoder",
    "encode_pull_response",
    "pull_parts",
]

_REQUEST_TAIL: Final = b'"},"flag":%%d,"language":"%b","opaque":%%d,"version":%d}' % (
    LANGUAGE.encode(),
    VERSION,
)
_OPAQUE_MARK: Final = 1_234_567_890
_BINARY_OPAQUE_POSITION: Final = 5
_OFFSET_MARKS: Final = (10**18 + 1, 10**18 + 2, 10**18 + 3)
"""Next, min and max; no flag is so large."""
_RESPONSE_MIDDLE: Final = f'}},"flag":1,"language":"{LANGUAGE}","opaque":'
_TAIL_TEXT: Final = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
_encode_json = msgspec.json.Encoder().encode


@lru_cache(maxsize=256)
def _remark_json(remark: str | None) -> bytes:
    """Return the remark entry of a header; remarks of pulls are a handful of status names."""
    return b"" if remark is None else b',"remark":' + encode_json_text(remark)


class SendResponseEncoder:
    """Writes answers to sends; region and trace switch are the broker's and never change.

    Args:
        barrier: what the messages of all answers have passed (`SendBarrier.level`).
    """

    def __init__(
        self,
        region: str = "DefaultRegion",
        *,
        trace_on: bool = True,
        barrier: str | None = None,
    ) -> None:
        self._region = region
        self._trace_on = trace_on
        self._barrier = barrier
        trace = "true" if trace_on else "false"
        region_json = encode_json_text(region).decode()
        passed = "" if barrier is None else f',"cmqBarrier":"{barrier}"'
        self._prefix = (
            f'{{"code":0,"extFields":{{"MSG_REGION":{region_json},"TRACE_ON":"{trace}"{passed}'
            ',"msgId":"'
        )

    def json_parts(self) -> tuple[bytes, bytes, bytes]:
        """Return what stands before, between and behind the fields of a success in JSON.

        The parts surround message id, queue id, queue offset and transaction id, and then opaque.
        """
        return tuple(part.encode() for part in (self._prefix, _RESPONSE_MIDDLE, _TAIL_TEXT))  # type: ignore[return-value]

    def binary_parts(self) -> tuple[bytes, bytes]:
        """Return how a binary success begins before its opaque, and how it ends behind its ids."""
        frame = self.encode_full(0, BINARY, 0, 0, 0, "", "")
        header = frame[FRAME_HEAD.size :]
        return header[:5], header[header.index(b"\0\x0aMSG_REGION") :]

    def encode(
        self,
        opaque: int,
        serialize_type: int,
        queue_id: int,
        queue_offset: int,
        message_id: str,
        transaction_id: str | None,
        recall_handle: str | None = None,
        code: int = 0,
    ) -> bytes:
        """Return the frame of any answer that says where a message or a batch is stored.

        ``message_id`` is hex, comma-joined for a batch.
        """
        # Ids of clients are hex; anything else takes the way that escapes.
        # Asking bytes for letters and digits takes a quarter of asking text.
        if (
            code
            or serialize_type == BINARY
            or (
                transaction_id
                and not (transaction_id.isascii() and transaction_id.encode().isalnum())
            )
        ):
            return self.encode_full(
                opaque, serialize_type, code, queue_id, queue_offset, message_id, transaction_id,
                recall_handle=recall_handle,
            )  # fmt: skip
        handle = "" if recall_handle is None else f',"recallHandle":"{recall_handle}"'
        transaction = "" if transaction_id is None else f',"transactionId":"{transaction_id}"'
        header = (
            f'{self._prefix}{message_id}","queueId":"{queue_id}","queueOffset":"{queue_offset}"'
            f"{handle}{transaction}{_RESPONSE_MIDDLE}{opaque}{_TAIL_TEXT}"
        ).encode()
        return FRAME_HEAD.pack(4 + len(header), len(header)) + header

    def encode_full(
        self,
        opaque: int,
        serialize_type: int,
        code: int,
        queue_id: int,
        queue_offset: int,
        message_id: str,
        transaction_id: str | None,
        *,
        remark: str | None = None,
        recall_handle: str | None = None,
    ) -> bytes:
        """Return the frame of any answer that says where the message is stored."""
        header = SendResponseHeader(
            message_id,
            queue_id,
            queue_offset,
            transaction_id,
            None,
            recall_handle,
            self._region,
            self._trace_on,
            None if code else self._barrier,
        )
        return encode_response(opaque, serialize_type, code, remark, header.to_ext())

    def encode_refusal(
        self, opaque: int, serialize_type: int, code: int, remark: str | None
    ) -> bytes:
        """Return the frame of a send that was not stored; it carries region and trace switch."""
        ext = {"MSG_REGION": self._region, "TRACE_ON": "true" if self._trace_on else "false"}
        return encode_response(opaque, serialize_type, code, remark, ext)


def encode_pull_response(
    opaque: int,
    serialize_type: int,
    code: int,
    remark: str | None,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
    chunks: Sequence[bytes | memoryview] = (),
    body_bytes: int = 0,
    *,
    suggest_which_broker_id: int = 0,
    topic_sys_flag: int = 0,
    group_sys_flag: int = 0,
) -> list[bytes | memoryview]:
    """Return the buffers of a pull answer: head, then the chunks, body_bytes long together."""
    if serialize_type == BINARY:
        ext = PullResponseHeader(
            suggest_which_broker_id,
            next_begin_offset,
            min_offset,
            max_offset,
            None,
            topic_sys_flag,
            group_sys_flag,
        ).to_ext()
        return encode_response_parts(opaque, serialize_type, code, remark, ext, chunks)
    header = (
        b'{"code":%d,"extFields":{"groupSysFlag":"%d","maxOffset":"%d","minOffset":"%d"'
        b',"nextBeginOffset":"%d","suggestWhichBrokerId":"%d","topicSysFlag":"%d"},"flag":1'
        b',"language":"PYTHON","opaque":%d%b,"serializeTypeCurrentRPC":"JSON","version":%d}'
        % (
            code,
            group_sys_flag,
            max_offset,
            min_offset,
            next_begin_offset,
            suggest_which_broker_id,
            topic_sys_flag,
            opaque,
            _remark_json(remark),
            VERSION,
        )
    )
    header_bytes = len(header)
    length = 4 + header_bytes + body_bytes
    _check_length(length)
    head = FRAME_HEAD.pack(length, header_bytes) + header
    return [head, *chunks]


def pull_parts(serialize_type: int, topic_sys_flag: int, group_sys_flag: int) -> tuple[bytes, ...]:
    """Return the constant parts of the headers of answers to pulls that found messages.

    A JSON header has the queue offsets ``max``, ``min`` and ``next`` and the opaque between its
    five parts.  A binary header has the opaque behind the first part and the length of its ext
    fields behind the second; ``next``, ``min`` and ``max``, each behind its length, follow the
    third to fifth part.
    """
    (head,) = encode_pull_response(
        _OPAQUE_MARK,
        serialize_type,
        ResponseCode.SUCCESS,
        "FOUND",
        *_OFFSET_MARKS,
        topic_sys_flag=topic_sys_flag,
        group_sys_flag=group_sys_flag,
    )
    header = bytes(head)[FRAME_HEAD.size :]
    marks = [b"%d" % mark for mark in _OFFSET_MARKS]
    if serialize_type != BINARY:
        # Only the opaque is a number without quotes.
        *parts, start, end = _split(header, [marks[2], marks[1], marks[0], b":%d" % _OPAQUE_MARK])
        return *parts, start + b":", end
    first, *parts = _split(header, [len(mark).to_bytes(4, "big") + mark for mark in marks])
    remark_end = BINARY_HEAD_BYTES + len("FOUND")
    return (
        first[:_BINARY_OPAQUE_POSITION],
        first[_BINARY_OPAQUE_POSITION + 4 : remark_end],
        first[remark_end + 4 :],
        *parts,
    )


def _split(text: bytes, marks: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return what stands before, between and behind marks."""
    parts = []
    for mark in marks:
        part, text = text.split(mark)
        parts.append(part)
    return (*parts, text)


def _check_length(length: int) -> None:
    if length + 4 > FRAME_BYTES_MAX:
        raise LocalProtocolError(
            f"a frame of {length + 4} bytes is longer than {FRAME_BYTES_MAX}, which peers refuse"
        )


class SendRequestTemplate:
    """Writes sends of one producer group to one topic on one broker, with the short names."""

    __slots__ = ("_constant", "_layout")

    def __init__(
        self,
        producer_group: str,
        topic: str,
        broker_name: str,
        *,
        default_topic: str = "TBW102",
        default_topic_queue_nums: int = 4,
        is_batch: bool = False,
        is_reply: bool = False,
    ) -> None:
        code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
        if is_reply:
            code = RequestCode.SEND_REPLY_MESSAGE_V2
        constant = b'{"code":%d,"extFields":{"a":%b,"b":%b,"c":%b,"d":"%d","k":"false","m":"%b"' % (
            code,
            encode_json_text(producer_group),
            encode_json_text(topic),
            encode_json_text(default_topic),
            default_topic_queue_nums,
            b"true" if is_batch else b"false",
        )
        constant += b',"n":' + encode_json_text(broker_name)
        self._constant = constant
        # The percent signs that are not doubled are the fields of one send.
        self._layout = (
            constant.replace(b"%", b"%%")
            + b',"e":"%d","f":"%d","g":"%d","h":"%d","i":%b%b,"j":"%d'
            + _REQUEST_TAIL
        )

    def parts(self) -> tuple[bytes, bytes, bytes]:
        """Return what stands in a header before the queue id, and around the opaque at its end."""
        before, behind = (_REQUEST_TAIL % (0, _OPAQUE_MARK)).split(b"%d" % _OPAQUE_MARK)
        return self._constant, before, behind

    def encode(
        self,
        opaque: int,
        queue_id: int,
        sys_flag: int,
        born_timestamp_ms: int,
        flag: int,
        properties: str,
        body: bytes,
        *,
        oneway: bool = False,
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
        group_home: str | None = None,
    ) -> bytes:
        """Return the frame of one send; ``properties`` is the property string.

        ``group_home`` is the home of a message group, as epoch and hash (``core.growing``).

        Raises:
            LocalProtocolError: the frame is too long, or the property string is not Unicode.
        """
        try:
            properties_json = _encode_json(properties)
        except UnicodeEncodeError:
            raise LocalProtocolError("the properties hold half a surrogate pair") from None
        extra = b"" if max_reconsume_times is None else b',"l":"%d"' % max_reconsume_times
        if group_home is not None:
            extra += b',"cmqGroup":"%b"' % group_home.encode()
        header = self._layout % (
            queue_id,
            sys_flag,
            born_timestamp_ms,
            flag,
            properties_json,
            extra,
            reconsume_times,
            2 if oneway else 0,
            opaque,
        )
        header_bytes = len(header)
        length = 4 + header_bytes + len(body)
        if length + 4 > FRAME_BYTES_MAX:
            _check_length(length)
        return b"%b%b%b" % (FRAME_HEAD.pack(length, header_bytes), header, body)


class PullRequestTemplate:
    """Writes pulls of one consumer group from one queue."""

    __slots__ = ("_layout",)

    def __init__(
        self,
        consumer_group: str,
        topic: str,
        queue_id: int,
        *,
        expression_type: str = "TAG",
        subscription: str | None = None,
        broker_name: str | None = None,
        code: int = RequestCode.PULL_MESSAGE,
    ) -> None:
        parts = [
            b'{"code":%d,"extFields":{"consumerGroup":%b,"expressionType":%b,"topic":%b'
            % (
                code,
                encode_json_text(consumer_group),
                encode_json_text(expression_type),
                encode_json_text(topic),
            ),
            b',"queueId":"%d"' % queue_id,
        ]
        if subscription is not None:
            parts.append(b',"subscription":' + encode_json_text(subscription))
        if broker_name is not None:
            parts.append(b',"bname":' + encode_json_text(broker_name))
        self._layout = (
            b"".join(parts).replace(b"%", b"%%")
            + b',"commitOffset":"%d","maxMsgNums":"%d","queueOffset":"%d","subVersion":"%d"'
            b',"suspendTimeoutMillis":"%d","maxMsgBytes":"%d","sysFlag":"%d' + _REQUEST_TAIL
        )

    def encode(
        self,
        opaque: int,
        queue_offset: int,
        max_msg_nums: int,
        sys_flag: int,
        commit_offset: int,
        suspend_timeout_ms: int,
        sub_version: int,
        max_msg_bytes: int = 2147483647,
    ) -> bytes:
        """Return the frame of one pull; sys_flag holds the PULL_ bits of model.flags."""
        header = self._layout % (
            commit_offset,
            max_msg_nums,
            queue_offset,
            sub_version,
            suspend_timeout_ms,
            max_msg_bytes,
            sys_flag,
            0,
            opaque,
        )
        header_bytes = len(header)
        return FRAME_HEAD.pack(4 + header_bytes, header_bytes) + header

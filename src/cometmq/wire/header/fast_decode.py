"""Fast decoders of the hottest headers: sends, their answers, and ends of transactions.

They decode only the fields that are needed for every message, either in one pass with the whole
JSON header (`SendCommand`, `EndCommand`) or from the raw ext fields of a command.
What they do not decode (binary headers, unusual numbers, missing fields) is left to the typed
headers, which explain what is wrong.
"""

from typing import ClassVar, Final

import msgspec

from cometmq.wire.command.command import FLAG_ONEWAY, RemotingCommand
from cometmq.wire.header.header import Int32, Int64, wire_names
from cometmq.wire.header.headers import EndTransactionHeader

__all__ = [
    "BINARY_SEND_START",
    "END_COMMAND_START",
    "SEND_COMMAND_START",
    "EndCommand",
    "PlainSend",
    "PlainSendAnswer",
    "PlainSendLong",
    "SendCommand",
    "decode_end_command",
    "decode_plain_answer",
    "decode_send_command",
    "plain_send_of",
]

SEND_COMMAND_START: Final = b'{"code":310,"'
"""How the JSON header of a SEND_MESSAGE_V2 begins: Java sorts its keys, and Go writes code first
too."""
END_COMMAND_START: Final = b'{"code":37,"'
"""How the JSON header of an END_TRANSACTION begins."""
BINARY_SEND_START: Final = (310).to_bytes(2, "big")
"""How the binary header of a SEND_MESSAGE_V2 begins."""


class PlainSend(
    msgspec.Struct,
    gc=False,
    rename={
        "topic": "b",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp_ms": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "batch": "m",
        "group_home": "cmqGroup",
    },
):
    """A send under the short names of SEND_MESSAGE_V2.

    ``group_home`` is our own field, set by a send by message group (``core.growing``).
    """

    topic: str
    queue_id: Int32
    sys_flag: Int32
    born_timestamp_ms: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    batch: bool = False
    group_home: str = ""


class PlainSendLong(PlainSend, rename=wire_names(group_home="cmqGroup")):
    """A send under the long names of SEND_MESSAGE."""

    topic: str
    queue_id: Int32
    sys_flag: Int32
    born_timestamp_ms: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    batch: bool = False
    group_home: str = ""


class SendCommand(msgspec.Struct, gc=False, rename={"ext": "extFields", "serialize_type": "-type"}):
    """A SEND_MESSAGE_V2 decoded in one pass, for servers; `framing.full_command` decodes all of it.

    The reader sets ``header`` and ``body``, whatever a peer wrote there. The other attributes are
    those of a `RemotingCommand` that answering needs.
    """

    code: int
    ext: PlainSend
    opaque: int = 0
    flag: int = 0
    header: bytes = b""
    body: bytes = b""
    serialize_type: int = 0


class EndCommand(msgspec.Struct, gc=False, rename={"ext": "extFields"}):
    """An END_TRANSACTION decoded in one pass, for servers.

    It has the attributes of a `RemotingCommand` that answering needs.
    """

    serialize_type: ClassVar[int] = 0
    code: int
    ext: EndTransactionHeader
    opaque: Int32 = 0
    flag: Int32 = 0

    @property
    def is_oneway(self) -> bool:
        """Whether flag bit 1 is set: never answer."""
        return self.flag & FLAG_ONEWAY != 0


class PlainSendAnswer(
    msgspec.Struct,
    gc=False,
    rename=wire_names(),
):
    """The fields of `headers.SendResponseHeader` that a producer reads."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    recall_handle: str | None = None
    cmq_barrier: str | None = None


decode_plain_answer: Final = msgspec.json.Decoder(PlainSendAnswer, strict=False).decode
decode_end_command: Final = msgspec.json.Decoder(EndCommand, strict=False).decode
decode_send_command: Final = msgspec.json.Decoder(SendCommand, strict=False).decode
_PLAIN_SEND_DECODERS: Final = {
    kind: msgspec.json.Decoder(kind, strict=False).decode for kind in (PlainSend, PlainSendLong)
}


def plain_send_of(command: RemotingCommand, kind: type[PlainSend]) -> PlainSend:
    """Return the fields of a send, in either encoding; ``kind`` says under which names they are.

    Raises:
        msgspec.MsgspecError, ValueError, RecursionError: a field is missing or wrong.
    """
    if command.decoded_ext is not None:
        return msgspec.convert(command.decoded_ext, kind, strict=False)
    return _PLAIN_SEND_DECODERS[kind](command.raw_ext)

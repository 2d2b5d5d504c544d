"""Fast decoders of the hottest headers: sends, their answers, and ends of transactions.

They decode only the fields that are needed for every message, either in one pass with the whole
JSON header (`SendCommand`, `EndCommand`) or from the raw ext fields of a command. What they do not
decode (binary headers, unusual numbers, missing fields) is left to the typed headers, which
explain what is wrong.
"""

from typing import ClassVar, Final

import msgspec

from cometmq.wire.command.command import FLAG_ONEWAY
from cometmq.wire.header.header import Int32, Int64, wire_names
from cometmq.wire.header.headers import EndTransactionHeader

__all__ = [
    "END_COMMAND_START",
    "SEND_COMMAND_START",
    "EndCommand",
    "PlainSend",
    "PlainSendAnswer",
    "SendCommand",
    "decode_end_command",
    "decode_plain_answer",
    "decode_plain_send",
    "decode_plain_send_long",
    "decode_send_command",
]

SEND_COMMAND_START: Final = b'{"code":310,"extFields":{"'
"""How the JSON header of a SEND_MESSAGE_V2 begins from every client that sorts its keys."""
END_COMMAND_START: Final = b'{"code":37,"extFields":{"'
"""How the JSON header of an END_TRANSACTION begins."""


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


class _PlainSendLong(PlainSend, rename=wire_names(group_home="cmqGroup")):
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


class SendCommand(msgspec.Struct, gc=False, rename={"ext": "extFields"}):
    """A SEND_MESSAGE_V2 decoded in one pass, for servers; `framing.full_command` decodes all of it.

    The reader sets ``header`` and ``body``, whatever a peer wrote there. The other attributes are
    those of a `RemotingCommand` that answering needs.
    """

    serialize_type: ClassVar[int] = 0
    code: int
    ext: PlainSend
    opaque: int = 0
    flag: int = 0
    header: bytes = b""
    body: bytes = b""


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


decode_plain_answer: Final = msgspec.json.Decoder(PlainSendAnswer, strict=False).decode
decode_end_command: Final = msgspec.json.Decoder(EndCommand, strict=False).decode
decode_send_command: Final = msgspec.json.Decoder(SendCommand, strict=False).decode
decode_plain_send: Final = msgspec.json.Decoder(PlainSend, strict=False).decode
decode_plain_send_long: Final = msgspec.json.Decoder(_PlainSendLong, strict=False).decode

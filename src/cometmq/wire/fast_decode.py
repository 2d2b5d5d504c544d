"""The fields of a send that a broker needs for every message, and nothing else.

Job: decode them straight from the raw ext fields of a JSON header; fields without use on that way
are skipped by the decoder without making objects of them.  Whatever does not decode here (binary
headers, unusual numbers, missing fields) takes the way of `headers.SendMessageHeader`, which
explains.
"""

from typing import Final

import msgspec

from cometmq.wire.header import Int32, Int64, wire_names

__all__ = ["PlainSend", "decode_plain_send", "decode_plain_send_long"]


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
    },
):
    """A send under the short names of SEND_MESSAGE_V2."""

    topic: str
    queue_id: Int32
    sys_flag: Int32
    born_timestamp_ms: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    batch: bool = False


class _PlainSendLong(PlainSend, rename=wire_names()):
    """The same under the long names of SEND_MESSAGE."""

    topic: str
    queue_id: Int32
    sys_flag: Int32
    born_timestamp_ms: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    batch: bool = False


decode_plain_send: Final = msgspec.json.Decoder(PlainSend, strict=False).decode
decode_plain_send_long: Final = msgspec.json.Decoder(_PlainSendLong, strict=False).decode

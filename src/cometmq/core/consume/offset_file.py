"""The local offset file of broadcasting consumers, in Java's own format.

The module encodes and decodes the text of ``offsets.json`` and touches no files.  A Java client
reads our file and we read its file.

Format (``OffsetSerializeWrapper`` through fastjson; docs/internals/delivery.md#consumer-offsets):
an object whose keys are objects without quotes, indented by tabs, with one field per line::

    {
    \t"offsetTable":{{
    \t\t\t"brokerName":"b",
    \t\t\t"queueId":0,
    \t\t\t"topic":"T"
    \t\t}:10
    \t}
    }
"""

from collections.abc import Mapping

from cometmq.errors import CodecError
from cometmq.model import MessageQueue
from cometmq.model.offsets import ConsumerOffset
from cometmq.wire.command.command import encode_json_text
from cometmq.wire.command.fastjson import loads_object, queue_from_json

__all__ = ["decode_offset_file", "encode_offset_file"]


def encode_offset_file(offsets: Mapping[MessageQueue, ConsumerOffset]) -> str:
    """The file's text, with the queues sorted."""
    entries: list[str] = []
    for queue in sorted(offsets):
        entries.append(
            f'{{\n\t\t\t"brokerName":{encode_json_text(queue.broker_name).decode()},'
            f'\n\t\t\t"queueId":{queue.queue_id},'
            f'\n\t\t\t"topic":{encode_json_text(queue.topic).decode()}\n\t\t}}:{offsets[queue]}'
        )
    return '{\n\t"offsetTable":{' + ",".join(entries) + "\n\t}\n}"


def decode_offset_file(text: bytes) -> dict[MessageQueue, ConsumerOffset]:
    """The offsets of a file.

    Raises:
        CodecError: the text is not that of an offset file.
    """
    table = loads_object(text, "offsets.json").get("offsetTable", {})
    if not isinstance(table, Mapping):
        raise CodecError("offsets.json: offsetTable is not an object")
    offsets: dict[MessageQueue, ConsumerOffset] = {}
    for key, value in table.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise CodecError(f"offsets.json: the offset of {key} is {value!r:.50}, not a number")
        offsets[queue_from_json(key)] = ConsumerOffset(value)
    return offsets

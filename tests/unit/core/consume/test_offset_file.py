"""The broadcasting consumer's offset file, byte for byte as Java writes it."""

import pytest

from cometmq.core.consume.offset_file import decode_offset_file, encode_offset_file
from cometmq.errors import CodecError
from cometmq.model import MessageQueue
from cometmq.model.offsets import ConsumerOffset

# docs/internals/delivery.md#consumer-offsets, verified there by running fastjson.
JAVA_FILE = """{
\t"offsetTable":{{
\t\t\t"brokerName":"b",
\t\t\t"queueId":0,
\t\t\t"topic":"T"
\t\t}:10,{
\t\t\t"brokerName":"b",
\t\t\t"queueId":1,
\t\t\t"topic":"T"
\t\t}:11
\t}
}"""
OFFSETS = {
    MessageQueue("T", "b", 0): ConsumerOffset(10),
    MessageQueue("T", "b", 1): ConsumerOffset(11),
}


def test_java_file_both_ways() -> None:
    """We write what fastjson writes and read it back."""
    assert encode_offset_file(OFFSETS) == JAVA_FILE
    assert decode_offset_file(JAVA_FILE.encode()) == OFFSETS


def test_other_spellings_are_read() -> None:
    """Compact text, escaped keys, and a file without offsets."""
    compact = JAVA_FILE.replace("\n", "").replace("\t", "")
    assert decode_offset_file(compact.encode()) == OFFSETS
    escaped = (
        '{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":0,\\"topic\\":\\"T\\"}":10}}'
    )
    assert decode_offset_file(escaped.encode()) == {MessageQueue("T", "b", 0): 10}
    assert decode_offset_file(b"{}") == {}
    assert decode_offset_file(encode_offset_file({}).encode()) == {}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"offsetTable":5}',
        b'{"offsetTable":{"x":1}}',
        JAVA_FILE[:60].encode(),
        JAVA_FILE.replace("10", '"ten"').encode(),
    ],
)
def test_damage_is_one_documented_error(text: bytes) -> None:
    """A file cut in half is CodecError, so that the ``.bak`` is tried."""
    with pytest.raises(CodecError):
        decode_offset_file(text)

"""Index file: a hash table on disk, from message keys to physical offsets in the commit log.

File = 40-byte head + slot_count * 4 + entry_count * 20 (``IndexFile``, ``IndexHeader``;
docs/internals/store.md#index-file), big-endian::

    head  0          8          16         24         32     36     40
          |begin_ms  |end_ms    |begin_phy |end_phy   |slots |next  |
    slot  newest entry number of the bucket, 0 = empty
    entry 0      4                12     16     20
          |hash  |physical_offset |delta |prev  |

``next`` is the number of the next entry and starts at 1; entry 0 is never used.  ``delta`` is in
seconds after begin_ms.  5.4 also indexes the tag, under ``topic#T#tag``.
"""

import struct
from typing import Final, NamedTuple

from cometmq.errors import CodecError

__all__ = [
    "INDEX_COUNT_DEFAULT",
    "INDEX_ENTRY",
    "INDEX_ENTRY_BYTES",
    "INDEX_HEADER",
    "INDEX_HEADER_BYTES",
    "INDEX_SLOT",
    "INDEX_SLOT_BYTES",
    "SLOT_COUNT_DEFAULT",
    "IndexHeader",
    "decode_index_header",
    "entry_position",
    "index_file_bytes",
    "index_key",
    "index_tag_key",
    "slot_position",
]

INDEX_HEADER: Final = struct.Struct(
    ">"
    "q"  # begin_timestamp_ms: store time of the first message
    "q"  # end_timestamp_ms: store time of the last message
    "q"  # begin_physical_offset
    "q"  # end_physical_offset
    "i"  # slot_count: slots in use
    "i"  # index_count: number of the next entry
)
INDEX_HEADER_BYTES: Final = 40
INDEX_SLOT: Final = struct.Struct(">i")
INDEX_SLOT_BYTES: Final = 4
INDEX_ENTRY: Final = struct.Struct(
    ">"
    "i"  # key_hash
    "q"  # physical_offset
    "i"  # delta_s: seconds after begin_timestamp_ms
    "i"  # previous entry of the bucket, 0 = end
)
INDEX_ENTRY_BYTES: Final = 20
SLOT_COUNT_DEFAULT: Final = 5_000_000
INDEX_COUNT_DEFAULT: Final = 20_000_000


class IndexHeader(NamedTuple):
    """Head of an index file."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_physical_offset: int
    end_physical_offset: int
    slot_count: int
    index_count: int


def index_key(topic: str, key: str) -> str:
    """Return the text that is hashed for a key or a unique id of a topic."""
    return f"{topic}#{key}"


def index_tag_key(topic: str, tags: str) -> str:
    """Return the text that is hashed for a tag of a topic (RocketMQ 5.4)."""
    return f"{topic}#T#{tags}"


def index_file_bytes(slot_count: int, index_count: int) -> int:
    """Return the size of an index file."""
    return INDEX_HEADER_BYTES + slot_count * INDEX_SLOT_BYTES + index_count * INDEX_ENTRY_BYTES


def slot_position(slot: int) -> int:
    """Return the byte of a slot inside the file."""
    return INDEX_HEADER_BYTES + slot * INDEX_SLOT_BYTES


def entry_position(number: int, slot_count: int) -> int:
    """Return the byte of an entry inside the file."""
    return INDEX_HEADER_BYTES + slot_count * INDEX_SLOT_BYTES + number * INDEX_ENTRY_BYTES


def decode_index_header(buffer: bytes | bytearray | memoryview) -> IndexHeader:
    """Return the head of an index file.

    Raises:
        CodecError: it is cut short.
    """
    if len(buffer) < INDEX_HEADER_BYTES:
        raise CodecError(f"index head needs {INDEX_HEADER_BYTES} bytes, got {len(buffer)}")
    return IndexHeader._make(INDEX_HEADER.unpack_from(buffer, 0))

"""The store's ``checkpoint`` file: the store time up to which each part is safely on disk.

4096 bytes, the first 40 used, big-endian (``StoreCheckpoint``;
docs/internals/store.md#checkpoint)::

    0             8            16          24                    32               40
    |physic_ms    |logics_ms   |index_ms   |master_flushed_offset|confirm_offset  | zeros
"""

import struct
from typing import Final, NamedTuple

from cometmq.errors import CodecError

__all__ = ["CHECKPOINT_BYTES", "Checkpoint", "decode_checkpoint", "encode_checkpoint"]

CHECKPOINT_BYTES: Final = 4096
_LAYOUT: Final = struct.Struct(">qqqqq")
# Upstream steps back three seconds, because the parts are flushed one after the other.
_SAFETY_MS: Final = 3000


class Checkpoint(NamedTuple):
    """Store times in ms of the last message known to be on disk, and two replication offsets."""

    physic_timestamp_ms: int = 0
    logics_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0

    @property
    def min_timestamp_ms(self) -> int:
        """The time from which abnormal recovery must read the log again."""
        return max(0, min(self.physic_timestamp_ms, self.logics_timestamp_ms) - _SAFETY_MS)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the 4096 bytes of the file."""
    return _LAYOUT.pack(*checkpoint).ljust(CHECKPOINT_BYTES, b"\0")


def decode_checkpoint(raw: bytes | bytearray | memoryview) -> Checkpoint:
    """Return the checkpoint.

    Raises:
        CodecError: fewer than 40 bytes are there.
    """
    if len(raw) < _LAYOUT.size:
        raise CodecError(f"checkpoint needs {_LAYOUT.size} bytes, got {len(raw)}")
    return Checkpoint._make(_LAYOUT.unpack_from(raw, 0))

"""The timer files of a Java broker: units of the timer log, and the file ``timercheck``.

Unit of the timer log, 52 bytes, big-endian (``TimerLog``, ``TimerMessageStore``;
docs/internals/store.md#timer-log)::

    0    4              12    16            24        28              36   40         44       52
    |size|previous_unit |magic|write_time_ms|delay_ms |physical_offset|size|topic hash|reserved|

A unit stands for one message of ``rmq_sys_wheel_timer``, which is due (or is put back, when the
ROLL bit is set) in the slot `write_time_ms + delay_ms`.  A file ends with a blank: the bytes that
remain, 8 zeros and MAGIC_TIMER_BLANK.

``timercheck``, 4096 bytes, the first 56 used (``TimerCheckpoint``; also the wire body of
GET_TIMER_CHECK_POINT)::

    0             8               16            24                   32                    56
    |read_time_ms |log_flush_pos  |queue_offset |master_queue_offset |data version 3 x 8   | zeros
"""

import struct
from typing import Final, NamedTuple

from cometmq.errors import CodecError

__all__ = [
    "MAGIC_TIMER_BLANK",
    "TIMER_CHECKPOINT_BODY_BYTES",
    "TIMER_DEFAULT",
    "TIMER_DELETE",
    "TIMER_LOG_UNIT",
    "TIMER_LOG_UNIT_BYTES",
    "TIMER_ROLL",
    "TimerCheckpoint",
    "TimerLogUnit",
    "decode_timer_checkpoint",
    "encode_timer_checkpoint",
    "encode_timer_log_blank",
]

TIMER_LOG_UNIT: Final = struct.Struct(
    ">"
    "i"  # size: 52
    "q"  # previous unit of the same slot, -1 for none
    "i"  # magic bits: TIMER_DEFAULT, TIMER_ROLL, TIMER_DELETE
    "q"  # write_time_ms
    "i"  # delay_ms
    "q"  # physical_offset of the message
    "i"  # size of the message
    "i"  # hash of its real topic
    "q"  # reserved
)
TIMER_LOG_UNIT_BYTES: Final = 52
TIMER_DEFAULT: Final = 1
TIMER_ROLL: Final = 2
"""Due beyond the wheel's window: put back into the timer topic when the slot is reached."""
TIMER_DELETE: Final = 4
"""The message recalls another one of the same slot and is not delivered itself."""
MAGIC_TIMER_BLANK: Final = -875286124  # 0xCBD43194
_MAGIC_MASK: Final = 0xF
_CHECKPOINT: Final = struct.Struct(">qqqqqqq")
TIMER_CHECKPOINT_BODY_BYTES: Final = _CHECKPOINT.size
_CHECKPOINT_BYTES: Final = 4096


class TimerLogUnit(NamedTuple):
    """One unit of the timer log."""

    size: int
    previous: int
    magic: int
    write_time_ms: int
    delay_ms: int
    physical_offset: int
    message_bytes: int
    topic_hash: int
    reserved: int

    @property
    def is_valid(self) -> bool:
        """Whether Java's recovery takes it for a unit."""
        return self.size == TIMER_LOG_UNIT_BYTES and self.magic | _MAGIC_MASK == _MAGIC_MASK

    @property
    def slot_time_ms(self) -> int:
        """The time of the wheel's slot."""
        return self.write_time_ms + self.delay_ms


class TimerCheckpoint(NamedTuple):
    """How far the wheel was read, the timer log flushed and the timer topic taken up."""

    read_time_ms: int = 0
    """Slots from here on are not delivered yet."""
    log_flush_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0


def encode_timer_log_blank(remaining: int) -> bytes:
    """Return the 16 bytes behind the last unit of a full file."""
    return struct.pack(">iqi", remaining, 0, MAGIC_TIMER_BLANK)


def encode_timer_checkpoint(checkpoint: TimerCheckpoint) -> bytes:
    """Return the 4096 bytes of the file."""
    return _CHECKPOINT.pack(*checkpoint).ljust(_CHECKPOINT_BYTES, b"\0")


def decode_timer_checkpoint(raw: bytes | bytearray | memoryview) -> TimerCheckpoint:
    """Return the checkpoint.

    Raises:
        CodecError: fewer than 56 bytes are there.
    """
    if len(raw) < _CHECKPOINT.size:
        raise CodecError(f"timercheck needs {_CHECKPOINT.size} bytes, got {len(raw)}")
    return TimerCheckpoint._make(_CHECKPOINT.unpack_from(raw, 0))

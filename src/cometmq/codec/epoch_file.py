"""The list of a log's epochs as text: RocketMQ's file ``epochFileCheckpoint``.

::

    count            lines that follow the CRC
    CRC-32 of these lines with their ends, without its top bit; 0: unchecked
    epoch-physical offset of its first byte          one line each, smallest first

Source: EpochFileCache and CheckpointFile of RocketMQ 5.4.0, and files that it wrote.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from cometmq.errors import CodecError

__all__ = ["Epoch", "decode_epochs", "encode_epochs"]

_CRC_MASK: Final = 0x7FFFFFFF


class Epoch(NamedTuple):
    """A mastership in a log: its number, and the physical offset of its first byte."""

    number: int
    start: int


def encode_epochs(epochs: Iterable[Epoch]) -> bytes:
    """Return the file of these epochs."""
    lines = [f"{number}-{start}\n" for number, start in epochs]
    text = "".join(lines).encode()
    return f"{len(lines)}\n{zlib.crc32(text) & _CRC_MASK}\n".encode() + text


def decode_epochs(data: bytes) -> tuple[Epoch, ...]:
    """Return the epochs of a file.

    Raises:
        CodecError: it is cut or spoilt.
    """
    count_line, _, rest = data.partition(b"\n")
    crc_line, _, text = rest.partition(b"\n")
    try:
        count, crc = int(count_line), int(crc_line)
        pairs = [line.split(b"-", 1) for line in text.splitlines()]
        epochs = tuple(Epoch(int(number), int(start)) for number, start in pairs)
    except ValueError as error:
        raise CodecError(f"a list of epochs does not decode: {error}") from error
    if count != len(epochs) or (crc and crc != zlib.crc32(text) & _CRC_MASK):
        raise CodecError(f"a list of epochs is spoilt: {count} entries and CRC {crc} are announced")
    return epochs

"""Body compression and its sysFlag bits (docs/internals/protocol.md#system-flags).

Bit 0 says "compressed"; bits 8-10 name the algorithm: 1 LZ4 frame, 2 zstd frame, 3 zlib, and 0
zlib as well, from clients that know no other.  lz4 and zstandard are imported on first use, so that
a process without such messages does not load them.
"""

import zlib
from typing import Final

from cometmq.errors import CodecError, LocalProtocolError

__all__ = [
    "COMPRESSED_FLAG",
    "COMPRESSION_LEVEL_DEFAULT",
    "COMPRESSION_TYPE_MASK",
    "DECOMPRESSED_BYTES_MAX",
    "LZ4",
    "ZLIB",
    "ZSTD",
    "compress",
    "compression_flag",
    "decompress",
]

COMPRESSED_FLAG: Final = 0x1
COMPRESSION_TYPE_MASK: Final = 0x700
_TYPE_SHIFT: Final = 8
LZ4: Final = "LZ4"
ZSTD: Final = "ZSTD"
ZLIB: Final = "ZLIB"
_TYPE_OF: Final = {LZ4: 1, ZSTD: 2, ZLIB: 3}
_NAME_OF: Final = {0: ZLIB, 1: LZ4, 2: ZSTD, 3: ZLIB}
COMPRESSION_LEVEL_DEFAULT: Final = 5
# A 4 MiB message may expand a thousandfold; a body that expands further is an attack on memory.
DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024


def compression_flag(kind: str) -> int:
    """Return the sysFlag bits of a compression type: ZLIB 0x301, LZ4 0x101, ZSTD 0x201.

    Raises:
        LocalProtocolError: the type is unknown.
    """
    try:
        return COMPRESSED_FLAG | (_TYPE_OF[kind] << _TYPE_SHIFT)
    except KeyError:
        raise LocalProtocolError(
            f"compression type {kind!r} is unknown; choose one of {', '.join(_TYPE_OF)}"
        ) from None


def compress(
    body: bytes, kind: str = ZLIB, level: int = COMPRESSION_LEVEL_DEFAULT
) -> tuple[bytes, int]:
    """Return the compressed body and the sysFlag bits to set."""
    flag = compression_flag(kind)
    if kind == ZLIB:
        return zlib.compress(body, level), flag
    if kind == LZ4:
        import lz4.frame  # type: ignore[import-untyped]

        return bytes(lz4.frame.compress(body, compression_level=level)), flag
    import zstandard

    return zstandard.ZstdCompressor(level=level).compress(body), flag


def decompress(body: bytes, sys_flag: int, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return the plain body; a body without the compressed bit comes back unchanged.

    Raises:
        CodecError: the type is unknown, the data are broken or cut, or expand too far.
    """
    if not sys_flag & COMPRESSED_FLAG:
        return body
    kind = _NAME_OF.get((sys_flag & COMPRESSION_TYPE_MASK) >> _TYPE_SHIFT)
    if kind is None:
        raise CodecError(f"sysFlag {sys_flag:#x} names an unknown compression type")
    try:
        if kind == ZLIB:
            plain, is_complete = _inflate(body, limit_bytes)
        elif kind == LZ4:
            plain, is_complete = _decompress_lz4(body, limit_bytes)
        else:
            plain, is_complete = _decompress_zstd(body, limit_bytes)
    except CodecError:
        raise
    except Exception as error:
        # Three libraries raise three unrelated types of error for the same fault.
        raise CodecError(f"{kind} body of {len(body)} bytes is broken: {error}") from None
    if len(plain) > limit_bytes:
        raise CodecError(f"{kind} body of {len(body)} bytes expands beyond {limit_bytes} bytes")
    if not is_complete:
        raise CodecError(f"{kind} body of {len(body)} bytes ends too early")
    return plain


def _inflate(body: bytes, limit_bytes: int) -> tuple[bytes, bool]:
    stream = zlib.decompressobj()
    plain = stream.decompress(body, limit_bytes + 1)
    return plain, stream.eof


def _decompress_lz4(body: bytes, limit_bytes: int) -> tuple[bytes, bool]:
    import lz4.frame

    stream = lz4.frame.LZ4FrameDecompressor()
    plain = bytes(stream.decompress(body, max_length=limit_bytes + 1))
    return plain, bool(stream.eof)


def _decompress_zstd(body: bytes, limit_bytes: int) -> tuple[bytes, bool]:
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=False) as stream:
        plain = stream.read(limit_bytes + 1)
    if len(plain) > limit_bytes:
        return plain, True
    # The reader returns what it has when the input ends early, so ask the strict interface.
    size = zstandard.frame_content_size(body)
    if size >= 0:
        return plain, len(plain) == size
    strict = zstandard.ZstdDecompressor().decompressobj()
    strict.decompress(body)
    return plain, strict.eof

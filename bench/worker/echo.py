"""The echo server: it parses and answers the same frames as a broker and does nothing else.

It uses the broker's `FrameReader` and frame writer, msgspec, uvloop and one write per wake-up.  It
renders answers from a template, and its only state is a counter.  So the difference between its
rate and a broker's rate is the cost of routing, checking and storing. Pulls are answered with 32
records rendered once. Run as `python -m bench.worker.echo --port 0`; it prints `echo ready
HOST:PORT` and ends on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import struct
import zlib
from collections.abc import Sequence
from typing import Final, cast

import msgspec

from cometmq.net.loop import run, wait_for_stop_signal
from cometmq.net.network import TcpNetwork
from cometmq.wire.command.command import frame_json
from cometmq.wire.frame.framing import FrameReader

__all__ = ["EchoConnection", "main", "pull_body", "serve"]

PULLS: Final = frozenset({11, 361})
SENDS: Final = frozenset({10, 310, 320})
PULL_COUNT: Final = 32

# The fastest way in Python to write an answer: one bytes template with the changing fields.
_TAIL: Final = (
    b'},"flag":1,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":493}'
)
SEND_ANSWER: Final = (
    b'{"code":0,"extFields":{"msgId":"%032X","queueId":"%d","queueOffset":"%d",'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"' + _TAIL
)
PULL_ANSWER: Final = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"0",'
    b'"maxOffset":"1099511627776"' + _TAIL
)
OTHER_ANSWER: Final = b'{"code":0,"extFields":{"offset":"%d"' + _TAIL


class _Ext(msgspec.Struct, gc=False):
    """The two request fields that an answer repeats; the decoder skips all others."""

    e: int = 0
    queue_offset: int = msgspec.field(default=0, name="queueOffset")


_decode_ext: Final = msgspec.json.Decoder(_Ext, strict=False).decode


def pull_body(body_bytes: int) -> bytes:
    """32 stored messages (docs/internals/protocol.md#stored-message) with bodies of zeros, as one
    pull answer carries them."""
    body = bytes(body_bytes)
    topic = b"bench0000"
    properties = b"KEYS\x01k000000000000\x02UNIQ_KEY\x01" + b"0" * 32 + b"\x02TAGS\x01TagA\x02"
    size = 91 + len(body) + len(topic) + len(properties)
    head = struct.pack(
        ">iiiiiqqiq8sq8siqi",
        size, -626843481, zlib.crc32(body) & 0x7FFFFFFF, 0, 0, 0, 0, 0, 0,
        bytes(8), 0, bytes(8), 0, 0, len(body),
    )  # fmt: skip
    tail = struct.pack(">h", len(properties)) + properties
    return (head + body + bytes([len(topic)]) + topic + tail) * PULL_COUNT


class EchoConnection(asyncio.Protocol):
    """Answers every frame at once with code 0 and the fields of a send or pull answer."""

    def __init__(self, pull_body: bytes) -> None:
        self._reader = FrameReader()
        self._pull_body = pull_body
        self._count = 0
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, so isinstance would refuse them.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        out: list[bytes] = []
        count = self._count
        for command in self._reader.receive(data):
            body = b""
            if command.code in SENDS:
                count += 1
                ext = _decode_ext(command.raw_ext)
                header = SEND_ANSWER % (count, ext.e, count, command.opaque)
            elif command.code in PULLS:
                ext = _decode_ext(command.raw_ext)
                body = self._pull_body
                header = PULL_ANSWER % (ext.queue_offset + PULL_COUNT, command.opaque)
            else:
                header = OTHER_ANSWER % (count, command.opaque)
            out.append(frame_json(header, body))
        self._count = count
        if out and self._transport is not None:
            self._transport.write(b"".join(out))


async def serve(port: int, body_bytes: int) -> None:
    """Serve until a stop signal."""
    body = pull_body(body_bytes)
    listener = await TcpNetwork().listen("127.0.0.1", port, lambda: EchoConnection(body))
    print(f"echo ready 127.0.0.1:{listener.port}", flush=True)
    gc.freeze()
    await wait_for_stop_signal()
    listener.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the echo process."""
    parser = argparse.ArgumentParser(prog="cometmq-bench-echo", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--body", type=int, default=128, help="body bytes in pull answers")
    options = parser.parse_args(argv)
    run(serve(options.port, options.body))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

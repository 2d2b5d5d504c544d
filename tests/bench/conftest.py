"""A small broker that stores in memory and misbehaves on request.

The bench's tests need a server with chosen faults: it loses, alters, doubles or
refuses a message, and the verification pass must notice.
"""

import asyncio
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.net.network import TcpNetwork
from cometmq.wire.command.command import RemotingCommand, encode_response
from cometmq.wire.frame.framing import FrameReader

Alter = Callable[[int, bytes], list[bytes]]
HEAD = struct.Struct(">iiiiiqqiq8sq8siqi")


class MemoryBroker:
    """Keeps queues by (topic, queue id); `alter(nth, body)` returns the bodies to store."""

    def __init__(self, alter: Alter | None = None, refuse_every: int = 0) -> None:
        self.queues: dict[tuple[str, int], list[bytes]] = {}
        self.alter = alter
        self.refuse_every = refuse_every
        self.sends = 0
        self.messages = 0
        self.held: list[tuple[Any, RemotingCommand]] = []
        self.address = ""

    async def listen(self) -> None:
        """Serve on a free port."""
        self._listener = await TcpNetwork().listen("127.0.0.1", 0, lambda: _Connection(self))
        self.address = f"127.0.0.1:{self._listener.port}"

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _store(self, topic: str, queue_id: int, body: bytes) -> None:
        records = self.queues.setdefault((topic, queue_id), [])
        bodies = self.alter(self.messages, body) if self.alter else [body]
        self.messages += 1
        for content in bodies:
            crc = zlib.crc32(content) & 0x7FFFFFFF
            size = 91 + len(content) + len(topic)
            head = HEAD.pack(
                size, -626843481, crc, queue_id, 0, len(records), 0, 0, 0, bytes(8), 0, bytes(8),
                0, 0, len(content),
            )  # fmt: skip
            name = topic.encode()
            records.append(head + content + bytes([len(name)]) + name + b"\0\0")

    def send(self, request: RemotingCommand) -> bytes:
        """Store a message or a batch and answer as a broker does."""
        ext = request.ext_fields
        self.sends += 1
        if self.refuse_every and self.sends % self.refuse_every == 0:
            return encode_response(request.opaque, 0, 2, "[PCBUSY] try again", None)
        topic, queue_id = ext["b"], int(ext["e"])
        first = len(self.queues.get((topic, queue_id), []))
        for body in _bodies(request):
            self._store(topic, queue_id, body)
        answer = {"msgId": "0" * 32, "queueId": str(queue_id), "queueOffset": str(first)}
        return encode_response(request.opaque, 0, 0, None, answer)

    def pull(self, request: RemotingCommand) -> bytes | None:
        """Answer a pull; return None where it has to wait."""
        ext = request.ext_fields
        records = self.queues.get((ext["topic"], int(ext["queueId"])), [])
        begin = int(ext["queueOffset"])
        found = records[begin : begin + int(ext["maxMsgNums"])]
        if not found and int(ext["sysFlag"]) & 2:
            return None
        answer = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(begin + len(found)),
            "minOffset": "0",
            "maxOffset": str(len(records)),
        }
        code = 0 if found else 19
        return encode_response(request.opaque, 0, code, None, answer, b"".join(found))


def _bodies(request: RemotingCommand) -> list[bytes]:
    if request.code != 320:
        return [request.body]
    bodies, position = [], 0
    while position < len(request.body):
        (size,) = struct.unpack_from(">i", request.body, position)
        (length,) = struct.unpack_from(">i", request.body, position + 16)
        bodies.append(request.body[position + 20 : position + 20 + length])
        position += size
    return bodies


class _Connection(asyncio.Protocol):
    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.reader = FrameReader()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        broker = self.broker
        for request in self.reader.receive(data):
            if request.code in {310, 320}:
                self.transport.write(broker.send(request))
            elif request.code == 11:
                self._pull(request)
            else:
                self.transport.write(encode_response(request.opaque, 0, 0, None, {"offset": "0"}))
        held, broker.held = broker.held, []
        for connection, request in held:
            connection._pull(request)

    def _pull(self, request: RemotingCommand) -> None:
        answer = self.broker.pull(request)
        if answer is None:
            self.broker.held.append((self, request))
        else:
            self.transport.write(answer)


@pytest.fixture
def memory_broker() -> type[MemoryBroker]:
    """Return the class, so that a test makes a broker inside its own event loop."""
    return MemoryBroker

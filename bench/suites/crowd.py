"""Crowds that the generator holds while other work is measured: connections, held pulls, consumers.

A name server that counts the requests of brokers is here too.

A crowd lives on an event loop in a thread of its own (`Background`), so that it stays connected
while the main thread starts workers and waits for them.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from cometmq.errors import ClientError
from cometmq.net.channel import Channel, ChannelPool
from cometmq.net.env import system_environment
from cometmq.net.network import TcpNetwork, parse_address
from cometmq.wire.command.command import RemotingCommand, encode_command, encode_response
from cometmq.wire.frame.framing import FrameReader

if TYPE_CHECKING:
    from bench.base.frames import Targets  # brings numpy, which --help does without

__all__ = ["Background", "CountingNameServer", "Crowd", "heartbeat_body", "look_up"]

T = TypeVar("T")
PULL_MESSAGE, HEART_BEAT, GET_ROUTEINFO_BY_TOPIC = 11, 34, 105
LOOK_UPS_AT_ONCE: Final = 64
SUSPEND_MS: Final = 600_000
SUSPEND_AND_SUBSCRIPTION: Final = 2 + 4
OPENING_AT_ONCE: Final = 200
TIMEOUT_MS: Final = 60_000


class Background:
    """An event loop in a thread, for the time of a `with` block."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="crowd", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on that loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class CountingNameServer:
    """A name server that answers every request with success; counts requests and bytes by code."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        self.request_bytes: Counter[int] = Counter()
        self.data_versions: dict[str, bytes] = {}

    async def listen(self) -> str:
        """Serve on a free port and return the address."""
        self._listener = await TcpNetwork().listen("127.0.0.1", 0, lambda: _Counted(self))
        return f"127.0.0.1:{self._listener.port}"

    async def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def forget(self) -> None:
        """Reset the counts."""
        self.requests.clear()
        self.request_bytes.clear()


class _Counted(asyncio.Protocol):
    """A broker's connection; QUERY_DATA_VERSION (322) is always answered with "unchanged"."""

    def __init__(self, server: CountingNameServer) -> None:
        self._server = server
        self._reader = FrameReader()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        for request in self._reader.receive(data):
            self._server.requests[request.code] += 1
            size = len(request.body) + sum(len(k) + len(v) for k, v in request.ext_fields.items())
            self._server.request_bytes[request.code] += size
            if self._transport is not None and not request.is_oneway:
                ext = {"changed": "false"}
                self._transport.write(encode_response(request.opaque, 0, 0, None, ext))


def heartbeat_body(client_id: str, group: str, topic: str, now_ms: int) -> bytes:
    """The body of a consumer's heartbeat with one subscription."""
    subscription = {
        "classFilterMode": False, "codeSet": [], "expressionType": "TAG", "subString": "*",
        "subVersion": now_ms, "tagsSet": [], "topic": topic,
    }  # fmt: skip
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
        "groupName": group, "messageModel": "CLUSTERING", "unitMode": False,
        "subscriptionDataSet": [subscription],
    }  # fmt: skip
    body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    return json.dumps(body, separators=(",", ":")).encode()


async def look_up(name_server: str, topics: list[str]) -> float:
    """Ask for the route of every topic, many at once; return an answer's mean size in bytes.

    Raises:
        ClientError: a route was refused.
    """
    pool = ChannelPool(system_environment())
    total = 0
    try:
        channel = await pool.get(name_server, TIMEOUT_MS)
        for begin in range(0, len(topics), LOOK_UPS_AT_ONCE):
            some = topics[begin : begin + LOOK_UPS_AT_ONCE]
            answers = await asyncio.gather(
                *(
                    channel.request(
                        RemotingCommand.request(GET_ROUTEINFO_BY_TOPIC, {"topic": topic}),
                        TIMEOUT_MS,
                    )
                    for topic in some
                )
            )
            for topic, answer in zip(some, answers, strict=True):
                if answer.code:
                    raise ClientError(f"route of {topic}: {answer.code} {answer.remark}")
                total += len(answer.body)
    finally:
        await pool.close()
    return total / len(topics)


class _Silent(asyncio.Protocol):
    """A connection that sends nothing and reads everything."""

    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)


class Crowd:
    """Connections of one kind or another to a broker; all methods run on one loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._env = system_environment()
        self._silent: list[_Silent] = []
        self._clients: list[tuple[Channel, bytes]] = []

    @classmethod
    async def to(cls, address: str) -> Crowd:
        """An empty crowd of the broker at ``address``; call this on the crowd's loop."""
        return cls(address)

    async def connect(self, count: int) -> None:
        """Open connections that stay silent."""
        host, port = parse_address(self._address)
        network = TcpNetwork()
        for begin in range(0, count, OPENING_AT_ONCE):
            self._silent += await asyncio.gather(
                *(
                    network.connect(host, port, _Silent, TIMEOUT_MS)
                    for _ in range(min(OPENING_AT_ONCE, count - begin))
                )
            )

    async def hold(self, count: int, targets: Targets, each: int) -> None:
        """Hold a pull at the end of each empty queue, with `each` pulls on one connection."""
        await self.connect((count + each - 1) // each)
        for number in range(count):
            topic_index, queue_id = targets.of_row(number)
            ext = {
                "consumerGroup": "bench_crowd", "topic": targets.topic(topic_index),
                "queueId": str(queue_id), "queueOffset": "0", "maxMsgNums": "32",
                "sysFlag": str(SUSPEND_AND_SUBSCRIPTION), "commitOffset": "0",
                "suspendTimeoutMillis": str(SUSPEND_MS), "subscription": "*", "subVersion": "0",
                "expressionType": "TAG",
            }  # fmt: skip
            transport = self._silent[number // each].transport
            assert transport is not None
            transport.write(encode_command(RemotingCommand.request(PULL_MESSAGE, ext)))
            if number % 100 == 0:
                await asyncio.sleep(0)

    async def join(self, count: int, groups: int, topic: str) -> None:
        """Connect consumers, spread over groups, and send the first heartbeat of each."""
        now_ms = self._env.clock.now_ms()
        for number in range(count):
            channel = await ChannelPool(self._env).get(self._address, TIMEOUT_MS)
            body = heartbeat_body(
                f"127.0.0.1@{number}#crowd", f"bench_crowd_{number % groups}", topic, now_ms
            )
            self._clients.append((channel, body))
        await self.heartbeat()

    async def heartbeat(self) -> None:
        """Send one heartbeat of every consumer, many at once.

        Raises:
            ClientError: the broker refused one.
        """
        for begin in range(0, len(self._clients), OPENING_AT_ONCE):
            answers = await asyncio.gather(
                *(
                    channel.request(RemotingCommand.request(HEART_BEAT, {}, body), TIMEOUT_MS)
                    for channel, body in self._clients[begin : begin + OPENING_AT_ONCE]
                )
            )
            for answer in answers:
                if answer.code:
                    raise ClientError(f"a heartbeat was answered {answer.code}: {answer.remark}")

    async def close(self) -> None:
        """Close all connections."""
        for silent in self._silent:
            if silent.transport is not None:
                silent.transport.close()
        for channel, _ in self._clients:
            channel.close()
        self._silent, self._clients = [], []

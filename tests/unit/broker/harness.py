"""A real broker on a loopback port, and a client that speaks raw commands to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.request_fields import pull_fields, send_fields

from cometmq.broker import Broker, load_config
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.net.channel import Channel, ChannelPool
from cometmq.net.env import Environment, system_environment
from cometmq.store.base.disk import RealDisk
from cometmq.wire.body.client import ConsumerData, HeartbeatData
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

__all__ = ["PULL_DEFAULTS", "SEND_DEFAULTS", "Client", "eventually", "running", "scenario"]

SMALL = {
    "listenPort": 0,
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}
PULL_DEFAULTS = pull_fields("t", 0, consumerGroup="g", suspendTimeoutMillis="200")
SEND_DEFAULTS = send_fields("t", a="pg", d="4")


class Client:
    """One connection; requests of the broker to it are collected in `pushed`."""

    def __init__(self, env: Environment, address: str) -> None:
        self._address = address
        self.pushed: list[RemotingCommand] = []
        self.refuse_pushes = False
        self.answers: dict[int, RemotingCommand | None] = {}
        """What to answer to the broker's calls by code; None is silence."""
        self._pool = ChannelPool(env, self._serve)
        self.channel: Channel

    def _serve(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        self.pushed.append(command)
        if command.code in self.answers:
            return self.answers[command.code]
        return RemotingCommand.response(1 if self.refuse_pushes else 0)

    async def open(self) -> Client:
        self.channel = await self._pool.get(self._address)
        return self

    async def close(self) -> None:
        await self._pool.close()

    def call(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **options: Any
    ) -> Awaitable[RemotingCommand]:
        request = RemotingCommand.request(code, ext, body, **options)
        return self.channel.request(request, 10_000)

    def send(self, body: bytes = b"x", /, **ext: str) -> Awaitable[RemotingCommand]:
        return self.call(RequestCode.SEND_MESSAGE_V2, {**SEND_DEFAULTS, **ext}, body)

    def pull(self, **ext: str) -> Awaitable[RemotingCommand]:
        return self.call(RequestCode.PULL_MESSAGE, {**PULL_DEFAULTS, **ext})

    async def messages(self, **ext: str) -> list[StoredMessage]:
        answer = await self.pull(**ext)
        return decode_messages(answer.body) if answer.code == 0 else []

    async def heartbeat(
        self, *consumers: ConsumerData, producers: tuple[str, ...] = (), **fields: Any
    ) -> RemotingCommand:
        client_id = fields.pop("client_id", "c1")
        data = HeartbeatData(client_id, producers, consumers, **fields)
        return await self.call(RequestCode.HEART_BEAT, {}, data.encode())


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds that other tasks of this loop bring about."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def running(path: Path, **settings: Any) -> AsyncIterator[Broker]:
    """Run a broker on `path`; settings are RocketMQ's keys."""
    overrides = {**SMALL, "storePathRootDir": str(path), **settings}
    config = load_config(overrides=overrides, environment={}).config
    broker = Broker(config, system_environment(), RealDisk())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def scenario(
    path: Path, story: Callable[[Broker, Client], Awaitable[None]], **settings: Any
) -> None:
    """Run a story against a fresh broker with one client."""

    async def main() -> None:
        async with running(path, **settings) as broker:
            client = await Client(broker.env, broker.address).open()
            try:
                await story(broker, client)
            finally:
                await client.close()

    asyncio.run(main())

"""Our servers with the capture's settings, and one connection of a replayed client."""

import asyncio
import random
import struct
import time
from dataclasses import replace
from pathlib import Path

from tests.golden.replay.frames import Frame, decode_frame, encode_frame

from cometmq.net.env import Environment, system_environment

__all__ = ["Client", "Cluster", "ReplayChance", "ReplayClock"]

SETTINGS = {
    "brokerName": "broker-a",
    "brokerClusterName": "DefaultCluster",
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "listenPort": "0",
    "autoCreateTopicEnable": "true",
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "recallMessageEnable": "true",
    "brokerRole": "ASYNC_MASTER",
    "maxMessageSize": "32768",
    "transactionTimeOut": "3000",
    "transactionCheckInterval": "5000",
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}
"""Section 1 of the captures' page; the system chooses ports, the last four keep files small."""
BARRIER_CODE = 9999
"""A code nobody serves: the answer to it says that what went before on the wire was looked at."""
BARRIER_OPAQUE = -1_000_000


class ReplayClock:
    """The wall clock of the capture, never behind the frame that is being replayed.

    It stands still until the first frame.  Captured queries name times; what a busy machine takes
    to start a cluster would put the messages behind them.
    """

    def __init__(self, epoch_ms: int) -> None:
        self._epoch_ms = epoch_ms
        self._began: float | None = None
        self._at_ms = 0

    def advance(self, at_ms: float) -> None:
        """Move on to the time at which the capture recorded the next frame."""
        if self._began is None:
            self._began = time.monotonic()
        self._at_ms = max(self._at_ms, int(at_ms))

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        if self._began is None:
            return self._epoch_ms
        return self._epoch_ms + max(self._at_ms, int((time.monotonic() - self._began) * 1000))

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()


class ReplayChance(random.Random):
    """Random numbers that repeat the captured choices where the capture shows them."""

    next_choice: int | None = None

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Return the captured choice if one is due, else a number from the seed."""
        choice, self.next_choice = self.next_choice, None
        return super().randrange(start, stop, step) if choice is None else choice


class Client(asyncio.Protocol):
    """One connection, which keeps answers by opaque and server calls in order of arrival."""

    def __init__(self) -> None:
        self.calls: list[Frame] = []
        self.port = ""
        self._answers: dict[int, asyncio.Future[Frame]] = {}
        self._called = asyncio.Event()
        self._buffer = b""
        self._barriers = 0
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, address: str) -> "Client":
        """Open a connection to `host:port`."""
        host, port = address.split(":")
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(cls, host, int(port))
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the local port, which stored messages carry."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        host, port = transport.get_extra_info("sockname")[:2]
        self.port = f"{host}:{port}"

    def data_received(self, data: bytes) -> None:
        """Cut frames and hand them out."""
        self._buffer += data
        while len(self._buffer) >= 4:
            (length,) = struct.unpack_from(">i", self._buffer)
            if len(self._buffer) < 4 + length:
                return
            frame = decode_frame(self._buffer[: 4 + length])
            self._buffer = self._buffer[4 + length :]
            if frame.is_response:
                future = self._future(frame.opaque)
                assert not future.done(), f"answered twice: {frame}"
                future.set_result(frame)
            else:
                self.calls.append(frame)
                self._called.set()

    def _future(self, opaque: int) -> asyncio.Future[Frame]:
        return self._answers.setdefault(opaque, asyncio.get_running_loop().create_future())

    def send(self, data: bytes) -> None:
        """Write a whole frame."""
        assert self._transport is not None
        self._transport.write(data)

    async def answer(self, opaque: int, timeout_s: float) -> Frame | None:
        """Return the answer to an opaque, or None when it does not come in time."""
        future = self._future(opaque)
        await asyncio.wait([future], timeout=timeout_s)
        return future.result() if future.done() else None

    def has_answer(self, opaque: int) -> bool:
        """Return whether the answer has come."""
        return opaque in self._answers and self._answers[opaque].done()

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Frame:
        """Send a request of the replay itself and return its answer."""
        self._barriers += 1
        opaque = BARRIER_OPAQUE - self._barriers
        self.send(encode_frame(Frame(code, opaque, 0, "JAVA", 493, None, ext, body)))
        answer = await self.answer(opaque, 10)
        assert answer is not None, f"no answer to {code} {ext}"
        return answer

    async def barrier(self) -> None:
        """Return when the server has handled everything that was sent before."""
        await self.ask(BARRIER_CODE, {})

    async def call(self, code: int, group: str | None, timeout_s: float) -> Frame | None:
        """Return the next call of the server with this code and group, in order of arrival."""
        deadline = time.monotonic() + timeout_s
        while True:
            for frame in self.calls:
                if frame.code == code and frame.ext.get("consumerGroup") == group:
                    self.calls.remove(frame)
                    return frame
            self._called.clear()
            rest = deadline - time.monotonic()
            if rest <= 0:
                return None
            try:
                await asyncio.wait_for(self._called.wait(), rest)
            except TimeoutError:
                return None

    def close(self) -> None:
        """Close the connection."""
        assert self._transport is not None
        self._transport.close()


class Cluster:
    """A name server and a broker on free ports, with a store of their own."""

    def __init__(self, directory: Path, clock: ReplayClock) -> None:
        self._directory = directory
        self.chance = ReplayChance(1)
        self._env: Environment = replace(system_environment(), clock=clock, chance=self.chance)

    async def start(self, settings: dict[str, str]) -> None:
        """Start both; returns when the broker is registered."""
        from cometmq.broker.base.config import load_config
        from cometmq.broker.broker import Broker
        from cometmq.namesrv.config import load_name_server_config
        from cometmq.namesrv.name_server import NameServer
        from cometmq.store.base.disk import RealDisk

        disk = RealDisk()
        loaded = load_name_server_config(
            overrides={
                "listenPort": "0",
                "bindAddress": "127.0.0.1",
                "kvConfigPath": str(self._directory / "kv.json"),
                "configStorePath": str(self._directory / "namesrv.properties"),
            }
        )
        self.name_server = NameServer(loaded.config, self._env, disk)
        await self.name_server.start()
        keys = (
            SETTINGS
            | settings
            | {
                "namesrvAddr": self.name_server.address,
                "storePathRootDir": str(self._directory / "store"),
            }
        )
        self.broker = Broker(load_config(overrides=keys, environment={}).config, self._env, disk)
        await self.broker.start()
        # Whoever waits for a queue lock is told of its release by our broker only.
        self.broker.services.queue_locks.notice_pause_s = 3600.0

    async def stop(self) -> None:
        """Stop both."""
        await self.broker.stop()
        await self.name_server.stop()

"""How long a calm client waits while others crowd a broker.

    .venv/bin/python -m bench.load_shed [--seconds 8] [--idle 5000] [--slow 500] [--rate 2000]

A broker runs as a process with limits of connections, and a calm client sends a message every 5 ms
and notes each wait.  It does so alone, then beside so many idle connections, then beside so many
clients that ask for messages and read no answer, then beside one that floods it with sends.
Printed are the median and the 99th percentile of each stretch, and the limits that were met.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import socket
import statistics
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from bench.guards import serving
from cometmq import Admin, Message, Producer
from cometmq.model import MessageQueue
from cometmq.net.loop import run
from cometmq.net.network import parse_address
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand, encode_command

TOPIC: Final = "Calm"
PAUSE_S: Final = 0.005
FLOOD_BATCH: Final = 200
METRICS_PORT: Final = "0"


async def waits_ms(producer: Producer, seconds: float) -> list[float]:
    """Send at a steady pace; return how long each send took."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        await producer.send(Message(TOPIC, b"x" * 100))
        found.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(PAUSE_S)
    return found


def show(name: str, found: list[float], quiet: float | None) -> float:
    """Print a line; return the 99th percentile."""
    cuts = statistics.quantiles(found, n=100)
    ratio = "" if quiet is None else f"{cuts[98] / quiet:8.2f}"
    print(f"{name:34} {len(found):6} {statistics.median(found):8.2f} {cuts[98]:8.2f} {ratio}")
    return cuts[98]


@contextlib.asynccontextmanager
async def crowd(address: str, count: int, request: bytes) -> AsyncIterator[None]:
    """Open connections that send a request each, if any, and read nothing."""
    host, port = parse_address(address)
    sockets: list[socket.socket] = []
    try:
        for number in range(count):
            connection = socket.create_connection((host, port), 30)
            if request:
                # A small buffer fills soon.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.sendall(request)
            sockets.append(connection)
            if number % 100 == 0:
                await asyncio.sleep(0)
        yield
    finally:
        for connection in sockets:
            connection.close()


async def flood(address: str) -> None:
    """Send as fast as the broker reads, in batches of frames, and read what comes."""
    host, port = parse_address(address)
    reader, writer = await asyncio.open_connection(host, port)
    ext = {"a": "flood", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0",
           "g": "1700000000000", "h": "0", "i": "WAIT\x01true\x02",
           "j": "0", "k": "false", "m": "false"}  # fmt: skip
    frames = []
    for opaque in range(FLOOD_BATCH):
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, ext, b"y" * 100)
        command.opaque = opaque
        frames.append(encode_command(command))
    data = b"".join(frames)

    async def take() -> None:
        while await reader.read(1 << 16):
            pass

    taking = asyncio.create_task(take())
    try:
        while True:
            writer.write(data)
            await writer.drain()
    finally:
        taking.cancel()
        writer.close()


async def measure(name_server: str, given: argparse.Namespace) -> None:
    """Run the stretches."""
    async with Admin(name_server=name_server) as admin:
        await admin.create_topic(TOPIC, queue_count=1)
        info = await admin.cluster_info()
        (broker,) = [each.master_address for each in info.brokers.values()]
        assert broker is not None
        async with Producer("calm", name_server=name_server) as producer:
            for _ in range(2000):
                await producer.send(Message(TOPIC, b"z" * 1000))
            print(f"{'stretch':34} {'sends':>6} {'p50 ms':>8} {'p99 ms':>8} {'ratio':>8}")
            quiet = show("alone", await waits_ms(producer, given.seconds), None)
            async with crowd(broker, given.idle, b""):
                found = await waits_ms(producer, given.seconds)
                show(f"{given.idle} idle connections", found, quiet)
            queue = MessageQueue(TOPIC, "", 0)
            pulls = b"".join(encode_command(_pull(queue, offset)) for offset in range(0, 2000, 32))
            async with crowd(broker, given.slow, pulls):
                show(f"{given.slow} slow readers", await waits_ms(producer, given.seconds), quiet)
            flooding = asyncio.create_task(flood(broker))
            show("one client that floods", await waits_ms(producer, given.seconds), quiet)
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
            show("alone again", await waits_ms(producer, given.seconds), quiet)


def _pull(queue: MessageQueue, offset: int) -> RemotingCommand:
    ext = {"consumerGroup": "slow", "topic": queue.topic, "queueId": "0",
           "queueOffset": str(offset),
           "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
           "subscription": "*", "subVersion": "0", "expressionType": "TAG"}  # fmt: skip
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, ext)


def main() -> None:
    """Start a broker, measure, and print which limits were met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--idle", type=int, default=5000)
    parser.add_argument("--slow", type=int, default=500)
    parser.add_argument("--rate", type=int, default=2000)
    given = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "requestsPerSecondMax": given.rate,
        "framesInFlightMax": 1000,
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": port,
    }
    with (
        tempfile.TemporaryDirectory(prefix="cometmq-bench-") as folder,
        serving("crowded", settings, Path(folder)) as (name_server, _),
    ):
        run(measure(name_server, given))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
            text = page.read().decode()
    for line in re.findall(r'limits_total\{.*limit="(\w+)"\} (\d+)', text):
        print(f"{line[0]:34} {line[1]}")


if __name__ == "__main__":
    main()

"""A client on a machine of its own, which goes on with the one broker that it still reaches.

It waits for a file, then sends and reads for some seconds, and writes what it was told:
``lonely_client.py NAME_SERVER TOPIC FLAG REPORT``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import cometmq
from cometmq import Message
from cometmq.errors import CometError

SECONDS = 8.0


async def main(name_server: str, topic: str, flag: Path, report: Path) -> None:
    """Send and read."""
    seen: dict[str, str] = {}
    tries = acknowledged = 0
    async with (
        cometmq.Producer("lonely", name_server=name_server, timeout_ms=1000) as producer,
        cometmq.PullConsumer(
            "lonely", {topic: "*"}, name_server=name_server, consume_from="first"
        ) as consumer,
    ):

        async def read() -> None:
            while True:
                try:
                    for message in await consumer.poll(timeout_ms=200):
                        seen[f"{message.queue_id} {message.queue_offset}"] = message.body[:20].hex()
                except CometError:
                    await asyncio.sleep(0.1)

        await producer.send(Message(topic, b"warm up"))
        reading = asyncio.create_task(read())
        while not seen:  # noqa: ASYNC110 - another task fills it
            await asyncio.sleep(0.05)
        print("ready in time", flush=True)
        while not flag.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.02)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            tries += 1
            try:
                result = await producer.send(Message(topic, b"lonely %d" % tries))
            except CometError:
                await asyncio.sleep(0.05)
            else:
                acknowledged += result.status.name == "SEND_OK"
        reading.cancel()
        found = {"tries": tries, "acknowledged": acknowledged, "seen": seen}
        report.with_suffix(".part").write_text(json.dumps(found))
        report.with_suffix(".part").rename(report)


asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])))

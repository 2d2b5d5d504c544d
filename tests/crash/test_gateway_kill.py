"""The delay gateway killed again and again, between the foreign cluster and its own store."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tests.unit.client.growing_stage import on_loop, until

from cometmq import Message, Producer, PushConsumer, ReceivedMessage
from cometmq.gateway.gateway import read_status
from cometmq.testing import embedded_cluster

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

COUNT = 120
READY_S = 60.0


async def started(name_server: str, store: Path) -> asyncio.subprocess.Process:
    """A gateway process that has said that it is ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "cometmq", "delay-gateway", "-n", name_server, "--store", str(store)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"},
    )
    assert process.stdout is not None
    async with asyncio.timeout(READY_S):
        line = await process.stdout.readline()
    assert b"delay-gateway: ready" in line
    return process


@on_loop
async def test_nothing_is_lost_and_repetitions_have_the_same_id(tmp_path: Path) -> None:
    """Three kills while messages go in and come out; all come out, none before its time."""
    store = tmp_path / "own"
    arrived: list[ReceivedMessage] = []

    async def take(message: ReceivedMessage) -> None:
        arrived.append(message)

    async with embedded_cluster({"timerWheelEnable": False}) as foreign:
        address = foreign.name_server_address
        process = await started(address, store)
        try:
            async with (
                Producer("app", name_server=address) as producer,
                PushConsumer(
                    "readers",
                    {"Bills": "*"},
                    take,
                    name_server=address,
                    consume_from="first",
                ),
            ):
                for number in range(COUNT):
                    if number in (30, 60, 90):
                        await until(lambda: arrived)
                        process.kill()
                        assert await process.wait() == -9
                        process = await started(address, store)
                    properties = {
                        "GATEWAY_TOPIC": "Bills",
                        "GATEWAY_DELAY_MS": str(10 * (number % 30)),
                    }
                    await producer.send(
                        Message("DELAY_GATEWAY", b"%d" % number, properties=properties)
                    )
                await until(lambda: len({one.body for one in arrived}) == COUNT)
        finally:
            process.terminate()
            code = await process.wait()
    assert code == 0
    assert {int(one.body) for one in arrived} == set(range(COUNT))
    ids: dict[bytes, set[str]] = {}
    for one in arrived:
        ids.setdefault(one.body, set()).add(one.properties["GATEWAY_ID"])
        assert one.store_timestamp_ms >= int(one.properties["GATEWAY_DUE_MS"])
    assert all(len(own) == 1 for own in ids.values()), "a repetition is known by its id"
    assert len({next(iter(own)) for own in ids.values()}) == COUNT
    status = read_status(str(store))
    assert status is not None
    assert status["dead"] == 0

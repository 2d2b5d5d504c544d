"""Order when processes are killed: a member in the middle of a message, and a broker with locks."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tests.crash.test_kill9 import BrokerProcess
from tests.raw_client import RawClient
from tests.unit.client.growing_stage import on_loop, until

from cometmq import Message, Producer
from cometmq.model import MessageQueue
from cometmq.testing import embedded_cluster
from cometmq.wire.body.client import LockBatchRequest, LockBatchResponse

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

MEMBER = """
import asyncio, os, sys
import cometmq

async def main(name_server, name):
    async def handle(message):
        os.write(1, f"begin {name} {message.body.decode()}\\n".encode())
        await asyncio.sleep(0.01)
        os.write(1, f"end {name} {message.body.decode()}\\n".encode())

    async with cometmq.PushConsumer(
        "desk", {"Steps": "*"}, handle, name_server=name_server, order="queue",
        consume_from="first", concurrency=4,
    ):
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""
COUNT = 300
QUEUE = MessageQueue("Steps", "broker-a", 0)


async def member(name_server: str, name: str, out: Path) -> asyncio.subprocess.Process:
    """An ordered consumer of its own process; what it handles goes to the end of `out`."""
    with out.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MEMBER, name_server, name),
            stdout=file,
            env={k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"},
        )


def lines(out: Path) -> list[tuple[str, str, int]]:
    """What was begun and ended, by whom, in order."""
    found = [line.split() for line in out.read_text().splitlines()]
    return [(what, who, int(number)) for what, who, number in found]


@on_loop
async def test_one_queue_goes_on_in_order_after_its_member_was_killed(tmp_path: Path) -> None:
    """Global order: whoever waited goes on where the dead one had committed, and passes nothing."""
    out = tmp_path / "handled"
    settings = {"rebalanceLockMaxLiveTime": 2_000, "flushConsumerOffsetInterval": 100}
    async with (
        embedded_cluster(settings) as cluster,
        Producer("depot", name_server=cluster.name_server_address) as producer,
    ):
        await producer.create_topic("Steps", queue_count=1)
        members = [await member(cluster.name_server_address, name, out) for name in ("one", "two")]
        try:
            for number in range(COUNT):
                await producer.send(Message("Steps", b"%d" % number, message_group="all"))
            state = cluster.standalone.broker.state

            def clients() -> list[str]:
                online = state.consumers.get("desk")
                return [] if online is None else online.client_ids()

            await until(lambda: len(clients()) == 2)

            def holder() -> asyncio.subprocess.Process | None:
                """Who has the queue, and has handled something of it."""
                found = state.queue_locks.snapshot().owners.get("desk", {}).get(QUEUE, "")
                for name, process in zip(("one", "two"), members, strict=True):
                    if f"@{process.pid}#" in found and ("end", name) in [w[:2] for w in lines(out)]:
                        return process
                return None

            await until(holder)
            dead = holder()
            assert dead is not None
            dead.kill()
            handled_before = len(lines(out))
            assert await dead.wait() == -9
            await until(lambda: COUNT - 1 in [n for what, _, n in lines(out) if what == "end"])
        finally:
            for process in members:
                if process.returncode is None:
                    process.terminate()
                await process.wait()
    handled = lines(out)
    assert handled_before < 2 * COUNT, "the kill came in the middle"
    done, running = -1, None
    for what, who, number in handled:
        if what == "begin":
            assert number <= done + 1, f"{done + 1} was passed"
            running = who, number
        else:
            assert (who, number) == running, "one after the other"
            done = max(done, number)
    assert done == COUNT - 1


def test_a_killed_broker_still_knows_whose_queue_it_is(tmp_path: Path) -> None:
    """Another client waits for the lock of before to expire, however often the broker dies."""

    def lock(client: RawClient, name: str) -> bool:
        answer = client.call(41, {}, LockBatchRequest("desk", name, (QUEUE,)).encode())
        assert answer.code == 0
        return QUEUE in LockBatchResponse.decode(answer.body).queues

    for name, is_theirs in (("one", True), ("two", False), ("one", True), ("two", False)):
        broker = BrokerProcess(tmp_path / "store", "ASYNC_FLUSH")
        broker.wait_until_ready()
        with RawClient(broker.address) as client:
            assert lock(client, name) is is_theirs
        broker.kill()

"""Full disks under what holds messages for others: the parking topic and the delay gateway's store.

The file system is a real one of some megabytes, as in `test_full_disk`.
"""

import asyncio
import os
from pathlib import Path

import pytest
from tests.crash.test_full_disk import mounted
from tests.unit.client.growing_stage import on_loop, until

from cometmq import Admin, Message, Producer, PushConsumer, ReceivedMessage
from cometmq.client.extensions.parking.admin import ParkedLanes
from cometmq.errors import BrokerBusy, RemoteError, SendFailed
from cometmq.gateway.gateway import DelayGateway
from cometmq.net.env import SystemClock
from cometmq.testing import embedded_cluster

pytestmark = [pytest.mark.timeout(120)]

LIMIT_S = 60.0
BODY = bytes(20_000)
SETTINGS = {
    # Else the oldest files would be given up to make room, as in RocketMQ.
    "cleanFileForciblyEnable": False,
    "diskSpaceWarningLevelRatio": 99,
    "mappedFileSizeCommitLog": 1 << 20,
}


class Filler:
    """A file that takes all the room there is."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "filler"

    def fill(self) -> None:
        """Take what is left, down to the last block."""
        with self._path.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    def leave(self, left_bytes: int) -> None:
        """Take all but so many bytes, or give back what is missing to them."""
        self._path.touch()
        now = os.statvfs(self._path)
        size = self._path.stat().st_size + now.f_bavail * now.f_frsize - left_bytes
        with self._path.open("ab") as file:
            if size < file.tell():
                file.truncate(size)
            else:
                file.write(bytes(size - file.tell()))

    def empty(self) -> None:
        """Give it back."""
        self._path.unlink()


@on_loop
async def test_the_gateway_takes_what_it_could_not_hold_when_there_is_room(tmp_path: Path) -> None:
    """Its own disk is full: it says so, leaves the messages in the cluster, and loses none."""
    arrived: list[bytes] = []

    async def take(message: ReceivedMessage) -> None:
        arrived.append(message.body[: message.body.index(b" ")])

    with mounted(tmp_path / "disk") as disk:
        filler = Filler(disk)
        async with (
            embedded_cluster({"timerWheelEnable": False}) as foreign,
            Producer("app", name_server=foreign.name_server_address) as producer,
            PushConsumer(
                "readers", {"Bills": "*"}, take, name_server=foreign.name_server_address,
                consume_from="first",
            ),
            DelayGateway(
                foreign.name_server_address,
                str(disk / "own"),
                settings=SETTINGS | {"mappedFileSizeTimerLog": 1 << 20},
            ) as gateway,
        ):  # fmt: skip
            sent = 0

            async def send() -> None:
                nonlocal sent
                properties = {"GATEWAY_TOPIC": "Bills", "GATEWAY_DELAY_MS": "100"}
                body = b"%d " % sent + BODY
                await producer.send(Message("DELAY_GATEWAY", body, properties=properties))
                sent += 1

            await send()
            await until(lambda: gateway.status.delivered == 1, LIMIT_S)
            filler.fill()
            async with asyncio.timeout(LIMIT_S):
                while not gateway.status.retries:
                    await send()
            assert "hold " in gateway.status.last_error
            assert "are free" in gateway.status.last_error, gateway.status.last_error
            for _ in range(5):
                await send()
            assert gateway.status.accepted < sent
            filler.empty()
            await until(lambda: len(set(arrived)) == sent, LIMIT_S)
            await until(lambda: gateway.status.accepted >= sent, LIMIT_S)
            assert gateway.status.dead == 0


async def parked(lanes: ParkedLanes) -> int:
    """How many messages."""
    return sum(len(one.lane.messages) for one in await lanes.all())


@on_loop
async def test_what_cannot_be_parked_waits_and_keeps_its_order(tmp_path: Path) -> None:
    """A full broker takes no parked message: the group waits, the others flow on.

    The consumer has its queue before: a full disk takes no new owner either.
    """
    taken: list[str] = []
    refused = {"bad"}
    is_begun, is_full = asyncio.Event(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        is_begun.set()
        await is_full.wait()
        text = message.body.decode()
        if text.partition(":")[0] in refused:
            raise LookupError(f"no account for {text}")
        taken.append(text)

    with mounted(tmp_path / "disk") as disk:
        filler = Filler(disk)
        async with embedded_cluster(SETTINGS, store_path=str(disk / "store")) as cluster:
            address = cluster.name_server_address
            async with (
                Admin(name_server=address) as admin,
                # A full disk is no restart to be waited for: a refusal comes back at once.
                Producer("p", name_server=address, retries=0) as producer,
            ):
                await admin.create_topic("Orders", queue_count=1)
                await admin.create_topic("Filling", queue_count=1)
                groups = ["bad", "good"] * 4
                for number, group in enumerate(groups):
                    message = Message("Orders", f"{group}:{number}".encode(), message_group=group)
                    await producer.send(message)

                def consumer() -> PushConsumer:
                    return PushConsumer(
                        "billing", {"Orders": "*"}, handle, name_server=address,
                        consume_from="first", order="group", suspend_ms=10, park_after=2,
                    )  # fmt: skip

                lanes = ParkedLanes(admin.queue_reader(), "billing", SystemClock())
                async with consumer():
                    await asyncio.wait_for(is_begun.wait(), LIMIT_S)
                    filler.fill()
                    for body in (BODY, b"as small as a parked one"):
                        with pytest.raises((BrokerBusy, RemoteError, SendFailed), match="are free"):
                            while True:
                                await producer.send(Message("Filling", body))
                    is_full.set()
                    good = [f"good:{n}" for n in (1, 3, 5, 7)]
                    await until(lambda: taken == good, LIMIT_S)
                    assert await lanes.all() == []
                    filler.empty()
                    async with asyncio.timeout(LIMIT_S):
                        while await parked(lanes) < 4:  # noqa: ASYNC110 - brokers do not call back
                            await asyncio.sleep(0.05)
                    refused.clear()
                    (lane,) = await lanes.all()
                    await lanes.retry(lane)
                    await until(lambda: len(taken) == 8, LIMIT_S)
                assert taken == [*good, *(f"bad:{n}" for n in (0, 2, 4, 6))]

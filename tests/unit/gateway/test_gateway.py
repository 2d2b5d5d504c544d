"""The gateway between real clusters: a foreign one without timers, and its own store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import pytest
from tests.unit.client.growing_stage import on_loop, until

from cometmq import Message, Producer, PushConsumer, ReceivedMessage
from cometmq.errors import ConnectFailed, RemoteError, SendFailed
from cometmq.gateway.gateway import DelayGateway, read_status
from cometmq.testing import EmbeddedCluster, embedded_cluster

FOREIGN = {"timerWheelEnable": False}
SMALL = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeTimerLog": 1 << 20}
LIMIT_S = 60.0


class Arrivals:
    """What consumers of the foreign cluster got, with the time by their own clock."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self.bodies: list[str] = []

    async def take(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        self.bodies.append(message.body.decode())


@contextlib.asynccontextmanager
async def consuming(cluster: EmbeddedCluster, *topics: str) -> AsyncIterator[Arrivals]:
    """Consume these topics of the foreign cluster from the beginning."""
    arrivals = Arrivals()
    async with PushConsumer(
        "readers",
        dict.fromkeys(topics, "*"),
        arrivals.take,
        name_server=cluster.name_server_address,
        consume_from="first",
    ):
        yield arrivals


def now_ms(gateway: DelayGateway) -> int:
    return gateway._env.clock.now_ms()


def timed(body: str, topic: str, **properties: str) -> Message:
    return Message(
        "DELAY_GATEWAY",
        body.encode(),
        tags="new",
        keys="k1",
        properties={"GATEWAY_TOPIC": topic, **properties},
    )


@on_loop
async def test_messages_come_out_on_time_and_broken_ones_as_dead_letters(tmp_path: Path) -> None:
    """The foreign cluster refuses timers; through the gateway none is early, with its fields."""
    async with (
        embedded_cluster(FOREIGN) as foreign,
        Producer("app", name_server=foreign.name_server_address) as producer,
        DelayGateway(foreign.name_server_address, str(tmp_path / "own"), settings=SMALL) as gateway,
    ):
        with pytest.raises((RemoteError, SendFailed), match="timerWheelEnable is false"):
            await producer.send(Message("Bills", b"x", deliver_time_ms=now_ms(gateway) + 60_000))
        start_ms = now_ms(gateway)
        dues = {f"bill {n}": start_ms + 200 * n for n in range(10)}
        for body, due_ms in dues.items():
            await producer.send(timed(body, "Bills", GATEWAY_TIME_MS=str(due_ms), colour="red"))
        await producer.send(timed("relative", "Bills", GATEWAY_DELAY_MS="300"))
        await producer.send(timed("illegal", "no topic", GATEWAY_DELAY_MS="300"))
        await producer.send(timed("far", "Bills", GATEWAY_DELAY_MS=str(400 * 86_400_000)))
        async with consuming(foreign, "Bills", "DELAY_GATEWAY_DEAD") as arrivals:
            await until(lambda: len(arrivals.bodies) == 13, LIMIT_S)
        for message in arrivals.messages:
            body = message.body.decode()
            if message.topic == "Bills":
                due_ms = int(message.properties["GATEWAY_DUE_MS"])
                assert due_ms == dues.get(body, due_ms)
                assert message.store_timestamp_ms >= due_ms, "never early"
                assert (message.tags, message.keys) == ("new", ("k1",))
                assert message.properties["GATEWAY_ID"]
                assert "GATEWAY_TOPIC" not in message.properties
            else:
                assert body in ("illegal", "far")
                assert message.properties["GATEWAY_REASON"]
        reasons = {m.body.decode(): m.properties.get("GATEWAY_REASON") for m in arrivals.messages}
        assert "no topic" in (reasons["illegal"] or "")
        assert "max delay" in (reasons["far"] or "")
        status_now = gateway.status
        assert (status_now.accepted, status_now.delivered, status_now.dead) == (13, 11, 2)
    status = read_status(str(tmp_path / "own"))
    assert status is not None
    assert (status["accepted"], status["delivered"], status["dead"]) == (13, 11, 2)


@on_loop
async def test_what_was_overdue_after_a_stop_comes_out_at_once(tmp_path: Path) -> None:
    """The gateway takes messages, stops before they are due, and starts after that."""
    async with (
        embedded_cluster(FOREIGN) as foreign,
        Producer("app", name_server=foreign.name_server_address) as producer,
    ):
        address, store = foreign.name_server_address, str(tmp_path / "own")
        async with DelayGateway(address, store, settings=SMALL) as gateway:
            due_ms = now_ms(gateway) + 3_000
            for number in range(20):
                await producer.send(timed(str(number), "Bills", GATEWAY_TIME_MS=str(due_ms)))
            await until(lambda: gateway.status.accepted == 20, LIMIT_S)
            assert gateway.status.delivered == 0
        await until(lambda: now_ms(gateway) > due_ms, LIMIT_S)
        async with (
            DelayGateway(address, store, settings=SMALL) as again,
            consuming(foreign, "Bills") as arrivals,
        ):
            await until(lambda: len(arrivals.bodies) == 20, LIMIT_S)
            assert sorted(arrivals.bodies, key=int) == [str(number) for number in range(20)]
            await until(lambda: again.status.delivered == 20, LIMIT_S)
        async with DelayGateway(address, store, settings=SMALL) as third:
            await producer.send(timed("last", "Bills", GATEWAY_DELAY_MS="0"))
            await until(lambda: third.status.delivered == 1, LIMIT_S)
            assert third.status.overdue == 1


@on_loop
async def test_a_cluster_that_goes_away_gets_its_messages_when_it_is_back(tmp_path: Path) -> None:
    """Every try is counted and the first one logged; nothing is lost or buried."""
    foreign_store = str(tmp_path / "foreign")
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(_cluster(foreign_store, 0, 0))
        address, broker_address = first.name_server_address, first.broker_address
        ports = [int(one.rpartition(":")[2]) for one in (address, broker_address)]
        gateway = await stack.enter_async_context(
            DelayGateway(address, str(tmp_path / "own"), settings=SMALL)
        )
        async with Producer("app", name_server=address) as producer:
            due_ms = now_ms(gateway) + 2_000
            for number in range(10):
                await producer.send(timed(str(number), "Bills", GATEWAY_TIME_MS=str(due_ms)))
            await until(lambda: gateway.status.accepted == 10, LIMIT_S)
        await first.standalone.stop()
        await until(lambda: gateway.status.retries > 0, LIMIT_S)
        assert "bring " in gateway.status.last_error
        async with (
            _cluster(foreign_store, *ports) as second,
            consuming(second, "Bills") as arrivals,
        ):
            await until(lambda: len(set(arrivals.bodies)) == 10, LIMIT_S)
            await until(lambda: gateway.status.delivered == 10, LIMIT_S)
            assert gateway.status.dead == 0
            await gateway.stop()


@contextlib.asynccontextmanager
async def _cluster(
    store_path: str, name_server_port: int, broker_port: int
) -> AsyncIterator[EmbeddedCluster]:
    """A foreign cluster that can come back at its ports."""
    from cometmq.broker.base.config import load_config
    from cometmq.standalone import Standalone
    from cometmq.testing.clock import MovableClock
    from cometmq.testing.cluster import SMALL_STORE

    settings = {
        **SMALL_STORE,
        **FOREIGN,
        "brokerName": "broker-f",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": broker_port,
        "namesrvAddr": "",
        "storePathRootDir": store_path,
    }
    config = load_config(overrides=settings, environment={}).config
    standalone = Standalone(config, name_server_port=name_server_port)
    await standalone.start()
    try:
        yield EmbeddedCluster(
            standalone.name_server_address,
            standalone.broker_address,
            store_path,
            standalone,
            MovableClock(),
            asyncio.get_running_loop(),
        )
    finally:
        with contextlib.suppress(AssertionError, RuntimeError):
            await standalone.stop()


@mock.patch("cometmq.gateway.gateway.LATER_MS", 500)
@on_loop
async def test_a_topic_that_does_not_exist_yet_holds_up_nobody(tmp_path: Path) -> None:
    """Its message goes back to the store and comes again, also when the topic is made later.

    Ten seconds later, that is; half a second here.
    """
    settings = {**FOREIGN, "autoCreateTopicEnable": False}
    async with (
        embedded_cluster(settings) as foreign,
        DelayGateway(foreign.name_server_address, str(tmp_path / "own"), settings=SMALL) as gateway,
        Producer("app", name_server=foreign.name_server_address) as producer,
    ):
        await producer.create_topic("Bills", queue_count=1)
        await producer.send(timed("early bird", "NotYet", GATEWAY_DELAY_MS="0"))
        await until(lambda: gateway.status.postponed >= 1, LIMIT_S)
        await producer.send(timed("usual", "Bills", GATEWAY_DELAY_MS="0"))
        await until(lambda: gateway.status.delivered == 1, LIMIT_S)
        await producer.create_topic("NotYet", queue_count=1)
        async with consuming(foreign, "NotYet") as arrivals:
            await until(lambda: arrivals.bodies == ["early bird"], LIMIT_S)
        assert gateway.status.dead == 0
        await asyncio.sleep(0)


@on_loop
async def test_a_part_that_cannot_stop_leaves_no_other_running(tmp_path: Path) -> None:
    """The error is raised when producers, consumers and the store are closed; once."""
    stopped: list[str] = []
    shutdown = PushConsumer.shutdown

    async def failing(consumer: PushConsumer) -> None:
        await shutdown(consumer)
        stopped.append(consumer.group)
        raise ConnectFailed(f"{consumer.group} could not say goodbye")

    abort = tmp_path / "own" / "abort"
    async with embedded_cluster(FOREIGN) as foreign:
        with mock.patch.object(PushConsumer, "shutdown", failing):
            gateway = DelayGateway(foreign.name_server_address, str(abort.parent), settings=SMALL)
            await gateway.start()
            assert abort.exists(), "the store is open"
            with pytest.raises(ConnectFailed, match="GATEWAY_OUT could not say goodbye"):
                await gateway.stop()
        assert stopped == ["DELAY_GATEWAY", "GATEWAY_OUT"]
        assert not abort.exists(), "and closed"
        await gateway.stop()

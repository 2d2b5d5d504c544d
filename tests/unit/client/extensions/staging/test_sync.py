"""The clients of staged batches against real brokers: one, two, and one that cannot."""

import asyncio
import contextlib
import json
import pickle
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.unit.client.fake import FakeBroker

import cometmq
import cometmq.sync
from cometmq.broker import Broker, load_config
from cometmq.client.extensions.staging.calls import StagedPart
from cometmq.codec.java_hash import java_hash
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.errors import (
    ConfigError,
    ConnectFailed,
    LocalProtocolError,
    MessageRefused,
    QueryNotFound,
    RequestNotSupported,
)
from cometmq.net.env import system_environment
from cometmq.store.base.disk import RealDisk
from cometmq.store.base.results import GetResult, GetStatus
from cometmq.testing.cluster import (
    SMALL_STORE,
    EmbeddedCluster,
    embedded_cluster,
    threaded_cluster,
)
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.extensions.staging import PublishBody, StagedListing


def messages_of(broker: Broker, topic: str) -> list[list[StoredMessage]]:
    """What readers see in each queue."""
    store = broker.state.store
    queues: list[list[StoredMessage]] = []
    for queue_id in range(4):
        messages: list[StoredMessage] = []
        while True:
            found = store.get(topic, queue_id, len(messages), 1000, allow_cold=True)
            assert isinstance(found, GetResult)
            if found.status is not GetStatus.FOUND:
                break
            messages += decode_messages(b"".join(found.chunks))
        queues.append(messages)
    return queues


def bodies_of(*brokers: Broker, topic: str = "T") -> list[bytes]:
    """All bodies that readers see, sorted."""
    return sorted(
        bytes(message.body)
        for broker in brokers
        for queue in messages_of(broker, topic)
        for message in queue
    )


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    """One broker in a thread of its own, whose topics get four queues."""
    settings = {"flushDiskType": request.param, "defaultTopicQueueNums": 4}
    with threaded_cluster(settings) as running:
        yield running


def test_a_batch_of_several_parts(cluster: EmbeddedCluster) -> None:
    """Parts are staged by different clients, and the parts that travel to the publisher pickle."""
    address = cluster.name_server_address
    parts: list[StagedPart] = []
    for number in range(3):
        with cometmq.sync.Staging(address, "sink", block_bytes=500) as staging:
            part = staging.part(0, str(number))
            for row in range(50):
                part.add("T", b"%d/%d" % (number, row), tags="tag", keys="key")
            parts.append(pickle.loads(pickle.dumps(part.finish())))
    broker = cluster.standalone.broker
    assert bodies_of(broker) == []
    with cometmq.sync.Staging(address, "sink") as staging:
        assert staging.is_supported()
        assert staging.last_published() is None
        result = staging.publish(0, [None, *parts])
        assert (result.status, result.rows) == (cometmq.PublishState.PUBLISHED, 150)
        again = staging.publish(0, parts)
        assert (again.status, again.rows) == (cometmq.PublishState.ALREADY, 150)
        assert staging.last_published() == 0
    expected = sorted(b"%d/%d" % (number, row) for number in range(3) for row in range(50))
    assert bodies_of(broker) == expected


def test_where_messages_go(cluster: EmbeddedCluster) -> None:
    """A queue that is named, the queue of a group as Java's clients find it, else in turn."""
    with (
        cometmq.sync.Staging(cluster.name_server_address, "sink") as staging,
        cometmq.sync.Admin(name_server=cluster.name_server_address) as admin,
    ):
        admin.create_topic("T", queue_count=4)
        part = staging.part(0, "0")
        part.add("T", b"named", queue_id=3)
        for row in range(5):
            part.add("T", b"group %d" % row, message_group="orders", properties={"row": str(row)})
        for _ in range(8):
            part.add("T", b"turn")
        with pytest.raises(LocalProtocolError, match="no queue 4; its 4 queues"):
            part.add("T", b"x", queue_id=4)
        staging.publish(0, [part.finish()])
        with pytest.raises(LocalProtocolError, match="is finished; open a new part"):
            part.add("T", b"late")
    queues = messages_of(cluster.standalone.broker, "T")
    bodies = [[bytes(message.body) for message in queue] for queue in queues]
    assert b"named" in bodies[3]
    grouped = bodies[abs(java_hash("orders")) % 4]
    ordered = [body for body in grouped if body.startswith(b"group")]
    assert ordered == [b"group %d" % row for row in range(5)]
    assert [queue.count(b"turn") for queue in bodies] == [2, 2, 2, 2]
    (first,) = [m for queue in queues for m in queue if bytes(m.body) == b"group 0"]
    assert first.properties["row"] == "0"
    assert first.properties["__SHARDINGKEY"] == "orders"
    assert len(first.properties["UNIQ_KEY"]) == 32


def test_what_is_refused(cluster: EmbeddedCluster) -> None:
    """Wrong names and parts here, impossible times and lost tokens by the broker."""
    address = cluster.name_server_address
    with pytest.raises(ConfigError, match="illegal characters"):
        cometmq.sync.Staging(address, "no/slash")
    with cometmq.sync.Staging(address, "sink") as staging:
        with pytest.raises(ConfigError, match="batches count from 0"):
            staging.part(-1, "0")
        with pytest.raises(ConfigError, match="without a slash"):
            staging.part(0, "a/b")
        part = staging.part(0, "0")
        part.add("T", b"x")
        done = part.finish()
        with pytest.raises(ConfigError, match="belongs to batch 0 of sink 'sink', not to batch 1"):
            staging.publish(1, [done])
        assert staging.drop([done]) == 1
        with pytest.raises(QueryNotFound, match="stage the batch again"):
            staging.publish(0, [done])
        timed = staging.part(0, "0")
        timed.add("T", b"x", deliver_time_ms=4_000_000_000_000)
        with pytest.raises(MessageRefused, match="bigger than the max delay"):
            timed.finish()
        given_up = staging.part(0, "1")
        given_up.add("T", b"x" * 600_000)
        assert staging.drop([given_up.staged()]) == 1
        assert staging.publish(0, []).status is cometmq.PublishState.PUBLISHED
        assert staging.forget() == 0
        assert staging.last_published() is None


def test_the_asyncio_face() -> None:
    """Equal names, awaited."""

    async def main() -> None:
        async with (
            embedded_cluster() as running,
            cometmq.Staging(running.name_server_address, "sink") as staging,
        ):
            assert staging.sink == "sink"
            assert await staging.is_supported()
            part = staging.part(7, "0")
            await part.add("T", b"body")
            assert part.staged().tokens == {}
            result = await staging.publish(7, [await part.finish()])
            assert result == cometmq.PublishResult(cometmq.PublishState.PUBLISHED, 1)
            assert await staging.last_published() == 7
            assert bodies_of(running.standalone.broker) == [b"body"]
            other = staging.part(8, "0")
            await other.add("T", b"body")
            assert await staging.drop([await other.finish()]) == 1
            assert await staging.forget() == 0

    asyncio.run(main())


# -- several brokers ---------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def two_brokers(path: Path) -> AsyncIterator[tuple[str, Broker, Broker]]:
    """A name server with the brokers a and b, both with two queues of the topic T."""
    async with embedded_cluster(store_path=str(path / "a")) as running:
        overrides = {
            **SMALL_STORE,
            "brokerName": "broker-b",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": 0,
            "namesrvAddr": running.name_server_address,
            "storePathRootDir": str(path / "b"),
        }
        config = load_config(overrides=overrides, environment={}).config
        other = Broker(config, system_environment(), RealDisk())
        await other.start()
        try:
            async with cometmq.Admin(name_server=running.name_server_address) as admin:
                await admin.create_topic("T", queue_count=2)
            yield running.name_server_address, running.standalone.broker, other
        finally:
            await other.stop()


async def staged(staging: cometmq.Staging, batch_id: int, rows: list[bytes]) -> StagedPart:
    """One part with these rows."""
    part = staging.part(batch_id, "0")
    for row in rows:
        await part.add("T", row)
    return await part.finish()


ROWS = [b"row %d" % row for row in range(20)]


@pytest.mark.parametrize("dies_after", [0, 1, 2, 3, 4])
def test_a_batch_on_two_brokers_is_there_once_after_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_after: int
) -> None:
    """The producer dies before the decision, after it, and at the end; its successor finishes.

    The successor's rows lie on other brokers than those of the first attempt: what the home had
    decided counts.
    """

    async def main() -> None:
        async with two_brokers(tmp_path) as (address, a, b):
            async with cometmq.Staging(address, "sink") as first:
                part = await staged(first, 0, ROWS)
                assert part.tokens.keys() == {"broker-a", "broker-b"}
                ask = first._calls._publish_at
                asked: list[bool] = []

                async def dying(
                    to: str, batch_id: int, body: PublishBody, prepare: bool = False
                ) -> str:
                    if len(asked) == dies_after:
                        raise ConnectFailed("the producer died")
                    asked.append(prepare)
                    return await ask(to, batch_id, body, prepare)

                monkeypatch.setattr(first._calls, "_publish_at", dying)
                with contextlib.suppress(ConnectFailed):
                    await first.publish(0, [part])
                # The other is told of home, prepares; home decides; the other publishes.
                assert asked == [False, True, False, False][:dies_after]
            async with cometmq.Staging(address, "sink") as second:
                turned = await staged(second, 0, ROWS[1:] + ROWS[:1])
                result = await second.publish(0, [turned])
                expected = "PUBLISHED" if dies_after < 3 else "ALREADY"
                assert (result.status, result.rows) == (expected, len(ROWS))
                after = await second.publish(1, [await staged(second, 1, [b"next"])])
                assert after.status is cometmq.PublishState.PUBLISHED
            assert bodies_of(a, b) == sorted([*ROWS, b"next"])
            assert {entry.home for entry in a.staging.ledger.sinks.values()} == {"broker-a"}

    asyncio.run(main())


def test_a_decided_batch_is_finished_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a producer that goes on with the next batch as if nothing had happened."""

    async def main() -> None:
        async with two_brokers(tmp_path) as (address, a, b):
            async with cometmq.Staging(address, "sink") as staging:
                part = await staged(staging, 0, ROWS)
                ask = staging._calls._publish_at

                async def only_home(
                    to: str, batch_id: int, body: PublishBody, prepare: bool = False
                ) -> str:
                    if to == b.address and body.tokens and not prepare:
                        raise ConnectFailed("no way to broker-b")
                    return await ask(to, batch_id, body, prepare)

                monkeypatch.setattr(staging._calls, "_publish_at", only_home)
                with pytest.raises(ConnectFailed):
                    await staging.publish(0, [part])
                assert 0 < len(bodies_of(a, b)) < len(ROWS)
                monkeypatch.setattr(staging._calls, "_publish_at", ask)
                await staging.publish(1, [await staged(staging, 1, [b"next"])])
            assert bodies_of(a, b) == sorted([*ROWS, b"next"])

    asyncio.run(main())


def test_a_home_that_is_gone_is_waited_for(tmp_path: Path) -> None:
    """It may have decided about this very batch, so nobody publishes without it.

    The other broker had no part in batch 0, and knows where home is all the same.
    """

    async def main() -> None:
        async with two_brokers(tmp_path) as (address, a, b):
            async with cometmq.Staging(address, "sink") as staging:
                part = staging.part(0, "0")
                await part.add("T", b"first")
                home_only = await part.finish()
                while home_only.tokens.keys() != {"broker-a"}:
                    await staging.drop([home_only])
                    part = staging.part(0, "0")
                    await part.add("T", b"first")
                    home_only = await part.finish()
                await staging.publish(0, [home_only])
                await a.stop()
                part = staging.part(1, "0")
                await part.add("T", b"next")
                with pytest.raises(ConnectFailed, match="broker-a decides about the batches"):
                    await staging.publish(1, [await part.finish()])
            assert bodies_of(b) == []

    asyncio.run(main())


def test_a_home_that_is_gone_with_the_first_batch_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decided, the producer died, and the name server forgot it: the replay still knows."""

    async def main() -> None:
        async with two_brokers(tmp_path) as (address, a, b):
            async with cometmq.Staging(address, "sink") as staging:
                part = await staged(staging, 1, ROWS)
                ask = staging._calls._publish_at

                async def dying(
                    to: str, batch_id: int, body: PublishBody, prepare: bool = False
                ) -> str:
                    if to == b.address and not prepare and batch_id == 1:
                        raise ConnectFailed("the producer died")
                    return await ask(to, batch_id, body, prepare)

                monkeypatch.setattr(staging._calls, "_publish_at", dying)
                with pytest.raises(ConnectFailed):
                    await staging.publish(1, [part])
                assert 0 < len(bodies_of(a)) < len(ROWS)
            await a.stop()
            async with cometmq.Staging(address, "sink") as staging:
                assert await staging.last_published() is None
                with pytest.raises(ConnectFailed, match="broker-a decides about the batches"):
                    await staging.publish(1, [await staged(staging, 1, ROWS)])
            assert bodies_of(b) == []

    asyncio.run(main())


@pytest.mark.parametrize("dies_after", [0, 1, 2, 3])
def test_the_first_batch_of_all_is_undecided_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_after: int
) -> None:
    """The producer dies before any request of batch 0's publish, the home is gone with its entry
    at the name server, and the other broker has been restarted.

    While nobody was told, nothing can have been decided and the other broker is home.  Afterwards
    it waits for the home, and when that is back the batch is there once.
    """

    async def main() -> None:
        async with two_brokers(tmp_path) as (address, a, b):
            async with cometmq.Staging(address, "sink") as first:
                part = await staged(first, 0, ROWS)
                assert part.tokens.keys() == {"broker-a", "broker-b"}
                ask = first._calls._publish_at
                asked: list[int] = []

                async def dying(
                    to: str, batch_id: int, body: PublishBody, prepare: bool = False
                ) -> str:
                    if len(asked) == dies_after:
                        raise ConnectFailed("the producer died")
                    asked.append(batch_id)
                    return await ask(to, batch_id, body, prepare)

                monkeypatch.setattr(first._calls, "_publish_at", dying)
                with pytest.raises(ConnectFailed, match="the producer died"):
                    await first.publish(0, [part])
                assert asked == [-1, 0, 0][:dies_after]
            decided = bodies_of(a)
            assert bool(decided) == (dies_after == 3)
            home_config, other_config = a.state.config, b.state.config
            await a.stop()
            await b.stop()
            other = Broker(other_config, system_environment(), RealDisk())
            await other.start()
            try:
                async with cometmq.Staging(address, "sink") as second:
                    assert await second.last_published() is None
                    again = await staged(second, 0, ROWS)
                    assert again.tokens.keys() == {"broker-b"}
                    if dies_after == 0:
                        result = await second.publish(0, [again])
                        assert result == cometmq.PublishResult(
                            cometmq.PublishState.PUBLISHED, len(ROWS)
                        )
                        assert bodies_of(other) == sorted(ROWS)
                        return
                    with pytest.raises(ConnectFailed, match="broker-a decides about the batches"):
                        await second.publish(0, [again])
                    assert bodies_of(other) == []
                home = Broker(home_config, system_environment(), RealDisk())
                await home.start()
                try:
                    async with cometmq.Staging(address, "sink") as third:
                        result = await third.publish(0, [await staged(third, 0, ROWS)])
                        expected = "ALREADY" if dies_after == 3 else "PUBLISHED"
                        assert (result.status, result.rows) == (expected, len(ROWS))
                        assert await third.last_published() == 0
                    assert bodies_of(home, other) == sorted(ROWS)
                    assert set(decided) <= set(bodies_of(home))
                finally:
                    await home.stop()
            finally:
                await other.stop()

    asyncio.run(main())


def test_a_told_broker_whose_line_is_not_durable_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that names home was read before it was complete; and a line that appeared while the
    ledgers were read sends the producer back to look."""

    async def main() -> None:
        async with two_brokers(tmp_path) as (address, a, b):
            async with cometmq.Staging(address, "sink") as staging:
                ask, listing = staging._calls._publish_at, staging._calls.listing
                told: list[tuple[str, int, bool]] = []
                reads: list[str] = []

                async def noting(
                    to: str, batch_id: int, body: PublishBody, prepare: bool = False
                ) -> str:
                    told.append((to, batch_id, bool(body.tokens)))
                    return await ask(to, batch_id, body, prepare)

                async def early(to: str, *, all_sinks: bool = False) -> StagedListing:
                    """Of b: at first nothing yet, then a line that is not complete."""
                    reads.append(to)
                    found = await listing(to, all_sinks=all_sinks)
                    if to == b.address and reads.count(to) == 1:
                        await ask(to, -1, PublishBody([], "broker-a"))
                    elif to == b.address and reads.count(to) == 3:
                        line = msgspec.structs.replace(found.sinks["sink"], is_complete=False)
                        return StagedListing({"sink": line}, found.tokens)
                    return found

                monkeypatch.setattr(staging._calls, "_publish_at", noting)
                monkeypatch.setattr(staging._calls, "listing", early)
                result = await staging.publish(0, [await staged(staging, 0, ROWS)])
                assert result.status is cometmq.PublishState.PUBLISHED
                assert told == [
                    (b.address, -1, False),
                    (b.address, -1, False),
                    (b.address, 0, True),
                    (a.address, 0, True),
                    (b.address, 0, True),
                ]
            assert bodies_of(a, b) == sorted(ROWS)

    asyncio.run(main())


def test_a_sink_has_one_owner(cluster: EmbeddedCluster) -> None:
    """A batch of somebody else is no repeat, whatever its number, and never published."""
    address = cluster.name_server_address
    with pytest.raises(ConfigError, match="without a slash"):
        cometmq.sync.Staging(address, "sink", owner="a/b")
    with cometmq.sync.Staging(address, "sink", owner="query 1") as staging:
        part = staging.part(1, "0")
        for number in range(3):
            part.add("T", b"%d" % number)
        whole = part.finish()
        assert staging.publish(1, [whole]).rows == 3
        again = staging.publish(1, [whole])
        assert (again.status, again.rows) == (cometmq.PublishState.ALREADY, 3)
    with cometmq.sync.Staging(address, "sink", owner="query 2") as other:
        for batch_id in (0, 1, 2):
            foreign = other.part(batch_id, "0")
            foreign.add("T", b"x")
            with pytest.raises(
                ConfigError, match="belongs to query 1, which has published batch 1"
            ):
                other.publish(batch_id, [foreign.finish()])
        other.forget()
        part = other.part(1, "0")
        part.add("T", b"anew")
        assert other.publish(1, [part.finish()]).status is cometmq.PublishState.PUBLISHED
    assert bodies_of(cluster.standalone.broker) == [b"0", b"1", b"2", b"anew"]


def test_a_broker_of_another_make_cannot() -> None:
    """It is told apart by its answer, and the error says what to do instead."""

    async def main() -> None:
        broker = FakeBroker({"T": 1})
        await broker.start()
        info = {
            "brokerAddrTable": {
                "broker-a": {"brokerName": "broker-a", "brokerAddrs": {"0": broker.address}}
            },
            "clusterAddrTable": {"c": ["broker-a"]},
        }
        broker.override[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda request, connection: (
            request.answer(0, None, {}, json.dumps(info).encode())
        )
        try:
            async with cometmq.Staging(broker.name_server, "sink") as staging:
                assert not await staging.is_supported()
                part = staging.part(0, "0")
                await part.add("T", b"x")
                with pytest.raises(RequestNotSupported, match="send with a Producer"):
                    await part.finish()
                with pytest.raises(RequestNotSupported, match="none of the brokers broker-a"):
                    await staging.publish(0, [])
        finally:
            await broker.stop()

    asyncio.run(main())

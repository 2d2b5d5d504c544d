"""Staged batches by raw requests to a real broker: what is refused, held back, kept and dropped."""

import asyncio
import zlib
from pathlib import Path

import pytest
from tests.unit.broker.harness import Client, eventually, running, scenario

from cometmq.broker import Broker
from cometmq.codec.batch import encode_batch
from cometmq.errors import ResponseCode
from cometmq.model.names import STAGED_DECISION_TOPIC, STAGED_TOPIC
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.bulk_pull import FEATURES_FIELD
from cometmq.wire.extensions.staging import (
    STAGING_FEATURE,
    DropBody,
    PublishBody,
    PublishHeader,
    SinkHeader,
    StagedListing,
    StageHeader,
    StagingCode,
    TokenClaim,
    decode_body,
    encode_body,
)

PROPERTIES = b"UNIQ_KEY\x01id%d\x02TAGS\x01red\x02"


def block_of(count: int, *, first: int = 0, more: bytes = b"") -> bytes:
    """A block of small messages."""
    return encode_batch(
        [(0, b"row %d" % (first + row), PROPERTIES % (first + row) + more) for row in range(count)]
    )


class Sink:
    """Requests of one sink on one connection."""

    def __init__(self, client: Client, sink: str = "sink") -> None:
        self.client = client
        self.sink = sink

    async def stage(
        self,
        token: str,
        block: bytes,
        *,
        batch_id: int = 0,
        sequence: int = 0,
        topic: str = "t",
        queue_id: int = 0,
    ) -> RemotingCommand:
        header = StageHeader(self.sink, batch_id, "p", token, sequence, topic, queue_id, 1)
        return await self.client.call(StagingCode.STAGE, header.to_ext(), block)

    async def publish(
        self, *claims: TokenClaim, batch_id: int = 0, prepare: bool = False
    ) -> RemotingCommand:
        header = PublishHeader(self.sink, batch_id, prepare)
        body = encode_body(PublishBody(list(claims), "broker-a"))
        return await self.client.call(StagingCode.PUBLISH_STAGED, header.to_ext(), body)

    async def drop(self, *tokens: str) -> RemotingCommand:
        body = encode_body(DropBody(list(tokens)))
        return await self.client.call(StagingCode.DROP_STAGED, SinkHeader(self.sink).to_ext(), body)

    async def listing(self) -> StagedListing:
        header = SinkHeader(self.sink)
        answer = await self.client.call(StagingCode.LIST_STAGED, header.to_ext())
        return decode_body(answer.body, StagedListing)

    async def forget(self) -> RemotingCommand:
        return await self.client.call(StagingCode.FORGET_SINK, SinkHeader(self.sink).to_ext())


def claim(token: str, rows: int, *blocks: bytes) -> TokenClaim:
    """What a part would say of its token."""
    crc = 0
    for block in blocks:
        crc = zlib.crc32(block, crc)
    return TokenClaim(token, rows, crc)


def test_nobody_sees_what_is_staged_and_everybody_what_is_published(tmp_path: Path) -> None:
    """Body, tags, ids and order are those that were staged; nothing of the staging shows."""

    async def story(broker: Broker, client: Client) -> None:
        sink = Sink(client)
        blocks = [block_of(3), block_of(2, first=3)]
        for sequence, block in enumerate(blocks):
            answer = await sink.stage("a", block, sequence=sequence)
            assert (answer.code, answer.ext_fields["status"]) == (0, "STAGED")
        assert await client.messages() == []
        assert broker.state.store.max_queue_offset("t", 0) == 0
        answer = await sink.publish(claim("a", 5, *blocks))
        assert (answer.code, answer.remark, answer.ext_fields) == (
            0,
            None,
            {"status": "PUBLISHED", "rows": "5"},
        )
        heartbeat = await client.heartbeat(producers=("pg",))
        assert STAGING_FEATURE in heartbeat.ext_fields[FEATURES_FIELD].split(",")
        found = await client.messages(subscription="red")
        assert [bytes(message.body) for message in found] == [b"row %d" % row for row in range(5)]
        assert [message.queue_offset for message in found] == list(range(5))
        assert found[0].properties == {"UNIQ_KEY": "id0", "TAGS": "red"}
        assert found[0].born_timestamp_ms == 1
        listing = await sink.listing()
        assert listing.tokens == []
        assert (listing.sinks["sink"].batch_id, listing.sinks["sink"].rows) == (0, 5)

    scenario(tmp_path, story)


def test_a_batch_is_published_once(tmp_path: Path) -> None:
    """Again, later, and after a restart: ALREADY, and nothing is appended."""
    block = block_of(2)

    async def main() -> None:
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            sink = Sink(client)
            await sink.stage("a", block, batch_id=4)
            await sink.publish(claim("a", 2, block), batch_id=4)
            for batch_id in (4, 3):
                staged = await sink.stage("b", block, batch_id=batch_id)
                assert staged.ext_fields["status"] == "ALREADY"
                again = await sink.publish(claim("b", 2, block), batch_id=batch_id)
                assert again.ext_fields["status"] == "ALREADY"
            await client.close()
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            again = await Sink(client).publish(claim("a", 2, block), batch_id=4)
            assert again.ext_fields == {"status": "ALREADY", "rows": "2"}
            assert broker.state.store.max_queue_offset("t", 0) == 2
            assert len(broker.staging.tokens) == 0
            await client.close()

    asyncio.run(main())


def test_what_is_wrong_with_a_token_is_said(tmp_path: Path) -> None:
    """Missing, incomplete, twice, another sink's, another batch's: nothing is published."""

    async def story(broker: Broker, client: Client) -> None:
        mine, other = Sink(client), Sink(client, "other")
        block = block_of(2)
        await mine.stage("a", block)
        await other.stage("b", block)
        await mine.stage("later", block, batch_id=1)
        good = claim("a", 2, block)
        for claims, code, words in [
            ((claim("gone", 2, block),), ResponseCode.QUERY_NOT_FOUND, "is not staged on this"),
            ((claim("a", 3, block),), ResponseCode.QUERY_NOT_FOUND, "has 2 messages"),
            ((claim("a", 2, b"x"),), ResponseCode.QUERY_NOT_FOUND, "is incomplete"),
            ((good, good), ResponseCode.INVALID_PARAMETER, "is named twice"),
            ((claim("b", 2, block),), ResponseCode.INVALID_PARAMETER, "of sink other"),
            ((claim("later", 2, block),), ResponseCode.INVALID_PARAMETER, "to batch 1"),
        ]:
            for prepare in (True, False):
                answer = await mine.publish(*claims, prepare=prepare)
                assert answer.code == code
                assert words in (answer.remark or "")
        foreign = await mine.stage("b", block, sequence=1)
        assert foreign.code == ResponseCode.INVALID_PARAMETER
        assert await client.messages() == []
        assert broker.state.store.end_of_queue("t", 0) == 0
        ready = await mine.publish(good, prepare=True)
        assert ready.ext_fields == {"status": "READY", "rows": "2"}
        assert (await mine.publish(good)).ext_fields["status"] == "PUBLISHED"

    scenario(tmp_path, story)


def test_a_block_that_comes_twice_counts_once(tmp_path: Path) -> None:
    """A client that heard no answer sends it again; one that skips a block is told."""

    async def story(broker: Broker, client: Client) -> None:
        sink = Sink(client)
        block = block_of(2)
        for _ in range(2):
            assert (await sink.stage("a", block)).code == 0
        skipped = await sink.stage("a", block, sequence=2)
        assert skipped.code == ResponseCode.QUERY_NOT_FOUND
        assert "1 of the blocks before it" in (skipped.remark or "")
        assert [token.rows for token in (await sink.listing()).tokens] == [2]

    scenario(tmp_path, story)


@pytest.mark.parametrize(
    ("block", "where", "words"),
    [
        (block_of(1, more=b"TIMER_DELIVER_MS\x01soon\x02"), {}, "message 0 of the block: timer"),
        (block_of(1, more=b"TIMER_DELAY_SEC\x01999999999\x02"), {}, "than the max delay"),
        (block_of(1, more=b"TIMER_DEL_UNIQKEY\x01u\x02"), {}, "recalls travel alone"),
        (block_of(1, more=b"DELAY\x01soon\x02"), {}, "expected a delay level"),
        (block_of(1, more=b"TRAN_MSG\x01true\x02"), {}, "it is transactional"),
        (b"not a batch", {}, "batch message 0 at byte 0"),
        (b"", {}, "holds at least one message"),
        (block_of(1), {"queue_id": 99}, "queueId[99] is illegal"),
        (block_of(1), {"queue_id": -1}, "name a queue"),
        (block_of(1), {"topic": "SCHEDULE_TOPIC_XXXX"}, "is forbidden"),
        (block_of(1), {"topic": "%RETRY%g"}, "no retry topic"),
        (block_of(1), {"batch_id": -1}, "is not accepted"),
    ],
)
def test_what_cannot_be_staged_is_refused_at_once(
    tmp_path: Path, block: bytes, where: dict[str, int], words: str
) -> None:
    """With the cause, before anything is stored."""

    async def story(broker: Broker, client: Client) -> None:
        answer = await Sink(client).stage("a", block, **where)  # type: ignore[arg-type]
        assert answer.code != 0
        assert words in (answer.remark or "")
        assert broker.state.store.end_of_queue(STAGED_TOPIC, 0) == 0

    scenario(tmp_path, story)


def test_the_topics_of_staging_are_closed_to_clients(tmp_path: Path) -> None:
    """No send, no pull; and they are in no list."""

    async def story(broker: Broker, client: Client) -> None:
        await Sink(client).stage("a", block_of(1))
        for topic in (STAGED_TOPIC, STAGED_DECISION_TOPIC):
            assert (await client.send(b"x", b=topic)).code == ResponseCode.NO_PERMISSION
            assert (await client.pull(topic=topic)).code == ResponseCode.TOPIC_NOT_EXIST
            assert topic not in broker.state.topics

    scenario(tmp_path, story)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_sends_meanwhile_are_answered_and_wait_for_the_batch(tmp_path: Path, flush: str) -> None:
    """Readers see both at once; a pull that waits is woken when the batch is complete."""

    async def story(broker: Broker, client: Client) -> None:
        sink = Sink(client)
        blocks = [block_of(40, first=40 * number) for number in range(4)]
        for sequence, block in enumerate(blocks):
            await sink.stage("a", block, sequence=sequence)
        held = asyncio.ensure_future(
            client.pull(sysFlag="6", suspendTimeoutMillis="20000", subscription="blue || red")
        )
        store = broker.state.store
        seen: list[tuple[str, int, int]] = []

        def look(step: str) -> None:
            seen.append((step, store.max_queue_offset("t", 0), store.end_of_queue("t", 0)))
            if step == "slice appended" and len(seen) < 5:
                store.put("t", 0, b"ordinary", b"", store_ms=broker.env.clock.now_ms())

        await asyncio.sleep(0)
        broker.staging.publisher.at = look
        answer = await sink.publish(claim("a", 160, *blocks))
        assert answer.ext_fields["status"] == "PUBLISHED"
        during = [entry for entry in seen if entry[0] in {"slice announced", "slice appended"}]
        assert len(during) == 8
        assert {visible for _, visible, _ in during} == {0}
        assert during[-1][2] > 160
        await eventually(lambda: store.max_queue_offset("t", 0) == store.end_of_queue("t", 0))
        assert (await held).code == 0

    scenario(tmp_path, story, flushDiskType=flush)


def test_two_sinks_and_a_repeated_publish_at_once(tmp_path: Path) -> None:
    """Each waits for its turn; the second asker of one batch gets its outcome as ALREADY."""

    async def story(broker: Broker, client: Client) -> None:
        block = block_of(5)
        sinks = [Sink(client, name) for name in ("one", "two")]
        for sink in sinks:
            await sink.stage(sink.sink, block)
        answers = await asyncio.gather(
            *[sink.publish(claim(sink.sink, 5, block)) for sink in sinks for _ in range(2)]
        )
        statuses = [answer.ext_fields["status"] for answer in answers]
        assert statuses == ["PUBLISHED", "ALREADY"] * 2
        assert broker.state.store.max_queue_offset("t", 0) == 10

    scenario(tmp_path, story)


def test_dropped_and_forgotten(tmp_path: Path) -> None:
    """A dropped token cannot be published; a forgotten sink begins anew, also after a restart."""
    block = block_of(2)

    async def main() -> None:
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            sink = Sink(client)
            await sink.stage("a", block)
            await sink.stage("b", block)
            assert (await sink.drop("a", "nobody's")).ext_fields == {"count": "1"}
            gone = await sink.publish(claim("a", 2, block))
            assert gone.code == ResponseCode.QUERY_NOT_FOUND
            await sink.publish(claim("b", 2, block))
            await sink.stage("c", block, batch_id=1)
            assert (await sink.forget()).ext_fields == {"count": "1"}
            assert (await sink.listing()).sinks == {}
            await client.close()
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            sink = Sink(client)
            assert await sink.listing() == StagedListing({}, [])
            await sink.stage("d", block)
            again = await sink.publish(claim("d", 2, block))
            assert again.ext_fields["status"] == "PUBLISHED"
            assert broker.state.store.max_queue_offset("t", 0) == 4
            await client.close()

    asyncio.run(main())


def test_staged_messages_keep_their_log_files_until_their_time_is_up(tmp_path: Path) -> None:
    """The files of live tokens stay; an orphan is collected, and they go."""

    async def story(broker: Broker, client: Client) -> None:
        await Sink(client).stage("a", block_of(2))
        for _ in range(15):
            await client.send(bytes(100_000))
        store = broker.state.store
        store._retention.drop_files(100)
        assert store.min_physical_offset == 0
        staging = broker.staging
        now_ms = broker.env.clock.now_ms()
        assert staging.collect(now_ms) == 0
        assert staging.collect(now_ms + 1441 * 60_000) == 1
        store._retention.drop_files(100)
        assert store.min_physical_offset > 0

    scenario(tmp_path, story)


def test_a_decision_keeps_its_log_file_until_the_ledger_has_it(tmp_path: Path) -> None:
    """What was published is no reason to keep a file once the ledger's own is written."""

    async def story(broker: Broker, client: Client) -> None:
        sink = Sink(client)
        block = block_of(2)
        await sink.stage("a", block)
        await sink.publish(claim("a", 2, block))
        for _ in range(15):
            await client.send(bytes(100_000))
        store = broker.state.store
        await eventually(lambda: broker.staging._oldest() is None)
        store._retention.drop_files(100)
        assert store.min_physical_offset > 0
        assert (await sink.listing()).sinks["sink"].batch_id == 0

    scenario(tmp_path, story)


def test_the_ledger_survives_the_loss_of_its_file(tmp_path: Path) -> None:
    """Everything in it can be read from the decisions in the log."""
    block = block_of(2)

    async def main() -> None:
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            sink = Sink(client)
            for batch_id in range(3):
                await sink.stage(f"t{batch_id}", block, batch_id=batch_id)
                await sink.publish(claim(f"t{batch_id}", 2, block), batch_id=batch_id)
            await sink.stage("open", block, batch_id=3)
            await client.close()
        for path in (tmp_path / "config").glob("cometmqStaging.json*"):
            path.unlink()
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            sink = Sink(client)
            listing = await sink.listing()
            assert listing.sinks["sink"].batch_id == 2
            assert [token.token for token in listing.tokens] == ["open"]
            published = await sink.publish(claim("open", 2, block), batch_id=3)
            assert published.ext_fields["status"] == "PUBLISHED"
            assert broker.state.store.max_queue_offset("t", 0) == 8
            await client.close()

    asyncio.run(main())


def test_a_block_that_the_disk_has_damaged_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A length of zero inside it: the other blocks are published, and the loss is no secret."""

    async def story(broker: Broker, client: Client) -> None:
        sink = Sink(client)
        blocks = [block_of(3), block_of(2, first=3)]
        await sink.stage("a", blocks[0])
        await sink.stage("b", blocks[1])
        (log_file,) = (Path(broker.config.store_path_root_dir) / "commitlog").iterdir()
        place = log_file.read_bytes().index(blocks[0])
        with log_file.open("r+b") as file:
            file.seek(place)
            file.write(bytes(4))
        claims = claim("a", 3, blocks[0]), claim("b", 2, blocks[1])
        answer = await asyncio.wait_for(sink.publish(*claims), 10)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "published without 3 of its 5 messages" in (answer.remark or "")
        assert [bytes(one.body) for one in await client.messages()] == [b"row 3", b"row 4"]
        again = await sink.publish(*claims)
        assert again.ext_fields["status"] == "ALREADY"

    scenario(tmp_path, story)
    assert "its 3 messages are lost" in caplog.text

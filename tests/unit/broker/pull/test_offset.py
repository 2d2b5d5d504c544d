"""Offsets of groups and bounds of queues."""

import threading
from pathlib import Path

import pytest
from tests.unit.broker.harness import Client, scenario

from cometmq.broker import Broker
from cometmq.model.offsets import ConsumerOffset
from cometmq.store.message_store import MessageStore
from cometmq.wire.command.codes import RequestCode

QUEUE = {"topic": "t", "queueId": "0"}
GROUP = {"consumerGroup": "g", **QUEUE}


def test_commit_and_query(tmp_path: Path) -> None:
    """A committed offset is answered as it is, also after going back."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send()
        await client.pull()
        for offset in ("7", "2"):
            commit = await client.call(
                RequestCode.UPDATE_CONSUMER_OFFSET, {**GROUP, "commitOffset": offset}
            )
            assert (commit.code, commit.ext_fields) == (0, {})
            query = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, GROUP)
            assert (query.code, query.ext_fields) == (0, {"offset": offset})

    scenario(tmp_path, story)


def test_query_answers_zero_or_not_found_only(tmp_path: Path) -> None:
    """0 for a young or empty queue; 22 for no queue, or when the client forbids 0 (trap T12)."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send()
        code = RequestCode.QUERY_CONSUMER_OFFSET
        young = await client.call(code, GROUP)
        assert (young.code, young.ext_fields) == (0, {"offset": "0"})
        strict = await client.call(code, {**GROUP, "setZeroIfNotFound": "false"})
        assert strict.code == 22
        assert strict.remark == "Not found, do not set to zero, maybe this group boot first"
        empty = await client.call(code, {**GROUP, "queueId": "1"})
        assert (empty.code, empty.ext_fields) == (0, {"offset": "0"})
        assert (await client.call(30, {**QUEUE, "queueId": "1"})).ext_fields == {"offset": "0"}
        for ext in ({**GROUP, "queueId": "99"}, {**GROUP, "topic": "nobody"}):
            nowhere = await client.call(code, ext)
            assert nowhere.code == 22
            assert (
                nowhere.remark == "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            )

    scenario(tmp_path, story)


def test_commit_checks_group_then_topic(tmp_path: Path) -> None:
    """26 for an unknown group (a commit makes none), 17 for an unknown topic; any queue id."""

    async def story(broker: Broker, client: Client) -> None:
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        unknown = await client.call(code, {**GROUP, "commitOffset": "1"})
        assert unknown.code == 26
        await client.call(200, {}, b'{"groupName":"g"}')
        assert (await client.call(code, {**GROUP, "commitOffset": "1"})).code == 17
        await client.send()
        assert (await client.call(code, {**GROUP, "queueId": "99", "commitOffset": "1"})).code == 0

    scenario(tmp_path, story)


def test_commits_while_a_reset_waits_are_ignored(tmp_path: Path) -> None:
    """The operator's offset must survive the consumers' last commits."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send()
        await client.pull()
        broker.state.offsets.reset("g", "t", 0, ConsumerOffset(0), 0)
        commit = await client.call(
            RequestCode.UPDATE_CONSUMER_OFFSET, {**GROUP, "commitOffset": "9"}
        )
        assert (commit.code, commit.remark) == (0, "Offset has been previously reset")
        assert broker.state.offsets.query("g", "t", 0) == 0

    scenario(tmp_path, story)


def test_bounds_and_times_of_a_queue(tmp_path: Path) -> None:
    """30 is the next offset, 31 the first, 32 the first store time; unknown queues are 0 and -1."""

    async def story(broker: Broker, client: Client) -> None:
        for _ in range(3):
            await client.send()
        stored = [message.store_timestamp_ms for message in await client.messages()]
        calls = {
            RequestCode.GET_MAX_OFFSET: {"offset": "3"},
            RequestCode.GET_MIN_OFFSET: {"offset": "0"},
            RequestCode.GET_EARLIEST_MSG_STORETIME: {"timestamp": str(stored[0])},
        }
        for code, expected in calls.items():
            answer = await client.call(code, QUEUE)
            assert (answer.code, answer.ext_fields) == (0, expected)
        nowhere = {"topic": "nobody", "queueId": "7"}
        assert (await client.call(30, nowhere)).ext_fields == {"offset": "0"}
        assert (await client.call(31, nowhere)).ext_fields == {"offset": "0"}
        assert (await client.call(32, nowhere)).ext_fields == {"timestamp": "-1"}

    scenario(tmp_path, story)


def test_offsets_by_time_with_both_boundaries(tmp_path: Path) -> None:
    """Before the first: the first; after the last: the end; UPPER in any case."""

    async def story(broker: Broker, client: Client) -> None:
        for _ in range(3):
            await client.send()
        first = (await client.messages())[0].store_timestamp_ms

        async def search(timestamp: int, **ext: str) -> str:
            answer = await client.call(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                {**QUEUE, "timestamp": str(timestamp), **ext},
            )
            assert answer.code == 0
            return answer.ext_fields["offset"]

        assert await search(0) == "0"
        assert await search(first + 10_000_000) == "3"
        assert await search(first, boundaryType="LOWER") == "0"
        upper = await search(first + 10_000_000, boundaryType="upper")
        assert upper == await search(first + 10_000_000, boundaryType="UPPER")

    scenario(tmp_path, story)


def test_old_messages_are_looked_at_in_a_worker(tmp_path: Path) -> None:
    """The loop never waits for the disk, and both answers hold while units are being written."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send()
        first = await client.call(RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE)
        stored_ms = int(first.ext_fields["timestamp"])
        loop_thread = threading.get_ident()
        threads: set[int] = set()
        real = MessageStore.store_time_at

        def watched(store: MessageStore, topic: str, queue_id: int, queue_offset: int) -> int:
            threads.add(threading.get_ident())
            return real(store, topic, queue_id, queue_offset)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MessageStore, "store_time_at", watched)
            again = await client.call(RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE)
        assert int(again.ext_fields["timestamp"]) == stored_ms
        assert threads
        assert loop_thread not in threads
        for number in range(300):
            sent = client.send(b"%d" % number, e="0")
            search = {**QUEUE, "timestamp": str(stored_ms + 3_600_000)}
            found = await client.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
            answer = await sent
            assert found.code == 0
            assert abs(int(found.ext_fields["offset"]) - int(answer.ext_fields["queueOffset"])) <= 1

    scenario(tmp_path, story)

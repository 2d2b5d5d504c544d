"""SQL92 subscriptions at a real broker: registered by heartbeat or brought by the pull."""

import asyncio
import json
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import PULL_DEFAULTS, Client, eventually, running, scenario

from cometmq.broker import Broker
from cometmq.broker.pull.pull import DecodedPull
from cometmq.codec.stored_message import decode_messages
from cometmq.core.filter.consumer_filter import decode_filter_file
from cometmq.model.group import SubscriptionData
from cometmq.store.read import span_filter
from cometmq.wire.body.client import ConsumerData
from cometmq.wire.body.stats import decode_consume_queue_view
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.extensions.bulk_pull import BulkPullCode

LITE = {"expressionType": "SQL92", "subscription": "n >= 3 AND color = 'red'"}
PUSH = {"sysFlag": "2", "subVersion": "7", "expressionType": "SQL92"}


async def fill(client: Client, count: int = 6, first: int = 0) -> None:
    """Messages n=0, 1, ..., red and blue in turn."""
    for number in range(first, first + count):
        color = "blue" if number % 2 else "red"
        sent = await client.send(b"m%d" % number, i=f"n\x01{number}\x02color\x01{color}\x02")
        assert sent.code == 0


def subscription(text: str, version: int = 7) -> SubscriptionData:
    return SubscriptionData("t", text, sub_version=version, expression_type="SQL92")


async def subscribe(client: Client, text: str, version: int = 7, **fields: Any) -> None:
    await client.heartbeat(
        ConsumerData("g", subscriptions=(subscription(text, version),)), **fields
    )


@pytest.mark.parametrize(
    "code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, BulkPullCode.BULK_PULL]
)
def test_a_pull_brings_its_filter(tmp_path: Path, code: int) -> None:
    """Only what matches comes, in order; the next offset is behind all that was looked at."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client, 60)
        bodies: list[bytes] = []
        offset = 0
        while offset < 60:
            answer = await client.call(
                code, {**PULL_DEFAULTS, **LITE, "queueOffset": str(offset), "maxMsgNums": "40"}
            )
            assert answer.code == 0
            bodies += [message.body for message in decode_messages(answer.body)]
            offset = int(answer.ext_fields["nextBeginOffset"])
        assert bodies == [b"m%d" % number for number in range(4, 60, 2)]
        none = await client.pull(**{**LITE, "subscription": "color = 'green'"})
        assert (none.code, none.ext_fields["nextBeginOffset"]) == (20, "60")
        few = await client.pull(**{**LITE, "maxMsgNums": "2"})
        # Behind the second, or behind the blue one that follows it.
        assert int(few.ext_fields["nextBeginOffset"]) in (7, 8)

    scenario(tmp_path, story)


async def bodies_of(client: Client, code: int, end: int, **ext: str) -> tuple[list[bytes], int]:
    """Bodies of all messages up to an offset that match, and how many answers were spans."""
    found: list[bytes] = []
    offset = spans = 0
    while offset < end:
        answer = await client.call(
            code, {**PULL_DEFAULTS, **LITE, **ext, "queueOffset": str(offset)}
        )
        assert answer.code in (0, 20), answer.remark
        assert int(answer.ext_fields["nextBeginOffset"]) > offset
        offset = int(answer.ext_fields["nextBeginOffset"])
        spans += "msgCount" in answer.ext_fields
        found += [message.body for message in decode_messages(answer.body)]
    return found, spans


@pytest.mark.parametrize("count", ["40", "1000"])
@pytest.mark.parametrize(
    "text",
    [
        "color = 'red'",
        "n = 77",
        "n >= 3",
        "n IS NULL",
        "color = 'green'",
        "n IN ('5', '17', '143') OR n > 160",
        "n BETWEEN 20 AND 100 AND color CONTAINS 'lu'",
    ],
)
def test_bulk_pulls_bring_what_ordinary_ones_do(tmp_path: Path, text: str, count: str) -> None:
    """In spans, whether few match or all, and past what does not match."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client, 170)
        expected, _ = await bodies_of(client, RequestCode.PULL_MESSAGE, 170, subscription=text)
        assert bool(expected) == (text not in ("n IS NULL", "color = 'green'"))
        found, spans = await bodies_of(
            client, BulkPullCode.BULK_PULL, 170, subscription=text, maxMsgNums=count
        )
        assert found == expected
        assert spans

    scenario(tmp_path, story)


def test_a_bulk_pull_looks_at_a_bounded_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A span without messages says how far it looked, and the next goes on from there."""
    monkeypatch.setattr(span_filter, "EXAMINED_MAX", 100)
    monkeypatch.setattr(span_filter, "STEP_MAX", 60)

    async def story(broker: Broker, client: Client) -> None:
        await fill(client, 170)
        ext = {**PULL_DEFAULTS, **LITE, "subscription": "n = 150", "maxMsgNums": "1000"}
        answer = await client.call(BulkPullCode.BULK_PULL, {**ext, "queueOffset": "0"})
        assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
        assert answer.ext_fields["nextBeginOffset"] == "120"
        answer = await client.call(BulkPullCode.BULK_PULL, {**ext, "queueOffset": "120"})
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "170")
        assert [message.body for message in decode_messages(answer.body)] == [b"m150"]

    scenario(tmp_path, story)


def test_a_heartbeat_brings_the_filter(tmp_path: Path) -> None:
    """Unknown, broken, older and new: 24, 27, 28, and then what matches."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        assert (await client.pull(**PUSH)).code == 24
        await subscribe(client, "n > 3 4")
        broken = await client.pull(**PUSH)
        assert broken.code == 27
        assert "line 1 column 7" in (broken.remark or "")
        await subscribe(client, "n > 3", 8)
        found = await client.messages(**{**PUSH, "subVersion": "8"})
        assert [message.body for message in found] == [b"m4", b"m5"]
        assert (await client.pull(**{**PUSH, "subVersion": "9"})).code == 25
        await subscribe(client, "n < 2", 9)
        found = await client.messages(**{**PUSH, "subVersion": "9"})
        assert [message.body for message in found] == [b"m0", b"m1"]

    scenario(tmp_path, story)


def test_filters_can_be_switched_off(tmp_path: Path) -> None:
    """enablePropertyFilter=false answers as RocketMQ does by default, however the filter comes."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        await subscribe(client, "n > 3")
        for ext in (LITE, PUSH):
            answer = await client.pull(**ext)
            assert answer.code == 1
            assert "does not support consumer to filter message by SQL92" in (answer.remark or "")

    scenario(tmp_path, story, enablePropertyFilter=False)


def test_a_held_pull_waits_for_what_matches(tmp_path: Path) -> None:
    """Others' messages do not end it; the one that matches does, at once."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client, 1)
        held = asyncio.ensure_future(
            client.pull(
                **{**LITE, "sysFlag": "6", "queueOffset": "1", "suspendTimeoutMillis": "30000"}
            )
        )
        pull = broker.services.pull
        assert pull is not None
        await eventually(lambda: len(pull.hold) == 1)
        await fill(client, 3, first=1)
        (held_pull,) = [one for waiting in pull.hold._by_queue.values() for one in waiting]
        assert isinstance(held_pull, DecodedPull)
        await eventually(lambda: held_pull.header.queue_offset == 4)
        assert len(pull.hold) == 1
        assert not held.done()
        await fill(client, 1, first=4)
        answer = await held
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "5")
        assert b"m4" in answer.body

    scenario(tmp_path, story)


def test_a_held_pull_moves_on_with_its_time(tmp_path: Path) -> None:
    """When its time is up its consumer learns how far the broker has looked."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client, 1)
        held = asyncio.ensure_future(
            client.pull(
                **{**LITE, "sysFlag": "6", "queueOffset": "1", "suspendTimeoutMillis": "1000"}
            )
        )
        pull = broker.services.pull
        assert pull is not None
        await eventually(lambda: len(pull.hold) == 1)
        await fill(client, 3, first=1)
        answer = await held
        assert answer.code in (19, 20)
        assert answer.ext_fields["nextBeginOffset"] == "4"

    scenario(tmp_path, story)


@pytest.mark.parametrize("is_supported", [True, False])
def test_retried_messages(tmp_path: Path, is_supported: bool) -> None:
    """filterSupportRetry: a retry topic is filtered by what the group wants of the real topic."""

    async def story(broker: Broker, client: Client) -> None:
        await subscribe(client, "color = 'red'")
        for color in ("red", "blue"):
            sent = await client.send(
                color.encode(), b="%RETRY%g", i=f"RETRY_TOPIC\x01t\x02color\x01{color}\x02"
            )
            assert sent.code == 0
        await client.send(b"other", b="%RETRY%g", i="RETRY_TOPIC\x01elsewhere\x02")
        found = await client.messages(topic="%RETRY%g")
        expected = [b"red", b"other"] if is_supported else [b"red", b"blue", b"other"]
        assert [message.body for message in found] == expected

    scenario(tmp_path, story, filterSupportRetry=is_supported)


def test_filters_are_kept(tmp_path: Path) -> None:
    """consumerFilter.json at the stop; dead from then on, revived by the same subscription."""
    path = tmp_path / "config" / "consumerFilter.json"

    async def life() -> None:
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            await fill(client, 1)
            await subscribe(client, "n > 3")
            (one,) = broker.filters.table
            born_ms = one.born_ms
            assert not one.is_dead
            await client.close()
            await eventually(lambda: one.is_dead)
        (kept,) = decode_filter_file(path.read_bytes())
        assert (kept.text, kept.born_ms, kept.is_dead) == ("n > 3", born_ms, True)
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            (one,) = broker.filters.table
            assert one.is_dead
            await subscribe(client, "n > 3", 8)
            assert (one.is_dead, one.born_ms) == (False, born_ms)
            await client.call(
                RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "g"}
            )
            assert one.is_dead
            await client.close()

    asyncio.run(life())


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"filterDataByTopic":3}', b'{"x":{}}'])
def test_a_damaged_filter_file(raw: bytes, tmp_path: Path) -> None:
    """It is no reason not to start, nor is its backup."""
    (tmp_path / "config").mkdir()
    for name in ("consumerFilter.json", "consumerFilter.json.bak"):
        (tmp_path / "config" / name).write_bytes(raw)

    async def life() -> None:
        async with running(tmp_path) as broker:
            assert broker.filters.count == 0

    asyncio.run(life())


EXT = {"enableConsumeQueueExt": True, "enableCalcFilterBitMap": True}


def test_bitmaps_spare_the_broker_records(tmp_path: Path) -> None:
    """With both keys set units get bitmaps, over a restart too; every pull finds the same."""
    folder = tmp_path / "consumequeue_ext" / "t" / "0"

    async def life(first: int, version: int) -> None:
        async with running(tmp_path, mappedFileSizeConsumeQueueExt=4096, **EXT) as broker:
            client = await Client(broker.env, broker.address).open()
            if first == 0:
                await client.send(b"before", i="n\x01-1\x02")
            await subscribe(client, "n >= 3 AND color = 'red'", version)
            await fill(client, 150, first)
            queue = broker.state.store._queues.find("t", 0)
            assert queue is not None
            await eventually(lambda: queue.written == queue.max)
            looked: list[int] = []
            (one,) = broker.filters.table
            wanted = broker.filters._compiled(one)
            assert wanted is not None
            matches = wanted.expression.matches

            def look(found: Mapping[str, str]) -> bool:
                looked.append(1)
                return matches(found)

            wanted.expression.matches = look
            try:
                offset, bodies = 0, []
                while offset < queue.max:
                    answer = await client.pull(
                        **{**PUSH, "subVersion": str(version), "queueOffset": str(offset)}
                    )
                    assert answer.code in (0, 20)
                    bodies += [message.body for message in decode_messages(answer.body)]
                    offset = int(answer.ext_fields["nextBeginOffset"])
                in_bulk = {**PUSH, "subVersion": str(version), "maxMsgNums": "1000"}
                assert await bodies_of(client, BulkPullCode.BULK_PULL, queue.max, **in_bulk) == (
                    bodies,
                    1,
                )
            finally:
                wanted.expression.matches = matches
            assert bodies == [b"m%d" % number for number in range(4, first + 150, 2)]
            assert 2 * len(bodies) <= len(looked) <= 2 * (len(bodies) + 20)
            await client.close()

    asyncio.run(life(0, 7))
    assert len(list(folder.iterdir())) == 2
    asyncio.run(life(150, 8))
    assert len(list(folder.iterdir())) == 3


def test_tools_see_filter_and_bitmaps(tmp_path: Path) -> None:
    """321 tells a group's filter, each unit's extension, and what that says of the filter."""

    async def story(broker: Broker, client: Client) -> None:
        await subscribe(client, "color = 'red'")
        (one,) = broker.filters.table
        await eventually(lambda: broker.env.clock.now_ms() > one.born_ms)
        await fill(client, 4)
        queue = broker.state.store._queues.find("t", 0)
        assert queue is not None
        await eventually(lambda: queue.written == queue.max)
        ext = {"topic": "t", "queueId": "0", "index": "0", "count": "9", "consumerGroup": "g"}
        view = decode_consume_queue_view((await client.call(321, ext)).body)
        assert view.subscription is not None
        said = json.loads(view.filter_data or "")
        assert one.key is not None
        assert said == {
            "bloomFilterData": {"bitNum": one.key.bit_count, "bitPos": list(one.key.positions)},
            "bornTime": one.born_ms,
            "clientVersion": 7,
            "consumerGroup": "g",
            "dead": False,
            "deadTime": 0,
            "expression": "color = 'red'",
            "expressionType": "SQL92",
            "topic": "t",
        }
        assert [unit.is_matched for unit in view.units or ()] == [True, False, True, False]
        for unit in view.units or ():
            stored = json.loads(unit.ext_json or "")
            bits = int((unit.bit_map or "").replace("\n", ""), 2)
            assert bits == int.from_bytes(b64decode(stored["filterBitMap"]), "little")
            assert all(bits >> at & 1 == unit.is_matched for at in one.key.positions)
            assert stored["size"] == 20 + one.key.bit_count // 8
            assert stored["msgStoreTime"] > one.born_ms

    scenario(tmp_path, story, **EXT)


def test_a_crash_keeps_what_bitmaps_promise(tmp_path: Path) -> None:
    """A broker killed over its extension files serves what matches, whatever became of them."""

    async def life(count: int, first: int) -> list[bytes]:
        async with running(tmp_path, **EXT) as broker:
            client = await Client(broker.env, broker.address).open()
            await subscribe(client, "n >= 3 AND color = 'red'", first + 1)
            await fill(client, count, first)
            queue = broker.state.store._queues.find("t", 0)
            assert queue is not None
            await eventually(lambda: queue.written == queue.max)
            offset, bodies = 0, []
            while offset < queue.max:
                answer = await client.pull(
                    **{**PUSH, "subVersion": str(first + 1), "queueOffset": str(offset)}
                )
                assert answer.code in (0, 20)
                bodies += [message.body for message in decode_messages(answer.body)]
                offset = int(answer.ext_fields["nextBeginOffset"])
            await client.close()
            return bodies

    expected = [b"m%d" % number for number in range(4, 120, 2)]
    assert asyncio.run(life(60, 0)) == expected[:28]
    (file,) = (tmp_path / "consumequeue_ext" / "t" / "0").iterdir()
    with file.open("r+b") as content:
        content.seek(34 * 10)
        content.write(bytes(34 * 20))
    assert asyncio.run(life(60, 60)) == expected
    for one in (tmp_path / "consumequeue_ext" / "t" / "0").iterdir():
        one.unlink()
    assert asyncio.run(life(0, 120)) == expected


def test_a_killed_life_s_bitmaps_are_not_asked(tmp_path: Path) -> None:
    """What a life registered last may not be in the file; its bits stand in the bitmaps."""

    async def life() -> int:
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            await subscribe(client, "n > 3")
            (one,) = broker.filters.table
            await client.close()
            return one.born_ms

    born_ms = asyncio.run(life())
    assert asyncio.run(life()) == born_ms
    (tmp_path / "abort").write_text("1")
    assert asyncio.run(life()) > born_ms


def test_a_clock_that_goes_back(tmp_path: Path) -> None:
    """A filter is never older than the messages that were there before it."""

    async def story(broker: Broker, client: Client) -> None:
        ahead_ms = broker.env.clock.now_ms() + 3_600_000
        await fill(client, 1)
        broker.state.store.put("t", 0, b"ahead", b"", store_ms=ahead_ms)
        await subscribe(client, "n > 3")
        (one,) = broker.filters.table
        assert one.born_ms == ahead_ms

    scenario(tmp_path, story)

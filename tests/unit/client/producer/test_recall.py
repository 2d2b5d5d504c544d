"""Timed messages of our client against our broker: delayed, taken back, moved."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace

import pytest
from tests.unit.client.waiting import until

from cometmq import Message, Producer
from cometmq.client.producer.recall import reschedule
from cometmq.codec.recall import RecallHandle, decode_recall_handle, encode_recall_handle
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.errors import (
    CodecError,
    InvalidParameter,
    LocalProtocolError,
    NoRoute,
    RemoteError,
    RequestTimeout,
    SendFailed,
    remote_error,
)
from cometmq.model import MessageQueue, SendResult, SendStatus
from cometmq.sync import Producer as SyncProducer
from cometmq.testing import EmbeddedCluster, embedded_cluster, threaded_cluster

QUIET_MS = 8_000
"""Far enough that the second before it has not begun when the recall comes, also under load."""


def stored(cluster: EmbeddedCluster) -> list[StoredMessage]:
    """Everything in topic t."""
    broker = cluster.standalone.broker
    store = broker.state.store
    found = []
    for queue_id in store.queues("t"):
        for unit in store.units("t", queue_id, 0, 1000):
            record = store.message_at(unit.physical_offset)
            assert record is not None
            found.append(decode_message(record))
    return found


def test_delay_ms_counts_from_when_the_broker_stored_it() -> None:
    """It is never early by the broker's clock."""

    async def story() -> None:
        async with (
            embedded_cluster() as cluster,
            Producer("g", name_server=cluster.name_server_address) as producer,
        ):
            sent = await producer.send(Message("t", b"later", delay_ms=300))
            assert sent.recall_handle is not None
            await until(lambda: stored(cluster), 30)
            (message,) = stored(cluster)
            assert message.properties["TIMER_DELAY_MS"] == "300"
            wait_ms = message.store_timestamp_ms - message.born_timestamp_ms
            assert wait_ms >= 300

    asyncio.run(story())


def test_recalled_and_rescheduled_messages() -> None:
    """One is taken back, one is moved, one is refused since it was delivered."""

    async def story() -> None:
        async with embedded_cluster() as cluster:
            broker = cluster.standalone.broker
            async with Producer("g", name_server=cluster.name_server_address) as producer:
                due_ms = broker.env.clock.now_ms() // 1000 * 1000 + QUIET_MS
                gone = await producer.send(Message("t", b"gone", deliver_time_ms=due_ms))
                old = await producer.send(Message("t", b"old", deliver_time_ms=due_ms))
                assert await producer.recall("t", gone.recall_handle) == gone.message_id
                moved = Message("t", b"new", deliver_time_ms=due_ms + 500)
                new = await producer.reschedule(old.recall_handle, moved)
                await until(lambda: broker.timers.read_ms > due_ms + 500, 30)
                (message,) = stored(cluster)
                assert (message.body, message.properties["UNIQ_KEY"]) == (b"new", new.message_id)
                assert message.store_timestamp_ms >= due_ms + 500
                with pytest.raises(RemoteError, match="timestamp invalid") as caught:
                    await producer.reschedule(
                        new.recall_handle, replace(moved, delay_ms=60_000, deliver_time_ms=None)
                    )
                assert caught.value.code == 604
                # The message that was to take its place is not delivered either.
                assert broker.timers.pending_count() == 0

    asyncio.run(story())


@pytest.mark.parametrize(
    ("stored_as", "answers", "taken_back", "raised"),
    [
        ("SEND_OK", [None], ["old"], None),
        ("SEND_OK", [remote_error(604), None], ["old", "new"], RemoteError),
        ("SEND_OK", [remote_error(10)], ["old"], RemoteError),
        ("SEND_OK", [RequestTimeout("no answer")], ["old"], RequestTimeout),
        ("FLUSH_DISK_TIMEOUT", [], [], SendFailed),
    ],
)
def test_moving_a_message_never_leaves_none_of_the_two(
    stored_as: str,
    answers: list[Exception | None],
    taken_back: list[str],
    raised: type[Exception] | None,
) -> None:
    """The new one is taken back only where the old stands for sure, and the other way."""
    old = encode_recall_handle(RecallHandle("t", "broker-a", 1, "OLD"))
    asked: list[str | None] = []
    queue = MessageQueue("t", "broker-a", 0)

    async def send(_: Message) -> SendResult:
        return SendResult(SendStatus[stored_as], "NEW", queue, 7, "", recall_handle="new")

    async def take_back(handle: str | None) -> str:
        asked.append("old" if handle == old else handle)
        answer = answers[len(asked) - 1]
        if answer is not None:
            raise answer
        return "id"

    async def story() -> None:
        await reschedule(Message("t", b"new", delay_ms=1), old, send, take_back)

    with pytest.raises(raised) if raised else nullcontext():
        asyncio.run(story())
    assert asked == taken_back


def test_what_cannot_be_recalled_is_said() -> None:
    """No handle, a damaged one, one of another topic or of a broker nobody knows."""
    with (
        threaded_cluster() as cluster,
        SyncProducer("g", name_server=cluster.name_server_address) as producer,
    ):
        plain = producer.send(Message("t", b"x"))
        assert plain.recall_handle is None
        with pytest.raises(InvalidParameter, match="there is no recall handle"):
            producer.recall("t", plain.recall_handle)
        with pytest.raises(InvalidParameter, match="not URL-safe base64"):
            producer.recall("t", "%%%")
        timed = producer.send(Message("t", b"x", delay_ms=3_600_000))
        with pytest.raises(InvalidParameter, match="of a message for t, not for u"):
            producer.recall("u", timed.recall_handle)
        other = encode_recall_handle(RecallHandle("t", "elsewhere", 1, "K"))
        with pytest.raises(NoRoute, match="broker elsewhere"):
            producer.recall("t", other)
        with pytest.raises(LocalProtocolError, match="needs a time of its own"):
            producer.reschedule(timed.recall_handle, Message("t", b"y"))
        assert producer.recall("t", timed.recall_handle) == timed.message_id
        with pytest.raises(LocalProtocolError, match="give one of them"):
            producer.send(Message("t", b"x", delay_ms=1, delay_level=1))


def test_handles_are_those_of_java() -> None:
    """A handle Java's RecallMessageHandle made, with and without its padding."""
    text = "djEgVG9waWMgYnJva2VyLWEgMTcwMDAwMDAwMDAwMSBBQg=="
    handle = RecallHandle("Topic", "broker-a", 1_700_000_000_001, "AB")
    assert encode_recall_handle(handle) == text
    assert decode_recall_handle(text) == decode_recall_handle(text.rstrip("=")) == handle
    for broken in ("", "djE=", encode_recall_handle(handle)[4:]):
        with pytest.raises(CodecError, match="recall handle is invalid"):
            decode_recall_handle(broken)

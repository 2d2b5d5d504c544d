"""Requests and replies through the real broker, and what becomes of those nobody waits for."""

import asyncio

import pytest

import cometmq
from cometmq import Message, ReceivedMessage
from cometmq.client.message.send_codec import Prepared
from cometmq.client.producer.request_reply import OpenRequests
from cometmq.errors import InvalidParameter, RequestTimeout
from cometmq.testing.cluster import embedded_cluster
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

PUSH = {
    "producerGroup": "g",
    "topic": "c_REPLY_TOPIC",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
    "bornHost": "127.0.0.1:1",
    "storeHost": "127.0.0.1:2",
    "storeTimestamp": "2",
    "properties": "CORRELATION_ID\x01gone\x02",
}


def test_each_request_gets_its_own_reply() -> None:
    """Many at a time, bodies that are compressed among them, with tag, keys and properties."""

    async def run() -> None:
        async with embedded_cluster() as cluster:
            server = cluster.name_server_address
            async with (
                cometmq.Producer("asker", name_server=server) as asker,
                cometmq.Producer("replier", name_server=server) as replier,
            ):
                await asker.create_topic("Questions", queue_count=2)

                async def answer(message: ReceivedMessage) -> None:
                    reply = Message(
                        "Questions",
                        b"re: " + message.body,
                        tags="answer",
                        keys=("k1", "k2"),
                        properties={"who": "replier"},
                    )
                    await replier.reply(message, reply)

                async with cometmq.PushConsumer(
                    "g", {"Questions": "*"}, answer, name_server=server, consume_from="first"
                ):
                    bodies = [b"%d" % n * (1 + n * 700) for n in range(20)]
                    replies = await asyncio.gather(
                        *(asker.request(Message("Questions", b), timeout_ms=20_000) for b in bodies)
                    )
        assert [reply.body for reply in replies] == [b"re: " + body for body in bodies]
        assert {reply.tags for reply in replies} == {"answer"}
        assert replies[0].keys == ("k1", "k2")
        assert replies[0].properties["who"] == "replier"

    asyncio.run(run())


def test_a_request_without_reply_times_out() -> None:
    """The text names the topic; nothing keeps waiting."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            cometmq.Producer("asker", name_server=cluster.name_server_address) as asker,
        ):
            await asker.create_topic("Silence", queue_count=1)
            with pytest.raises(RequestTimeout, match=r"no reply to .* came from Silence"):
                await asker.request(Message("Silence", b"hello?"), timeout_ms=300)

    asyncio.run(run())


def test_a_message_that_is_no_request_cannot_be_answered() -> None:
    """The replier is told what is missing."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            cometmq.Producer("p", name_server=cluster.name_server_address) as producer,
        ):
            await producer.create_topic("t", queue_count=1)
            await producer.send(Message("t", b"plain"))
            async with cometmq.PullConsumer(
                "l", {"t": "*"}, name_server=cluster.name_server_address, consume_from="first"
            ) as consumer:
                (message,) = await consumer.poll(20_000)
                with pytest.raises(InvalidParameter, match="is not a request"):
                    await producer.reply(message, b"what?")

    asyncio.run(run())


def test_a_body_that_is_not_compressed_as_it_says_is_taken_as_it_is() -> None:
    """Go's replies above 4 KiB."""

    async def run() -> bytes:
        requests = OpenRequests()
        prepared = Prepared("t", b"?", 0, 0, "UNIQ_KEY\x01id\x02", "id")
        future = requests.open(prepared, "me", 1000)
        ext = {**PUSH, "sysFlag": "1", "properties": "CORRELATION_ID\x01id\x02"}
        push = RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, b"plain")
        assert requests.serve(push).code == 0
        return (await future).body

    assert asyncio.run(run()) == b"plain"


@pytest.mark.parametrize(("ext", "code"), [({}, 1), (PUSH, 0)])
def test_pushes_are_always_answered(ext: dict[str, str], code: int) -> None:
    """A reply too late is taken, one that cannot be read is refused: the broker never waits."""
    push = RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, b"late")
    assert OpenRequests().serve(push).code == code

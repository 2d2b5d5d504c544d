"""Request-reply: the reply reaches the client that asked."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import SEND_DEFAULTS, Client, running, scenario

from cometmq.broker import Broker
from cometmq.codec.properties import decode_properties
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

TOPIC = "DefaultCluster_REPLY_TOPIC"


async def reply(client: Client, to: str | None = "asker", body: bytes = b"pong") -> RemotingCommand:
    properties = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c-1\x02TTL\x015000\x02"
    if to is not None:
        properties += f"REPLY_TO_CLIENT\x01{to}\x02"
    ext = {**SEND_DEFAULTS, "b": TOPIC, "i": properties}
    return await client.call(RequestCode.SEND_REPLY_MESSAGE_V2, ext, body)


@pytest.mark.parametrize("body", [b"pong", b""])
@pytest.mark.parametrize("is_stored", [True, False])
def test_reply_is_pushed_stored_and_answered(is_stored: bool, body: bytes, tmp_path: Path) -> None:
    """The asker gets body and properties; the replier the place of the stored message.

    Go's clients reply without a body.
    """

    async def main() -> None:
        setting: dict[str, Any] = {"storeReplyMessageEnable": str(is_stored).lower()}
        async with running(tmp_path, **setting) as broker:
            asker = await Client(broker.env, broker.address).open()
            replier = await Client(broker.env, broker.address).open()
            await asker.heartbeat(producers=("pg",), client_id="asker")
            answer = await reply(replier, body=body)
            assert (answer.code, answer.remark) == (0, None)
            assert answer.ext_fields["queueOffset"] == "0"
            assert (answer.ext_fields["msgId"] == "0") is not is_stored
            assert "transactionId" not in answer.ext_fields
            (push,) = asker.pushed
            assert push.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
            assert push.body == body
            ext = push.ext_fields
            assert (ext["topic"], ext["storeHost"]) == (TOPIC, broker.address)
            assert ext["bornHost"].startswith("127.0.0.1:")
            properties = decode_properties(ext["properties"])
            assert properties["CORRELATION_ID"] == "c-1"
            assert int(properties["PUSH_REPLY_TIME"]) > 0
            assert (properties["MSG_REGION"], properties["TRACE_ON"]) == ("DefaultRegion", "true")
            assert len(await replier.messages(topic=TOPIC)) == is_stored
            await asker.close()
            await replier.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("to", "remark"),
    [
        ("gone@1", "push reply message fail, channel of <gone@1> not found."),
        (None, "reply message properties[REPLY_TO_CLIENT] is null"),
    ],
)
def test_reply_to_nobody_is_stored_all_the_same(
    to: str | None, remark: str, tmp_path: Path
) -> None:
    """1 with the reason and the place where it lies."""

    async def story(broker: Broker, client: Client) -> None:
        for number in range(2):
            answer = await reply(client, to)
            assert (answer.code, answer.remark) == (1, remark)
            assert answer.ext_fields["queueOffset"] == str(number)
            assert len(answer.ext_fields["msgId"]) == 32
        assert len(await client.messages(topic=TOPIC)) == 2

    scenario(tmp_path, story)


def test_asker_that_refuses_or_vanishes(tmp_path: Path) -> None:
    """The replier learns that the push failed."""

    async def main() -> None:
        async with running(tmp_path) as broker:
            asker = await Client(broker.env, broker.address).open()
            replier = await Client(broker.env, broker.address).open()
            await asker.heartbeat(producers=("pg",), client_id="asker")
            asker.refuse_pushes = True
            answer = await reply(replier)
            assert (answer.code, answer.remark) == (1, "push reply message to askerfail.")
            await asker.close()
            await replier.close()

    asyncio.run(main())

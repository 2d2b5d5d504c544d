"""Heartbeats, membership and the notices that follow."""

import asyncio
import re
from pathlib import Path

import pytest
from tests.unit.broker.harness import Client, eventually, running, scenario

from cometmq.broker import Broker
from cometmq.errors import ConnectFailed
from cometmq.model.group import MessageModel, SubscriptionData
from cometmq.wire.body.client import CheckClientConfigBody, ConsumerData, ConsumerListBody
from cometmq.wire.command.codes import RequestCode

CONSUMER = ConsumerData("g", subscriptions=(SubscriptionData("t"), SubscriptionData("%RETRY%g")))
NOTICE = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


async def members(client: Client, group: str = "g") -> list[str]:
    answer = await client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code:
        assert answer.remark == f"no consumer for this group, {group}"
        return []
    return sorted(ConsumerListBody.decode(answer.body).client_ids)


def notices(client: Client) -> list[str]:
    return [c.ext_fields["consumerGroup"] for c in client.pushed if c.code == NOTICE]


def test_heartbeat_makes_group_and_retry_topic(tmp_path: Path) -> None:
    """Both exist when the heartbeat is answered (trap T11), with both V2 fields."""

    async def story(broker: Broker, client: Client) -> None:
        answer = await client.heartbeat(CONSUMER, producers=("pg",))
        assert answer.code == 0
        # What is ours alone comes in one field that other clients do not look at.
        assert "bulkPull" in answer.ext_fields.pop("cometmqFeatures").split(",")
        assert answer.ext_fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        assert answer.version == 493
        assert broker.state.groups.get("g") is not None
        retry = broker.state.topics.get("%RETRY%g")
        assert retry is not None
        assert (retry.read_queue_count, retry.perm) == (1, 6)
        assert await members(client) == ["c1"]
        assert broker.state.producers.find_client("c1") is not None
        assert notices(client) == ["g"]

    scenario(tmp_path, story)


def test_everybody_is_told_of_joins_and_leaves(tmp_path: Path) -> None:
    """Join, unregister and a lost connection each make the others rebalance."""

    async def main() -> None:
        async with running(tmp_path) as broker:
            first = await Client(broker.env, broker.address).open()
            second = await Client(broker.env, broker.address).open()
            await first.heartbeat(CONSUMER, client_id="c1")
            await second.heartbeat(CONSUMER, client_id="c2")
            assert await members(first) == ["c1", "c2"]
            assert await members(second, "nobody") == []
            assert (notices(first), notices(second)) == (["g", "g"], ["g"])
            await second.heartbeat(CONSUMER, client_id="c2")
            assert len(notices(first)) == 2
            gone = await second.call(
                RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "g"}
            )
            assert gone.code == 0
            assert await members(first) == ["c1"]
            assert len(notices(first)) == 3
            await second.heartbeat(CONSUMER, client_id="c2")
            await second.close()
            await eventually(lambda: len(notices(first)) == 5)
            assert await members(first) == ["c1"]
            await first.close()

    asyncio.run(main())


def test_broadcasting_groups_are_not_told(tmp_path: Path) -> None:
    """Each member reads everything, so nothing is to be rebalanced."""

    async def story(broker: Broker, client: Client) -> None:
        consumer = ConsumerData("b", message_model=MessageModel.BROADCASTING)
        await client.heartbeat(consumer)
        assert await members(client, "b") == ["c1"]
        assert notices(client) == []

    scenario(tmp_path, story)


def test_second_version_of_the_heartbeat(tmp_path: Path) -> None:
    """A fingerprint says whether the subscription changed; a broker without one asks for it."""

    async def story(broker: Broker, client: Client) -> None:
        short = ConsumerData("g")
        answer = await client.heartbeat(short, heartbeat_fingerprint=7, without_sub=True)
        assert answer.ext_fields["IS_SUB_CHANGE"] == "true"
        answer = await client.heartbeat(CONSUMER, heartbeat_fingerprint=7)
        assert answer.ext_fields["IS_SUB_CHANGE"] == "false"
        answer = await client.heartbeat(short, heartbeat_fingerprint=7, without_sub=True)
        assert answer.ext_fields["IS_SUB_CHANGE"] == "false"
        group = broker.state.consumers.get("g")
        assert group is not None
        assert set(group.subscriptions) == {"t", "%RETRY%g"}
        answer = await client.heartbeat(CONSUMER, heartbeat_fingerprint=8)
        assert answer.ext_fields["IS_SUB_CHANGE"] == "true"

    scenario(tmp_path, story)


def test_expression_without_its_tags_is_taken_apart(tmp_path: Path) -> None:
    """A filter must not become "all" because a client sent no tag set."""

    async def story(broker: Broker, client: Client) -> None:
        subscription = SubscriptionData("t", "A || B", sub_version=1)
        await client.heartbeat(ConsumerData("g", subscriptions=(subscription,)))
        group = broker.state.consumers.get("g")
        assert group is not None
        assert group.subscriptions["t"].tags_set == {"A", "B"}
        assert len(group.subscriptions["t"].code_set) == 2

    scenario(tmp_path, story)


def test_groups_that_may_not_be_made_are_skipped(tmp_path: Path) -> None:
    """Without automatic creation, and with an illegal name; the heartbeat is still a success."""

    async def story(broker: Broker, client: Client) -> None:
        assert (await client.heartbeat(CONSUMER, ConsumerData("bad group"))).code == 0
        assert await members(client) == []
        assert "%RETRY%g" not in broker.state.topics

    scenario(tmp_path, story, autoCreateSubscriptionGroup="false")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"clientID":5,"consumerDataSet":7}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"X"}]}',
        b'{"clientID":"c","consumerDataSet":[[1]]}',
        b"\xff\xfe\x00",
    ],
)
def test_broken_heartbeats_are_explained(body: bytes, tmp_path: Path) -> None:
    """One clear answer, nobody registered, the connection lives on."""

    async def story(broker: Broker, client: Client) -> None:
        answer = await client.call(RequestCode.HEART_BEAT, {}, body)
        assert answer.code == 1
        assert answer.remark
        assert await members(client) == []

    scenario(tmp_path, story)


@pytest.mark.parametrize(
    ("kind", "text", "is_enabled", "code", "remark"),
    [
        ("TAG", "a", False, 0, None),
        ("SQL92", "a > 1", True, 0, None),
        ("SQL92", "a > 1\n AND b >", True, 23, "line 2 column 9: expected .*, found the end"),
        ("SQL92", "a > 1", False, 1, "does not support .* SQL92; set enablePropertyFilter=true"),
        ("XPATH", "a", True, 23, "'XPATH', neither TAG nor SQL92"),
    ],
)
def test_config_check_compiles_sql(
    tmp_path: Path, kind: str, text: str, is_enabled: bool, code: int, remark: str | None
) -> None:
    """Tags pass; of SQL92 the answer says what is wrong and where."""

    async def story(broker: Broker, client: Client) -> None:
        body = CheckClientConfigBody("c", "g", SubscriptionData("t", text, expression_type=kind))
        answer = await client.call(RequestCode.CHECK_CLIENT_CONFIG, {}, body.encode())
        assert answer.code == code
        assert remark is None or re.search(remark, answer.remark or "")

    scenario(tmp_path, story, enablePropertyFilter=is_enabled)


def test_silent_clients_are_cut(tmp_path: Path) -> None:
    """No heartbeat for channelExpiredTimeout: out of the group, connection closed."""

    async def story(broker: Broker, client: Client) -> None:
        await client.heartbeat(CONSUMER, producers=("pg",))
        now_ms = broker.env.clock.now_ms()
        broker.services.client.drop_expired(now_ms + 1000)
        assert await members(client) == ["c1"]
        broker.services.client.drop_expired(now_ms + 200_000)
        assert broker.state.consumers.get("g") is None
        with pytest.raises(ConnectFailed):
            await client.call(RequestCode.HEART_BEAT, {})

    scenario(tmp_path, story)

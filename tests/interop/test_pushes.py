"""What a broker asks of consumers, set off by the operator's requests to the broker."""

import json
from typing import Any

import pytest
from tests.interop.stage import Stage, bodies_of, letter

from cometmq.testing.raw_client import RawClient
from cometmq.wire.codes import RequestCode


@pytest.fixture
def consumer(stage: Stage) -> tuple[str, str, str, list[dict[str, Any]]]:
    """Topic, group and name of a consumer of ours that has taken ten messages; their results."""
    topic = stage.topic(queues=1)
    group = stage.unique("G")
    name = stage.push({topic: "*"}, group=group)
    producer = stage.producer()
    results = stage.send(producer, [letter(topic, f"{n}".encode(), n) for n in range(10)])
    stage.peer.wait_messages(name, lambda got: len(got) >= 10)
    return topic, group, name, results


def ask(stage: Stage, code: int, **ext: str) -> Any:
    """An operator's request to the broker; its JSON answer."""
    with RawClient(stage.cluster.broker) as client:
        answer = client.call(code, ext)
    assert answer.code == 0, answer.remark
    return json.loads(answer.body) if answer.body.startswith(b"{") and b'{"' in answer.body else {}


@pytest.mark.needs("pushes")
def test_running_info(stage: Stage, consumer: tuple[str, str, str, list[dict[str, Any]]]) -> None:
    """307: properties, subscriptions and queues of a running consumer."""
    topic, group, name, _ = consumer
    client_id = next(iter(stage.admin.consumer_list(group)))
    with RawClient(stage.cluster.broker) as client:
        answer = client.call(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"},
        )
    assert answer.code == 0, answer.remark
    text = answer.body.decode()
    assert '"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"' in text
    assert topic in text
    assert '"commitOffset":10' in text
    assert name in client_id


@pytest.mark.needs("pushes")
def test_consume_directly(
    stage: Stage, consumer: tuple[str, str, str, list[dict[str, Any]]]
) -> None:
    """309: one message more is run by the handler, and its outcome told."""
    _, group, name, results = consumer
    client_id = next(iter(stage.admin.consumer_list(group)))
    told = ask(
        stage,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        consumerGroup=group,
        clientId=client_id,
        msgId=results[3]["offsetMsgId"],
        brokerName=stage.cluster.broker_name,
    )
    assert told["consumeResult"] == "CR_SUCCESS"
    received = stage.peer.wait_messages(name, lambda got: len(got) >= 11)
    assert bodies_of(received)[-1] == b"3"
    # Java's client 4.9 shows the broker's id of a message it was handed this way.
    assert received[-1]["msgId"] in (results[3]["msgId"], results[3]["offsetMsgId"])


@pytest.mark.needs("pushes")
def test_consumer_status(
    stage: Stage, consumer: tuple[str, str, str, list[dict[str, Any]]]
) -> None:
    """223, which asks each client by 221: how far it is in each queue."""
    topic, group, name, _ = consumer
    with RawClient(stage.cluster.broker) as client:
        answer = client.call(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            {"topic": topic, "group": group, "clientAddr": ""},
        )
    assert answer.code == 0, answer.remark
    text = answer.body.decode()
    assert f"@{name}" in text
    assert f'"topic":"{topic}"}}:10' in text


@pytest.mark.full
@pytest.mark.needs("pushes", "reset")
def test_reset_offset(stage: Stage, consumer: tuple[str, str, str, list[dict[str, Any]]]) -> None:
    """222, which tells each client by 220: everything from that time on comes again.

    RocketMQ's broker tells it with the answer to the next pull, so there a held pull delays it by
    15 s; ours answers the held pull.
    """
    topic, group, name, _ = consumer
    with RawClient(stage.cluster.broker) as client:
        answer = client.call(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"},
        )
    assert answer.code == 0, answer.remark
    received = stage.peer.wait_messages(name, lambda got: len(got) >= 20, 90.0)
    assert bodies_of(received)[10:20] == [f"{n}".encode() for n in range(10)]

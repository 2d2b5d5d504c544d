"""A broker's requests to consumers, triggered by an operator's requests to the broker."""

import base64
import json
import random
from typing import Any

import pytest
from interop.driver import DriverError, mark
from tests.interop.stage import Stage, bodies_of, letter
from tests.raw_client import RawClient

from cometmq.wire.command.codes import RequestCode

LOSES_REPLIES = "Java's client 5.3.3 loses replies that come quickly, also from RocketMQ's own"


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
    """222 notifies each client by 220: every message since that time comes again.

    RocketMQ's broker waits for the next pull's answer, so a held pull delays it by 15 s; ours
    answers the held pull.
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


@pytest.mark.needs("request")
@pytest.mark.parametrize("asker", ["theirs", "ours"])
def test_request_and_reply(stage: Stage, asker: str) -> None:
    """324 and 325 bring a reply, 326 takes it to the asker; each request gets its own."""
    if asker == "theirs" and stage.client.startswith("java-5.3"):
        pytest.skip(LOSES_REPLIES)
    topic = stage.topic()
    asking, answering = (stage.peer, stage.ours) if asker == "theirs" else (stage.ours, stage.peer)
    replier = stage.producer(by=answering)
    stage.push({topic: "*"}, by=answering, replyBy=replier)
    producer = stage.producer(by=asking)
    # Of Java's first requests at a time, only one waits until the broker knows the asker.
    first = letter(topic, b"first", -1)
    asking.call("request", name=producer, message=first, timeout=20_000)
    chance = random.Random(topic)
    sizes = (1, 10, 4095, 4096, 20_000, 300_000)
    bodies = [chance.randbytes(size) for size in sizes] + [b"text " * size for size in sizes]
    waiting = [
        asking.begin("request", name=producer, message=letter(topic, body, n), timeout=20_000)
        for n, body in enumerate(bodies)
    ]
    for body, one in zip(bodies, waiting, strict=True):
        assert one.result() == {"body": mark(b"re: " + body), "tags": "reply"}


@pytest.mark.full
@pytest.mark.needs("request")
def test_a_request_nobody_answers_times_out(stage: Stage) -> None:
    """The requester gets a timeout, and its next request is answered."""
    if stage.client.startswith("java-5.3"):
        pytest.skip(LOSES_REPLIES)
    topic = stage.topic()
    producer = stage.producer()
    body = base64.b64encode(b"anybody?").decode()
    with pytest.raises(DriverError, match=r"(?i)reply|timeout"):
        stage.peer.call(
            "request", name=producer, message={"topic": topic, "body": body}, timeout=500
        )
    replier = stage.producer(by=stage.ours)
    stage.push({topic: "*"}, by=stage.ours, replyBy=replier)
    answer = stage.peer.call(
        "request", name=producer, message={"topic": topic, "body": body}, timeout=20_000
    )
    assert answer["body"] == mark(b"re: anybody?")

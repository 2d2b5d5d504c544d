"""Test environments: foreign clients and ours in one namespace, and our sandboxes beside them."""

import base64
import queue
from typing import Any, Final

import pytest
from interop.driver import Message
from tests.interop.stage import NEWEST, OURS, Stage, bodies_of, check_flow, letter

import cometmq.sync

COUNT: Final = 8


def numbers(received: list[Message], reconsume_times: int) -> list[int]:
    """The numbers of the letters that came in one try, without end marks."""
    return sorted(
        number
        for one in received
        if (number := int(one["properties"]["n"])) >= 0 and one["reconsumeTimes"] == reconsume_times
    )


def without(space: str, received: list[Message]) -> list[dict[str, Any]]:
    """The messages as a program inside a namespace names them; Go's consumer shows the prefix."""
    return [{**one, "topic": one["topic"].removeprefix(f"{space}%")} for one in received]


@pytest.mark.needs("namespace")
def test_clients_of_both_kinds_share_a_namespace(stage: Stage) -> None:
    """Each gets the other's messages, and gets them again after a failure, under the short name.

    The topic is one that the broker makes for the first message.
    """
    space, topic = stage.unique("Space"), stage.unique("Made")
    producer = stage.producer(namespace=space)
    sender = stage.producer(by=stage.ours, namespace=space)
    letters = [letter(topic, b"body %d" % n, n, tags="T") for n in range(2 * COUNT)]
    stage.send(producer, letters[:COUNT])
    stage.wait_route(f"{space}%{topic}")
    members = []
    for peer in (stage.peer, stage.ours):
        group = stage.unique("G")
        stage.retry_topic(f"{space}%{group}")
        more: dict[str, Any] = {"namespace": space, "group": group, "failTimes": 1, "failLevel": 1}
        members.append((peer, group, stage.push({topic: "*"}, by=peer, **more)))
    stage.send(sender, letters[COUNT:], by=stage.ours)
    for peer, group, name in members:
        received = without(
            space, peer.wait_messages(name, lambda got: len(got) >= 2 * len(letters))
        )
        first = [one for one in received if one["reconsumeTimes"] == 0]
        in_order = peer is stage.ours or stage.keeps_order
        check_flow(letters, None, first, in_order=in_order)
        assert numbers(received, 1) == list(range(2 * COUNT))
        assert {one["topic"] for one in received} == {topic}
        assert f"{space}%{group}" in stage.admin.group_list()
    assert topic not in stage.admin.topic_list()


@pytest.mark.full
@pytest.mark.needs("namespace")
def test_members_of_both_kinds_share_a_group_in_a_namespace(stage: Stage) -> None:
    """They take half of the queues each: both say the same names to the broker."""
    space, topic, group = stage.unique("Space"), stage.unique("Topic"), stage.unique("G")
    stage.admin.create_topic(f"{space}%{topic}", queue_count=4)
    stage.wait_route(f"{space}%{topic}")
    members = [
        (peer, stage.push({topic: "*"}, by=peer, namespace=space, group=group))
        for peer in (stage.peer, stage.ours)
    ]
    stage.wait_shared(f"{space}%{topic}", members, queues=4, timeout_s=60.0)
    assert len(stage.admin.consumer_list(f"{space}%{group}")) == len(members)


@pytest.mark.full
@pytest.mark.needs("namespace", "request")
def test_requests_and_replies_within_a_namespace(stage: Stage) -> None:
    """A request of either kind of client is answered by a consumer of the other kind."""
    space, topic = stage.unique("Space"), stage.unique("Topic")
    stage.admin.create_topic(f"{space}%{topic}", queue_count=1)
    stage.wait_route(f"{space}%{topic}")
    directions = [(stage.ours, stage.peer)]
    if not stage.client.startswith("java-5.3"):  # which loses the replies to its requests
        directions.append((stage.peer, stage.ours))
    for asking, answering in directions:
        replier = stage.producer(by=answering, namespace=space)
        consumer = stage.push({topic: "*"}, by=answering, namespace=space, replyBy=replier)
        producer = stage.producer(by=asking, namespace=space)
        question = letter(topic, b"question", 0)
        reply = asking.call("request", name=producer, message=question, timeout=30_000)
        assert base64.b64decode(reply["body"]) == b"re: question"
        answering.call("closePush", name=consumer)


@pytest.mark.kind("transaction", short=(NEWEST,))
@pytest.mark.needs("namespace", "query")  # Go's driver has no transactions in a namespace
def test_transactions_within_a_namespace(stage: Stage) -> None:
    """The broker's question finds the producer, which sees the short name; its answer commits."""
    space, topic, name = stage.unique("Space"), stage.unique("Topic"), stage.unique("X")
    stage.admin.create_topic(f"{space}%{topic}", queue_count=1)
    stage.wait_route(f"{space}%{topic}")
    consumer = stage.push({topic: "*"}, by=stage.ours, namespace=space)
    stage.peer.call(
        "transactor",
        name=name,
        group=f"G_{name}",
        instance=name,
        nameServer=stage.cluster.name_server,
        namespace=space,
    )
    properties = {"local": "UNKNOW", "check": "COMMIT"}
    letters = [letter(topic, b"asked", 0, properties=properties)]
    stage.peer.call("transact", name=name, messages=letters)
    received = stage.ours.wait_messages(consumer, lambda got: len(got) >= 1, timeout_s=90)
    check_flow(letters, None, received)
    asked = stage.peer.messages(name)
    assert bodies_of(asked)[0] == b"asked"
    assert {one["topic"] for one in asked} == {topic}
    stage.peer.call("closeTransactor", name=name)


@pytest.mark.full
@pytest.mark.at(OURS)
@pytest.mark.needs("namespace", "newest")
def test_our_broadcasting_member_goes_on_with_the_file_of_java_in_a_namespace(
    stage: Stage,
) -> None:
    """The file that Java's member leaves behind has the path and the topics that ours reads."""
    space, topic, group = stage.unique("Space"), stage.unique("Topic"), stage.unique("G")
    stage.admin.create_topic(f"{space}%{topic}", queue_count=2)
    member = stage.push({topic: "*"}, namespace=space, group=group, broadcasting=True)
    sender = stage.producer(by=stage.ours, namespace=space)
    old, new = ([letter(topic, word % n, n) for n in range(COUNT)] for word in (b"old %d", b"%d"))
    stage.send(sender, old, by=stage.ours)
    stage.peer.wait_messages(member, lambda got: len(got) >= COUNT)
    stage.peer.call("closePush", name=member)
    stage.send(sender, new, by=stage.ours)
    folder = stage.peer.log_path.parent.parent / "home" / ".rocketmq_offsets"
    (path,) = folder.glob(f"*/{space}%{group}/offsets.json")
    client_ip, _, instance = path.parent.parent.name.partition("@")
    seen: queue.Queue[bytes] = queue.Queue()
    with cometmq.sync.PushConsumer(
        group,
        {topic: "*"},
        lambda message: seen.put(message.body),
        name_server=stage.cluster.name_server,
        namespace=space,
        message_model=cometmq.MessageModel.BROADCASTING,
        consume_from="first",
        client_ip=client_ip,
        instance_name=instance,
        offset_folder=str(folder),
    ):
        came = [seen.get(timeout=30.0) for _ in new]
    assert sorted(came) == bodies_of(new)
    assert seen.empty()


def test_a_sandbox_beside_clients_that_know_none(stage: Stage) -> None:
    """The consumer in the sandbox gets its messages, the main one the others, a foreign one all."""
    topic, group = stage.topic(queues=1), stage.unique("G")
    tries: dict[str, Any] = {"group": group, "failTimes": 1, "failLevel": 1}
    for name in (group, f"{group}%pr-1"):
        stage.retry_topic(name)
    plain = stage.push({topic: "*"})
    main = stage.push({topic: "*"}, by=stage.ours, sandbox="main", **tries)
    inside = stage.push({topic: "*"}, by=stage.ours, sandbox="pr-1", **tries)
    letters = [letter(topic, b"body %d" % n, n) for n in range(3 * COUNT)]
    unmarked, marked, orphans = (letters[n * COUNT : (n + 1) * COUNT] for n in range(3))
    stage.send(stage.producer(), unmarked)
    for sandbox, part in (("pr-1", marked), ("pr-2", orphans)):
        stage.send(stage.producer(by=stage.ours, sandbox=sandbox), part, by=stage.ours)
    stage.settle(topic, [(stage.peer, plain), (stage.ours, main)], queues=1)
    of_sandbox = list(range(COUNT, 2 * COUNT))
    of_main = [n for n in range(3 * COUNT) if n not in of_sandbox]
    for name, own in ((inside, of_sandbox), (main, of_main)):
        received = stage.ours.wait_messages(
            name, lambda got, own=own: len(numbers(got, 1)) >= len(own)
        )
        assert numbers(received, 0) == numbers(received, 1) == own
    check_flow(letters, None, stage.peer.messages(plain), in_order=stage.keeps_order)

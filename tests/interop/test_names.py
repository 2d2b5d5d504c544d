"""Bodies of every size; legal and illegal properties, keys and tags."""

import base64
import random
from typing import Any

import pytest
from tests.interop.stage import OURS, Stage, check_flow, letter

from cometmq.model.properties import RESERVED_PROPERTIES

# Sizes around the compression limit, powers of two, and the buffers of clients and brokers.
SIZES = (
    *(1, 2, 3, 15, 16, 17, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025),
    *(4095, 4096, 4097, 8191, 8192, 16_383, 16_385, 65_535, 65_536, 65_537),
    *(131_071, 131_073, 1_000_003, 1 << 20, (1 << 21) + 1, 3_500_000, (1 << 22) - 1),
)

LEGAL_PROPERTIES = {
    "a": "one letter",
    "tags": "not TAGS",
    "Keys": "not KEYS",
    "a.b-c_d/e:f": "x=y&z;:,|%$#@!~`^*()[]{}<>?",
    "name with spaces": " spaces around ",
    "färbe": "grün 🟢",
    "标签": "值",
    "quotes": "double \" single ' back \\ slash /",
    "lines": "one\ntwo\r\nthree\ttab",
    "controls": "\x00\x03\x1f\x7f\x85",
    "separators": "line\u2028paragraph\u2029nothing\ufeffbyte order",
    "equals=sign": "=",
    "n" * 200: "a long name",
    "number": "0001e5",
    "null": "null",
    "brackets": '{"json": [1, 2, 3]}',
}
LEGAL_TAGS = (
    *("A", "tag with spaces", "é", "标签", "🟢", "a|b", "*a", "1", "null", "'\"\\"),
    "T" * 500,
)
LEGAL_KEYS = (
    *("k", "Aa BB", "key#1 key#2", "schlüssel 钥匙 🔑", "a a", '"quoted"', "%s{}"),
    "K" * 500,
)
OURS_ONLY = {
    *("CHECK_IMMUNITY_TIME_IN_SECONDS", "INNER_BASE", "INNER_MULTI_DISPATCH"),
    *("INNER_NUM", "PROPERTY_FORWARD_QUEUE_ID", "REDIRECT", "TRACE_CONTEXT"),
    *("TRANSACTION_CHECK_TIMES", "__SHARDINGKEY", "__transactionId__"),
}
"""Names that RocketMQ's brokers and clients use and its client nevertheless lets one set."""


@pytest.mark.full
def test_bodies_of_every_size(stage: Stage) -> None:
    """Noise and compressible text of each size arrive at both clients, byte by byte."""
    topic = stage.topic()
    theirs = stage.push({topic: "*"})
    ours = stage.push({topic: "*"}, by=stage.ours)
    chance = random.Random("sizes")
    noise = [letter(topic, chance.randbytes(size), n) for n, size in enumerate(SIZES)]
    text = [
        letter(topic, (b"lorem ipsum " * (size // 12 + 1))[:size], len(SIZES) + n)
        for n, size in enumerate(SIZES)
    ]
    # Java's client keeps a compressed body even if it is larger, which breaks the limit.
    plain = stage.producer(compressAbove=1 << 30)
    results = stage.send(plain, noise) + stage.send(stage.producer(), text)
    stage.settle(topic, [(stage.peer, theirs), (stage.ours, ours)])
    check_flow(noise + text, results, stage.peer.messages(theirs), in_order=stage.keeps_order)
    check_flow(noise + text, results, stage.ours.messages(ours))


@pytest.mark.full
def test_legal_names_and_values(stage: Stage) -> None:
    """Properties, tags and keys of any kind come back as they were given."""
    topic = stage.topic()
    theirs = stage.push({topic: "*"})
    ours = stage.push({topic: "*"}, by=stage.ours)
    letters = [letter(topic, b"all", 0, properties=LEGAL_PROPERTIES)]
    letters += [
        letter(topic, b"one", len(letters) + n, properties={name: value})
        for n, (name, value) in enumerate(LEGAL_PROPERTIES.items())
    ]
    letters += [letter(topic, b"tag", len(letters) + n, tags=t) for n, t in enumerate(LEGAL_TAGS)]
    letters += [letter(topic, b"keys", len(letters) + n, keys=k) for n, k in enumerate(LEGAL_KEYS)]
    results = stage.send(stage.producer(), letters)
    by_us = [{**one, "properties": {**one["properties"]}} for one in letters]
    for one in by_us:
        one["properties"]["n"] = str(int(one["properties"]["n"]) + 1000)
    results += stage.send(stage.producer(by=stage.ours), by_us, by=stage.ours)
    stage.settle(topic, [(stage.peer, theirs), (stage.ours, ours)])
    everything = letters + by_us
    check_flow(everything, results, stage.peer.messages(theirs), in_order=stage.keeps_order)
    check_flow(everything, results, stage.ours.messages(ours))


def refused(stage: Stage, producer: str, one: dict[str, Any]) -> bool:
    """Whether a send ends with an error that says something."""
    (result,) = stage.peer.call("send", name=producer, mode="sync", messages=[one])
    return bool(result.get("error", {}).get("text"))


@pytest.mark.full
@pytest.mark.needs("newest")
def test_reserved_property_names_are_refused(stage: Stage) -> None:
    """Each name that RocketMQ's own client reserves is reserved in ours; ours reserves more."""
    topic = stage.topic(queues=1)
    producer = stage.producer()
    taken = {
        name
        for name in RESERVED_PROPERTIES
        if not refused(stage, producer, letter(topic, b"x", 0, properties={name: "1"}))
    }
    assert taken == (set() if stage.client == OURS else OURS_ONLY)


@pytest.mark.full
def test_properties_up_to_the_limit(stage: Stage) -> None:
    """A message whose properties fill the 32,767 bytes arrives; a byte more is refused."""
    topic = stage.topic(queues=1)
    theirs = stage.push({topic: "*"})
    producer = stage.producer()
    low, high = 32_000, 32_768
    letters, results = [], []
    while high - low > 1:  # clients add names of their own, so the edge is found by halving
        middle = (low + high) // 2
        one = letter(topic, b"edge", middle, properties={"big": "v" * middle})
        (result,) = stage.peer.call("send", name=producer, mode="sync", messages=[one])
        if result.get("status") == "SEND_OK":
            letters.append(one)
            results.append(result)
            low = middle
        else:
            assert result["error"]["text"]
            high = middle
    assert 32_000 < low < 32_767
    stage.settle(topic, [(stage.peer, theirs)], queues=1)
    received = stage.peer.messages(theirs)
    check_flow(letters, results, received)
    fullest = max(received, key=lambda m: len(m["properties"].get("big", "")))
    assert len(fullest["properties"]["big"]) == low


@pytest.mark.full
def test_separators_in_our_messages_are_refused(stage: Stage) -> None:
    """A separator that would split the property string is refused before the send."""
    topic = stage.topic(queues=1)
    producer = stage.producer(by=stage.ours)
    wrong = [
        letter(topic, b"x", 1, tags="a\x01b"),
        letter(topic, b"x", 2, tags="a\x02b"),
        letter(topic, b"x", 3, keys="a\x01b"),
        letter(topic, b"x", 4, properties={"a\x01b": "v"}),
        letter(topic, b"x", 5, properties={"a\x02b": "v"}),
        letter(topic, b"x", 6, properties={"a": "v\x01"}),
        letter(topic, b"x", 7, properties={"a": "v\x02"}),
        letter(topic, b"x", 8, properties={"half": "\ud800"}),
    ]
    for one in wrong:
        (result,) = stage.ours.call("send", name=producer, mode="sync", messages=[one])
        assert result.get("error", {}).get("type") == "LocalProtocolError", (one, result)
    assert stage.admin.max_offset(stage.message_queue(topic)) == 0


def test_empty_bodies_are_refused_by_rocketmq(stage: Stage) -> None:
    """By Java's client and by Java's broker; Go's client asks the broker, and ours accepts it."""
    topic = stage.topic(queues=1)
    producer = stage.producer()
    if stage.client.startswith("go"):
        stage.send(producer, [letter(topic, b"", 1)])
        return
    (result,) = stage.peer.call(
        "send", name=producer, mode="sync", messages=[letter(topic, b"", 1)]
    )
    assert result["error"]["text"]
    if stage.client == OURS:
        assert "RocketMQ's broker stores no message with an empty body" in result["error"]["text"]
    assert stage.admin.max_offset(stage.message_queue(topic)) == 0


@pytest.mark.at(OURS)
@pytest.mark.needs("empty body")
def test_an_empty_body_reaches_every_push_consumer(stage: Stage) -> None:
    """Tombstones for Java's and Go's consumers: alone and in a batch, between other bodies."""
    topic = stage.topic(queues=1)
    name = stage.push({topic: "*"})
    send_with_empty_bodies(stage, topic)
    check_empty_bodies(stage.peer.wait_messages(name, lambda got: len(got) >= 5, timeout_s=60.0))


@pytest.mark.at(OURS)
@pytest.mark.needs("old")
def test_an_empty_body_reaches_every_pull_consumer(stage: Stage) -> None:
    """Java 4.9's pull consumer reads what its push consumer stops at."""
    topic = stage.topic(queues=1)
    name = stage.old(topics={topic: "*"})
    send_with_empty_bodies(stage, topic)
    (queue,) = stage.queues(topic, 1)
    found = stage.peer.call("pull", name=name, queue=queue, expression="*", queueOffset=0, max=32)
    check_empty_bodies(found["messages"])
    stage.peer.call("closeOld", name=name)


def send_with_empty_bodies(stage: Stage, topic: str) -> None:
    """Our producer sends five messages; the second and the fourth have no body."""
    producer = stage.producer(by=stage.ours)
    letters = [letter(topic, body, n, keys=f"k{n}") for n, body in enumerate((b"a", b"", b"b"))]
    stage.send(producer, letters, by=stage.ours)
    stage.send(producer, [letter(topic, b"", 3), letter(topic, b"c", 4)], "batch", by=stage.ours)


def check_empty_bodies(received: list[Any]) -> None:
    """All five came; Java's clients say null for an empty body."""
    bodies = {int(message["properties"]["n"]): message["body"] or "" for message in received}
    assert {n: base64.b64decode(body) for n, body in bodies.items()} == {
        0: b"a", 1: b"", 2: b"b", 3: b"", 4: b"c"
    }  # fmt: skip

"""Requests with wrong contents, slow readers and clients that vanish, against a real broker."""

import json
import re
import struct
import threading

import psutil
import pytest
from tests.raw_client import PeerClosed, RawClient
from tests.request_fields import pull_fields, send_fields

from cometmq.testing.cluster import EmbeddedCluster
from cometmq.wire.command.command import RemotingCommand

SEND_V2 = 310
PULL = 11
GET_MAX_OFFSET = 30
TOPIC = "Adversity"

# SEND_MESSAGE_V2 with the fields a 5.4.0 client sends.
SEND_HEADER = send_fields(TOPIC, "KEYS\x01k\x02", d="4", l="16", n="broker-a")
PULL_HEADER = pull_fields(TOPIC, 0)
# Every answer a send may get: stored, or refused with a documented code.
DOCUMENTED = {0, 1, 2, 3, 10, 13, 14, 16, 17, 29, 604}
MAX_MESSAGE_BYTES = 4 * 1024 * 1024


def store_one(client: RawClient, queue_id: int = 0, body: bytes = b"body") -> RemotingCommand:
    """Send one correct message; the first send creates the topic."""
    answer = client.call(SEND_V2, {**SEND_HEADER, "e": str(queue_id)}, body)
    assert answer.code == 0, answer.remark
    return answer


def max_offset(client: RawClient, queue_id: int = 0) -> int:
    """Ask for the queue offset that the next message of a queue gets."""
    answer = client.call(GET_MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue_id)})
    assert answer.code == 0, answer.remark
    return int(answer.ext_fields["offset"])


def check_answer(answer: RemotingCommand) -> None:
    """Check that the answer has a documented code and a sentence, not a Python exception."""
    assert answer.is_response
    assert answer.code in DOCUMENTED
    assert not re.search(r"\b[A-Z][a-z]+Error\b|Traceback|NoneType", answer.remark or "")
    assert answer.code == 0 or answer.remark


@pytest.mark.parametrize(
    "value", ["x", "", "-1", "9" * 30, "-" + "9" * 30, "1.5", "\x00", "真", "{}", "true", "1e3"]
)
@pytest.mark.parametrize("name", sorted(SEND_HEADER))
def test_wrong_texts_in_every_field_of_a_send(
    cluster: EmbeddedCluster, name: str, value: str
) -> None:
    """The broker answers each field whose text is no number, no name or no flag."""
    with RawClient(cluster.broker_address) as client:
        check_answer(client.call(SEND_V2, {**SEND_HEADER, name: value}, b"body"))
        store_one(client)


@pytest.mark.parametrize("value", [3, 3.7, True, None, [1], {"x": 1}, 10**40])
@pytest.mark.parametrize("name", sorted(SEND_HEADER))
def test_wrong_json_types_in_every_field_of_a_send(
    cluster: EmbeddedCluster, name: str, value: object
) -> None:
    """The broker answers each JSON type; the C++ client sends numbers, no client the others."""
    header = {
        "code": SEND_V2,
        "opaque": 77,
        "flag": 0,
        "language": "CPP",
        "version": 333,
        "extFields": {**SEND_HEADER, name: value},
    }
    text = json.dumps(header).encode()
    body = b"body"
    frame = struct.pack(">iI", 4 + len(text) + len(body), len(text)) + text + body
    with RawClient(cluster.broker_address) as client:
        client.send(frame)
        answer = client.receive()
        assert answer.opaque == 77
        check_answer(answer)
        store_one(client)


@pytest.mark.parametrize("name", sorted(SEND_HEADER))
def test_every_field_of_a_send_may_be_missing(cluster: EmbeddedCluster, name: str) -> None:
    """The refusal names a mandatory field that is missing."""
    fields = {key: value for key, value in SEND_HEADER.items() if key != name}
    with RawClient(cluster.broker_address) as client:
        check_answer(client.call(SEND_V2, fields, b"body"))
        store_one(client)


def test_a_send_without_any_field_is_refused(cluster: EmbeddedCluster) -> None:
    """The refusal says which field is missing."""
    with RawClient(cluster.broker_address) as client:
        answer = client.call(SEND_V2)
        assert answer.code != 0
        check_answer(answer)


@pytest.mark.parametrize(
    ("topic", "codes"),
    [
        ("", {1, 29}),
        (" ", {1, 29}),
        ("a b", {1, 29}),
        ("tópico", {1, 29}),
        ("x" * 128, {1, 29}),
        ("x" * 100_000, {1, 29}),
        ("../../etc/passwd", {1, 29}),
        ("SCHEDULE_TOPIC_XXXX", {16}),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {16}),
    ],
)
def test_illegal_topics_are_refused(cluster: EmbeddedCluster, topic: str, codes: set[int]) -> None:
    """A topic is refused for bad characters, for its length, or as a reserved name."""
    with RawClient(cluster.broker_address) as client:
        answer = client.call(SEND_V2, {**SEND_HEADER, "b": topic}, b"body")
        assert answer.code in codes
        check_answer(answer)


def test_a_body_above_the_limit_is_refused(cluster: EmbeddedCluster) -> None:
    """A body above the limit is refused, and one at the limit is stored."""
    with RawClient(cluster.broker_address) as client:
        answer = client.call(SEND_V2, SEND_HEADER, bytes(MAX_MESSAGE_BYTES + 1))
        assert answer.code == 13
        check_answer(answer)
        store_one(client, body=bytes(MAX_MESSAGE_BYTES))


@pytest.mark.parametrize(
    "body",
    [
        b"plain",
        b"",
        b"\xff" * 100,
        struct.pack(">iiiii", 2**31 - 1, 0, 0, 0, 2**31 - 1),
        struct.pack(">iiiiih", 22, 0, 0, 0, -1, 0),
        struct.pack(">iiiiih", 0, 0, 0, 0, 0, 0) * 100,
    ],
)
def test_broken_batches_store_nothing(cluster: EmbeddedCluster, body: bytes) -> None:
    """The broker stores all messages of a batch or none."""
    with RawClient(cluster.broker_address) as client:
        store_one(client, 1)
        before = max_offset(client, 1)
        answer = client.call(320, {**SEND_HEADER, "e": "1", "m": "true"}, body)
        assert answer.code != 0
        check_answer(answer)
        assert max_offset(client, 1) == before


@pytest.mark.parametrize(
    "value", ["x", "", "-1", "9" * 30, "1.5", "{}", "\x00", "2147483648", "true"]
)
@pytest.mark.parametrize("name", sorted(PULL_HEADER))
def test_wrong_texts_in_every_field_of_a_pull(
    cluster: EmbeddedCluster, name: str, value: str
) -> None:
    """A wrong pull is answered at once and is not held."""
    with RawClient(cluster.broker_address) as client:
        store_one(client)
        answer = client.call(PULL, {**PULL_HEADER, name: value})
        assert answer.is_response
        assert not re.search(r"\b[A-Z][a-z]+Error\b|Traceback|NoneType", answer.remark or "")
        store_one(client)


def test_a_frame_cut_off_in_its_body_stores_nothing(cluster: EmbeddedCluster) -> None:
    """The broker stores nothing when a client vanishes in the middle of a send."""
    with RawClient(cluster.broker_address) as client:
        store_one(client, 2)
        before = max_offset(client, 2)
        for leave in ("close", "reset", "half_close"):
            victim = RawClient(cluster.broker_address)
            frame = victim.frame(SEND_V2, {**SEND_HEADER, "e": "2"}, bytes(1_000_000))
            victim.send(frame[: len(frame) // 2])
            getattr(victim, leave)()
            victim.close()
        store_one(client, 2)
        assert max_offset(client, 2) == before + 1


def test_a_client_that_vanishes_while_its_pull_is_held(cluster: EmbeddedCluster) -> None:
    """The message that would have answered its pull reaches the next client that pulls."""
    with RawClient(cluster.broker_address) as client:
        store_one(client, 3)
        at = max_offset(client, 3)
        held = {
            **PULL_HEADER,
            "queueId": "3",
            "queueOffset": str(at),
            "sysFlag": "6",
            "suspendTimeoutMillis": "15000",
        }
        for leave in ("close", "reset", "half_close"):
            victim = RawClient(cluster.broker_address)
            victim.send(victim.frame(PULL, held))
            # An answered request behind it proves that the pull was read and is held.
            assert victim.call(9999).code == 3
            getattr(victim, leave)()
            victim.close()
        store_one(client, 3)
        answer = client.call(PULL, held)
        assert answer.code == 0
        assert answer.ext_fields["nextBeginOffset"] == str(at + 1)


def test_a_slow_reader_costs_bounded_memory(cluster: EmbeddedCluster) -> None:
    """A slow reader waits while others are served, and gets all its answers once it reads."""
    process = psutil.Process()
    topic_header = {**SEND_HEADER, "b": "AdversityLarge"}
    pull = {**PULL_HEADER, "topic": "AdversityLarge", "maxMsgNums": "1"}
    with RawClient(cluster.broker_address) as client:
        assert client.call(SEND_V2, topic_header, bytes(200_000)).code == 0
    before_bytes = process.memory_info().rss
    with RawClient(cluster.broker_address, timeout_s=1) as slow:
        slow.shrink_receive_buffer(65_536)
        sent = 0
        # 200 KB for each of these: 4 GB of answers if nothing stopped it.
        chunk = [slow.frame(PULL, pull) for _ in range(20_000)]
        try:
            for frame in chunk:
                slow.send(frame)
                sent += 1
        except TimeoutError:
            pass
        assert sent < len(chunk), "the server took every request of a client that never reads"
        assert process.memory_info().rss - before_bytes < 150_000_000
        with RawClient(cluster.broker_address) as client:
            store_one(client)
        try:
            answers = [slow.receive() for _ in range(10)]
        except PeerClosed:
            return
        assert [answer.opaque for answer in answers] == list(range(1, 11))
        assert all(answer.code == 0 and len(answer.body) > 200_000 for answer in answers)


def test_hostile_and_honest_clients_side_by_side(cluster: EmbeddedCluster) -> None:
    """Garbage on some connections does not change the order of answers on another."""
    stop = threading.Event()

    def harass() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with RawClient(cluster.broker_address) as client:
                client.send(bytes([number % 256]) * 50)
                client.reset()

    threads = [threading.Thread(target=harass) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with RawClient(cluster.broker_address) as client:
            first = int(store_one(client).ext_fields["queueOffset"])
            for number in range(1, 300):
                answer = store_one(client)
                assert int(answer.ext_fields["queueOffset"]) == first + number
    finally:
        stop.set()
        for thread in threads:
            thread.join()

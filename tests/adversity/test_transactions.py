"""Transactions survive producers that vanish, cut frames or end foreign transactions."""

import threading
from collections.abc import Iterator

import pytest
from tests.raw_client import RawClient
from tests.request_fields import send_fields

from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster
from cometmq.wire.body.client import HeartbeatData
from cometmq.wire.command.codes import RequestCode

GROUP = "rude"
QUICK = {
    "transactionTimeOut": "1",
    "transactionCheckInterval": "50",
    "transactionOpBatchInterval": "20",
    "transactionCheckMax": "1000000",
    "fileReservedTime": "1000000",
}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Start a broker that checks transactions at the shortest interval."""
    with threaded_cluster(QUICK) as running:
        yield running


def send_half(client: RawClient, number: int) -> dict[str, str]:
    """Store a half message and return the fields that end its transaction."""
    text = f"UNIQ_KEY\x01RUDE{number:028d}\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
    fields = send_fields("Rude", text, a=GROUP)
    answer = client.call(RequestCode.SEND_MESSAGE_V2, fields, b"%d" % number)
    assert answer.code == 0, answer.remark
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": answer.ext_fields["queueOffset"],
        "commitLogOffset": str(int(answer.ext_fields["msgId"][16:], 16)),
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
    }


def register(client: RawClient) -> None:
    """Send a heartbeat as a producer of the group."""
    body = HeartbeatData(f"rude{id(client)}", (GROUP,), ()).encode()
    assert client.call(RequestCode.HEART_BEAT, {}, body).code == 0


def delivered(cluster: EmbeddedCluster) -> int:
    """Count the messages of the topic that consumers can read."""
    return cluster.standalone.broker.state.store.max_queue_offset("Rude", 0)


def wait(condition: object) -> None:
    """Repeat a check until it holds."""
    assert callable(condition)
    pause = threading.Event()
    for _ in range(600):
        if condition():
            return
        pause.wait(0.05)
    raise AssertionError("still not so")


def test_a_producer_that_vanishes_when_it_is_asked(cluster: EmbeddedCluster) -> None:
    """A check that a reset connection loses goes to the next member of the group."""
    for number in range(5):
        with RawClient(cluster.broker_address) as client:
            send_half(client, number)
            register(client)
            while client.receive().code != RequestCode.CHECK_TRANSACTION_STATE:
                pass
            client.reset()
    ended: set[str] = set()
    with RawClient(cluster.broker_address, timeout_s=30) as client:
        register(client)
        while len(ended) < 5:
            check = client.receive()
            if check.code != RequestCode.CHECK_TRANSACTION_STATE or check.is_response:
                continue
            ext = check.ext_fields
            ended.add(ext["msgId"])
            fields = {
                "producerGroup": GROUP,
                "tranStateTableOffset": ext["tranStateTableOffset"],
                "commitLogOffset": ext["commitLogOffset"],
                "commitOrRollback": "8",
                "fromTransactionCheck": "true",
            }
            client.send(client.frame(RequestCode.END_TRANSACTION, fields, oneway=True))
    assert len(ended) == 5
    wait(lambda: len(cluster.standalone.broker.transactions.halves) == 0)
    assert delivered(cluster) == 5


def test_ends_of_all_kinds_at_once(cluster: EmbeddedCluster) -> None:
    """Each good end is applied once, and each wrong end between them is answered with code 1."""
    with RawClient(cluster.broker_address, timeout_s=30) as client:
        halves = [send_half(client, number) for number in range(20)]
        frames, good = [], 0
        for number, one in enumerate(halves):
            wrong = {**one, "commitLogOffset": str(number * 7 + 1)}
            foreign = {**one, "producerGroup": "others"}
            far = {**one, "tranStateTableOffset": str(1 << 40)}
            for fields in (wrong, one, foreign, far, one):
                good += fields is one
                frames.append(client.frame(RequestCode.END_TRANSACTION, fields))
        client.send_slowly(b"".join(frames)[:200])
        client.send(b"".join(frames)[200:])
        answers = [client.receive() for _ in frames]
        codes = [answer.code for answer in answers]
        assert sorted(set(codes)) == [0, 1]
        assert codes.count(0) == good == 40
        garbled = {**halves[0], "commitLogOffset": "here"}
        assert client.call(RequestCode.END_TRANSACTION, garbled).code != 0
        assert client.call(RequestCode.END_TRANSACTION, {}).code != 0
    assert delivered(cluster) == 20

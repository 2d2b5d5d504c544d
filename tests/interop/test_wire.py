"""What really passes between foreign programs and ours, seen by a tap on the wire."""

from collections import Counter
from pathlib import Path

import pytest
from interop.peers import Unavailable
from interop.servers import JavaCluster, OurCluster
from interop.tap import Tap
from tests.interop.stage import Stage, check_flow, letter
from tests.interop.waiting import wait_until

import cometmq.sync
from cometmq.errors import ClientError
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import BINARY, JSON

ANSWERED = (
    RequestCode.REGISTER_BROKER,
    RequestCode.QUERY_DATA_VERSION,
    RequestCode.GET_BROKER_MEMBER_GROUP,
)


def has_topic(admin: cometmq.sync.Admin, topic: str) -> bool:
    """Whether the name server can answer for a topic."""
    try:
        return bool(admin.topic_route(topic).queue_datas)
    except ClientError:
        return False


def check_traffic(name_server: str) -> None:
    """Messages go through the only broker of a cluster."""
    with (
        cometmq.sync.Admin(name_server=name_server) as admin,
        cometmq.sync.Producer("P_wire", name_server=name_server) as producer,
    ):
        wait_until(lambda: has_topic(admin, "TBW102"), lambda: "the broker never registered")
        admin.create_topic("Wire", queue_count=2)
        wait_until(lambda: has_topic(admin, "Wire"), lambda: "the topic never appeared")
        for number in range(20):
            producer.send(cometmq.Message("Wire", b"%d" % number))
        got: list[bytes] = []
        with cometmq.sync.PullConsumer(
            "L_wire", {"Wire": "*"}, name_server=name_server, consume_from="first"
        ) as consumer:
            while len(got) < 20:
                found = consumer.poll(20_000)
                assert found, f"only {len(got)} of 20 came"
                got += [message.body for message in found]
    assert sorted(got, key=int) == [b"%d" % number for number in range(20)]


@pytest.mark.full
def test_javas_broker_registers_with_our_name_server(tmp_path: Path) -> None:
    """103, then 322 instead of it, 901 for its group; 904, one-way, keeps it in the routes."""
    ours = OurCluster(tmp_path / "ours")
    try:
        ours.start_name_server()
        with Tap(ours.name_server) as tap:
            theirs = JavaCluster(
                tmp_path / "theirs",
                ours,
                registers_at=tap.address,
                settings={
                    "enableSlaveActingMaster": "true",
                    "compatibleWithOldNameSrv": "false",
                    "forceRegister": "false",
                    "registerNameServerPeriod": "60000",
                    "brokerHeartbeatInterval": "500",
                    "syncBrokerMemberGroupPeriod": "500",
                    # Without its heartbeats the name server would drop it after this time.
                    "brokerNotActiveTimeoutMillis": "5000",
                },
            )
            with theirs:
                check_traffic(ours.name_server)
                wait_until(
                    lambda: all(tap.answers.get(code, Counter())[0] for code in ANSWERED),
                    lambda: f"answers were {tap.answers}",
                )
                beats = tap.requests[RequestCode.BROKER_HEARTBEAT]
                registrations = tap.requests[RequestCode.REGISTER_BROKER]
                wait_until(
                    lambda: tap.requests[RequestCode.BROKER_HEARTBEAT] >= beats + 30,
                    lambda: f"requests were {tap.requests}",
                )
                with cometmq.sync.Admin(name_server=ours.name_server) as admin:
                    assert has_topic(admin, "Wire")
                assert tap.requests[RequestCode.REGISTER_BROKER] <= registrations + 1
            answers = {code: set(tap.answers[code]) for code in ANSWERED}
            assert answers == {code: {0} for code in ANSWERED}
    except Unavailable as error:
        pytest.skip(str(error))
    finally:
        ours.close()


@pytest.mark.full
def test_our_broker_registers_with_javas_name_server(tmp_path: Path) -> None:
    """103 and what follows is answered 0, and so is the goodbye, 104."""
    try:
        theirs = JavaCluster(tmp_path / "theirs")
    except Unavailable as error:
        pytest.skip(str(error))
    try:
        theirs.start_name_server()
        with (
            Tap(theirs.name_server) as tap,
            OurCluster(tmp_path / "ours", theirs, registers_at=tap.address) as ours,
        ):
            check_traffic(theirs.name_server)
            ours.stop_broker()
            wait_until(
                lambda: bool(tap.answers.get(RequestCode.UNREGISTER_BROKER)),
                lambda: f"answers were {tap.answers}",
            )
            assert RequestCode.REGISTER_BROKER in tap.answers
            assert {code for found in tap.answers.values() for code in found} == {0}
            with cometmq.sync.Admin(name_server=theirs.name_server) as admin:
                assert not has_topic(admin, "Wire")
    finally:
        theirs.close()


@pytest.mark.full
def test_headers_are_in_the_encoding_that_was_chosen(stage: Stage) -> None:
    """A binary client's requests are binary, every one; the others' are JSON."""
    topic = stage.topic()
    with Tap(stage.cluster.name_server) as tap:
        producer = stage.producer(nameServer=tap.address)
        consumer = stage.push({topic: "*"}, nameServer=tap.address)
        letters = [letter(topic, b"%d" % number, number) for number in range(8)]
        results = stage.send(producer, letters)
        stage.settle(topic, [(stage.peer, consumer)])
        assert set(tap.types) == {BINARY if "binary" in stage.client else JSON}
        assert tap.requests[RequestCode.GET_ROUTEINFO_BY_TOPIC] > 0
        stage.peer.call("closeProducer", name=producer)
        stage.peer.call("closePush", name=consumer)
    check_flow(letters, results, stage.peer.messages(consumer), in_order=stage.keeps_order)

"""A whole name server on virtual time: every request code, and brokers that come and go."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from cometmq.codec.crc import body_crc
from cometmq.model.topic import BrokerData, DataVersion, QueueData, TopicConfig, TopicRoute
from cometmq.namesrv import NameServer, NameServerConfig
from cometmq.net.channel import Channel
from cometmq.testing.simulation import World, simulate
from cometmq.wire.body.route import (
    TopicConfigWrapper,
    TopicList,
    decode_cluster_info,
    decode_data_version,
    decode_kv_table,
    decode_member_group,
    decode_topic_list,
    decode_topic_route,
    encode_data_version,
    encode_register_broker_body,
    encode_topic_route,
)
from cometmq.wire.command.command import RemotingCommand

TOPICS = {name: TopicConfig(name, 4, 4) for name in ("T", "U")}
VERSION = DataVersion(1_700_000_000_000, 1)
IDENTITY = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.2:10911",
    "clusterName": "c",
    "brokerId": "0",
}


@dataclass
class Peer:
    """A broker or client, and the name server it talks to."""

    world: World
    server: NameServer
    channel: Channel
    version: int = 493
    others: list[Channel] = field(default_factory=list)

    async def ask(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        channel: Channel | None = None,
    ) -> RemotingCommand:
        """The answer to one request."""
        command = RemotingCommand.request(code, dict(ext or {}), body)
        command.version = self.version
        return await (channel or self.channel).request(command)

    async def register(
        self,
        topics: Mapping[str, TopicConfig] = TOPICS,
        channel: Channel | None = None,
        **changes: str,
    ) -> RemotingCommand:
        """Register broker-a, or what `changes` make of it."""
        body = encode_register_broker_body(TopicConfigWrapper(dict(topics), VERSION))
        ext = {
            **IDENTITY,
            "haServerAddr": "10.0.0.2:10912",
            "bodyCrc32": str(body_crc(body)),
            **changes,
        }
        return await self.ask(103, ext, body, channel)

    async def connect(self) -> Channel:
        """Another connection."""
        node = self.world.node("peer")
        env = node.environment()

        async def connect() -> Channel:
            address = self.world.node("ns").address
            return await env.network.connect(
                address, self.server.port, lambda: Channel(env, address)
            )

        return await node.run(connect)


def run(scenario: Callable[[Peer], Awaitable[Any]], config: NameServerConfig | None = None) -> Any:
    """Run `scenario` against a fresh name server; its result."""

    async def main(world: World) -> Any:
        node = world.node("ns")
        server = NameServer(
            config or NameServerConfig(kv_config_path="/ns/kv.json", config_store_path="/ns/p"),
            node.environment(),
            node.disk,
        )
        await node.run(server.start)
        peer = Peer(world, server, Channel.__new__(Channel))
        peer.channel = await peer.connect()
        result = await world.node("peer").run(lambda: _awaited(scenario(peer)))
        await node.run(server.stop)
        return result

    return simulate(1, main).value


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


def test_register_then_route() -> None:
    """The answer to the master is empty; the route holds what was registered."""

    async def scenario(peer: Peer) -> None:
        unknown = await peer.ask(105, {"topic": "T"})
        assert unknown.code == 17
        assert "No topic route info in name server for the topic: T" in (unknown.remark or "")
        assert (await peer.ask(105)).code == 17
        answer = await peer.register()
        assert (answer.code, answer.remark, answer.ext_fields, answer.body) == (0, None, {}, b"")
        route = await peer.ask(105, {"topic": "T"})
        assert route.code == 0
        assert decode_topic_route(route.body).queue_datas == (QueueData("broker-a", 4, 4, 6),)
        assert route.body == (
            b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.2:10911"},"brokerName":"broker-a",'
            b'"cluster":"c","enableActingMaster":false}],"filterServerTable":{},"queueDatas":'
            b'[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
            b'"writeQueueNums":4}]}'
        )

    assert run(scenario) is None


@pytest.mark.parametrize("version", [401, 493])
def test_a_compressed_registration(version: int) -> None:
    """With and without the static topics at its end; CRC over the bytes as sent."""

    async def scenario(peer: Peer) -> TopicList:
        body = encode_register_broker_body(TopicConfigWrapper(TOPICS, VERSION), compressed=True)
        if version < 413:
            body = zlib.compress(zlib.decompress(body)[:-4])
        ext = {**IDENTITY, "haServerAddr": "", "compressed": "true"}
        peer.version = version
        wrong = await peer.ask(103, {**ext, "bodyCrc32": "12345"}, body)
        assert (wrong.code, wrong.remark) == (1, "crc32 not match")
        answer = await peer.ask(103, {**ext, "bodyCrc32": str(body_crc(body))}, body)
        assert answer.code == 0, answer.remark
        return decode_topic_list((await peer.ask(206)).body)

    assert run(scenario) == TopicList(("T", "U"))


def test_registrations_of_old_brokers() -> None:
    """Below version 37 the body is the topic table alone; an empty body has no topics."""

    async def scenario(peer: Peer) -> TopicList:
        peer.version = 36
        topics = b",".join(
            b'"%b":{"topicName":"%b","readQueueNums":1,"writeQueueNums":1,"perm":6}' % (name, name)
            for name in (b"O", b"P")
        )
        body = b'{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{%b}}' % topics
        assert (await peer.ask(103, {**IDENTITY, "haServerAddr": ""}, body)).code == 0
        peer.version = 300
        other = {**IDENTITY, "brokerName": "b", "brokerAddr": "h:1", "haServerAddr": ""}
        assert (await peer.ask(103, other)).code == 0
        return decode_topic_list((await peer.ask(206)).body)

    assert run(scenario) == TopicList(("O", "P"))


@pytest.mark.parametrize(
    ("ext", "body", "remark"),
    [
        ({"brokerId": "x"}, b"", "brokerId"),
        ({}, b"{", "RegisterBrokerBody"),
        ({}, b'{"topicConfigSerializeWrapper":[]}', "RegisterBrokerBody"),
        ({"compressed": "true"}, b"no zlib", "zlib"),
        ({"compressed": "true"}, zlib.compress(b"\x7f\xff\xff\xff"), "byte 0"),
        ({"heartbeatTimeoutMillis": "soon"}, b"", "heartbeatTimeoutMillis"),
    ],
)
def test_a_broken_registration_is_refused_with_its_cause(
    ext: dict[str, str], body: bytes, remark: str
) -> None:
    """And changes nothing."""

    async def scenario(peer: Peer) -> str:
        answer = await peer.ask(103, {**IDENTITY, "haServerAddr": "", **ext}, body)
        assert answer.code == 1
        assert decode_cluster_info((await peer.ask(106)).body) == ({}, {})
        return answer.remark or ""

    assert remark in run(scenario)


def test_one_topic_from_a_stranger_is_refused() -> None:
    """The broker has to register as a whole first."""

    async def scenario(peer: Peer) -> tuple[int, str | None]:
        answer = await peer.register({"T": TopicConfig("T")})
        return answer.code, answer.remark

    assert run(scenario) == (1, "register broker failed")


def test_a_slave_is_told_of_its_master_and_members_are_listed() -> None:
    """103 of a slave, 901, 106, 104."""

    async def scenario(peer: Peer) -> None:
        await peer.register()
        slave = await peer.connect()
        answer = await peer.register(
            channel=slave, brokerId="1", brokerAddr="10.0.0.3:10911", haServerAddr="x"
        )
        assert answer.ext_fields == {
            "haServerAddr": "10.0.0.2:10912",
            "masterAddr": "10.0.0.2:10911",
        }
        members = {0: "10.0.0.2:10911", 1: "10.0.0.3:10911"}
        group = await peer.ask(901, {"clusterName": "c", "brokerName": "broker-a"})
        assert (group.code, group.remark) == (0, "not set any response code")
        assert decode_member_group(group.body) == BrokerData("c", "broker-a", members)
        brokers, clusters = decode_cluster_info((await peer.ask(106)).body)
        assert brokers["broker-a"].broker_addrs == members
        assert clusters == {"c": ("broker-a",)}
        assert (await peer.ask(104, IDENTITY)).code == 0
        brokers, _ = decode_cluster_info((await peer.ask(106)).body)
        assert brokers["broker-a"].broker_addrs == {1: "10.0.0.3:10911"}

    assert run(scenario) is None


def test_data_versions_and_heartbeats() -> None:
    """322 tells whether to register again; both keep the broker alive."""

    async def scenario(peer: Peer) -> None:
        version = encode_data_version(VERSION)
        unknown = await peer.ask(322, IDENTITY, version)
        assert (unknown.code, unknown.ext_fields, unknown.body) == (0, {"changed": "true"}, b"")
        await peer.register()
        same = await peer.ask(322, IDENTITY, version)
        assert same.ext_fields == {"changed": "false"}
        assert decode_data_version(same.body) == VERSION
        newer = await peer.ask(322, IDENTITY, encode_data_version(DataVersion(2, 2)))
        assert newer.ext_fields == {"changed": "true"}
        for _ in range(3):
            await asyncio.sleep(100)
            assert (await peer.ask(904, IDENTITY)).code == 0
            await asyncio.sleep(100)
            await peer.ask(322, IDENTITY, version)
        assert (await peer.ask(105, {"topic": "T"})).code == 0

    assert run(scenario) is None


def test_a_silent_broker_is_dropped_after_120_seconds() -> None:
    """Its connection is cut as well; the scan runs every 5 s."""

    async def scenario(peer: Peer) -> None:
        broker = await peer.connect()
        await peer.register(channel=broker)
        await asyncio.sleep(60)
        assert (await peer.ask(105, {"topic": "T"})).code == 0
        await asyncio.sleep(60)
        assert (await peer.ask(105, {"topic": "T"})).code == 0
        await asyncio.sleep(6)
        assert (await peer.ask(105, {"topic": "T"})).code == 17
        assert broker.is_closed

    assert run(scenario) is None


def test_a_shorter_timeout_can_be_asked_for() -> None:
    """Brokers with acting masters promise a sign of life within 10 s."""

    async def scenario(peer: Peer) -> None:
        await peer.register(heartbeatTimeoutMillis="10000")
        channel = await peer.connect()
        await asyncio.sleep(9)
        assert (await peer.ask(105, {"topic": "T"}, channel=channel)).code == 0
        await asyncio.sleep(7)
        assert (await peer.ask(105, {"topic": "T"}, channel=channel)).code == 17

    assert run(scenario) is None


def test_a_closed_connection_drops_the_broker_at_once() -> None:
    """No waiting for the scan."""

    async def scenario(peer: Peer) -> None:
        broker = await peer.connect()
        await peer.register(channel=broker)
        broker.close()
        await asyncio.sleep(0.1)
        assert (await peer.ask(105, {"topic": "T"})).code == 17
        again = await peer.connect()
        await peer.register(channel=again)
        again.abort()
        await asyncio.sleep(0.1)
        assert (await peer.ask(105, {"topic": "T"})).code == 17

    assert run(scenario) is None


def test_topic_lists() -> None:
    """206, 224, 304, 311-313."""

    async def scenario(peer: Peer) -> dict[int, TopicList]:
        topics = {**TOPICS, "V": TopicConfig("V", topic_sys_flag=1)}
        topics["W"] = TopicConfig("W", topic_sys_flag=2)
        await peer.register(topics)
        return {
            code: decode_topic_list((await peer.ask(code, {"cluster": "c", "topic": "x"})).body)
            for code in (206, 224, 304, 311, 312, 313)
        }

    assert run(scenario) == {
        206: TopicList(("T", "U", "V", "W")),
        224: TopicList(("T", "U", "V", "W")),
        304: TopicList(("c", "broker-a"), "10.0.0.2:10911"),
        311: TopicList(("V",)),
        312: TopicList(("W",)),
        313: TopicList(("W",)),
    }


def test_topic_lists_can_be_switched_off() -> None:
    """With the remark that tools look for."""
    config = NameServerConfig(
        kv_config_path="/kv", enable_all_topic_list=False, enable_topic_list=False
    )

    async def scenario(peer: Peer) -> set[tuple[int, str | None]]:
        answers = [await peer.ask(code, {"cluster": "c"}) for code in (206, 224, 311, 312, 313)]
        return {(answer.code, answer.remark) for answer in answers}

    assert run(scenario, config) == {(1, "disable")}


def test_single_topics() -> None:
    """217 adds queues, 216 removes a topic."""

    async def scenario(peer: Peer) -> None:
        await peer.register()
        body = encode_topic_route(TopicRoute((QueueData("broker-a", 1, 1, 6),), ()))
        assert (await peer.ask(217, {"topic": "N"}, body)).code == 0
        assert (await peer.ask(105, {"topic": "N"})).code == 0
        assert (await peer.ask(216, {"topic": "N"})).code == 0
        assert (await peer.ask(105, {"topic": "N"})).code == 17
        strange = encode_topic_route(TopicRoute((QueueData("nobody", 1, 1, 6),), ()))
        assert (await peer.ask(217, {"topic": "N"}, strange)).code == 0
        assert (await peer.ask(217, {"topic": "N"})).code == 0
        assert (await peer.ask(105, {"topic": "N"})).code == 17
        assert (await peer.ask(216, {"topic": "T", "clusterName": "c"})).code == 0
        assert (await peer.ask(105, {"topic": "T"})).code == 17
        assert (await peer.ask(217)).code == 1

    assert run(scenario) is None


def test_write_permission_of_a_broker() -> None:
    """205 and 327 count topics; an unknown broker has none."""

    async def scenario(peer: Peer) -> None:
        await peer.register()
        assert (await peer.ask(205, {"brokerName": "x"})).ext_fields == {"wipeTopicCount": "0"}
        wiped = await peer.ask(205, {"brokerName": "broker-a"})
        assert wiped.ext_fields == {"wipeTopicCount": "2"}
        route = decode_topic_route((await peer.ask(105, {"topic": "T"})).body)
        assert route.queue_datas[0].perm == 4
        added = await peer.ask(327, {"brokerName": "broker-a"})
        assert added.ext_fields == {"addTopicCount": "2"}
        route = decode_topic_route((await peer.ask(105, {"topic": "T"})).body)
        assert route.queue_datas[0].perm == 6

    assert run(scenario) is None


def test_kv_configuration_survives_a_power_cut() -> None:
    """100, 101, 102, 219; what was answered is durable."""

    async def main(world: World) -> None:
        node = world.node("ns")
        config = NameServerConfig(kv_config_path="/ns/kv.json", listen_port=9876)

        async def start() -> NameServer:
            server = NameServer(config, node.environment(), node.disk)
            await server.start()
            return server

        async def scenario(peer: Peer, *, again: bool) -> None:
            key = {"namespace": "NS", "key": "k"}
            if not again:
                missing = await peer.ask(101, key)
                assert (missing.code, missing.ext_fields) == (22, {})
                assert missing.remark == "No config item, Namespace: NS Key: k"
                assert (await peer.ask(219, {"namespace": "NS"})).code == 22
                assert (await peer.ask(100, {**key, "value": "wert ä"})).code == 0
                assert (await peer.ask(100, {**key, "key": "gone", "value": "x"})).code == 0
                assert (await peer.ask(102, {**key, "key": "gone"})).code == 0
                assert (await peer.ask(102, {**key, "key": "gone"})).code == 0
                assert (await peer.ask(100, {"namespace": "NS"})).code == 1
            assert (await peer.ask(101, key)).ext_fields == {"value": "wert ä"}
            table = await peer.ask(219, {"namespace": "NS"})
            assert decode_kv_table(table.body) == {"k": "wert ä"}

        for again in (False, True):
            server = await node.run(start)
            peer = Peer(world, server, Channel.__new__(Channel))
            peer.channel = await peer.connect()
            await world.node("peer").run(lambda p=peer, a=again: scenario(p, again=a))
            node.crash()
            node.restart()

    assert simulate(2, main).value is None


def test_order_topics() -> None:
    """`orderMessageEnable` adds the KV entry to the route; registrations return the table."""

    async def scenario(peer: Peer, *, enabled: bool) -> str | None:
        await peer.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"})
        registered = await peer.register()
        assert decode_kv_table(registered.body) == {"T": "broker-a:4"}
        route = decode_topic_route((await peer.ask(105, {"topic": "T"})).body)
        other = decode_topic_route((await peer.ask(105, {"topic": "U"})).body)
        assert other.order_topic_conf is None
        return route.order_topic_conf

    on = NameServerConfig(kv_config_path="/kv", order_message_enable=True)
    assert run(lambda peer: scenario(peer, enabled=True), on) == "broker-a:4"
    assert run(lambda peer: scenario(peer, enabled=False)) is None


def test_configuration_can_be_read_and_changed() -> None:
    """318 and 319; black-listed keys are refused with 16, bad ones with 29."""

    async def scenario(peer: Peer) -> None:
        text = (await peer.ask(319)).body.decode()
        assert "orderMessageEnable=false\n" in text
        refused = await peer.ask(318, body=b"configStorePath=/x\n")
        assert (refused.code, refused.remark) == (16, "Can not update config in black list.")
        wrong = await peer.ask(318, body=b"orderMessageEnable=perhaps\n")
        assert wrong.code == 29
        assert "true | false" in (wrong.remark or "")
        assert (await peer.ask(318, body=b"clusterTest=false\n")).code == 0
        assert (await peer.ask(318, body=b"orderMessageEnable=true\n")).code == 0
        assert "orderMessageEnable=true\n" in (await peer.ask(319)).body.decode()
        disk = peer.world.node("ns").disk
        assert b"orderMessageEnable=true" in disk.read_bytes("/ns/p")
        disk.write_atomic("/ns/p", b"# ours\nlistenPort = 9\norderMessageEnable=true\n")
        assert (await peer.ask(318, body=b"orderMessageEnable=false\n")).code == 0
        written = disk.read_bytes("/ns/p")
        assert written == b"# ours\nlistenPort = 9\norderMessageEnable=false\n"
        assert b"orderMessageEnable=true" in disk.read_bytes("/ns/p.bak")

    assert run(scenario) is None


def test_a_start_up_guard_can_hold_routes_back() -> None:
    """`needWaitForService`: clients wait until brokers had the time to register."""
    config = NameServerConfig(
        kv_config_path="/kv", need_wait_for_service=True, wait_seconds_for_service=45
    )

    async def scenario(peer: Peer) -> None:
        await peer.register()
        early = await peer.ask(105, {"topic": "T"})
        assert (early.code, early.remark) == (1, "name server not ready")
        await asyncio.sleep(46)
        assert (await peer.ask(105, {"topic": "T"})).code == 0

    assert run(scenario, config) is None


def test_unknown_codes_are_answered_with_3() -> None:
    """Also those that only a broker serves."""

    async def scenario(peer: Peer) -> list[int]:
        return [(await peer.ask(code)).code for code in (9999, 10, 34, -1)]

    assert run(scenario) == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("version", "ext", "start"),
    [
        (317, {}, b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.2:10911"}'),
        (317, {"acceptStandardJsonOnly": "true"}, b'{"brokerDatas":[{"brokerAddrs":{"0":'),
        (401, {}, b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.2:10911"}'),
    ],
)
def test_broker_ids_in_routes_are_quoted_by_version(
    version: int, ext: dict[str, str], start: bytes
) -> None:
    """Clients before 4.9.4 get the bare numbers they have always got, unless they ask."""

    async def scenario(peer: Peer) -> bytes:
        await peer.register()
        peer.version = version
        return (await peer.ask(105, {"topic": "T", **ext})).body

    assert run(scenario).startswith(start)

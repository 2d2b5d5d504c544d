"""Start and stop: what a restart keeps, second starts, damaged files, name servers, full disks."""

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import SMALL, Client, eventually, running, scenario

from cometmq.broker import Broker, load_config
from cometmq.errors import ConfigError, ConnectFailed, DiskFull, StoreCorrupt, StoreLocked
from cometmq.model.topic import TopicConfig
from cometmq.namesrv import NameServer
from cometmq.namesrv.config import NameServerConfig
from cometmq.net.env import system_environment
from cometmq.store.base.disk import RealDisk
from cometmq.wire.body.client import ConsumerData
from cometmq.wire.body.route import decode_topic_list, decode_topic_route
from cometmq.wire.command.codes import RequestCode

ENV = system_environment()


def config_file(path: Path, name: str) -> Any:
    return json.loads((path / "config" / name).read_text())


def leave_as_after_a_kill(store: Path) -> None:
    """Nothing but the log to go by."""
    (store / "abort").write_text("")
    for path in store.glob("cometmq*"):
        path.unlink()


def test_restart_keeps_topics_groups_offsets_and_messages(tmp_path: Path) -> None:
    """Everything that was answered is there again, in Java's files."""

    async def main() -> None:
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            await client.send(b"kept", d="2")
            await client.pull(sysFlag="5", commitOffset="1")
            await client.call(200, {}, b'{"groupName":"own","retryMaxTimes":3}')
            await client.close()
        topics = config_file(tmp_path, "topics.json")
        assert topics["topicConfigTable"]["t"]["readQueueNums"] == 2
        assert topics["dataVersion"]["counter"] > 0
        groups = config_file(tmp_path, "subscriptionGroup.json")
        assert groups["subscriptionGroupTable"]["own"]["retryMaxTimes"] == 3
        offsets = config_file(tmp_path, "consumerOffset.json")
        assert offsets["offsetTable"] == {"t@g": {"0": 1}}
        assert offsets["groupTopicMap"] == {"g": ["t"]}
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            assert [m.body for m in await client.messages()] == [b"kept"]
            assert broker.state.offsets.query("g", "t", 0) == 1
            own = broker.state.groups.get("own")
            assert own is not None
            assert own.retry_max_times == 3
            topic = broker.state.topics.get("t")
            assert topic is not None
            assert topic.write_queue_count == 2
            await client.close()

    asyncio.run(main())


def test_topics_of_a_lost_file_are_found_by_their_queues(tmp_path: Path) -> None:
    """Without topics.json, acknowledged messages stay readable."""

    async def main() -> None:
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            await client.send(b"kept", b="orphan", e="3")
            await client.close()
        for path in (tmp_path / "config").glob("topics.json*"):
            path.unlink()
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            messages = await client.messages(topic="orphan", queueId="3")
            assert [m.body for m in messages] == [b"kept"]
            assert broker.state.topics.get("orphan") == TopicConfig("orphan", 4, 4)
            await client.close()

    asyncio.run(main())


def test_topic_is_in_the_file_when_its_first_send_is_answered(tmp_path: Path) -> None:
    """A kill right after the answer must not leave messages in a topic nobody knows."""

    async def story(broker: Broker, client: Client) -> None:
        for number in range(10):
            sends = [client.send(b=f"new{number}") for _ in range(3)]
            assert {answer.code for answer in await asyncio.gather(*sends)} == {0}
            assert f"new{number}" in config_file(tmp_path, "topics.json")["topicConfigTable"]

    scenario(tmp_path, story)


def test_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    """Its records are still in the log, and recovery may find its queues again."""

    async def main() -> None:
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            await client.send(b="gone")
            await client.call(215, {"topic": "gone"})
            await client.close()
        leave_as_after_a_kill(tmp_path)
        async with running(tmp_path) as broker:
            assert "gone" not in broker.state.topics

    asyncio.run(main())


def test_offsets_are_written_while_running(tmp_path: Path) -> None:
    """Every flushConsumerOffsetInterval, not only at the stop."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send()
        await client.pull(sysFlag="5", commitOffset="1")
        path = tmp_path / "config" / "consumerOffset.json"
        await eventually(lambda: path.exists() and b"t@g" in path.read_bytes())
        await client.pull(sysFlag="5", commitOffset="2")
        await eventually(lambda: b'"0": 2' in path.read_bytes())
        assert b'"0": 1' in path.with_name("consumerOffset.json.bak").read_bytes()

    scenario(tmp_path, story, flushConsumerOffsetInterval=20)


@pytest.mark.parametrize(
    "name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"]
)
@pytest.mark.parametrize("damage", ["cut", "empty", "zeros", "noise"])
def test_damaged_file_is_set_aside_and_the_backup_read(
    name: str, damage: str, tmp_path: Path
) -> None:
    """The bad file is kept under another name; the broker starts with the .bak."""

    async def main() -> None:
        async with running(tmp_path):
            pass
        path = tmp_path / "config" / name
        sound = path.read_bytes() if path.exists() else b'{"offsetTable":{"t@g":{"0":5}}}'
        if name == "delayOffset.json":
            sound = b'{"offsetTable":{"1":0}}'
        path.with_name(name + ".bak").write_bytes(sound)
        broken = {
            "cut": sound[: len(sound) // 2],
            "empty": b"",
            "zeros": b"\0" * 50,
            "noise": b"\xff\x00{[",
        }[damage]
        path.write_bytes(broken)
        async with running(tmp_path) as broker:
            assert path.with_name(name + ".damaged").read_bytes() == broken
            assert "TBW102" in broker.state.topics
            assert "TOOLS_CONSUMER" in broker.state.groups
            if name == "consumerOffset.json":
                assert broker.state.offsets.query("g", "t", 0) == 5

    asyncio.run(main())


def test_both_copies_damaged_stop_the_start(tmp_path: Path) -> None:
    """Going on would overwrite what might be repaired by hand."""

    async def main() -> None:
        folder = tmp_path / "config"
        folder.mkdir()
        (folder / "topics.json").write_text("{")
        (folder / "topics.json.bak").write_text("[")
        with pytest.raises(StoreCorrupt, match=r"neither .*topics.json nor its .bak"):
            async with running(tmp_path):
                pass
        (folder / "topics.json.bak").unlink()
        async with running(tmp_path) as broker:
            assert "TBW102" in broker.state.topics

    asyncio.run(main())


def test_second_start_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    """It names the process that has the store, and the first goes on."""

    async def story(broker: Broker, client: Client) -> None:
        with pytest.raises(StoreLocked, match=str(tmp_path)):
            async with running(tmp_path):
                pass
        assert (await client.send()).code == 0

    scenario(tmp_path, story)


def test_port_that_is_taken_is_named(tmp_path: Path) -> None:
    """The store is given back, so that a second try can succeed."""

    async def story(broker: Broker, client: Client) -> None:
        other = tmp_path / "other"
        with pytest.raises(ConnectFailed, match=f"127.0.0.1:{broker.port}"):
            async with running(other, listenPort=broker.port):
                pass
        async with running(other) as second:
            assert second.port != broker.port

    scenario(tmp_path / "first", story)


def test_advertised_address_must_be_an_address(tmp_path: Path) -> None:
    """It is stored in every message as four bytes."""

    async def main() -> None:
        with pytest.raises(ConfigError, match="brokerIP1=no-such-host"):
            async with running(tmp_path, brokerIP1="no-such-host"):
                pass

    asyncio.run(main())


def test_stop_after_a_failed_start_is_quiet(tmp_path: Path) -> None:
    """The command line stops what it could not start."""

    async def main() -> None:
        config = load_config(
            overrides={**SMALL, "storePathRootDir": str(tmp_path), "brokerIP1": "x"},
            environment={},
        ).config
        broker = Broker(config, system_environment(), RealDisk())
        with pytest.raises(ConfigError):
            await broker.start()
        await broker.stop()
        assert broker.address == ""[:0] or broker.address.startswith("x:")

    asyncio.run(main())


def test_full_disk_refuses_writes_and_keeps_reads(tmp_path: Path) -> None:
    """14 with the measured cause; reading goes on; writing comes back by itself."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send(b"before")
        await client.send(b"before")
        store = broker.state.store
        room = store._log.make_room

        def full(size: int) -> int:
            raise DiskFull("reserving 1048576 bytes failed: 3 of 100 MB are free")

        store._log.limit = -1
        store._log.make_room = full  # type: ignore[method-assign]
        for ext in ({}, {"i": "UNIQ_KEY\x01AB\x02"}, {"i": "DELAY\x011\x02"}):
            answer = await client.send(b"no room", **ext)
            assert answer.code == 14
            assert "3 of 100 MB are free" in (answer.remark or "")
            assert re.search(r"\d+ of \d+ MiB are free", answer.remark or "")
        assert len(await client.messages()) == 2
        store._log.make_room = room  # type: ignore[method-assign]
        assert (await client.send(b"after")).code == 0
        assert [m.body for m in await client.messages()] == [b"before", b"before", b"after"]

    scenario(tmp_path, story)


def test_flush_that_takes_too_long_is_said(tmp_path: Path) -> None:
    """10 FLUSH_DISK_TIMEOUT: stored, with the full answer (trap T7)."""

    async def story(broker: Broker, client: Client) -> None:
        broker.state.store.when_durable = (  # type: ignore[method-assign]
            lambda end_offset, callback: callback(False)
        )
        for _ in range(2):
            answer = await client.send(i="UNIQ_KEY\x01AB\x02")
            assert answer.code == 10
            assert {"msgId", "queueId", "queueOffset"} <= set(answer.ext_fields)

    scenario(tmp_path, story, flushDiskType="SYNC_FLUSH")


def test_port_of_old_clients_is_served_too(tmp_path: Path) -> None:
    """Clients up to 4.4.0 send to the port two below; it being taken is no fault."""

    async def main() -> None:
        port = _two_free_ports()
        async with running(tmp_path / "1", listenPort=port) as broker:
            client = await Client(ENV, f"127.0.0.1:{port - 2}").open()
            assert (await client.send()).code == 0
            await client.close()
            assert broker.address == f"127.0.0.1:{port}"
            async with running(tmp_path / "2", listenPort=port + 2) as neighbour:
                assert neighbour.port == port + 2

    asyncio.run(main())


def _two_free_ports() -> int:
    """A port with free ones two below and two above."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        try:
            for near in (port - 2, port, port + 2):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", near))
        except (OSError, OverflowError):
            continue
        return port


def test_client_over_ipv6_gets_a_born_host_of_four_bytes(tmp_path: Path) -> None:
    """C++ and Go cannot read sixteen (trap T8)."""

    async def main() -> None:
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
        async with running(tmp_path, bindAddress="::1") as broker:
            client = await Client(ENV, f"[::1]:{broker.port}").open()
            assert (await client.send()).code == 0
            (message,) = await client.messages()
            assert message.born_host[:4] == bytes(4)
            assert message.sys_flag == 0
            await client.close()

    asyncio.run(main())


# -- name servers ---------------------------------------------------------------------------


async def name_server(path: Path, port: int = 0) -> NameServer:
    server = NameServer(
        NameServerConfig(
            listen_port=port,
            bind_address="127.0.0.1",
            kv_config_path=str(path / "kv.json"),
            config_store_path=str(path / "namesrv.properties"),
        ),
        system_environment(),
        RealDisk(),
    )
    await server.start()
    return server


def test_every_name_server_knows_broker_and_topics(tmp_path: Path) -> None:
    """Registered when start returns; a new topic and a first heartbeat at once; gone at stop."""

    async def main() -> None:
        servers = [await name_server(tmp_path / str(number)) for number in range(2)]
        addresses = ";".join(server.address for server in servers)
        clients = [await Client(ENV, s.address).open() for s in servers]

        async def topics() -> list[set[str]]:
            answers = [
                await c.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) for c in clients
            ]
            return [set(decode_topic_list(answer.body).topics) for answer in answers]

        async with running(tmp_path / "store", namesrvAddr=addresses) as broker:
            for known in await topics():
                assert {"TBW102", "DefaultCluster", "broker-a"} <= known
            client = await Client(broker.env, broker.address).open()
            await client.heartbeat(ConsumerData("g"))
            for known in await topics():
                assert "%RETRY%g" in known
            made = await client.call(
                17,
                {
                    "topic": "made",
                    "defaultTopic": "TBW102",
                    "readQueueNums": "2",
                    "writeQueueNums": "2",
                    "perm": "6",
                },
            )
            assert made.code == 0
            for server in clients:
                route = await server.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "made"})
                data = decode_topic_route(route.body)
                assert data.broker_datas[0].broker_addrs == {0: broker.address}
                assert data.queue_datas[0].write_queue_count == 2
            await client.send(b="automatic")
            async with asyncio.timeout(30):
                while not all("automatic" in known for known in await topics()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await client.close()
        for server in clients:
            route = await server.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "made"})
            assert route.code == 17
            await server.close()
        for each in servers:
            await each.stop()

    asyncio.run(main())


def test_no_address_for_replicas_is_announced_while_nobody_listens(tmp_path: Path) -> None:
    """A slave of Java's that asks a name server for its master's hears of none."""

    async def main() -> None:
        server = await name_server(tmp_path)
        client = await Client(ENV, server.address).open()
        async with running(tmp_path / "store", namesrvAddr=server.address) as broker:
            slave = {
                "brokerName": "broker-a",
                "brokerAddr": "127.0.0.1:2",
                "clusterName": "DefaultCluster",
                "haServerAddr": "127.0.0.1:3",
                "brokerId": "1",
            }
            answer = await client.call(RequestCode.REGISTER_BROKER, slave)
            assert answer.code == 0
            assert answer.ext_fields["masterAddr"] == broker.address
            assert not answer.ext_fields.get("haServerAddr")
        await client.close()
        await server.stop()

    asyncio.run(main())


def test_name_server_that_comes_back_is_told_again(tmp_path: Path) -> None:
    """A lost connection means a name server without memory: register at once."""

    async def main() -> None:
        server = await name_server(tmp_path / "1")
        port = server.port
        async with running(tmp_path / "store", namesrvAddr=f"127.0.0.1:{port}"):
            await server.stop()
            server = await name_server(tmp_path / "1", port)
            client = await Client(ENV, server.address).open()
            code = 17
            async with asyncio.timeout(30):
                while code != 0:
                    answer = await client.call(
                        RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}
                    )
                    code = answer.code
                    await asyncio.sleep(0.01)
            assert code == 0
            await client.close()
        await server.stop()

    asyncio.run(main())


def test_broker_starts_while_a_name_server_is_away(tmp_path: Path) -> None:
    """The others are told, and requests that wait for the names are answered."""

    async def main() -> None:
        server = await name_server(tmp_path / "1")
        dead = "127.0.0.1:1"
        async with running(tmp_path / "s", namesrvAddr=f"{dead};{server.address}") as broker:
            client = await Client(broker.env, broker.address).open()
            answer = await client.heartbeat(ConsumerData("g"))
            assert answer.code == 0
            await client.close()
        await server.stop()

    asyncio.run(main())

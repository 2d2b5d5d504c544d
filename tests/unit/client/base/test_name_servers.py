"""Which name server a client asks: chance, failures, changes, names and address servers."""

import asyncio
import contextlib
import http.server
import logging
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.client.fake import FakeBroker

import cometmq.sync
from cometmq.client.admin.admin import Admin
from cometmq.client.base.name_servers import NameServers
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.producer.producer import Producer
from cometmq.errors import ConfigError, ConnectFailed
from cometmq.model import Message
from cometmq.namesrv import NameServer, NameServerConfig
from cometmq.net.env import Environment, system_environment
from cometmq.net.http import fetch_text
from cometmq.testing.cluster import embedded_cluster, threaded_cluster
from cometmq.testing.simulation import Node, World, simulate

PORT = 9876


class Names:
    """A resolver and an address server that say what the test tells them."""

    def __init__(self, **hosts: list[str]) -> None:
        self.hosts = hosts
        self.texts: dict[str, str] = {}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if not self.hosts.get(host):
            raise ConnectFailed(f"no address of {host} is known")
        return [f"{address}:{port}" for address in self.hosts[host]]

    async def fetch_text(self, url: str, timeout_ms: int) -> str:
        self.asked.append(url)
        if url not in self.texts:
            raise ConnectFailed(f"no answer of {url}")
        return self.texts[url]


class Hand:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


def environment(seed: int = 1) -> Environment:
    return replace(system_environment(), clock=Hand(), chance=random.Random(seed))


def test_clients_begin_with_a_random_name_server_and_stay_with_it() -> None:
    """Name servers are chosen at random: otherwise every client would load the first one."""
    begins = set()
    for seed in range(20):
        servers = NameServers("a:1;b:2;c:3", environment(seed), resolves=False)
        first = servers.choose(())
        assert {servers.choose(()) for _ in range(5)} == {first}
        begins.add(first)
    assert begins == {"a:1", "b:2", "c:3"}


def test_the_others_are_tried_once_each() -> None:
    """A failed name server is left for one that was not tried; the last one stays in use."""
    servers = NameServers(["a:1", "b:2", "c:3"], environment(), resolves=False)
    tried: list[str] = []
    while (address := servers.choose(tried)) is not None:
        tried.append(address)
    assert sorted(tried) == ["a:1", "b:2", "c:3"]
    assert servers.choose(()) == tried[-1]
    assert all(map(servers.was_used, tried))
    assert not servers.was_used("d:4")


def test_a_name_stands_for_all_its_addresses_and_is_asked_again() -> None:
    """They may be changed while running by a DNS name: every two minutes, or when all fail."""

    async def run() -> None:
        env = environment()
        clock: Any = env.clock
        names = Names(cluster=["10.0.0.1", "10.0.0.2"])
        servers = NameServers("cluster:9876;10.0.0.9:9876", env, resolves=True)
        assert await servers.look_up(names)
        assert list(servers.addresses) == ["10.0.0.1:9876", "10.0.0.2:9876", "10.0.0.9:9876"]
        names.hosts["cluster"] = ["10.0.0.3"]
        clock.now = 119.0
        assert not await servers.look_up(names)
        assert await servers.look_up(names, at_once=True)
        assert list(servers.addresses) == ["10.0.0.3:9876", "10.0.0.9:9876"]
        clock.now += 120.0
        names.hosts["cluster"] = []
        assert not await servers.look_up(names)
        assert list(servers.addresses) == ["10.0.0.3:9876", "10.0.0.9:9876"]
        assert names.asked == ["cluster"] * 3

    asyncio.run(run())


def test_an_address_server_names_them() -> None:
    """As RocketMQ's TopAddressing: the first line is the list; a failure keeps the last list."""

    async def run() -> None:
        url = "http://addresses.example:8080/rocketmq/nsaddr"
        env = environment()
        clock: Any = env.clock
        names = Names()
        servers = NameServers(url, env, resolves=True)
        assert servers.choose(()) is None
        with pytest.raises(ConnectFailed, match="no name server is known"):
            await servers.look_up(names)
        names.texts[url] = " 10.0.0.1:9876;10.0.0.2:9876\r\nmore\n"
        assert await servers.look_up(names)
        assert list(servers.addresses) == ["10.0.0.1:9876", "10.0.0.2:9876"]
        for text in ("<html>", "", ";"):
            clock.now += 120.0
            names.texts[url] = text
            assert not await servers.look_up(names)
            assert list(servers.addresses) == ["10.0.0.1:9876", "10.0.0.2:9876"]

    asyncio.run(run())


def test_what_is_an_address_and_what_an_address_server() -> None:
    """RocketMQ takes http://host:port for an address, so only a path makes an address server."""
    env = environment()
    assert NameServers("http://10.0.0.1:9876/", env, resolves=True).addresses == ("10.0.0.1:9876",)
    assert NameServers("[::1]:9876", env, resolves=True).addresses == ("[::1]:9876",)
    assert NameServers("http://h/nsaddr", env, resolves=True).addresses == ()
    assert NameServers("ns.example:1", env, resolves=False).addresses == ("ns.example:1",)
    with pytest.raises(ConfigError, match="is not a URL such as"):
        NameServers("http://:80/nsaddr", env, resolves=True)
    with pytest.raises(ConfigError, match=r"'http://h:0/nsaddr' is not a URL"):
        NameServers("http://h:0/nsaddr", env, resolves=True)


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        text = self.server.texts.get(self.path)  # type: ignore[attr-defined]
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None:
        """Write nothing to stderr."""


@contextlib.contextmanager
def address_server(texts: dict[str, str]) -> Iterator[str]:
    """An HTTP server on a free port; yields its ``http://host:port``."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        server.texts = texts  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_clients_find_the_cluster_through_an_address_server() -> None:
    """Asyncio and blocking clients; a wrong path says what the server answered."""
    with threaded_cluster() as cluster:
        texts = {"/rocketmq/nsaddr": f"{cluster.name_server_address}\n"}
        with address_server(texts) as url:
            with cometmq.sync.Producer("pg", name_server=f"{url}/rocketmq/nsaddr") as producer:
                producer.create_topic("t", queue_count=1)
                assert producer.send(Message("t", b"1")).queue_offset == 0
            with cometmq.sync.Admin(name_server=f"{url}/rocketmq/nsaddr") as admin:
                assert "t" in admin.topic_list()
            with (
                cometmq.sync.Admin(name_server=f"{url}/other") as admin,
                pytest.raises(ConnectFailed, match="/other answered with status 404"),
            ):
                admin.topic_list()


def test_an_address_server_that_does_not_answer_names_the_cause() -> None:
    """Refused, or something that is no HTTP server."""
    with address_server({}) as url:
        pass
    with pytest.raises(ConnectFailed, match=r"no answer of http://127\.0\.0\.1:\d+/x: Connection"):
        fetch_text(f"{url}/x", 1_000)


def test_name_servers_change_while_clients_run() -> None:
    """`update_name_servers` of a producer, a consumer and an admin: they move to another cluster.

    The connection to the name server that is gone is closed.
    """

    async def run() -> None:
        async with embedded_cluster() as old, embedded_cluster() as new:
            async with Admin(name_server=new.name_server_address) as admin:
                await admin.create_topic("only-new", queue_count=1)
            async with (
                Producer("pg", name_server=old.name_server_address) as producer,
                Admin(name_server=old.name_server_address) as admin,
                PullConsumer("g", name_server=old.name_server_address) as consumer,
            ):
                assert "only-new" not in await admin.topic_list()
                await producer.create_topic("old", queue_count=1)
                for client in (producer, admin, consumer):
                    with pytest.raises(ConfigError, match="is not host:port"):
                        client.update_name_servers("nowhere")
                    client.update_name_servers([new.name_server_address])
                assert "only-new" in await admin.topic_list()
                assert (await producer.send(Message("only-new", b"1"))).queue_offset == 0
                assert len(await consumer.fetch_queues("only-new")) == 1
                instance = producer._instance
                assert instance is not None
                assert instance.pool.open_channel(old.name_server_address) is None

    asyncio.run(run())


async def start_name_server(node: Node) -> NameServer:
    config = NameServerConfig(listen_port=PORT, kv_config_path="/ns/kv.json")
    server = NameServer(config, node.environment(), node.disk)
    await node.run(server.start)
    return server


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_name_whose_servers_move_is_followed(seed: int) -> None:
    """The old addresses die, the name gets new ones: the running client asks those."""

    async def main(world: World) -> list[str]:
        first, second = world.node("ns1"), world.node("ns2")
        await start_name_server(first)
        await start_name_server(second)
        world.network.names["names.example"] = (first.address,)
        node = world.node("client")
        used: list[str] = []

        async def ask() -> None:
            async with Admin(name_server=f"names.example:{PORT}", env=node.environment()) as admin:
                await admin.topic_list()
                used.append(str(admin._options.name_servers.current))
                first.crash()
                world.network.names["names.example"] = (second.address,)
                await asyncio.sleep(1)
                await admin.topic_list()
                used.append(str(admin._options.name_servers.current))

        await node.run(ask)
        return used

    assert simulate(seed, main).value == [f"10.0.0.1:{PORT}", f"10.0.0.2:{PORT}"]


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(caplog: Any) -> None:
    """Reconnects are logged when they succeed; repeated failures are not."""

    async def run() -> list[tuple[int, str]]:
        broker = FakeBroker({"t": 2})
        await broker.start()
        async with PullConsumer(
            "g", {"t": "*"}, name_server=broker.name_server, consume_from="first"
        ) as consumer:
            instance = consumer._instance
            assert instance is not None
            await instance.refresh_routes()
            address = broker.address
            await broker.stop()
            for _ in range(5):
                await instance.heartbeat_to(address)
                await instance.refresh_routes()
            caplog.clear()  # the first failures are in the records below
            for _ in range(5):
                await instance.heartbeat_to(address)
                await instance.refresh_routes()
            repeated = [record for record in caplog.records if record.levelno > logging.DEBUG]
            again = replace_at(broker)
            await again.start()
            await instance.refresh_routes()
            await instance.heartbeat_to(address)
            ended = [
                (record.levelno, record.getMessage())
                for record in caplog.records
                if "works again" in record.getMessage()
            ]
            await consumer.shutdown()
            await again.stop()
            assert repeated == []
            return ended

    with caplog.at_level(logging.DEBUG, "cometmq.client"):
        ended = asyncio.run(run())
    texts = [text for _, text in ended]
    assert {level for level, _ in ended} == {logging.INFO}
    assert any(text.startswith("refreshing routes: works again after ") for text in texts)
    assert sum(text.startswith("connection to ") for text in texts) == 2


def replace_at(broker: FakeBroker) -> FakeBroker:
    """A broker that comes back at the same ports."""
    return FakeBroker({"t": 2}, port=broker.port, name_port=broker.name_port)

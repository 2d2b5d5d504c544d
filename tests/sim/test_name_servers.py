"""Two name servers that never talk to each other, and a broker that registers with both."""

import asyncio
from typing import Any

import pytest

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.broker import Broker
from cometmq.client.producer.producer import Producer
from cometmq.model import Message, SendStatus
from cometmq.namesrv import NameServer, NameServerConfig
from cometmq.testing.simulation import Node, World, simulate
from cometmq.wire.command.codes import RequestCode

PORT = 9876


async def start_name_server(node: Node) -> NameServer:
    """Start a name server on `node`."""
    config = NameServerConfig(listen_port=PORT, kv_config_path="/ns/kv.json")
    server = NameServer(config, node.environment(), node.disk)
    await node.run(server.start)
    return server


async def start_broker(node: Node, name_servers: list[Node]) -> Broker:
    """Start a broker that knows all name servers."""
    config = BrokerConfig(
        broker_name="broker-a",
        broker_ip1=node.address,
        namesrv_addr=";".join(f"{server.address}:{PORT}" for server in name_servers),
        store_path_root_dir="/store",
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20 * 100,
        max_hash_slot_num=100,
        max_index_num=400,
    )
    broker = Broker(config, node.environment(), node.disk)
    await node.run(broker.start)
    return broker


async def send_one(world: World, addresses: str, number: int) -> SendStatus:
    """Send one message with a new client."""
    node = world.node("client")

    async def send() -> SendStatus:
        async with Producer(
            "group",
            name_server=addresses,
            instance_name=f"client{number}",
            client_ip=node.address,
            env=node.environment(),
        ) as producer:
            return (await producer.send(Message("T", b"%d" % number))).status

    return await node.run(send)


@pytest.mark.parametrize("seed", [1, 2])
def test_one_name_server_may_die_and_come_back(seed: int) -> None:
    """Clients use the other name server; the restarted one learns of the broker within 30 s."""

    async def main(world: World) -> list[str]:
        first, second = world.node("ns1"), world.node("ns2")
        servers = [await start_name_server(node) for node in (first, second)]
        await start_broker(world.node("broker"), [first, second])
        assert all(server.routes.route("TBW102") is not None for server in servers)
        addresses = f"{first.address}:{PORT};{second.address}:{PORT}"
        statuses = [(await send_one(world, addresses, 1)).name]
        assert all(server.routes.route("T") is not None for server in servers)

        first.crash()
        statuses.append((await send_one(world, addresses, 2)).name)
        first.restart()
        again = await start_name_server(first)
        assert again.routes.topics() == ()
        await asyncio.sleep(35)
        assert again.routes.topics() == servers[1].routes.topics()
        statuses.append((await send_one(world, f"{first.address}:{PORT}", 3)).name)
        return statuses

    assert simulate(seed, main).value == ["SEND_OK"] * 3


def test_a_broker_behind_a_partition_is_dropped_and_returns() -> None:
    """A name server drops a broker behind a partition after its silence, and takes it back."""

    async def main(world: World) -> list[bool]:
        node, broker = world.node("ns"), world.node("broker")
        server = await start_name_server(node)
        await start_broker(broker, [node])
        known = [server.routes.route("TBW102") is not None]
        world.network.part(node.address, broker.address)
        await asyncio.sleep(130)
        known.append(server.routes.route("TBW102") is not None)
        world.network.heal()
        await asyncio.sleep(60)
        known.append(server.routes.route("TBW102") is not None)
        return known

    assert simulate(3, main).value == [True, False, True]


def test_a_name_server_that_knows_all_topics_is_only_asked() -> None:
    """Questions keep routes alive for two minutes; a forgotten broker sends all topics again."""

    async def main(world: World) -> tuple[list[int], bool]:
        node = world.node("ns1")
        server = await start_name_server(node)
        codes: list[int] = []
        handlers = server._server.handlers
        for code in (RequestCode.REGISTER_BROKER, RequestCode.QUERY_DATA_VERSION):
            handler = handlers[code]

            def noted(request: Any, *more: Any, _handler: Any = handler, _code: Any = code) -> Any:
                codes.append(int(_code))
                return _handler(request, *more)

            handlers[code] = noted
        await start_broker(world.node("broker"), [node])
        await asyncio.sleep(130)
        quiet = list(codes)
        for live in server.routes.expired(2**62):
            server.routes.unregister(live.member)
        assert server.routes.route("TBW102") is None
        await asyncio.sleep(31)
        return quiet, server.routes.route("TBW102") is not None

    codes, is_back = simulate(3, main).value
    assert codes == [103, 322, 322, 322, 322]
    assert is_back

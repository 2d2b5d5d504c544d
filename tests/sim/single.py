"""One name server, one broker and clients on virtual time, each on its own node."""

from typing import Any

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.broker import Broker
from cometmq.client.producer.producer import Producer
from cometmq.namesrv import NameServer, NameServerConfig
from cometmq.testing.simulation import Node, World

NAME_SERVER_PORT, BROKER_PORT = 9876, 10911


class SingleCluster:
    """The servers, and the common arguments of their clients."""

    def __init__(self, world: World, name: str = "") -> None:
        self.world = world
        self.name_server = world.node(f"{name}name-server")
        self.broker = world.node(f"{name}broker")

    async def start(self) -> None:
        """Start the name server and the broker."""
        await self.start_name_server()
        await self.start_broker()

    async def start_name_server(self) -> NameServer:
        """Start the name server on its node."""
        node = self.name_server
        config = NameServerConfig(listen_port=NAME_SERVER_PORT, kv_config_path="/ns/kv.json")
        server = NameServer(config, node.environment(), node.disk)
        await node.run(server.start)
        return server

    async def start_broker(self, port: int = BROKER_PORT, name: str = "broker-a") -> Broker:
        """Start the broker on its node, with the contents of its disk."""
        node = self.broker
        config = BrokerConfig(
            scrub_bytes_per_second=0,
            broker_name=name,
            broker_ip1=node.address,
            listen_port=port,
            namesrv_addr=self.address,
            store_path_root_dir="/store",
            default_topic_queue_nums=4,
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=20 * 1000,
            max_hash_slot_num=100,
            max_index_num=400,
        )
        broker = Broker(config, node.environment(), node.disk)
        await node.run(broker.start)
        return broker

    @property
    def address(self) -> str:
        """Return the address at which clients ask for routes."""
        return f"{self.name_server.address}:{NAME_SERVER_PORT}"

    def at(self, node: Node, name: str) -> dict[str, Any]:
        """Return the arguments of a client on a node."""
        return {
            "name_server": self.address,
            "instance_name": name,
            "client_ip": node.address,
            "env": node.environment(),
        }

    def producer(self, node: Node, name: str = "producer", **more: Any) -> Producer:
        """Make a producer on a node."""
        return Producer("producers", **self.at(node, name), **more)

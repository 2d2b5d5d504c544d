"""The command `faststream` with our broker: it runs, ends on SIGTERM, and writes AsyncAPI."""

import json
import signal
from pathlib import Path

import pytest
from tests.unit.integrations.conftest import Serve

import cometmq.sync
from cometmq import Message
from cometmq.testing.cluster import EmbeddedCluster

pytestmark = pytest.mark.processes

PROGRAM = """
import asyncio
from faststream import FastStream
from pydantic import BaseModel
from cometmq.integrations.faststream import CometBroker

broker = CometBroker(description="the shop's cluster")
app = FastStream(broker)


class Order(BaseModel):
    number: int


@broker.subscriber("Orders", group="billing", consume_from="first", max_workers=1)
@broker.publisher("Bills")
async def bill(order: Order) -> str:
    "Writes a bill."
    print("begin", order.number)
    await asyncio.to_thread(input)
    print("end", order.number)
    return f"bill {order.number}"
"""


def test_sigterm_lets_the_handler_finish(
    serve: Serve, cluster: EmbeddedCluster, admin: cometmq.sync.Admin, tmp_path: Path
) -> None:
    """The running handler's message is consumed, the next one is for the next process."""
    admin.create_topic("Orders", queue_count=1)
    admin.create_topic("Bills", queue_count=1)
    (tmp_path / "shop.py").write_text(PROGRAM)
    with cometmq.sync.Producer("p", name_server=cluster.name_server_address) as producer:
        for number in (1, 2):
            producer.send(Message("Orders", b'{"number": %d}' % number))
    with serve("faststream", "run", "shop:app") as server:
        server.wait_for("begin 1")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("shutting down")
        server.say("go on")
        log = server.ended()
    assert "end 1" in log
    assert "begin 2" not in log
    with serve("faststream", "run", "shop:app") as server:
        server.wait_for("begin 2")
        server.say("go on")
        server.wait_for("end 2")
        log = server.end()
    assert "begin 1" not in log
    with cometmq.sync.PullConsumer(
        "reader", {"Bills": "*"}, name_server=cluster.name_server_address, consume_from="first"
    ) as consumer:
        bodies = [next(consumer).body for _ in range(2)]
    assert bodies == [b"bill 1", b"bill 2"]


def test_asyncapi(serve: Serve, tmp_path: Path) -> None:
    """Topics are channels, the model is the payload, the docstring the description."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    with serve("faststream", "docs", "gen", "shop:app", "--out", "api.json") as command:
        assert command.process.wait(30) == 0, command.log
    document = json.loads((tmp_path / "api.json").read_text())
    (server,) = document["servers"].values()
    assert server["protocol"] == "rocketmq"
    assert server["description"] == "the shop's cluster"
    channels = document["channels"]
    assert channels["Orders:Bill"]["address"] == "Orders"
    assert channels["Bills:Publisher"]["address"] == "Bills"
    assert channels["Orders:Bill"]["description"] == "Writes a bill."
    assert document["components"]["schemas"]["Order"]["properties"]["number"]["type"] == "integer"

"""Pages with orders to a real cluster: parked message groups and given-up transactions."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.consoles import Visitor, threaded_console

import cometmq
import cometmq.sync
from cometmq.console.settings import ConsoleSettings
from cometmq.testing.cluster import threaded_cluster

SETTINGS = {
    "transactionTimeOut": "1",
    "transactionCheckInterval": "100",
    "transactionOpBatchInterval": "20",
    "transactionCheckMax": "1",
}


def wait(condition: Callable[[], bool]) -> None:
    """Ask again until it holds."""
    pause = threading.Event()
    for _ in range(600):
        if condition():
            return
        pause.wait(0.1)
    raise AssertionError(f"still not so: {condition!r}")


def test_a_parked_group_is_consumed_again_or_given_up() -> None:
    """It is listed with its reason and messages; the first is given up, the other consumed."""
    refuses, taken = [True], []

    def handle(message: cometmq.ReceivedMessage) -> None:
        if refuses[0]:
            raise ValueError("no <account>")
        taken.append(message.body)

    with threaded_cluster({}) as cluster:
        name_server = cluster.name_server_address
        with cometmq.sync.Producer("p", name_server=name_server) as producer:
            for body in (b"first", b"second"):
                producer.send(cometmq.Message("Orders", body, message_group="bad"))
        with (
            threaded_console(ConsoleSettings(name_server)) as address,
            Visitor(address) as visitor,
            cometmq.sync.PushConsumer(
                "billing",
                {"Orders": "*"},
                handle,
                name_server=name_server,
                consume_from="first",
                order="group",
                suspend_ms=10,
                park_after=1,
            ),
        ):
            wait(lambda: '<td class="figure">2</td>' in visitor.get("/parked"))
            assert "ValueError: no &lt;account&gt;" in visitor.page
            page = visitor.get("/parked/billing?lane=Orders/bad")
            assert "first" in page
            assert "second" in page
            visitor.get("/parked")
            visitor.post("/parked/billing/order", status=400, lane="Orders/bad", order="burn")
            visitor.get("/parked")
            visitor.post("/parked/billing/order", lane="Orders/bad", order="skip")
            assert visitor.note == "Orders/bad: 1 message given up."
            refuses[0] = False
            visitor.post("/parked/billing/order", lane="Orders/bad", order="retry")
            assert visitor.note == "Orders/bad: 1 message to be consumed again."
            wait(lambda: "Nothing is parked" in visitor.get("/parked"))
            assert taken == [b"second"]


def test_a_given_up_transaction_is_asked_about_again() -> None:
    """An open one is listed with the reason; a given-up one can be resumed, an unknown one not."""
    verdicts: list[bool | None] = [None]
    with threaded_cluster(SETTINGS) as cluster:
        name_server = cluster.name_server_address
        with (
            threaded_console(ConsoleSettings(name_server)) as address,
            Visitor(address) as visitor,
            cometmq.sync.TransactionProducer(
                "orders", check=lambda _: verdicts[0], name_server=name_server
            ) as producer,
        ):
            half = producer.send_in_transaction(cometmq.Message("Orders", b"x"), lambda _: None)
            name = half.sent.message_id
            path = "/transactions?given-up=1"
            wait(lambda: f'name="transaction" value="{name}"' in visitor.get(path))
            visitor.post("/transactions/resume", status=404, transaction="NoSuchId")
            verdicts[0] = True
            visitor.get(path)
            visitor.post("/transactions/resume", transaction=name)
            assert visitor.note == "A producer of orders will be asked again."
            with cometmq.sync.Admin(name_server=name_server) as admin:
                wait(lambda: sum(q.count for q in admin.topic_offsets("Orders").values()) == 1)

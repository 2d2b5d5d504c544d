"""TransactionProducer, both faces, against a real broker that checks back all the time."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.waiting import until as until_within

import cometmq.sync
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.transaction.producer import TransactionProducer
from cometmq.client.transaction.values import Said, Transaction, TransactionOutcome
from cometmq.codec.stored_message import decode_messages
from cometmq.errors import ClientClosed, CometError, ConfigError, LocalProtocolError
from cometmq.model import Message, SendStatus
from cometmq.store.base.results import GetResult
from cometmq.testing.cluster import EmbeddedCluster, embedded_cluster, threaded_cluster

GROUP = "tx_group"
QUICK = {
    "transactionTimeOut": "1",
    "transactionCheckInterval": "50",
    "transactionOpBatchInterval": "20",
    "transactionCheckMax": "1000000",
}


async def until(condition: Callable[[], object]) -> None:
    """Wait until it holds; a busy machine may take its time."""
    await until_within(condition, 30.0)


def never(message: ReceivedMessage) -> Said:
    """A check nobody should need."""
    raise AssertionError(f"{message.message_id} was checked")


def keep_open(message: ReceivedMessage) -> Said:
    """Ask again later."""
    return None


def bodies(cluster: EmbeddedCluster, topic: str = "Orders") -> list[bytes]:
    """What consumers can read of a topic."""
    store = cluster.standalone.broker.state.store
    found: list[bytes] = []
    for queue_id in store.queues(topic):
        result = store.get(topic, queue_id, 0, 1000, allow_cold=True)
        assert isinstance(result, GetResult)
        found += [bytes(m.body) for m in decode_messages(b"".join(result.chunks))]
    return sorted(found)


def story(tell: Callable[[EmbeddedCluster], Awaitable[None]], **settings: str) -> None:
    """Run it against a fresh cluster."""

    async def main() -> None:
        async with embedded_cluster({**QUICK, **settings}) as cluster:
            async with asyncio.timeout(90):
                await tell(cluster)

    asyncio.run(main())


def test_what_the_function_says_is_done() -> None:
    """Commit, rollback, unknown; coroutine functions and plain ones, outcomes and short words."""

    async def tell(cluster: EmbeddedCluster) -> None:
        async def later(transaction: Transaction) -> Said:
            await asyncio.sleep(0)
            return transaction.message.body == b"yes"

        producer = TransactionProducer(
            GROUP, check=keep_open, name_server=cluster.name_server_address
        )
        async with producer:
            done = await producer.send_in_transaction(Message("Orders", b"yes"), later)
            assert (done.outcome, done.is_settled) == (TransactionOutcome.COMMIT, True)
            assert done.sent.status is SendStatus.SEND_OK
            done = await producer.send_in_transaction(Message("Orders", b"no"), later)
            assert (done.outcome, done.is_settled) == (TransactionOutcome.ROLLBACK, True)
            done = await producer.send_in_transaction(
                Message("Orders", b"who knows"), lambda _: TransactionOutcome.UNKNOWN
            )
            assert (done.outcome, done.is_settled) == (TransactionOutcome.UNKNOWN, False)
            with pytest.raises(ConfigError, match="the local transaction returned 'yes'"):
                await producer.send_in_transaction(
                    Message("Orders", b"x"),
                    lambda _: "yes",  # type: ignore[arg-type,return-value]
                )
        assert bodies(cluster) == [b"yes"]

    story(tell)


def test_a_block_is_a_transaction() -> None:
    """Its end commits, an exception rolls back and is raised; cut off, it is left to the check."""

    async def tell(cluster: EmbeddedCluster) -> None:
        checked: list[str] = []

        def check(message: ReceivedMessage) -> Said:
            checked.append(message.message_id)
            return True

        producer = TransactionProducer(GROUP, check=check, name_server=cluster.name_server_address)
        async with producer:
            async with producer.transaction(Message("Orders", b"good")) as transaction:
                assert bodies(cluster) == []
            assert transaction.is_settled
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction(Message("Orders", b"bad")):
                    raise ZeroDivisionError
            async with producer.transaction(Message("Orders", b"thought better")) as transaction:
                transaction.rollback()
            assert transaction.is_settled
            assert bodies(cluster) == [b"good"]

            async def cut_off() -> None:
                async with producer.transaction(Message("Orders", b"cut off")) as transaction:
                    ids.append(transaction.id)
                    await asyncio.sleep(3600)

            ids: list[str] = []
            task = asyncio.create_task(cut_off())
            await until(lambda: ids)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: bodies(cluster) == [b"cut off", b"good"])
            assert set(checked) == set(ids)

    story(tell)


def test_an_exception_of_the_function_leaves_it_to_the_check() -> None:
    """The error reaches the caller; a coroutine check decides."""

    async def tell(cluster: EmbeddedCluster) -> None:
        async def check(message: ReceivedMessage) -> Said:
            assert message.topic == "Orders"
            assert message.body == b"order 7"
            assert message.keys == ("k7",)
            return TransactionOutcome.COMMIT

        def fails(transaction: Transaction) -> Said:
            raise OSError("the database went away")

        producer = TransactionProducer(GROUP, check=check, name_server=cluster.name_server_address)
        async with producer:
            with pytest.raises(OSError, match="went away"):
                await producer.send_in_transaction(Message("Orders", b"order 7", keys="k7"), fails)
            await until(lambda: bodies(cluster))
        assert bodies(cluster) == [b"order 7"]

    story(tell)


def test_another_producer_of_the_group_answers_without_having_sent() -> None:
    """It registered at its start; a check that fails is asked again."""

    async def tell(cluster: EmbeddedCluster) -> None:
        name_server = cluster.name_server_address
        async with TransactionProducer(GROUP, check=never, name_server=name_server) as first:
            await first.begin(Message("Orders", b"left behind"))
        threads: list[bool] = []

        def check(message: ReceivedMessage) -> Said:
            threads.append(threading.current_thread() is threading.main_thread())
            if len(threads) == 1:
                raise OSError("not yet")
            return None if len(threads) == 2 else True

        async with TransactionProducer(GROUP, check=check, name_server=name_server):
            await until(lambda: bodies(cluster))
        assert threads == [False, False, False]

    story(tell)


def test_a_transaction_that_still_runs_is_not_looked_up() -> None:
    """The broker asks again and again and is told "unknown"; what a lost end said is remembered."""

    async def tell(cluster: EmbeddedCluster) -> None:
        broker = cluster.standalone.broker
        producer = TransactionProducer(GROUP, check=never, name_server=cluster.name_server_address)
        async with producer:
            async with producer.transaction(Message("Orders", b"slow")) as transaction:
                halves = broker.transactions.halves
                await until(lambda: [h for h in (halves.first(),) if h and h.check_count >= 3])
            assert transaction.is_settled
            # The end does not arrive: its broker is not known under this name.
            transaction = await producer.begin(Message("Orders", b"lost"))
            nowhere = transaction.sent.message_queue._replace(broker_name="nowhere")
            transaction.sent = transaction.sent._replace(message_queue=nowhere)
            await producer.end(transaction, TransactionOutcome.COMMIT)
            assert not transaction.is_settled
            await until(lambda: bodies(cluster) == [b"lost", b"slow"])

    story(tell)


def test_a_transaction_that_was_dropped_without_an_end_is_looked_up() -> None:
    """An error between begin and end left the message open until it was given up.

    My check knew the outcome and was never called, because the producer still ran.
    """

    async def tell(cluster: EmbeddedCluster) -> None:
        checked: list[bytes] = []

        def check(message: ReceivedMessage) -> Said:
            checked.append(message.body)
            return True

        async def fails_before_the_end() -> None:
            transaction = await producer.begin(Message("Orders", b"dropped"))
            raise ZeroDivisionError(transaction.id)

        producer = TransactionProducer(GROUP, check=check, name_server=cluster.name_server_address)
        async with producer:
            kept = await producer.begin(Message("Orders", b"kept"))
            with contextlib.suppress(ZeroDivisionError):
                await fails_before_the_end()
            await until(lambda: bodies(cluster) == [b"dropped"])
            assert checked == [b"dropped"]
            await producer.end(kept, TransactionOutcome.COMMIT)
            assert bodies(cluster) == [b"dropped", b"kept"]

    story(tell)


def test_what_is_refused_here() -> None:
    """Bad settings and messages that cannot be transactional."""
    for wrong in ({"check": None}, {"check": never, "parallel_checks": 0}):
        with pytest.raises(ConfigError, match=r"check"):
            TransactionProducer(GROUP, **wrong)  # type: ignore[arg-type]

    async def tell(cluster: EmbeddedCluster) -> None:
        producer = TransactionProducer(GROUP, check=never, name_server=cluster.name_server_address)
        with pytest.raises(ClientClosed):
            await producer.begin(Message("Orders", b"x"))
        async with producer:
            with pytest.raises(LocalProtocolError, match="cannot be delayed"):
                await producer.begin(Message("Orders", b"x", delay_level=1))
            sent = await producer.send(Message("Orders", b"plain"))
            assert sent.status is SendStatus.SEND_OK
            result = await producer.send_in_transaction(
                Message("Orders", b"pinned", message_group="g"), lambda _: True, first_check_s=60
            )
            assert result.is_settled

    story(tell)


def test_no_broker_no_local_transaction() -> None:
    """A half message that is refused raises, and the function is not called."""

    async def tell(cluster: EmbeddedCluster) -> None:
        called: list[Any] = []
        producer = TransactionProducer(
            GROUP, check=never, name_server=cluster.name_server_address, timeout_ms=300
        )
        async with producer:
            with pytest.raises(CometError, match="sending transaction message is forbidden"):
                await producer.send_in_transaction(Message("Orders", b"x"), called.append)
        assert called == []

    story(tell, rejectTransactionMessage="true")


def test_the_synchronous_face() -> None:
    """The function and the block run in the caller's thread, the check in another."""
    with threaded_cluster(QUICK) as cluster:
        me = threading.current_thread()
        seen: list[threading.Thread] = []

        def local(transaction: Transaction) -> Said:
            seen.append(threading.current_thread())
            return transaction.message.body == b"1"

        def check(message: ReceivedMessage) -> Said:
            seen.append(threading.current_thread())
            return True

        with cometmq.sync.TransactionProducer(
            GROUP, check=check, name_server=cluster.name_server_address
        ) as producer:
            assert producer.send_in_transaction(Message("Orders", b"1"), local).is_settled
            assert producer.send_in_transaction(Message("Orders", b"2"), local).is_settled
            with producer.transaction(Message("Orders", b"3")) as transaction:
                pass
            assert transaction.is_settled
            with (
                pytest.raises(KeyError),
                producer.transaction(Message("Orders", b"4")) as transaction,
            ):
                raise KeyError("x")
            assert transaction.outcome is TransactionOutcome.ROLLBACK
            assert seen == [me, me]
            producer.send_in_transaction(Message("Orders", b"5"), lambda _: None)
            asyncio.run(until(lambda: bodies(cluster) == [b"1", b"3", b"5"]))
            assert me not in seen[2:]

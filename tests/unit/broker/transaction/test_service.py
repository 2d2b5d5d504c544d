"""END_TRANSACTION, half and op messages, over a real broker and a real socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import Client, eventually, scenario
from tests.unit.broker.transacting import (
    COMMIT,
    GROUP,
    ROLLBACK,
    Half,
    end,
    half,
    halves,
    ops,
    stored,
)

from cometmq.broker import Broker
from cometmq.errors import ResponseCode
from cometmq.model.names import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.store.read.reader import MessageReader
from cometmq.store.retention.retention import Retention

GROUP_OF_CHECKS = "CID_RMQ_SYS_TRANS"


def test_a_half_message_waits_and_its_commit_delivers_it(tmp_path: Path) -> None:
    """Body, properties and times are the producer's; REAL_* are gone, TRAN_MSG stays."""

    async def story(broker: Broker, client: Client) -> None:
        sent = await half(client, b"order", KEYS="k1", UNIQ_KEY="U1")
        (waiting,) = halves(broker)
        assert waiting.sys_flag & 0xC == 0
        assert waiting.properties["REAL_TOPIC"] == "t"
        assert waiting.properties["REAL_QID"] == "2"
        assert waiting.properties["__transactionId__"] == "U1"
        assert waiting.physical_offset == sent.physical_offset
        assert await client.messages(queueId="2") == []
        assert (await end(client, sent)).code == 0
        (message,) = await client.messages(queueId="2")
        assert message.body == b"order"
        assert message.sys_flag & 0xC == COMMIT
        assert message.prepared_transaction_offset == sent.physical_offset
        assert message.born_timestamp_ms == waiting.born_timestamp_ms
        assert message.properties["TRAN_MSG"] == "true"
        assert message.properties["KEYS"] == "k1"
        assert not {"REAL_TOPIC", "REAL_QID"} & message.properties.keys()
        assert await client.messages(queueId="2", subscription="A")
        assert len(broker.transactions.halves) == 0

    scenario(tmp_path, story)


def test_a_rollback_delivers_nothing_and_is_noted_before_its_answer(tmp_path: Path) -> None:
    """The op message is in the queue when the answer is; commits wait for the interval."""

    async def story(broker: Broker, client: Client) -> None:
        first, second = await half(client), await half(client)
        assert (await end(client, second)).code == 0
        assert ops(broker) == []
        assert (await end(client, first, ROLLBACK)).code == 0
        assert ops(broker) == [b"1,0,"]
        (op,) = stored(broker, OP_HALF_TOPIC)
        assert op.properties["TAGS"] == "d"
        assert len(stored(broker, "t", 2)) == 1

    scenario(tmp_path, story)


def test_an_unknown_outcome_gets_no_answer(tmp_path: Path) -> None:
    """Nor does any other number; the message stays open."""

    async def story(broker: Broker, client: Client) -> None:
        sent = await half(client)
        for kind in ("0", "4", "7"):
            fields = {
                "producerGroup": GROUP,
                "tranStateTableOffset": "0",
                "commitLogOffset": str(sent.physical_offset),
                "commitOrRollback": kind,
            }
            unanswered = asyncio.ensure_future(client.call(37, fields))
            assert (await end(client, sent, ROLLBACK, producerGroup="other")).code == 1
            assert not unanswered.done()
        assert len(broker.transactions.halves) == 1

    scenario(tmp_path, story)


def test_ends_that_name_something_else_are_refused(tmp_path: Path) -> None:
    """Unknown places, other groups, ordinary messages: code 1, and nothing is delivered."""

    async def story(broker: Broker, client: Client) -> None:
        plain = await client.send(b"plain", e="2", i=f"PGROUP\x01{GROUP}\x02")
        sent, other = await half(client), await half(client)
        ordinary = int(plain.ext_fields["msgId"][16:], 16)

        async def refused(remark: str, **ext: str) -> None:
            for kind in (COMMIT, ROLLBACK):
                answer = await end(client, sent, kind, **ext)
                assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)

        await refused("The producer group wrong", producerGroup="somebody")
        await refused(
            "The transaction state table offset wrong", tranStateTableOffset=str(other.queue_offset)
        )
        await refused("The transaction id wrong", msgId="ANOTHER", transactionId="ANOTHER")
        for place in (sent.physical_offset + 1, 1 << 40, -1, ordinary):
            await refused("Find prepared transaction message failed", commitLogOffset=str(place))
        assert len(stored(broker, "t", 2)) == 1
        assert len(broker.transactions.halves) == 2

    scenario(tmp_path, story)


def test_a_further_end_changes_nothing(tmp_path: Path) -> None:
    """The same again is accepted, the opposite is an error; one message is delivered."""

    async def story(broker: Broker, client: Client) -> None:
        kept, dropped = await half(client), await half(client)
        assert (await end(client, kept)).code == 0
        assert (await end(client, dropped, ROLLBACK)).code == 0
        assert (await end(client, kept)).code == 0
        assert (await end(client, dropped, ROLLBACK)).code == 0
        opposite = await end(client, kept, ROLLBACK)
        assert opposite.code == ResponseCode.SYSTEM_ERROR
        assert opposite.remark == "the transaction is committed already and cannot be rolled back"
        assert (await end(client, dropped)).code == ResponseCode.SYSTEM_ERROR
        assert len(stored(broker, "t", 2)) == 1

    scenario(tmp_path, story)


def test_what_is_refused_before_it_becomes_a_half_message(tmp_path: Path) -> None:
    """rejectTransactionMessage, a delay level, no producer group, too many properties."""

    async def story(broker: Broker, client: Client) -> None:
        both = f"PGROUP\x01{GROUP}\x02TRAN_MSG\x01true\x02"
        answer = await client.send(i=f"{both}DELAY\x012\x02")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert answer.remark is not None
        assert "transactional and has delay level 2" in answer.remark
        answer = await client.send(i="TRAN_MSG\x01true\x02")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        large = f"{both}x\x01{'y' * 32_500}\x02"
        assert (await client.send(i=large)).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await client.send(i="TRAN_MSG\x01false\x02")).code == 0
        # A retry that was once a transactional message is an ordinary delayed one.
        assert (await client.send(i=f"{both}DELAY\x012\x02", j="1")).code == 0
        assert stored(broker, HALF_TOPIC) == []

    scenario(tmp_path, story)

    async def rejecting(broker: Broker, client: Client) -> None:
        answer = await client.send(i=f"PGROUP\x01{GROUP}\x02TRAN_MSG\x01TRUE\x02")
        assert answer.code == ResponseCode.NO_PERMISSION

    scenario(tmp_path / "rejecting", rejecting, rejectTransactionMessage="true")


def test_an_end_after_the_immunity_time_waits_for_the_check(tmp_path: Path) -> None:
    """Code 604 for the producer's own end; the answer to a check is taken."""

    async def story(broker: Broker, client: Client) -> None:
        # Born in 2023, so long over.
        sent = await half(client, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        late = await end(client, sent)
        assert late.code == ResponseCode.ILLEGAL_OPERATION
        assert stored(broker, "t", 2) == []
        assert (await end(client, sent, fromTransactionCheck="true")).code == 0
        assert len(stored(broker, "t", 2)) == 1

    scenario(tmp_path, story)


def test_many_ends_make_few_op_messages(tmp_path: Path) -> None:
    """One when transactionOpMsgMaxSize is reached, the rest within the interval."""

    async def story(broker: Broker, client: Client) -> None:
        sent = [await half(client) for _ in range(30)]
        for one in reversed(sent):
            assert (await end(client, one)).code == 0
        named = [int(part) for body in ops(broker) for part in body.split(b",") if part]
        assert len(ops(broker)) == 2
        assert all(32 <= len(body) < 40 for body in ops(broker))
        await eventually(lambda: len(ops(broker)) == 3)
        named = [int(part) for body in ops(broker) for part in body.split(b",") if part]
        assert named == list(range(29, -1, -1))

    scenario(tmp_path, story, transactionOpMsgMaxSize="32", transactionOpBatchInterval="300")


def test_offsets_of_the_group_follow_what_is_done(tmp_path: Path) -> None:
    """The half queue's stops at the first open one; op messages all of whose ends lie before it
    are done."""

    async def story(broker: Broker, client: Client) -> None:
        offsets = broker.state.offsets

        def at() -> tuple[int | None, int | None]:
            return (
                offsets.query(GROUP_OF_CHECKS, HALF_TOPIC, 0),
                offsets.query(GROUP_OF_CHECKS, OP_HALF_TOPIC, 0),
            )

        sent = [await half(client) for _ in range(4)]
        for number in (0, 2):
            await end(client, sent[number], ROLLBACK)
        await eventually(lambda: at() == (1, 1))
        await end(client, sent[1], ROLLBACK)
        await eventually(lambda: at() == (3, 3))
        await end(client, sent[3], ROLLBACK)
        await eventually(lambda: at() == (4, 4))
        assert broker.transactions.ops.gathered_count == 0

    scenario(tmp_path, story, transactionOpBatchInterval="20", flushDiskType="SYNC_FLUSH")


def test_a_restart_knows_what_is_open(tmp_path: Path) -> None:
    """Committed and rolled-back ones stay so; an open one can still be ended, by its old place."""
    sent: list[Half] = []

    async def first(broker: Broker, client: Client) -> None:
        sent.extend([await half(client, b"%d" % number) for number in range(4)])
        await end(client, sent[0])
        await end(client, sent[2], ROLLBACK)

    scenario(tmp_path, first)

    async def second(broker: Broker, client: Client) -> None:
        assert broker.transactions.halves.offsets() == [1, 3]
        again = await end(client, sent[0])
        assert again.code == ResponseCode.SYSTEM_ERROR
        assert again.remark == "the transaction is ended already and cannot be committed"
        assert (await end(client, sent[3])).code == 0
        assert [message.body for message in stored(broker, "t", 2)] == [b"0", b"3"]

    scenario(tmp_path, second)


@pytest.mark.parametrize("is_racing", [False, True])
def test_an_open_transaction_outlives_its_log_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_racing: bool
) -> None:
    """It is put back before the file goes, and ended by its first place, also after a restart.

    So it is when a worker finds the queue's new begin while the queue is read from its old one.
    """
    sent: list[Half] = []

    async def first(broker: Broker, client: Client) -> None:
        await client.send(bytes(1000))
        sent.extend([await half(client, b"%d" % number) for number in range(3)])
        for _ in range(15):
            await client.send(bytes(100_000))
        store = broker.state.store
        store._retention.drop_files(100)
        await eventually(lambda: store.min_physical_offset > 0)
        assert broker.transactions.halves.offsets() == [3, 4, 5]
        other = await end(client, sent[1], msgId="other", transactionId="other")
        assert other.remark == "The transaction id wrong"
        assert (await end(client, sent[1])).code == 0
        assert [message.body for message in stored(broker, "t", 2)] == [b"1"]

    scenario(tmp_path, first)

    async def second(broker: Broker, client: Client) -> None:
        assert (await end(client, sent[0])).code == 0
        assert (await end(client, sent[2], ROLLBACK)).code == 0
        assert [message.body for message in stored(broker, "t", 2)] == [b"1", b"0"]
        assert not broker.transactions.halves

    if is_racing:
        pick = MessageReader._pick

        def pick_after_the_worker(reader: MessageReader, request: Any, raw: bytes) -> Any:
            reader._search.min_of(request.queue)
            return pick(reader, request, raw)

        monkeypatch.setattr(MessageReader, "_pick", pick_after_the_worker)
        monkeypatch.setattr(Retention, "find_minima", lambda _: None)
    scenario(tmp_path, second)

"""RESUME_CHECK_HALF_MESSAGE (323): what was given up is asked about again, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.harness import Client, eventually, scenario
from tests.unit.broker.transacting import COMMIT, GROUP, Half, end, half, halves, stored
from tests.unit.broker.transaction.test_check_back import IDLE, asked, checks_of, round_of_checks

from cometmq.broker import Broker
from cometmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand


async def resume(client: Client, message_id: str) -> RemotingCommand:
    """What tools send."""
    ext = {"topic": TRANS_CHECK_MAX_TIME_TOPIC, "msgId": message_id}
    return await client.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext)


async def given_up(broker: Broker, client: Client) -> str:
    """The id of a transaction that was given up."""
    await client.heartbeat(producers=(GROUP,))
    await half(client, b"never decided", UNIQ_KEY="U1", KEYS="k")
    await round_of_checks(broker)
    await asked(client, 1)
    await round_of_checks(broker)
    assert len(broker.transactions.halves) == 0
    # With synchronous flush it is there when it is flushed.
    await eventually(lambda: len(stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)) == 1)
    (message,) = stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)
    return message.offset_message_id


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_it_is_checked_anew_and_can_be_committed(tmp_path: Path, flush: str) -> None:
    """Its checks begin at 0, its producer is asked, and its commit is delivered once."""

    async def story(broker: Broker, client: Client) -> None:
        message_id = await given_up(broker, client)
        assert (await resume(client, message_id)).code == 0
        newest = halves(broker)[-1]
        assert newest.properties["TRANSACTION_CHECK_TIMES"] == "0"
        assert "TRAN_PREPARED_QUEUE_OFFSET" not in newest.properties
        assert (newest.body, newest.properties["KEYS"]) == (b"never decided", "k")
        assert len(broker.transactions.halves) == 1
        before = len(checks_of(client))
        await round_of_checks(broker)
        place = Half.of_check((await asked(client, before + 1))[-1])
        assert (await end(client, place, COMMIT, fromTransactionCheck="true")).code == 0
        (delivered,) = stored(broker, "t", 2)
        assert delivered.body == b"never decided"
        again = await resume(client, message_id)
        assert again.code == 1
        assert "done already" in (again.remark or "")

    scenario(tmp_path, story, transactionCheckMax="1", flushDiskType=flush, **IDLE)


@pytest.mark.parametrize("is_decided", [True, False])
def test_it_is_not_resumed_again_by_the_next_life_of_the_broker(
    tmp_path: Path, *, is_decided: bool
) -> None:
    """Whether its producer has committed it meanwhile or not; one not resumed before still is."""
    settings = {"transactionCheckMax": "1", **IDLE}

    async def first(broker: Broker, client: Client) -> None:
        message_id = await given_up(broker, client)
        assert (await resume(client, message_id)).code == 0
        if is_decided:
            before = len(checks_of(client))
            await round_of_checks(broker)
            place = Half.of_check((await asked(client, before + 1))[-1])
            assert (await end(client, place, COMMIT, fromTransactionCheck="true")).code == 0

    async def second(broker: Broker, client: Client) -> None:
        (message,) = stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)
        count = len(halves(broker))
        again = await resume(client, message.offset_message_id)
        assert (again.code, len(halves(broker))) == (1, count)
        assert "done already" in (again.remark or "")
        await client.heartbeat(producers=(GROUP,))
        await half(client, b"another", UNIQ_KEY="U2")
        await round_of_checks(broker)
        await eventually(lambda: bool(checks_of(client)))
        await round_of_checks(broker)
        await eventually(lambda: len(stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)) >= 2)
        newest = stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)[-1]
        assert (await resume(client, newest.offset_message_id)).code == 0

    scenario(tmp_path, first, **settings)
    scenario(tmp_path, second, **settings)


def test_other_messages_and_old_ones_are_refused_with_the_reason(tmp_path: Path) -> None:
    """Only what was given up, and only what is not given up again at once."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send(b"plain")
        (plain,) = stored(broker, "t")
        answer = await resume(client, plain.offset_message_id)
        assert answer.code == 1
        assert "topic t" in (answer.remark or "")
        nowhere = plain.offset_message_id[:-8] + "7FFFFFFF"
        assert "no message is there" in ((await resume(client, nowhere)).remark or "")
        assert (await resume(client, "not an id")).code == 1
        assert halves(broker) == []

    scenario(tmp_path, story, **IDLE)


def test_one_that_would_be_given_up_at_once_is_refused(tmp_path: Path) -> None:
    """It was born in 2023 and messages are kept for 72 hours."""

    async def story(broker: Broker, client: Client) -> None:
        await client.heartbeat(producers=(GROUP,))
        await half(client)
        await round_of_checks(broker)
        (message,) = stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)
        answer = await resume(client, message.offset_message_id)
        assert answer.code == 1
        assert "older than 72" in (answer.remark or "")

    scenario(tmp_path, story, transactionCheckInterval="3600000")

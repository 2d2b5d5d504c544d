"""Check-back: who is asked, what is counted, what is given up, and what a restart makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.harness import Client, eventually, scenario
from tests.unit.broker.transacting import COMMIT, GROUP, ROLLBACK, Half, end, half, halves, stored

from cometmq.broker import Broker
from cometmq.broker.transaction import check_back as transaction_check
from cometmq.codec.stored_message import decode_message
from cometmq.model.names import HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

CHECK = int(RequestCode.CHECK_TRANSACTION_STATE)
IDLE = {"transactionCheckInterval": "3600000", "fileReservedTime": "1000000"}
"""Rounds begin when a test says so.  Half messages of the tests were born in 2023."""


async def round_of_checks(broker: Broker) -> None:
    """Begin a round and wait for its end."""
    check = broker.transactions.check
    before = len(halves(broker)), len(broker.transactions.halves)
    check.now()
    await eventually(
        lambda: (
            not check._remaining
            and (len(halves(broker)), len(broker.transactions.halves)) != before
        )
    )


def checks_of(client: Client) -> list[RemotingCommand]:
    """What the client was asked."""
    return [command for command in client.pushed if command.code == CHECK]


async def asked(client: Client, count: int) -> list[RemotingCommand]:
    """Wait for so many checks."""
    await eventually(lambda: len(checks_of(client)) >= count)
    return checks_of(client)


def test_a_producer_gets_all_it_needs_to_answer(tmp_path: Path) -> None:
    """Real topic and queue, its own properties, the new place; one-way."""

    async def story(broker: Broker, client: Client) -> None:
        await client.heartbeat(producers=(GROUP,))
        sent = await half(client, b"order", UNIQ_KEY="U1", KEYS="k")
        await round_of_checks(broker)
        (command,) = await asked(client, 1)
        assert command.is_oneway
        place = Half.of_check(command)
        assert (place.queue_offset, place.uniq_key) == (1, "U1")
        assert command.ext_fields["transactionId"] == "U1"
        assert command.ext_fields["bname"] == "broker-a"
        assert command.ext_fields["offsetMsgId"].endswith(f"{place.physical_offset:016X}")
        message = decode_message(command.body)
        assert (message.topic, message.queue_id, message.body) == ("t", 2, b"order")
        assert message.properties["PGROUP"] == GROUP
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert message.properties["KEYS"] == "k"
        newest = halves(broker)[-1]
        assert newest.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
        assert newest.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert (await end(client, place, COMMIT, fromTransactionCheck="true")).code == 0
        assert (await end(client, sent)).code == 0  # the first place says the same
        assert (await end(client, sent, ROLLBACK)).code == 1
        (delivered,) = stored(broker, "t", 2)
        assert delivered.prepared_transaction_offset == place.physical_offset

    scenario(tmp_path, story, **IDLE)


def test_the_place_before_the_check_ends_it_too(tmp_path: Path) -> None:
    """A producer whose own end crosses with a check settles the transaction once."""

    async def story(broker: Broker, client: Client) -> None:
        await client.heartbeat(producers=(GROUP,))
        sent = await half(client)
        await round_of_checks(broker)
        await round_of_checks(broker)
        first, second = map(Half.of_check, await asked(client, 2))
        assert (await end(client, sent)).code == 0
        for place in (first, second):
            assert (await end(client, place, COMMIT, fromTransactionCheck="true")).code == 0
            assert (await end(client, place, ROLLBACK, fromTransactionCheck="true")).code == 1
        assert len(stored(broker, "t", 2)) == 1
        assert len(broker.transactions.halves) == 0

    scenario(tmp_path, story, **IDLE)


def test_without_a_producer_nobody_is_asked_and_nothing_counted(tmp_path: Path) -> None:
    """The half queue does not grow; members of other groups do not count."""

    async def story(broker: Broker, client: Client) -> None:
        await client.heartbeat(producers=("others",))
        await half(client)
        for _ in range(3):
            broker.transactions.check.now()
            await eventually(lambda: not broker.transactions.check._remaining)
        assert len(halves(broker)) == 1
        assert checks_of(client) == []
        await client.heartbeat(producers=(GROUP,))
        await round_of_checks(broker)
        assert len(await asked(client, 1)) == 1

    scenario(tmp_path, story, **IDLE)


def test_the_members_of_a_group_take_turns(tmp_path: Path) -> None:
    """Two connections, four half messages, two checks each."""

    async def story(broker: Broker, client: Client) -> None:
        other = await Client(broker.env, broker.address).open()
        await client.heartbeat(producers=(GROUP,), client_id="c1")
        await other.heartbeat(producers=(GROUP,), client_id="c2")
        for _ in range(4):
            await half(client)
        await round_of_checks(broker)
        assert (len(await asked(client, 2)), len(await asked(other, 2))) == (2, 2)
        await other.close()

    scenario(tmp_path, story, **IDLE)


def test_who_is_not_due_is_left_alone(tmp_path: Path) -> None:
    """Younger than transactionTimeOut, or than its own immunity time."""

    async def story(broker: Broker, client: Client) -> None:
        await client.heartbeat(producers=(GROUP,))
        now = str(broker.env.clock.now_ms())
        text = f"PGROUP\x01{GROUP}\x02TRAN_MSG\x01true\x02"
        immune = f"{text}CHECK_IMMUNITY_TIME_IN_SECONDS\x013600\x02"
        garbled = f"{text}CHECK_IMMUNITY_TIME_IN_SECONDS\x01soon\x02"
        for properties in (text, immune, garbled):
            assert (await client.send(i=properties, g=now)).code == 0
        old = await half(client)
        await round_of_checks(broker)
        (command,) = await asked(client, 1)
        assert command.ext_fields["msgId"] == old.uniq_key
        assert broker.transactions.halves.offsets() == [0, 1, 2, 4]

    scenario(tmp_path, story, **IDLE, transactionTimeOut="600000")


def test_after_the_last_check_it_is_given_up(tmp_path: Path) -> None:
    """It goes to TRANS_CHECK_MAX_TIME_TOPIC as it was; its end comes too late."""

    async def story(broker: Broker, client: Client) -> None:
        await client.heartbeat(producers=(GROUP,))
        sent = await half(client, b"never decided")
        for _ in range(3):
            await round_of_checks(broker)
        assert len(await asked(client, 2)) == 2
        assert len(broker.transactions.halves) == 0
        (given_up,) = stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)
        assert given_up.body == b"never decided"
        assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "2"
        assert given_up.properties["REAL_TOPIC"] == "t"
        late = await end(client, sent, COMMIT, fromTransactionCheck="true")
        assert late.code == 1
        assert late.remark == "the transaction is given up already and cannot be committed"
        assert stored(broker, "t", 2) == []

    scenario(tmp_path, story, **IDLE, transactionCheckMax="2")


def test_a_very_old_one_is_given_up_without_a_producer(tmp_path: Path) -> None:
    """Older than fileReservedTime."""

    async def story(broker: Broker, client: Client) -> None:
        await half(client)
        await round_of_checks(broker)
        assert len(stored(broker, TRANS_CHECK_MAX_TIME_TOPIC)) == 1
        assert len(broker.transactions.halves) == 0

    scenario(tmp_path, story, transactionCheckInterval="3600000", fileReservedTime="1")


def test_checks_go_on_after_a_restart(tmp_path: Path) -> None:
    """The count goes on, earlier places still end it, and what was given up stays so."""
    sent: list[Half] = []

    async def first(broker: Broker, client: Client) -> None:
        await client.heartbeat(producers=(GROUP,))
        sent.extend([await half(client, b"%d" % number) for number in range(3)])
        await round_of_checks(broker)

    async def second(broker: Broker, client: Client) -> None:
        await client.heartbeat(producers=(GROUP,))
        assert len(broker.transactions.halves) == 3
        assert (await end(client, sent[1])).code == 0
        await round_of_checks(broker)
        (one, two) = await asked(client, 2)
        assert decode_message(one.body).properties["TRANSACTION_CHECK_TIMES"] == "2"
        assert (await end(client, Half.of_check(one), ROLLBACK)).code == 0
        assert (await end(client, Half.of_check(two))).code == 0

    async def third(broker: Broker, client: Client) -> None:
        assert len(broker.transactions.halves) == 0
        assert [message.body for message in stored(broker, "t", 2)] == [b"1", b"2"]

    for story in (first, second, third):
        scenario(tmp_path, story, **IDLE)


def test_with_synchronous_flush_a_check_names_what_is_found(tmp_path: Path) -> None:
    """The producer is asked only when the new place is on stable storage."""

    async def story(broker: Broker, client: Client) -> None:
        await client.heartbeat(producers=(GROUP,))
        await half(client)
        broker.transactions.check.now()
        (command,) = await asked(client, 1)
        place = Half.of_check(command)
        assert place.physical_offset < broker.state.store.flushed_offset
        assert (await end(client, place)).code == 0
        assert len(stored(broker, "t", 2)) == 1

    scenario(tmp_path, story, **IDLE, flushDiskType="SYNC_FLUSH")


def test_one_far_behind_is_put_back_without_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the group's offset, and the log files, can move on."""

    async def story(broker: Broker, client: Client) -> None:
        sent = await half(client, b"slow")
        for _ in range(4):
            await end(client, await half(client), ROLLBACK)
        monkeypatch.setattr(transaction_check, "SPAN", 3)
        await round_of_checks(broker)
        newest = halves(broker)[-1]
        assert newest.body == b"slow"
        assert "TRANSACTION_CHECK_TIMES" not in newest.properties
        assert broker.transactions.halves.offsets() == [5]
        assert (await end(client, sent)).code == 0
        assert [message.body for message in stored(broker, "t", 2)] == [b"slow"]
        assert stored(broker, HALF_TOPIC)

    scenario(tmp_path, story, **IDLE)

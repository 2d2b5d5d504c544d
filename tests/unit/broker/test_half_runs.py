"""Half messages in one read, and what their commit stores from memory: as one by one, as read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.harness import Client, scenario
from tests.unit.broker.send.test_send_run import PLAIN, exchange, frame, told
from tests.unit.broker.transacting import GROUP, ROLLBACK, Half, end, halves, stored

from cometmq.broker import Broker
from cometmq.broker.send.kinds import make_property_reader
from cometmq.broker.transaction import service as transaction
from cometmq.broker.transaction.half_send import HalfKind
from cometmq.codec.stored_message import StoredMessage
from cometmq.wire.command.command import RemotingCommand

MARKS = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"


def half_frame(opaque: int, text: str = "", body: bytes = b"half") -> bytes:
    """A half message to queue 2 of topic t."""
    return frame(opaque, body, i=text or PLAIN.format(opaque) + MARKS, e="2", f="4")


def of_answer(answer: RemotingCommand) -> Half:
    ext = answer.ext_fields
    return Half(int(ext["queueOffset"]), int(ext["msgId"][16:], 16), ext["transactionId"])


def is_kept(broker: Broker, place: Half) -> bool:
    """Whether its commit would read nothing."""
    half = broker.transactions.halves.at(place.queue_offset)
    assert half is not None
    return half.cached is not None


def what(message: StoredMessage) -> tuple[object, ...]:
    """What does not depend on place and time."""
    properties = {name: value for name, value in message.properties.items() if name != "UNIQ_KEY"}
    properties.pop("__transactionId__", None)
    flags = message.flag, message.sys_flag, message.born_host[:4], message.reconsume_times
    return message.topic, message.queue_id, message.body, flags, properties


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_halves_in_one_read_are_as_those_one_by_one(tmp_path: Path, flush: str) -> None:
    """Answers in order, records alike, each can be ended; ordinary sends among them as ever."""

    async def story(broker: Broker, client: Client) -> None:
        alone = [await client.send(b"half", i=PLAIN.format(900) + MARKS, e="2", f="4")]
        run = b"".join(
            [
                half_frame(1),
                half_frame(2, f"KEYS\x01k2\x02{PLAIN.format(2)}TAGS\x01A\x02{MARKS}"),
                frame(3),
                half_frame(4, MARKS + PLAIN.format(4)),
                half_frame(5, f"DELAY\x013\x02{PLAIN.format(5)}{MARKS}"),
                half_frame(6),
                half_frame(7),
            ]
        )
        answers = await exchange(broker, run, 7)
        by_opaque = {answer.opaque: answer for answer in answers}
        assert [by_opaque[number].code for number in range(1, 8)] == [0, 0, 0, 0, 13, 0, 0]
        assert len(broker.transactions.halves) == 6
        sent = [by_opaque[number] for number in (1, 2, 4, 6, 7)]
        assert [answer.ext_fields["queueId"] for answer in sent] == ["2"] * 5
        places = [of_answer(answer) for answer in sent]
        records = halves(broker)
        assert [one.physical_offset for one in records[1:]] == [
            one.physical_offset for one in places
        ]
        assert what(records[0]) == what(records[1]) == what(records[3])
        assert records[2].properties["KEYS"] == "k2"
        for place in (*places[:3], of_answer(alone[0])):
            assert (await end(client, place)).code == 0
        assert (await end(client, places[3], ROLLBACK)).code == 0
        delivered = stored(broker, "t", 2)[1:]
        assert [one.prepared_transaction_offset for one in delivered] == [
            place.physical_offset for place in (*places[:3], of_answer(alone[0]))
        ]
        assert [one.properties.get("KEYS") for one in delivered] == [None, "k2", None, None]
        assert len(await client.messages(queueId="2", subscription="A")) == 1
        assert broker.transactions.halves.counts == {"t": 1}

    told(tmp_path, story, flushDiskType=flush)


def test_a_commit_from_memory_stores_what_a_commit_from_the_log_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the number and the size that are kept, the half message is read."""

    async def story(broker: Broker, client: Client) -> None:
        text = f"KEYS\x01k\x02{PLAIN.format(1)}TAGS\x01A\x02own\x01x\x02{MARKS}"
        (answer,) = await exchange(broker, half_frame(1, text), 1)
        monkeypatch.setattr(transaction, "_CACHED_COUNT", 0)
        (second,) = await exchange(broker, half_frame(2, text), 1)
        monkeypatch.setattr(transaction, "_CACHED_COUNT", 100)
        monkeypatch.setattr(transaction, "_CACHED_MESSAGE_BYTES_MAX", 3)
        (third,) = await exchange(broker, half_frame(3, text), 1)
        places = [of_answer(one) for one in (answer, second, third)]
        assert not any(is_kept(broker, place) for place in places)
        monkeypatch.setattr(transaction, "_CACHED_MESSAGE_BYTES_MAX", 2000)
        (fourth,) = await exchange(broker, half_frame(4, text), 1)
        places.append(of_answer(fourth))
        assert is_kept(broker, places[3])
        for place in places:
            assert (await end(client, place)).code == 0
        delivered = stored(broker, "t", 2)[1:]
        assert len(delivered) == 4
        assert len({repr(what(one)) for one in delivered}) == 1
        assert len({one.raw_properties for one in delivered}) == 1

    told(tmp_path, story)


def test_an_end_that_does_not_mean_the_message_is_refused_as_ever(tmp_path: Path) -> None:
    """Another group, another id, another place: all checks are made on the record."""

    async def story(broker: Broker, client: Client) -> None:
        (answer,) = await exchange(broker, half_frame(1), 1)
        place = of_answer(answer)
        for wrong in (
            {"producerGroup": "other"},
            {"msgId": "X", "transactionId": "Y"},
            {"commitLogOffset": str(place.physical_offset + 1)},
        ):
            assert (await end(client, place, **wrong)).code == 1
        assert stored(broker, "t", 2)[1:] == []
        assert (await end(client, place)).code == 0

    told(tmp_path, story)


def test_a_name_that_ends_like_the_mark_makes_no_half_message(tmp_path: Path) -> None:
    """MYTRAN_MSG is a property of the user's."""

    async def story(broker: Broker, client: Client) -> None:
        text = PLAIN.format(1) + f"MYTRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
        answers = await exchange(broker, half_frame(1, text) + half_frame(2, text), 2)
        assert [answer.code for answer in answers] == [0, 0]
        assert len(broker.transactions.halves) == 0
        assert len(stored(broker, "t", 2)) == 3

    told(tmp_path, story)


def test_the_reader_knows_half_messages(tmp_path: Path) -> None:
    """Keys, group and immunity; what is special needs the checks."""

    async def story(broker: Broker, client: Client) -> None:
        read = make_property_reader((HalfKind(broker.state, lambda half: None),))
        first = read(f"KEYS\x01a b\x02UNIQ_KEY\x01U1\x02TAGS\x01T\x02{MARKS}")
        second = read(f"KEYS\x01c\x02UNIQ_KEY\x01U2\x02TAGS\x01T\x02{MARKS}")
        third = read(f"UNIQ_KEY\x01U3\x02TAGS\x01T\x02{MARKS}")
        assert first is not None
        assert second is not None
        assert third is not None
        assert first[0] == ("U1", "a b", "T")
        assert second[0] == ("U2", "c", "T")
        assert third[0] == ("U3", None, "T")
        assert first[1] == second[1]
        assert first[1].detail == third[1].detail == (GROUP, -1, False)
        assert read(f"UNIQ_KEY\x01U4\x02TAGS\x01T\x02{MARKS}REAL_TOPIC\x01x\x02") is None
        assert read("UNIQ_KEY\x01U5\x02TAGS\x01T\x02TRAN_MSG\x01true\x02") is None
        assert read(f"UNIQ_KEY\x01\x02TAGS\x01T\x02{MARKS}") is None
        immune = read(f"UNIQ_KEY\x01U6\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0130\x02{MARKS}")
        assert immune is not None
        assert immune[1].detail[1:] == (30, True)
        # A name that ends like KEYS is another property.
        other = read(f"MYKEYS\x01z\x02UNIQ_KEY\x01U7\x02{MARKS}")
        assert other is None or other[0][1] is None

    scenario(tmp_path, story)

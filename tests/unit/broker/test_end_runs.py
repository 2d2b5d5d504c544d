"""Ends of transactions in one read: the same answers, records and order as one by one."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import Client, eventually
from tests.unit.broker.send.test_send_run import exchange, frame, store_of, told
from tests.unit.broker.test_half_runs import half_frame, of_answer, what
from tests.unit.broker.transacting import COMMIT, GROUP, ROLLBACK, Half, end, half, stored

from cometmq.broker import Broker
from cometmq.broker.transaction import run as transaction_run
from cometmq.broker.transaction import service as transaction
from cometmq.broker.transaction.run import RUN_ENDS_MAX
from cometmq.errors import DiskFull, RemoteProtocolError, ResponseCode
from cometmq.model.names import OP_HALF_TOPIC
from cometmq.store.base.results import Copied, PutItem, PutResult
from cometmq.store.message_store import MessageStore
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.framing import FrameReader
from cometmq.wire.header.fast_decode import EndCommand
from cometmq.wire.header.headers import EndTransactionHeader

ONEWAY = 2


def end_frame(opaque: int, half: Half, kind: int = COMMIT, flag: int = 0, /, **ext: str) -> bytes:
    """An end as clients write it, so that it is decoded in one pass."""
    fields = {
        "commitLogOffset": str(half.physical_offset),
        "commitOrRollback": str(kind),
        "fromTransactionCheck": "false",
        "msgId": half.uniq_key,
        "producerGroup": GROUP,
        "tranStateTableOffset": str(half.queue_offset),
        "transactionId": half.uniq_key,
        **ext,
    }
    header = {"code": 37, "extFields": fields, "flag": flag, "opaque": opaque, "version": 493}
    raw = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">iI", 4 + len(raw), len(raw)) + raw


async def begun(broker: Broker, count: int, first: int = 1) -> list[Half]:
    """Half messages that are kept, with their numbers as bodies."""
    numbers = range(first, first + count)
    data = b"".join([half_frame(number, body=b"%d" % number) for number in numbers])
    return [of_answer(answer) for answer in await exchange(broker, data, count)]


def runs_of(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many commits each step stores from now on."""
    counts: list[int] = []
    store = store_of(broker)
    append, append_copies = store.append, store.append_copies

    def counting(items: Sequence[PutItem], **how: Any) -> list[PutResult]:
        results = append(items, **how)
        if items[0].prepared_offset:
            counts.append(len(results))
        return results

    def counting_copies(*how: Any, are_commits: bool = False) -> Copied:
        copied = append_copies(*how, are_commits=are_commits)
        if are_commits and copied.copy_count:
            counts.append(copied.copy_count)
        return copied

    monkeypatch.setattr(store, "append", counting)
    monkeypatch.setattr(store, "append_copies", counting_copies)
    return counts


def delivered(broker: Broker) -> list[bytes]:
    """Bodies that were committed, in the order readers see them."""
    return [message.body for message in stored(broker, "t", 2)[1:]]


def codes(answers: Sequence[RemotingCommand]) -> dict[int, int]:
    assert len({answer.opaque for answer in answers}) == len(answers)
    return {answer.opaque: answer.code for answer in answers}


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_commits_in_one_read_are_as_those_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str, is_kept: bool
) -> None:
    """Stored in one step, answered in order and byte for byte alike, from memory or from the
    log."""
    if not is_kept:
        monkeypatch.setattr(transaction, "_CACHED_COUNT", 0)

    async def story(broker: Broker, client: Client) -> None:
        alone, *places = await begun(broker, 6)
        assert (broker.transactions.halves.at(alone.queue_offset).cached is not None) is is_kept  # type: ignore[union-attr]
        steps: list[str] = []
        (single,) = await exchange(broker, end_frame(7, alone), 1)
        counts = runs_of(broker, monkeypatch)
        broker.transactions.at = steps.append
        places.reverse()
        data = b"".join([end_frame(10 + n, place) for n, place in enumerate(places)])
        answers = await exchange(broker, data, 5)
        assert counts == [5]
        assert steps[:5] == ["commit.put"] * 5
        assert [answer.opaque for answer in answers] == [10, 11, 12, 13, 14]
        for answer in answers:
            answer.opaque = single.opaque
            assert encode_command(answer) == encode_command(single)
        assert delivered(broker) == [b"1", b"6", b"5", b"4", b"3", b"2"]
        first, *others = stored(broker, "t", 2)[1:]
        offsets = [one.prepared_transaction_offset for one in (first, *others)]
        assert offsets == [place.physical_offset for place in (alone, *places)]
        for one in others:
            assert what(one)[:2] + what(one)[3:] == what(first)[:2] + what(first)[3:]
        assert len(await client.messages(queueId="2", subscription="*")) == 7
        assert not broker.transactions.halves
        assert broker.transactions.halves.counts == {"t": 0}
        if flush == "SYNC_FLUSH":
            assert store_of(broker).flushed_offset >= others[-1].physical_offset

    told(tmp_path, story, flushDiskType=flush)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_is_special_in_a_run_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    """Repeated and contrary ends, rollbacks, wrong ids, one-way ends, other requests, sends."""

    async def story(broker: Broker, client: Client) -> None:
        counts = runs_of(broker, monkeypatch)
        places = await begun(broker, 14)
        query = RemotingCommand.request(30, {"topic": "t", "queueId": "2"}, opaque=40)
        data = b"".join(
            (
                end_frame(1, places[0]),
                end_frame(2, places[1]),
                end_frame(3, places[1]),
                end_frame(4, places[0], ROLLBACK),
                end_frame(5, places[2], ROLLBACK),
                end_frame(6, places[2]),
                end_frame(7, places[3], msgId="X", transactionId="Y"),
                end_frame(8, places[4]),
                end_frame(9, places[5], COMMIT, ONEWAY),
                end_frame(10, places[6], ROLLBACK, ONEWAY),
                end_frame(11, places[7], 0),
                end_frame(12, places[8], producerGroup="other"),
                encode_command(query),
                frame(13, b"plain", e="2"),
                end_frame(14, places[9]),
                end_frame(15, places[10], commitLogOffset=str(places[9].physical_offset)),
                end_frame(16, places[11], tranStateTableOffset="777"),
                end_frame(17, places[12], COMMIT, ONEWAY),
                end_frame(18, places[12], COMMIT),
                end_frame(19, places[13], COMMIT, 1),
                end_frame(20, places[13]),
            )
        )
        answers = await exchange(broker, data, 16)
        wrong = dict.fromkeys((4, 6, 7, 12, 15, 16), 1)
        right = dict.fromkeys((1, 2, 3, 5, 8, 13, 14, 18, 20, 40), 0)
        assert codes(answers) == {**right, **wrong}
        assert delivered(broker) == [b"1", b"2", b"5", b"6", b"plain", b"10", b"13", b"14"]
        assert 2 in counts
        open_bodies = {places[number].queue_offset for number in (3, 7, 8, 10, 11)}
        assert set(broker.transactions.halves.offsets()) == open_bodies
        (asked,) = [answer for answer in answers if answer.opaque == 40]
        assert int(asked.ext_fields["offset"]) in ((5,) if flush == "ASYNC_FLUSH" else range(1, 6))

    told(tmp_path, story, flushDiskType=flush)


def test_an_end_that_stands_everywhere_settles_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a whole run of the same end one is stored, and all are answered."""

    async def story(broker: Broker, client: Client) -> None:
        counts = runs_of(broker, monkeypatch)
        first, second = await begun(broker, 2)
        data = b"".join([end_frame(n, second if n % 5 == 4 else first) for n in range(1, 31)])
        assert codes(await exchange(broker, data, 30)) == dict.fromkeys(range(1, 31), 0)
        assert delivered(broker) == [b"1", b"2"]
        assert counts == [1, 1]

    told(tmp_path, story)


def test_more_than_a_run_holds_and_bodies_over_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the log goes to its next file, and where a run ends: nothing is lost or doubled."""

    async def story(broker: Broker, client: Client) -> None:
        count = RUN_ENDS_MAX + 60
        body = b"%06d" + bytes(2500)
        numbers = range(1, count + 1)
        halves = b"".join([half_frame(number, body=body % number) for number in numbers])
        places = [of_answer(answer) for answer in await exchange(broker, halves, count)]
        counts = runs_of(broker, monkeypatch)
        # In one piece, whatever the socket does: they wait as one read does.
        answers = await exchange(
            broker, b"".join([end_frame(n, place) for n, place in enumerate(places, 1)]), count
        )
        assert codes(answers) == dict.fromkeys(numbers, 0)
        assert delivered(broker) == [body % number for number in numbers]
        assert max(counts) > 1
        assert store_of(broker).max_physical_offset > 2 << 20

    told(tmp_path, story)


def test_no_op_message_comes_between_the_commits_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery looks for commits behind the last op message: each must name all before it."""

    async def story(broker: Broker, client: Client) -> None:
        places = await begun(broker, 20)
        counts = runs_of(broker, monkeypatch)
        data = b"".join([end_frame(n, place) for n, place in enumerate(places)])
        await exchange(broker, data, 20)
        await eventually(lambda: broker.transactions.ops.gathered_count == 0)
        assert max(counts) > 16
        ended: dict[int, int] = {
            one.prepared_transaction_offset: one.physical_offset
            for one in stored(broker, "t", 2)[1:]
        }
        open_before = {place.queue_offset: ended[place.physical_offset] for place in places}
        for op in stored(broker, OP_HALF_TOPIC):
            for part in op.body.split(b",")[:-1]:
                del open_before[int(part)]
            assert all(place > op.physical_offset for place in open_before.values())
        assert open_before == {}

    told(tmp_path, story, transactionOpMsgMaxSize="16", transactionOpBatchInterval="20")


def test_a_full_store_refuses_each_and_takes_them_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every end says why, rollbacks too where nothing can be noted; nothing is lost."""

    async def story(broker: Broker, client: Client) -> None:
        places = await begun(broker, 4)
        appender = store_of(broker)._appender
        appender.refuse(DiskFull("no space in the test"))
        data = b"".join([end_frame(n, place) for n, place in enumerate(places)])
        answers = await exchange(broker, data, 4)
        assert codes(answers) == dict.fromkeys(range(4), ResponseCode.SERVICE_NOT_AVAILABLE)
        assert all("no space in the test" in (answer.remark or "") for answer in answers)
        assert delivered(broker) == []
        assert len(broker.transactions.halves) == 4
        appender.refuse(None)
        counts = runs_of(broker, monkeypatch)
        assert set(codes(await exchange(broker, data, 4)).values()) == {0}
        assert counts == [4]
        assert delivered(broker) == [b"1", b"2", b"3", b"4"]

    told(tmp_path, story)


def test_a_queue_that_is_gone_is_answered_as_for_a_single_end(tmp_path: Path) -> None:
    """A half message whose topic cannot be a directory is refused alone; its neighbours are
    committed."""

    async def story(broker: Broker, client: Client) -> None:
        places = await begun(broker, 3)
        odd = broker.transactions.halves.at(places[1].queue_offset)
        assert odd is not None
        broker.transactions.halves.counts["a/b"] = 1
        odd.topic = "a/b"
        data = b"".join([end_frame(n, place) for n, place in enumerate(places)])
        answers = await exchange(broker, data, 3)
        assert codes(answers) == {0: 0, 1: ResponseCode.MESSAGE_ILLEGAL, 2: 0}
        assert delivered(broker) == [b"1", b"3"]
        assert broker.transactions.halves.offsets() == [places[1].queue_offset]

    told(tmp_path, story)


def test_a_topic_without_its_queue_gets_it_back(tmp_path: Path) -> None:
    """The topic was deleted meanwhile: the commit makes the queue, as a single one does."""

    async def story(broker: Broker, client: Client) -> None:
        places = await begun(broker, 3)
        assert (await client.call(215, {"topic": "t"})).code == 0
        await eventually(lambda: "t" not in store_of(broker)._queues.topics)
        data = b"".join([end_frame(n, place) for n, place in enumerate(places)])
        assert set(codes(await exchange(broker, data, 3)).values()) == {0}
        assert [message.body for message in stored(broker, "t", 2)] == [b"1", b"2", b"3"]

    told(tmp_path, story)


def test_a_run_whose_flush_fails_says_so_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLUSH_DISK_TIMEOUT as for a single end; a one-way one gets nothing."""

    async def story(broker: Broker, client: Client) -> None:
        places = await begun(broker, 4)
        monkeypatch.setattr(store_of(broker), "when_durable", lambda end, callback: callback(False))
        (single,) = await exchange(broker, end_frame(7, places[0]), 1)
        data = (
            end_frame(1, places[1]) + end_frame(2, places[2], COMMIT, ONEWAY)
            + end_frame(3, places[3])
        )  # fmt: skip
        answers = await exchange(broker, data, 2)
        assert codes(answers) == dict.fromkeys((1, 3), ResponseCode.FLUSH_DISK_TIMEOUT)
        assert {answer.remark for answer in answers} == {single.remark}

    told(tmp_path, story, flushDiskType="SYNC_FLUSH")


def test_answers_wait_for_the_flush_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SYNC_FLUSH one callback answers a run, and it waits for all that the run put."""

    async def story(broker: Broker, client: Client) -> None:
        places = await begun(broker, 3)
        store = store_of(broker)
        waited: list[int] = []
        when_durable = store.when_durable

        def noting(end_offset: int, callback: Any) -> None:
            waited.append(end_offset)
            assert store.flushed_offset < end_offset
            when_durable(end_offset, callback)

        monkeypatch.setattr(store, "when_durable", noting)
        data = b"".join([end_frame(n, place) for n, place in enumerate(places)])
        assert set(codes(await exchange(broker, data, 3)).values()) == {0}
        last = stored(broker, "t", 2)[-1]
        assert len(waited) == 1
        assert waited[0] > last.physical_offset
        assert store.flushed_offset >= waited[0]

    told(tmp_path, story, flushDiskType="SYNC_FLUSH")


def test_a_fault_in_a_run_is_answered_and_nothing_is_tried_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes on with what follows the ends."""

    async def story(broker: Broker, client: Client) -> None:
        places = await begun(broker, 3)

        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(store_of(broker), "append", broken)
        query = RemotingCommand.request(30, {"topic": "t", "queueId": "2"}, opaque=9)
        data = (
            end_frame(1, places[0]) + end_frame(2, places[1], COMMIT, ONEWAY)
            + end_frame(3, places[2]) + encode_command(query)
        )  # fmt: skip
        answers = await exchange(broker, data, 3)
        assert codes(answers) == {1: 1, 3: 1, 9: 0}
        assert "a fault of ours" in (answers[0].remark or "")

    told(tmp_path, story)


def test_ends_that_are_too_late_or_put_back_take_the_checked_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An immunity time that is over refuses the producer's own end, in a run as alone."""

    async def story(broker: Broker, client: Client) -> None:
        before = await begun(broker, 1)
        late = await half(client, b"late", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        after = await begun(broker, 1, 2)
        for is_kept in (True, False):
            if not is_kept:
                for one in broker.transactions.halves.offsets():
                    broker.transactions.halves.at(one).cached = None  # type: ignore[union-attr]
            data = end_frame(2, late) + end_frame(3, late, fromTransactionCheck="false")
            answers = await exchange(broker, data, 2)
            assert codes(answers) == dict.fromkeys((2, 3), ResponseCode.ILLEGAL_OPERATION)
        data = (
            end_frame(1, before[0])
            + end_frame(2, late, fromTransactionCheck="true")
            + end_frame(3, after[0])
        )
        assert codes(await exchange(broker, data, 3)) == {1: 0, 2: 0, 3: 0}
        assert delivered(broker) == [b"1", b"late", b"2"]

    told(tmp_path, story)


def test_producers_on_other_connections_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record says where its half message came from, not who ended it."""

    async def story(broker: Broker, client: Client) -> None:
        places = [*await begun(broker, 2), *await begun(broker, 2, 3)]
        counts = runs_of(broker, monkeypatch)
        data = b"".join([end_frame(n, place) for n, place in enumerate(places)])
        assert set(codes(await exchange(broker, data, 4)).values()) == {0}
        assert counts == [2, 2]
        hosts = [message.born_host for message in stored(broker, "t", 2)[1:]]
        assert hosts[0] == hosts[1]
        assert hosts[2] == hosts[3]
        assert hosts[0] != hosts[2]

    told(tmp_path, story)


def test_stores_with_crc_tails_commit_runs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The general form of records makes no difference."""

    async def story(broker: Broker, client: Client) -> None:
        places = await begun(broker, 3)
        counts = runs_of(broker, monkeypatch)
        data = b"".join([end_frame(n, place) for n, place in enumerate(places)])
        assert set(codes(await exchange(broker, data, 3)).values()) == {0}
        assert counts == [3]
        assert delivered(broker) == [b"1", b"2", b"3"]

    told(tmp_path, story, enabledAppendPropCRC="true")


def test_unkept_halves_are_read_in_stretches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read for those in a row, whatever came between them; none for a neighbour."""
    monkeypatch.setattr(transaction, "_CACHED_COUNT", 0)

    async def story(broker: Broker, client: Client) -> None:
        places = await begun(broker, 9)
        reads: list[tuple[int, int]] = []
        get = MessageStore.get

        def noting(self: MessageStore, topic: str, *how: Any, **named: Any) -> Any:
            if topic == "RMQ_SYS_TRANS_HALF_TOPIC":
                reads.append(how[1:3])
            return get(self, topic, *how, **named)

        monkeypatch.setattr(MessageStore, "get", noting)
        chosen = [places[number] for number in (0, 1, 2, 5, 4, 7, 8)]
        data = b"".join([end_frame(n, place) for n, place in enumerate(chosen)])
        assert set(codes(await exchange(broker, data, 7)).values()) == {0}
        assert reads == [(0, 3), (5, 1), (4, 1), (7, 2)]
        assert delivered(broker) == [b"1", b"2", b"3", b"6", b"5", b"8", b"9"]
        # A read that would be too large gives one at least, and is followed by others.
        monkeypatch.setattr(transaction_run, "_READ_BYTES_MAX", 1)
        del reads[:]
        places = await begun(broker, 3, 20)
        data = b"".join([end_frame(n, place) for n, place in enumerate(places)])
        counts = runs_of(broker, monkeypatch)
        assert set(codes(await exchange(broker, data, 3)).values()) == {0}
        assert reads == [(9, 3), (10, 2), (11, 1)]
        assert counts == [3]

    told(tmp_path, story)


def test_an_end_decoded_in_one_pass_is_what_the_ordinary_reader_gives() -> None:
    """Fields, opaque and flag; what does not decode so is left to the ordinary reader."""
    place = Half(3, 1 << 40, "U1")
    data = end_frame(7, place, ROLLBACK, ONEWAY)
    (fast,) = FrameReader(has_fast_commands=True).receive(data)
    (plain,) = FrameReader().receive(data)
    assert isinstance(fast, EndCommand)
    assert (fast.code, fast.opaque, fast.is_oneway) == (37, 7, True)
    assert fast.ext == EndTransactionHeader.from_command(plain)
    for odd in (
        end_frame(7, place, tranStateTableOffset="x"),
        end_frame(7, place).replace(b'"code":37,', b'"code":38,'),
        encode_command(RemotingCommand.request(37, {"producerGroup": "g"})),
        encode_command(RemotingCommand.request(37, {"producerGroup": "g"}, serialize_type=1)),
    ):
        reader, ordinary = FrameReader(has_fast_commands=True), FrameReader()
        assert reader.receive(odd) == ordinary.receive(odd)
    for is_fast in (True, False):
        with pytest.raises(RemoteProtocolError, match="opaque"):
            FrameReader(has_fast_commands=is_fast).receive(end_frame(1 << 40, place))


def test_binary_headers_are_served_between_others(tmp_path: Path) -> None:
    """An end in the other header encoding is answered in it, in its place."""

    async def story(broker: Broker, client: Client) -> None:
        places = await begun(broker, 3)
        fields = {
            "producerGroup": GROUP,
            "tranStateTableOffset": str(places[1].queue_offset),
            "commitLogOffset": str(places[1].physical_offset),
            "commitOrRollback": str(COMMIT),
            "msgId": places[1].uniq_key,
        }
        binary = RemotingCommand.request(37, fields, opaque=2, serialize_type=1)
        data = end_frame(1, places[0]) + encode_command(binary) + end_frame(3, places[2])
        answers = await exchange(broker, data, 3)
        assert [(one.opaque, one.code, one.serialize_type) for one in answers] == [
            (1, 0, 0), (2, 0, 1), (3, 0, 0)
        ]  # fmt: skip
        assert delivered(broker) == [b"1", b"2", b"3"]

    told(tmp_path, story)


def test_halves_and_ends_in_turn_on_one_connection(tmp_path: Path) -> None:
    """As a producer with many in flight writes: every order is kept."""

    async def story(broker: Broker, client: Client) -> None:
        before = await begun(broker, 10)
        data = b"".join(
            [
                half_frame(100 + n, body=b"%d" % (100 + n)) + end_frame(n, place)
                for n, place in enumerate(before)
            ]
        )
        answers = await exchange(broker, data, 20)
        assert [one.opaque for one in answers] == [n for k in range(10) for n in (100 + k, k)]
        assert set(codes(answers).values()) == {0}
        assert delivered(broker) == [b"%d" % n for n in range(1, 11)]
        assert len(broker.transactions.halves) == 10
        later = [of_answer(answer) for answer in answers[::2]]
        assert (await end(client, later[3])).code == 0
        assert delivered(broker)[-1] == b"103"

    told(tmp_path, story)

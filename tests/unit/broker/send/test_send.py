"""Sends: statuses, checks in their order, property rewriting, batches, one-way, dead letters."""

import asyncio
import re
from pathlib import Path

import pytest
from tests.unit.broker.harness import SEND_DEFAULTS, Client, scenario

from cometmq.broker import Broker
from cometmq.codec.batch import encode_batch
from cometmq.codec.ids import decode_offset_message_id
from cometmq.errors import ResponseCode
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def test_first_and_later_sends_are_answered_alike(tmp_path: Path) -> None:
    """The checked way (first) and the fast way (later) give the same answer and record."""

    async def story(broker: Broker, client: Client) -> None:
        properties = "KEYS\x01k1 k2\x02UNIQ_KEY\x010A0B\x02a\x011\x02TAGS\x01TagA"
        for number in range(2):
            answer = await client.send(b"body", i=properties, h="7", g="123")
            ext = answer.ext_fields
            assert (answer.code, answer.remark) == (0, None)
            assert ext.pop("msgId")
            assert ext == {
                **REGION,
                "queueId": "0",
                "queueOffset": str(number),
                "transactionId": "0A0B",
            }
        first, second = await client.messages()
        assert first.properties == second.properties
        assert first.properties == {
            "KEYS": "k1 k2",
            "UNIQ_KEY": "0A0B",
            "a": "1",
            "TAGS": "TagA",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
        }
        assert second.raw_properties.endswith(b"\x02")
        assert (second.flag, second.born_timestamp_ms, second.body) == (7, 123, b"body")
        assert second.born_host[:4] == bytes([127, 0, 0, 1])

    scenario(tmp_path, story)


def test_message_id_names_the_advertised_address_and_the_record(tmp_path: Path) -> None:
    """A client dials the host in the id and asks for the offset in it."""

    async def story(broker: Broker, client: Client) -> None:
        for _ in range(2):
            answer = await client.send(b"find me")
            address, offset = decode_offset_message_id(answer.ext_fields["msgId"])
            assert address == broker.address
            found = await client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
            assert found.code == 0
            assert b"find me" in found.body

    scenario(tmp_path, story)


def test_unique_key_is_made_when_missing(tmp_path: Path) -> None:
    """A message without UNIQ_KEY gets one, answered as transactionId."""

    async def story(broker: Broker, client: Client) -> None:
        first = await client.send(b"1")
        second = await client.send(b"2", i="a\x01b\x02")
        keys = [message.properties["UNIQ_KEY"] for message in await client.messages()]
        assert keys == [answer.ext_fields["transactionId"] for answer in (first, second)]
        assert len(set(keys)) == 2

    scenario(tmp_path, story)


def test_long_names_serve_code_10(tmp_path: Path) -> None:
    """Go sends SEND_MESSAGE with long names, on both ways."""

    async def story(broker: Broker, client: Client) -> None:
        ext = {
            "producerGroup": "pg",
            "topic": "t",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "1",
            "sysFlag": "0",
            "bornTimestamp": "5",
            "flag": "3",
            "properties": "UNIQ_KEY\x01AB\x02",
        }
        for number in range(2):
            answer = await client.call(RequestCode.SEND_MESSAGE, ext, b"long")
            assert (answer.code, answer.ext_fields["queueOffset"]) == (0, str(number))
        messages = await client.messages(queueId="1")
        assert [(m.flag, m.born_timestamp_ms) for m in messages] == [(3, 5), (3, 5)]

    scenario(tmp_path, story)


@pytest.mark.parametrize(
    ("ext", "body", "code", "remark"),
    [
        ({"b": "t" * 128}, b"x", 29, "longer than topic max length: 127"),
        ({"b": "bad topic!"}, b"x", 29, "illegal characters"),
        ({"b": ""}, b"x", 29, "blank"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, b"x", 16, "is forbidden"),
        ({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, b"x", 16, "is forbidden"),
        ({"b": "new", "c": "NoSuchTemplate"}, b"x", 17, "apply first please"),
        ({"e": "99"}, b"x", 29, r"request queueId\[99\] is illegal, TopicConfig \[topicName=t"),
        ({}, b"x" * 5000, 13, "5000 bytes, maxMessageSize is 4096"),
        ({"i": "big\x01" + "p" * 32768 + "\x02"}, b"x", 13, "32767 are allowed"),
        ({"i": "DELAY\x01soon\x02"}, b"x", 13, "property DELAY is 'soon'"),
        ({"i": "TIMER_DELAY_SEC\x01999999999\x02"}, b"x", 13, "bigger than the max delay"),
        (
            {"i": "TIMER_DELAY_SEC\x0110\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"},
            b"x",
            13,
            "transactional and has an exact time",
        ),
        ({"i": "TIMER_DELIVER_MS\x01abc\x02"}, b"x", 13, "expected a number"),
        ({"i": "TRAN_MSG\x01true\x02"}, b"x", 13, "no property PGROUP"),
        ({"m": "true"}, b"plain", 13, "batch message 0 at byte 0 is broken"),
        ({"b": "%RETRY%g", "m": "true"}, encode_batch([(0, b"b", b"")]), 13, "retry group"),
        ({"b": "%RETRY%bad group"}, b"x", 29, "illegal characters"),
    ],
)
def test_refusals(ext: dict[str, str], body: bytes, code: int, remark: str, tmp_path: Path) -> None:
    """Each mistake gets RocketMQ's code, a cause, and region and trace switch."""

    async def story(broker: Broker, client: Client) -> None:
        assert (await client.send(b"makes the topic")).code == 0
        # Twice: a mistake must not open the fast way.
        for _ in range(2):
            answer = await client.send(body, **ext)
            assert answer.code == code, answer.remark
            assert answer.remark is not None
            assert re.search(remark, answer.remark), answer.remark
            assert answer.ext_fields == REGION
        assert len(await client.messages()) == 1

    scenario(tmp_path, story, maxMessageSize=4096)


@pytest.mark.parametrize("field", ["e", "f", "g", "h", "d"])
@pytest.mark.parametrize("value", ["", "x", "1.5", "99999999999999999999", "null"])
def test_wrong_types_in_every_number_field(field: str, value: str, tmp_path: Path) -> None:
    """The field, its value and what was expected are named; nothing is stored."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send(b"makes the topic")
        answer = await client.send(b"x", **{field: value})
        assert answer.code == 1
        assert answer.remark is not None
        assert field in answer.remark
        assert len(await client.messages()) == 1

    scenario(tmp_path, story)


def test_header_without_its_fields(tmp_path: Path) -> None:
    """Java answers a NullPointerException; ours names the field."""

    async def story(broker: Broker, client: Client) -> None:
        answer = await client.call(RequestCode.SEND_MESSAGE_V2, {"a": "only"}, b"x")
        assert answer.code == 1
        assert "required" in (answer.remark or "")

    scenario(tmp_path, story)


def test_topic_is_made_from_the_template(tmp_path: Path) -> None:
    """min(asked, template) queues, perm 6, as TBW102 allows."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send(b="small", d="2")
        await client.send(b="large", d="100")
        topics = broker.state.topics
        small, large = topics.get("small"), topics.get("large")
        assert small is not None
        assert large is not None
        assert (small.write_queue_count, small.perm) == (2, 6)
        assert large.write_queue_count == 8

    scenario(tmp_path, story)


def test_without_automatic_creation_a_topic_must_exist(tmp_path: Path) -> None:
    """17, except for retry topics, which the broker always makes."""

    async def story(broker: Broker, client: Client) -> None:
        assert (await client.send(b="t")).code == 17
        assert (await client.send(b="%RETRY%g")).code == 0

    scenario(tmp_path, story, autoCreateTopicEnable="false")


def test_negative_queue_lets_the_broker_choose(tmp_path: Path) -> None:
    """The answer says which of the write queues it was."""

    async def story(broker: Broker, client: Client) -> None:
        chosen = {(await client.send(e="-1")).ext_fields["queueId"] for _ in range(40)}
        assert chosen == {"0", "1", "2", "3"}

    scenario(tmp_path, story)


def test_one_way_sends_are_stored_and_never_answered(tmp_path: Path) -> None:
    """Flag bit 1 means silence, also for a refusal."""

    async def story(broker: Broker, client: Client) -> None:
        for ext in ({}, {}, {"b": "bad topic!"}):
            request = RemotingCommand.request(
                RequestCode.SEND_MESSAGE_V2, {**SEND_DEFAULTS, **ext}, b"one-way"
            )
            client.channel.oneway(request)
        answer = await client.send(b"asked")
        assert answer.ext_fields["queueOffset"] == "2"
        assert client.channel.in_flight_count == 0
        assert client.pushed == []

    scenario(tmp_path, story)


def test_batch_becomes_consecutive_messages_with_their_own_properties(tmp_path: Path) -> None:
    """Offsets follow each other, ids are joined, property bytes are unchanged."""

    async def story(broker: Broker, client: Client) -> None:
        items = [
            (0, b"b0", b"TAGS\x01A\x02UNIQ_KEY\x01U0\x02"),
            (5, b"b1", b"TAGS\x01B"),
            (0, b"b2", b""),
        ]
        body = encode_batch(items)
        for code, ext in (
            (RequestCode.SEND_BATCH_MESSAGE, {"m": "true"}),
            (RequestCode.SEND_BATCH_MESSAGE, {"m": "false"}),
        ):
            outer = {**SEND_DEFAULTS, **ext, "i": "UNIQ_KEY\x01OUTER\x02WAIT\x01true\x02", "f": "1"}
            answer = await client.call(code, outer, body)
            assert answer.code == 0
            assert len(answer.ext_fields["msgId"].split(",")) == 3
            assert answer.ext_fields["transactionId"] == "OUTER"
        messages = await client.messages()
        assert [m.queue_offset for m in messages] == list(range(6))
        assert [m.body for m in messages] == [b"b0", b"b1", b"b2"] * 2
        assert [m.raw_properties for m in messages[:3]] == [item[2] for item in items]
        assert {m.sys_flag for m in messages} == {0}
        tagged = await client.messages(subscription="B")
        assert [m.body for m in tagged] == [b"b1", b"b1"]

    scenario(tmp_path, story)


def test_client_cannot_forge_what_the_broker_says_in_sys_flag(tmp_path: Path) -> None:
    """Host and transaction bits are the broker's; compression bits are kept."""

    async def story(broker: Broker, client: Client) -> None:
        for _ in range(2):
            assert (await client.send(f=str(0x30 | 0xC | 0x301))).code == 0
        assert {m.sys_flag for m in await client.messages()} == {0x301}

    scenario(tmp_path, story)


def test_retry_send_is_buried_after_its_tries(tmp_path: Path) -> None:
    """reconsumeTimes above the limit goes to %DLQ%, without delay, and the topic is made."""

    async def story(broker: Broker, client: Client) -> None:
        properties = "DELAY\x013\x02RETRY_TOPIC\x01t\x02"
        answer = await client.send(b"dead", b="%RETRY%g", j="4", l="3", i=properties)
        assert (answer.code, answer.ext_fields["queueId"]) == (0, "0")
        (message,) = await client.messages(topic="%DLQ%g")
        assert message.properties["DELAY"] == "-1"
        assert message.reconsume_times == 4
        config = broker.state.topics.get("%DLQ%g")
        assert config is not None
        assert (config.write_queue_count, config.perm) == (1, 6)
        # At the limit it still waits for its last try.
        await client.send(b"alive", b="%RETRY%g", j="3", l="3", i="DELAY\x0118\x02")
        assert len(await client.messages(topic="%DLQ%g")) == 1
        assert broker.state.store.max_queue_offset("SCHEDULE_TOPIC_XXXX", 17) == 1

    scenario(tmp_path, story)


def test_retry_send_of_an_unknown_group(tmp_path: Path) -> None:
    """26 when groups are not made automatically."""

    async def story(broker: Broker, client: Client) -> None:
        answer = await client.send(b="%RETRY%nobody")
        assert answer.code == 26

    scenario(tmp_path, story, autoCreateSubscriptionGroup="false")


def test_leftover_transaction_flag_of_a_delayed_retry(tmp_path: Path) -> None:
    """TRAN_MSG with reconsumeTimes and DELAY is a retry, not a half message (trap T29)."""

    async def story(broker: Broker, client: Client) -> None:
        properties = "TRAN_MSG\x01true\x02DELAY\x0118\x02"
        answer = await client.send(b="%RETRY%g", j="1", i=properties)
        assert answer.code == 0

    scenario(tmp_path, story)


def test_transactions_can_be_forbidden(tmp_path: Path) -> None:
    """rejectTransactionMessage answers 16."""

    async def story(broker: Broker, client: Client) -> None:
        assert (await client.send(i="TRAN_MSG\x01true\x02")).code == 16

    scenario(tmp_path, story, rejectTransactionMessage="true")


def test_synchronous_flush_answers_when_durable(tmp_path: Path) -> None:
    """Many sends in flight, all answered, in order, and readable."""

    async def story(broker: Broker, client: Client) -> None:
        answers = await asyncio.gather(*[client.send(b"%d" % n) for n in range(50)])
        assert [answer.code for answer in answers] == [0] * 50
        assert [int(a.ext_fields["queueOffset"]) for a in answers] == list(range(50))
        assert broker.state.store.flushed_offset == broker.state.store.max_physical_offset
        lazy = await client.send(i="WAIT\x01false\x02UNIQ_KEY\x01AB\x02")
        assert lazy.code == 0
        batch = await client.call(
            RequestCode.SEND_BATCH_MESSAGE,
            {**SEND_DEFAULTS, "m": "true"},
            encode_batch([(0, b"x", b"")]),
        )
        assert batch.code == 0

    scenario(tmp_path, story, flushDiskType="SYNC_FLUSH")


@pytest.mark.parametrize("when", ["DELAY\x013\x02", "TIMER_DELAY_MS\x011000\x02", ""])
def test_a_copy_for_the_retry_topic_waits_for_its_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Whatever it says: its properties are those of a retry, and its consumer drops the message."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send()
        monkeypatch.setattr(
            broker.state.store, "when_durable", lambda end, callback: callback(False)
        )
        hasty = f"WAIT\x01false\x02{when}"
        assert (await client.send(i=hasty)).code == 0
        copy = await client.send(b="%RETRY%g", j="2", i=hasty)
        assert copy.code == ResponseCode.FLUSH_DISK_TIMEOUT

    scenario(tmp_path, story, flushDiskType="SYNC_FLUSH")


def test_binary_headers_are_answered_in_kind(tmp_path: Path) -> None:
    """A ROCKETMQ-serialized send gets a ROCKETMQ-serialized answer."""

    async def story(broker: Broker, client: Client) -> None:
        for number in range(2):
            answer = await client.call(
                RequestCode.SEND_MESSAGE_V2,
                {**SEND_DEFAULTS, "i": "UNIQ_KEY\x01AB\x02"},
                b"binary",
                serialize_type=1,
            )
            assert (answer.code, answer.serialize_type) == (0, 1)
            assert answer.ext_fields["queueOffset"] == str(number)

    scenario(tmp_path, story)


def test_odd_property_strings_keep_their_meaning(tmp_path: Path) -> None:
    """Names that end like KEYS or TAGS, repeated names, ids that need escaping."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send(b"makes the topic", e="1")
        odd = 'MYTAGS\x01no\x02UNIQ_KEY\x01a"b\x02TAGS\x01old\x02TAGS\x01TagA\x02XTAGS\x01no'
        answer = await client.send(b"odd", i=odd)
        assert answer.ext_fields["transactionId"] == 'a"b'
        (message,) = await client.messages(subscription="TagA")
        assert message.properties["TAGS"] == "TagA"
        assert await client.messages(subscription="old") == []

    scenario(tmp_path, story)


def test_an_unknown_request_code_is_refused(tmp_path: Path) -> None:
    """The answer names the code."""

    async def story(broker: Broker, client: Client) -> None:
        assert (await client.call(9999)).remark == " request type 9999 not supported"

    scenario(tmp_path, story)


def test_not_before_the_time_an_operator_set(tmp_path: Path) -> None:
    """startAcceptSendRequestTimeStamp in the future answers 1."""

    async def story(broker: Broker, client: Client) -> None:
        answer = await client.send()
        assert (answer.code, "unable to service" in (answer.remark or "")) == (1, True)

    scenario(tmp_path, story, startAcceptSendRequestTimeStamp=9999999999999)

"""Typed headers: layouts, forgiving numbers, refusals that name the field, odd spellings."""

from collections.abc import Callable

import msgspec
import pytest
from tests.header_registry import REQUEST_HEADERS, RESPONSE_HEADERS

from cometmq.errors import RemoteProtocolError
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand, frame_json
from cometmq.wire.frame.framing import decode_frame
from cometmq.wire.header import admin as admin_headers
from cometmq.wire.header import headers
from cometmq.wire.header import namesrv as namesrv_headers
from cometmq.wire.header.admin import GetAllTopicsHeader
from cometmq.wire.header.header import Header
from cometmq.wire.header.headers import (
    GetMaxOffsetHeader,
    PullMessageHeader,
    PullResponseHeader,
    QueueHeader,
    SearchOffsetHeader,
    SendMessageHeader,
    SendMessageLongHeader,
    SendResponseHeader,
    UnregisterClientHeader,
)
from cometmq.wire.header.namesrv import (
    BrokerHeartbeatHeader,
    GetRouteHeader,
    RegisterBrokerHeader,
)

CLASSES = sorted(
    {
        getattr(module, name)
        for module in (headers, namesrv_headers, admin_headers)
        for name in module.__all__
    },
    key=lambda kind: kind.__name__,
)
SHORT = {
    "a": "group",
    "b": "topic",
    "c": "TBW102",
    "d": "4",
    "e": "-1",
    "f": "769",
    "g": "1795264279777",
    "h": "7",
    "i": "TAGS\x01TagA\x02",
    "j": "2",
    "k": "true",
    "l": "16",
    "m": "true",
    "n": "broker-a",
}
LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "bname",
}


def command_of(code: int, ext_json: str) -> RemotingCommand:
    """A request as a peer sends it."""
    return decode_frame(frame_json(b'{"code":%d,"extFields":%b}' % (code, ext_json.encode()), b""))


def json_of(ext: dict[str, str]) -> str:
    """Ext fields as JSON."""
    return msgspec.json.encode(ext).decode()


@pytest.mark.parametrize("code", [10, 310, 320, 324, 325])
@pytest.mark.parametrize("is_long", [False, True])
def test_sends_are_read_in_both_layouts_for_every_code(code: int, is_long: bool) -> None:
    """Go sends 10 with long and 320 with short names; we take either anywhere."""
    ext = {LONG_NAMES[name]: value for name, value in SHORT.items()} if is_long else SHORT
    for header in (
        SendMessageHeader.from_command(command_of(code, json_of(ext))),
        SendMessageHeader.from_ext(ext),
    ):
        assert (header.producer_group, header.topic, header.default_topic) == (
            "group",
            "topic",
            "TBW102",
        )
        assert (header.default_topic_queue_nums, header.queue_id, header.sys_flag) == (4, -1, 769)
        assert (header.born_timestamp_ms, header.flag) == (1795264279777, 7)
        assert header.properties == "TAGS\x01TagA\x02"
        assert (header.reconsume_times, header.max_reconsume_times) == (2, 16)
        assert (header.unit_mode, header.batch, header.broker_name) == (True, True, "broker-a")
        assert header.to_ext() == ext


def test_optional_fields_of_a_send_have_defaults() -> None:
    """What C++ and older clients leave out."""
    ext = {name: SHORT[name] for name in "abcdefgh"}
    header = SendMessageHeader.from_ext(ext)
    assert (header.properties, header.reconsume_times, header.unit_mode) == ("", 0, False)
    assert (header.max_reconsume_times, header.batch, header.broker_name) == (None, False, None)


def test_numbers_and_bools_may_come_bare() -> None:
    """T3, on the fast way and on the slow one."""
    text = (
        '{"a":"g","b":"t","c":"TBW102","d":4,"e":3,"f":0,"g":1795264279777,"h":0,"k":false,'
        '"m":true,"Signature":"","AccessKey":"","OnsChannel":""}'
    )
    header = SendMessageHeader.from_command(command_of(310, text))
    assert (header.queue_id, header.batch) == (3, True)
    # A number where text is expected needs the forgiving reader.
    header = SendMessageHeader.from_command(command_of(310, text.replace('"t"', "5")))
    assert (header.topic, header.queue_id) == ("5", 3)


@pytest.mark.parametrize(
    ("text", "expected"), [("+5", 5), ("007", 7), ("-03", -3), ("0", 0), ("-0", 0)]
)
def test_javas_forms_of_a_number(text: str, expected: int) -> None:
    """Integer.parseInt takes a plus sign and leading zeros."""
    ext = {"topic": "t", "queueId": text}
    assert QueueHeader.from_ext(ext).queue_id == expected
    assert QueueHeader.from_command(command_of(31, json_of(ext))).queue_id == expected


def test_empty_text_is_absent_for_numbers_and_bools() -> None:
    """T24; for text it stays empty."""
    header = SendMessageHeader.from_ext({**SHORT, "j": "", "l": "", "m": "", "i": ""})
    assert (header.reconsume_times, header.max_reconsume_times, header.batch) == (0, None, False)
    assert header.properties == ""
    with pytest.raises(RemoteProtocolError, match="required field e \\(queue_id\\) is missing"):
        SendMessageHeader.from_ext({**SHORT, "e": ""})


@pytest.mark.parametrize("bool_text", ["TRUE", "True", "true", "1"])
def test_words_for_true(bool_text: str) -> None:
    """Boolean.parseBoolean ignores the case."""
    ext = {"topic": "t", "queueId": "0", "committed": bool_text}
    assert GetMaxOffsetHeader.from_ext(ext).committed is True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"b": None}, "SendMessageHeader: the required field b (topic) is missing"),
        ({"d": "four"}, "field d (default_topic_queue_nums) is 'four', expected int"),
        ({"e": "1.5"}, "field e (queue_id) is '1.5'"),
        ({"e": " 1"}, "field e (queue_id) is ' 1'"),
        ({"e": "2147483648"}, "expected int <= 2147483647"),
        ({"f": "-2147483649"}, "expected int >= -2147483648"),
        ({"g": "9223372036854775808"}, "expected int <= 9223372036854775807"),
        ({"g": "٣"}, "field g (born_timestamp_ms)"),
        ({"k": "yes"}, "field k (unit_mode) is 'yes', expected bool"),
        ({"m": "2"}, "field m (batch) is '2'"),
    ],
)
def test_refusals_name_field_value_and_expectation(
    change: dict[str, str | None], words: str
) -> None:
    """The same words whichever way the header came."""
    ext = {**SHORT, **change}
    known = {name: value for name, value in ext.items() if value is not None}
    reads: list[Callable[[], object]] = [
        lambda: SendMessageHeader.from_ext(known),
        lambda: SendMessageHeader.from_command(command_of(310, json_of(known))),
    ]
    for read in reads:
        with pytest.raises(RemoteProtocolError) as caught:
            read()
        assert words in str(caught.value)


def test_no_ext_fields_at_all() -> None:
    """A header of optional fields is fine, one of mandatory fields is not."""
    bare = decode_frame(frame_json(b'{"code":21}', b""))
    assert GetAllTopicsHeader.from_command(bare) == GetAllTopicsHeader()
    assert GetRouteHeader.from_command(bare).topic is None
    with pytest.raises(RemoteProtocolError, match="required field topic is missing"):
        QueueHeader.from_command(bare)


def test_ext_fields_already_asked_for_are_used() -> None:
    """A command can be decoded twice in any order."""
    command = command_of(310, json_of(SHORT))
    assert command.ext_fields == SHORT
    assert SendMessageHeader.from_command(command).topic == "topic"


def test_odd_spellings_stay() -> None:
    """Traps of T30: they are spelled that way."""
    assert UnregisterClientHeader("c").to_ext() == {"clientID": "c"}
    pull = PullMessageHeader("g", "t", 0, 0, 32, 0, 0, 15000, proxy_forward_client_id="p")
    assert {"proxyFrowardClientId", "suspendTimeoutMillis", "maxMsgNums"} <= pull.to_ext().keys()
    heartbeat = BrokerHeartbeatHeader("c", "a", "b", heartbeat_timeout_ms=1)
    register = RegisterBrokerHeader("b", "a", "c", "h", 0, heartbeat_timeout_ms=1)
    assert "heartbeatTimeoutMills" in heartbeat.to_ext()
    assert "heartbeatTimeoutMillis" in register.to_ext()


def test_answers_carry_what_clients_cannot_do_without() -> None:
    """T7: Java fails with a NullPointerException where one is missing."""
    assert SendResponseHeader("id", 0, 0).to_ext().keys() >= {"msgId", "queueId", "queueOffset"}
    assert PullResponseHeader(0, 5, 1, 9).to_ext() == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "5",
        "minOffset": "1",
        "maxOffset": "9",
    }


def test_boundary_defaults_to_lower() -> None:
    """docs/internals/protocol.md#consumer-offsets."""
    ext = {"topic": "t", "queueId": "0", "timestamp": "-1"}
    assert SearchOffsetHeader.from_ext(ext).boundary_type == "LOWER"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_header_comes_back(kind: type[Header]) -> None:
    """Filled with values of the right kind, each class survives both ways."""
    values: dict[str, object] = {}
    for number, field in enumerate(msgspec.structs.fields(kind)):
        text = str(field.type)
        if "bool" in text:
            values[field.name] = number % 2 == 0
        elif "int" in text:
            values[field.name] = -number - 1
        else:
            values[field.name] = f"值{number}"
    header = kind(**values)
    ext = header.to_ext()
    assert all(type(value) is str for value in ext.values())
    assert len(ext) == len(values)
    assert kind.from_ext(ext) == header
    assert kind.from_command(command_of(31999, json_of(ext))) == header


def test_both_send_headers_have_the_same_attributes() -> None:
    """Code that got one need not know which."""
    assert SendMessageHeader.__struct_fields__ == SendMessageLongHeader.__struct_fields__


def test_codes_of_ordinary_clients_have_their_headers() -> None:
    """Group (a) of docs/internals/protocol.md#request-codes but for the codes without ext fields of
    their own."""
    no_fields = {
        RequestCode.HEART_BEAT,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.CHECK_CLIENT_CONFIG,
    }
    ordinary = {10, 11, 12, 14, 15, 17, *range(29, 43), 46, 105, 220, 221, 307, 309, 310, 320, 361}
    assert ordinary - no_fields <= set(REQUEST_HEADERS)
    assert set(RESPONSE_HEADERS) - {RequestCode.HEART_BEAT} <= set(REQUEST_HEADERS) | {26, 1005}

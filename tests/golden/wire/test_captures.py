"""Every captured frame decodes and is written again."""

import collections
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.golden.wire.captures import (
    FILES,
    CapturedFrame,
    load_autoswitch,
    load_frames,
    load_transfers,
)
from tests.header_registry import REQUEST_HEADERS, RESPONSE_HEADERS

from cometmq.codec.batch import decode_batch, encode_batch
from cometmq.codec.properties import (
    decode_properties,
    encode_properties,
    ensure_trailing_separator,
)
from cometmq.codec.stored_message import decode_message, decode_messages
from cometmq.errors import CodecError, RemoteProtocolError
from cometmq.model.queue import MessageQueue
from cometmq.wire.body import admin as admin_body
from cometmq.wire.body import client as client_body
from cometmq.wire.body import controller as controller_body
from cometmq.wire.body import route as route_body
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import BINARY, RemotingCommand, encode_command
from cometmq.wire.command.fastjson import dumps, loads_lenient
from cometmq.wire.frame.framing import FrameReader, decode_frame
from cometmq.wire.header.header import RIDER_FIELDS
from cometmq.wire.header.headers import SendMessageHeader

FRAMES = 5668
TRANSFERS = 58


def test_all_captures_are_here() -> None:
    """The set of captured files is complete, so that no test passes on fewer."""
    assert (len(FILES), len(load_frames()), len(load_transfers())) == (121, FRAMES, TRANSFERS)
    assert len(load_autoswitch()) == 79


def test_every_frame_decodes_and_is_written_again() -> None:
    """Headers come back equal field by field, and nearly all frames byte by byte."""
    byte_equal = collections.Counter[tuple[str, bool]]()
    for captured in load_frames():
        command = decode_frame(captured.frame)
        assert command.code == captured.code, captured.where
        assert command.opaque == captured.opaque, captured.where
        assert command.is_response is not captured.is_request, captured.where
        written = encode_command(command)
        again = decode_frame(written)
        assert _fields(again) == _fields(command), captured.where
        kind = "binary" if command.serialize_type == BINARY else command.language
        byte_equal[kind, written == captured.frame] += 1
    assert byte_equal == {
        ("JAVA", True): 4654,
        # Go orders the keys of its JSON otherwise and names no serialization type.
        ("GO", False): 342,
        ("binary", True): 641,
        # Empty values, which Java's own reader turns into "absent".
        ("binary", False): 31,
    }


def _fields(command: RemotingCommand) -> tuple[Any, ...]:
    return (
        command.code,
        command.opaque,
        command.flag,
        command.language,
        command.version,
        command.remark,
        command.ext_fields,
        command.has_ext_fields,
        command.body,
        command.serialize_type,
    )


def test_a_whole_connection_is_cut_into_its_frames() -> None:
    """A stream of all frames in pieces of an odd size gives the same commands."""
    frames = load_frames()
    stream = b"".join([captured.frame for captured in frames])
    reader = FrameReader()
    commands: list[RemotingCommand] = []
    for position in range(0, len(stream), 1009):
        commands += reader.receive(stream[position : position + 1009])
    assert [command.opaque for command in commands] == [captured.opaque for captured in frames]
    assert reader.pending_bytes == 0


# A typed header stands for these answers too, but they carry none of its fields.
WITHOUT_FIELDS = {
    (10, 29): 2,
    (11, 1): 4,
    (11, 16): 8,
    (11, 17): 4,
    (11, 24): 4,
    (11, 25): 13,
    (11, 27): 2,
    (11, 29): 14,
    (14, 22): 49,
    (310, 1): 14,
    (310, 13): 6,
    (310, 16): 8,
    (310, 17): 4,
    (310, 29): 14,
    (324, 1): 2,
}
# Requests that lack a mandatory field, made so on purpose; a binary empty topic is absent.
REFUSED_REQUESTS = {11: 4, 310: 6}
# 206 from Go has a topic nobody reads; 344x are POP codes in 16 bits.
WITHOUT_CLASS = {206: 1, 3444: 2, 3446: 2, 3447: 2}


def test_typed_headers_come_back_as_the_same_map() -> None:
    """from_command, from_ext and to_ext agree with every captured header of a known code."""
    compared = 0
    refused = collections.Counter[int]()
    without_fields = collections.Counter[tuple[int, int]]()
    without_class = collections.Counter[int]()
    no_fields = 0
    added = collections.Counter[str]()
    for captured in load_frames():
        registry = REQUEST_HEADERS if captured.is_request else RESPONSE_HEADERS
        header_class = registry.get(captured.request_code)
        command = decode_frame(captured.frame)
        ext = {name: value for name, value in command.ext_fields.items() if value != ""}
        own = ext.keys() - (RIDER_FIELDS - {"bname"} if _owns_bname(captured) else RIDER_FIELDS)
        if header_class is None:
            if own:
                without_class[captured.request_code] += 1
            else:
                no_fields += 1
            continue
        try:
            header = header_class.from_command(decode_frame(captured.frame))
        except RemoteProtocolError:
            if captured.is_request:
                refused[captured.code] += 1
            else:
                without_fields[captured.request_code, captured.code] += 1
            continue
        assert header == header_class.from_ext(command.ext_fields), captured.where
        written = {name: value for name, value in header.to_ext().items() if value != ""}
        assert {name: ext[name] for name in own} == {
            name: value for name, value in written.items() if name in own
        }, captured.where
        for name in written.keys() - ext.keys():
            added[f"{captured.request_code} {name}={written[name]}"] += 1
        compared += 1
    assert refused == REFUSED_REQUESTS
    assert without_fields == WITHOUT_FIELDS
    assert without_class == WITHOUT_CLASS
    # Defaults that we write out where the sender left them to the reader.
    assert added == {
        "10 reconsumeTimes=0": 4,
        "10 unitMode=false": 4,
        "10 batch=false": 4,
        "29 boundaryType=LOWER": 15,
        "30 committed=true": 13,
    }
    assert (compared, no_fields) == (3801, 1702)


def _owns_bname(captured: CapturedFrame) -> bool:
    return captured.code == RequestCode.CHECK_TRANSACTION_STATE and captured.is_request


MESSAGE_BODIES = {
    (RequestCode.PULL_MESSAGE, False): 171,
    (RequestCode.QUERY_MESSAGE, False): 14,
    (RequestCode.VIEW_MESSAGE_BY_ID, False): 6,
    (RequestCode.CHECK_TRANSACTION_STATE, True): 18,
    (RequestCode.CONSUME_MESSAGE_DIRECTLY, True): 1,
    (RequestCode.LITE_PULL_MESSAGE, False): 10,
    (RequestCode.POP_MESSAGE, False): 4,
    (RequestCode.PEEK_MESSAGE, False): 1,
}


def test_stored_messages_come_back_byte_by_byte() -> None:
    """Bodies of pulls, queries and relays decode, hold their checksums and encode equally."""
    found = collections.Counter[tuple[int, bool]]()
    messages = 0
    for captured in load_frames():
        key = (captured.request_code, captured.is_request)
        body = decode_frame(captured.frame).body
        if key not in MESSAGE_BODIES or not body:
            continue
        decoded = decode_messages(body)
        assert b"".join([message.encode() for message in decoded]) == body, captured.where
        for message in decoded:
            assert message.is_body_crc_right, captured.where
            # All stored properties end with the separator; the map survives a new encoding.
            assert message.raw_properties.endswith(b"\x02"), captured.where
            assert decode_properties(encode_properties(message.properties)) == message.properties
        found[key] += 1
        messages += len(decoded)
    assert found == MESSAGE_BODIES
    assert messages == 325


def test_batch_bodies_come_back_byte_by_byte() -> None:
    """Java 4.9.8 ends its property strings without a separator, which must survive too."""
    batches = [
        captured
        for captured in load_frames()
        if captured.is_request and captured.code == RequestCode.SEND_BATCH_MESSAGE
    ]
    assert len(batches) == 5
    for captured in batches:
        command = decode_frame(captured.frame)
        items = decode_batch(command.body)
        assert encode_batch(items) == command.body, captured.where
        assert [body for _, body, _ in items] == [b"batch body 0", b"batch body 1", b"batch body 2"]
        assert [decode_properties(raw)["TAGS"] for _, _, raw in items] == [
            "TagB0",
            "TagB1",
            "TagB2",
        ]
        assert decode_properties(items[1][2])["n"] == "二"
        assert SendMessageHeader.from_command(command).batch is True


def test_epochs_of_a_broker_are_written_alike() -> None:
    """The answer to 1007 of a broker that has been a master."""
    compared = 0
    for captured in load_frames():
        if captured.is_request or captured.request_code != 1007:
            continue
        body = decode_frame(captured.frame).body
        data = json.loads(body)
        epochs = [(each["epoch"], each["startOffset"]) for each in data["epochList"]]
        assert body == controller_body.encode_epoch_cache(
            data["clusterName"], data["brokerName"], data["brokerId"], epochs, data["maxOffset"]
        )
        compared += 1
    assert compared == 4


def test_properties_of_sends_survive() -> None:
    """The property string of a send header and its encoded bytes hold equal properties."""
    count = 0
    for captured in load_frames():
        if not captured.is_request or captured.code not in (10, 310, 324, 325):
            continue
        command = decode_frame(captured.frame)
        text = command.ext_fields.get("i", command.ext_fields.get("properties", ""))
        properties = decode_properties(text)
        raw = encode_properties(properties)
        assert decode_properties(raw) == properties, captured.where
        if properties:
            assert sorted(raw.split(b"\x02")) == sorted(
                ensure_trailing_separator(text.encode()).split(b"\x02")
            ), captured.where
            count += 1
    assert count == 401


Codec = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]


def _by_class(kind: Any) -> Codec:
    return kind.decode, kind.encode


def _cluster_info(value: Any) -> bytes:
    return route_body.encode_cluster_info(*value)


def _topic_list(value: route_body.TopicList) -> bytes:
    return route_body.encode_topic_list(value.topics, value.broker_addr)


def _delay_offsets(value: Any) -> bytes:
    return admin_body.encode_delay_offsets(*value)


def _sync_state_set(value: controller_body.SyncStateSet) -> bytes:
    return controller_body.encode_sync_state_set(value.members, value.epoch)


SYNC_STATE_SET: Codec = (controller_body.decode_sync_state_set, _sync_state_set)
TOPIC_LIST: Codec = (route_body.decode_topic_list, _topic_list)
DATA_VERSION: Codec = (route_body.decode_data_version, route_body.encode_data_version)
GROUP_CONFIG: Codec = (admin_body.decode_group_config, admin_body.encode_group_config)
KV_TABLE: Codec = (route_body.decode_kv_table, route_body.encode_kv_table)
BODY_CODECS: dict[tuple[int, bool], Codec] = {
    (18, True): (admin_body.decode_topic_config_list, admin_body.encode_topic_config_list),
    (21, False): (
        route_body.decode_topic_config_wrapper,
        route_body.encode_topic_config_wrapper,
    ),
    (28, False): KV_TABLE,
    (34, True): _by_class(client_body.HeartbeatData),
    (38, False): _by_class(client_body.ConsumerListBody),
    (41, True): _by_class(client_body.LockBatchRequest),
    (41, False): _by_class(client_body.LockBatchResponse),
    (42, True): _by_class(client_body.LockBatchRequest),
    (43, False): (admin_body.decode_consumer_offsets, admin_body.encode_consumer_offsets),
    (45, False): (admin_body.decode_delay_offsets, _delay_offsets),
    (46, True): _by_class(client_body.CheckClientConfigBody),
    (103, True): (
        route_body.decode_register_broker_body,
        route_body.encode_register_broker_body,
    ),
    (105, False): (route_body.decode_topic_route, route_body.encode_topic_route),
    (106, False): (route_body.decode_cluster_info, _cluster_info),
    (200, True): GROUP_CONFIG,
    (201, False): (
        admin_body.decode_group_config_wrapper,
        admin_body.encode_group_config_wrapper,
    ),
    (202, False): (admin_body.decode_topic_stats, admin_body.encode_topic_stats),
    (203, False): (
        admin_body.decode_consumer_connection,
        admin_body.encode_consumer_connection,
    ),
    (204, False): (
        admin_body.decode_producer_connection,
        admin_body.encode_producer_connection,
    ),
    (206, False): TOPIC_LIST,
    (208, False): (admin_body.decode_consume_stats, admin_body.encode_consume_stats),
    (217, True): (route_body.decode_topic_route, route_body.encode_topic_route),
    (219, False): KV_TABLE,
    (220, True): _by_class(client_body.ResetOffsetBody),
    (221, False): _by_class(client_body.ConsumerStatusBody),
    (222, False): _by_class(client_body.ResetOffsetBody),
    (223, False): _by_class(client_body.ConsumerStatusBody),
    (224, False): TOPIC_LIST,
    (225, True): (admin_body.decode_group_config_list, admin_body.encode_group_config_list),
    (300, False): (admin_body.decode_group_list, admin_body.encode_group_list),
    (304, False): TOPIC_LIST,
    (305, False): TOPIC_LIST,
    (307, False): _by_class(client_body.ConsumerRunningInfo),
    (309, False): _by_class(client_body.ConsumeDirectlyResult),
    (311, False): TOPIC_LIST,
    (312, False): TOPIC_LIST,
    (313, False): TOPIC_LIST,
    (322, True): DATA_VERSION,
    (322, False): DATA_VERSION,
    (343, False): TOPIC_LIST,
    (351, False): (admin_body.decode_topic_config, admin_body.encode_topic_config),
    (352, False): GROUP_CONFIG,
    (901, False): (route_body.decode_member_group, route_body.encode_member_group),
    (1001, True): SYNC_STATE_SET,
    (1001, False): SYNC_STATE_SET,
    (1003, False): SYNC_STATE_SET,
    (1004, False): SYNC_STATE_SET,
    (1006, True): (controller_body.decode_broker_names, controller_body.encode_broker_names),
    (1006, False): (controller_body.decode_replicas_info, controller_body.encode_replicas_info),
    (1008, True): SYNC_STATE_SET,
}


def test_typed_bodies_come_back_as_the_same_value() -> None:
    """Decoding and encoding a body keeps every value; only defaults are added."""
    compared = collections.Counter[tuple[int, bool]]()
    added: set[str] = set()
    for captured in load_frames():
        key = (captured.request_code, captured.is_request)
        body = decode_frame(captured.frame).body
        if key not in BODY_CODECS or not body:
            continue
        decode, encode = BODY_CODECS[key]
        theirs = loads_lenient(body)
        ours = loads_lenient(encode(decode(body)))
        _compare(theirs, ours, f"{key[0]}", added, captured.where)
        compared[key] += 1
    assert set(compared) == set(BODY_CODECS)
    assert sum(compared.values()) == BODIES_COMPARED
    assert added == ADDED_DEFAULTS


BODIES_COMPARED = 1065
# What a sender may leave to the reader's defaults and we write out.
GROUP_DEFAULTS = {
    "attributes={}",
    "brokerId=0",
    "consumeBroadcastEnable=true",
    "consumeEnable=true",
    "consumeFromMinEnable=true",
    "consumeMessageOrderly=false",
    "consumeTimeoutMinute=15",
    'groupRetryPolicy={"type": "CUSTOMIZED"}',
    "groupSysFlag=0",
    "notifyConsumerIdsChangedEnable=true",
    "retryMaxTimes=16",
    "retryQueueNums=1",
    "whichBrokerWhenConsumeSlowly=1",
}
ADDED_DEFAULTS = {
    "34.heartbeatFingerprint=0",
    "34.withoutSub=false",
    "41.onlyThisBroker=false",
    "42.onlyThisBroker=false",
    "200.consumeTimeoutMinute=15",
    '200.groupRetryPolicy={"type": "CUSTOMIZED"}',
    *[f"225.groupConfigList[].{default}" for default in GROUP_DEFAULTS],
}


def _compare(theirs: Any, ours: Any, path: str, added: set[str], where: str) -> None:
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), (where, path)
        for name in ours.keys() - theirs.keys():
            added.add(f"{path}.{_general(name)}={json.dumps(ours[name])}")
        for name, value in theirs.items():
            if name == "codeSet":
                # Go's codes are text and hash the wrong bytes; ours are computed anew.
                continue
            assert name in ours, (where, path, name)
            _compare(value, ours[name], f"{path}.{_general(name)}", added, where)
    elif isinstance(theirs, list):
        assert isinstance(ours, list), (where, path)
        assert len(ours) == len(theirs), (where, path)
        if path.endswith(".tagsSet"):
            theirs, ours = sorted(theirs), sorted(ours)
        for value, our in zip(theirs, ours, strict=True):
            _compare(value, our, f"{path}[]", added, where)
    else:
        assert ours == theirs, (where, path)


def _general(name: Any) -> str:
    return "QUEUE" if isinstance(name, MessageQueue) else str(name)


def test_tag_codes_of_java_are_ours() -> None:
    """Our codes of tags equal those that a Java client sent."""
    count = 0
    for captured in load_frames():
        if captured.code != RequestCode.HEART_BEAT or not captured.is_request:
            continue
        command = decode_frame(captured.frame)
        if command.language != "JAVA":
            continue
        theirs = [
            {int(code) for code in subscription["codeSet"]}
            for consumer in loads_lenient(command.body)["consumerDataSet"]
            for subscription in consumer["subscriptionDataSet"]
        ]
        ours = [
            set(subscription.code_set)
            for consumer in client_body.HeartbeatData.decode(command.body).consumers
            for subscription in consumer.subscriptions
        ]
        assert ours == theirs, captured.where
        count += sum(map(len, ours))
    assert count == TAG_CODES


TAG_CODES = 12


def test_every_json_body_survives_our_reader_and_writer() -> None:
    """Every JSON body keeps its value when read and written, also without a structure."""
    count = collections.Counter[bool]()
    for captured in load_frames():
        body = decode_frame(captured.frame).body
        if not body.startswith((b"{", b"[")):
            continue
        value = loads_lenient(body)
        assert loads_lenient(dumps(value)) == value, captured.where
        try:
            json.loads(body)
        except ValueError:
            count[False] += 1
        else:
            count[True] += 1
    assert count == JSON_BODIES


# 118 bodies hold fastjson's bare keys and are no JSON.
JSON_BODIES = {True: 980, False: 118}


def test_replication_streams_hold_whole_records() -> None:
    """A master's transfer is a head of 12 bytes and commit log records as they are stored."""
    records = 0
    for transfer in load_transfers():
        if not transfer.is_from_master:
            assert len(transfer.data) == 8, transfer.where
            continue
        offset = int.from_bytes(transfer.data[:8], "big")
        size = int.from_bytes(transfer.data[8:12], "big")
        payload = transfer.data[12:]
        assert (offset, size) == (transfer.offset, len(payload)), transfer.where
        position = 0
        while position < size:
            message = decode_message(payload, position, check_crc=True)
            end = position + message.total_size
            assert message.encode() == payload[position:end], transfer.where
            assert message.physical_offset == offset + position, transfer.where
            position = end
            records += 1
    assert records == RECORDS


RECORDS = 36


@pytest.mark.parametrize("cut", [1, 4, 50, 90])
def test_a_cut_answer_is_refused(cut: int) -> None:
    """A pull answer without its end raises an error and gives no shorter list."""
    captured = next(
        item
        for item in load_frames()
        if item.request_code == 11 and not item.is_request and item.code == 0
    )
    body = decode_frame(captured.frame).body
    with pytest.raises(CodecError, match="record at position"):
        decode_messages(body[:-cut])

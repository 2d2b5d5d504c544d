"""Bodies of statistics: Java's layout byte by byte, round trips, refusals that name the field."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.errors import CodecError
from cometmq.model.group import SubscriptionData
from cometmq.model.queue import MessageQueue
from cometmq.wire.body import stats
from cometmq.wire.body.admin import ConsumeStats, OffsetWrapper
from cometmq.wire.body.stats import (
    ConsumeQueueView,
    ProducerInfo,
    QueueTimeSpan,
    StatsWindow,
    StatsWindows,
    TopicSubscription,
    UnitView,
    encode_consume_queue_view,
)
from cometmq.wire.command.fastjson import loads_object

QUEUE = MessageQueue("t", "b", 0)
SUBSCRIPTION = SubscriptionData("t", "TagA", frozenset({"TagA"}), frozenset({2598919}), 7)
PRODUCER = ProducerInfo("c@1", "/1.2.3.4:5", "JAVA", 493, 9)
SPAN = QueueTimeSpan(QUEUE, 1, 2, 3, 4)
WINDOWS = StatsWindows(StatsWindow(1, 2.5, 3.5), StatsWindow(4, 5.0, 6.0), StatsWindow())
VIEW = ConsumeQueueView(0, 9, (UnitView(5, 6, 7), UnitView(1, 2, -9, "gone")), SUBSCRIPTION, "x")


def test_layouts_are_javas() -> None:
    """What RocketMQ 5.4.0 answers to 328, 303, 308, 315, 321 and 353."""
    assert stats.encode_producer_table({"g": [PRODUCER]}) == (
        b'{"data":{"g":[{"clientId":"c@1","language":"JAVA","lastUpdateTimestamp":9,'
        b'"remoteIP":"/1.2.3.4:5","version":493}]}}'
    )
    (span,) = loads_object(stats.encode_time_spans([SPAN]), "303")["consumeTimeSpanSet"]
    times = {name: span.pop(name) for name in list(span) if name.endswith("Str")}
    assert span == {
        "consumeTimeStamp": 3,
        "delayTime": 4,
        "maxTimeStamp": 2,
        "messageQueue": {"brokerName": "b", "queueId": 0, "topic": "t"},
        "minTimeStamp": 1,
    }
    assert [text[-4:] for text in times.values()] == [":003", ":002", ":001"]
    assert all(re.fullmatch(r"19(69|70)-\d\d-\d\d#\d\d:\d\d:00:00\d", t) for t in times.values())
    assert stats.encode_correction_offsets({0: 5}) == b'{"correctionOffsets":{0:5}}'
    assert stats.encode_stats_windows(WINDOWS) == (
        b'{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{"avgpt":6.0,"sum":4,"tps":5.0},'
        b'"statsMinute":{"avgpt":3.5,"sum":1,"tps":2.5}}'
    )
    bare = ConsumeQueueView(0, 9, (UnitView(5, 6, 7),))
    assert stats.encode_consume_queue_view(bare) == (
        b'{"maxQueueIndex":9,"minQueueIndex":0,"queueData":[{"eval":false,"physicOffset":5,'
        b'"physicSize":6,"tagsCode":7}]}'
    )
    assert stats.encode_group_forbidden("g", "t", readable=False) == (
        b'{"group":"g","readable":false,"topic":"t"}'
    )


def test_bodies_come_back() -> None:
    """Decoding gives what was encoded."""
    table = stats.encode_producer_table({"g": [PRODUCER], "h": []})
    assert stats.decode_producer_table(table) == {"g": [PRODUCER], "h": []}
    assert stats.decode_time_spans(stats.encode_time_spans([SPAN, SPAN])) == [SPAN, SPAN]
    offsets = {0: 5, 17: 2**63 - 1}
    assert stats.decode_correction_offsets(stats.encode_correction_offsets(offsets)) == offsets
    assert stats.decode_stats_windows(stats.encode_stats_windows(WINDOWS)) == WINDOWS
    assert stats.decode_consume_queue_view(stats.encode_consume_queue_view(VIEW)) == VIEW
    empty = ConsumeQueueView(3, 3, None)
    assert stats.decode_consume_queue_view(stats.encode_consume_queue_view(empty)) == empty
    for found in (SUBSCRIPTION, None):
        one = TopicSubscription("g", "t", found)
        assert stats.decode_topic_subscription(stats.encode_topic_subscription(one)) == one
    forbidden = stats.encode_group_forbidden("g", "t", readable=True)
    assert stats.decode_group_forbidden(forbidden) == ("g", "t", True)


def test_progress_of_all_groups_is_summed() -> None:
    """317 lists groups with one item a topic, and adds up what is left to read."""
    progress = ConsumeStats({QUEUE: OffsetWrapper(10, 4, 7, 1)}, 0.5)
    data = loads_object(
        stats.encode_broker_consume_stats("h:1", {"g": [progress, progress], "idle": []}), "317"
    )
    assert data["brokerAddr"] == "h:1"
    assert (data["totalDiff"], data["totalInflightDiff"]) == (12, 6)
    assert [list(item) for item in data["consumeStatsList"]] == [["g"], ["idle"]]
    (first, _) = data["consumeStatsList"][0]["g"]
    assert first["consumeTps"] == 0.5
    assert first["offsetTable"][QUEUE]["pullOffset"] == 7


@pytest.mark.parametrize(
    ("decode", "raw", "fault"),
    [
        (stats.decode_producer_table, b"[]", "expected a JSON object"),
        (stats.decode_producer_table, b'{"data":[]}', "field data is"),
        (stats.decode_producer_table, b'{"data":{"g":[1]}}', "a list of objects"),
        (stats.decode_producer_table, b'{"data":{"g":[{"version":"x"}]}}', "field version is 'x'"),
        (stats.decode_time_spans, b'{"consumeTimeSpanSet":[{}]}', "no message queue"),
        (stats.decode_time_spans, b'{"consumeTimeSpanSet":7}', "a list"),
        (stats.decode_correction_offsets, b'{"correctionOffsets":{"a":1}}', "field key is 'a'"),
        (stats.decode_correction_offsets, b'{"correctionOffsets":{"1":"z"}}', "field 1 is 'z'"),
        (stats.decode_stats_windows, b'{"statsDay":3}', "field statsDay is 3"),
        (stats.decode_consume_queue_view, b'{"minQueueIndex":[]}', "field minQueueIndex"),
        (stats.decode_consume_queue_view, b'{"queueData":[{"physicSize":{}}]}', "physicSize"),
        (stats.decode_topic_subscription, b'{"group":"g"}', "topic is missing"),
        (stats.decode_group_forbidden, b'{"group":"g","topic":"t","readable":9}', "true or false"),
        (stats.decode_group_forbidden, b"nonsense", "expected a value"),
    ],
)
def test_broken_bodies_are_refused(decode: Callable[[bytes], Any], raw: bytes, fault: str) -> None:
    """CodecError names body and field."""
    with pytest.raises(CodecError, match=fault):
        decode(raw)


def test_a_unit_carries_what_is_known_of_it() -> None:
    """Bits of its filter, its extension, its message; what is unknown is left out."""
    known = UnitView(1, 2, 3, bit_map="BitMap", ext_json="{}", message="text", is_matched=True)
    body = encode_consume_queue_view(ConsumeQueueView(0, 2, (known, UnitView(4, 5, 6))))
    first, second = json.loads(body)["queueData"]
    assert (first["bitMap"], first["extendDataJson"], first["msg"]) == ("BitMap", "{}", "text")
    assert second == {"eval": False, "physicOffset": 4, "physicSize": 5, "tagsCode": 6}

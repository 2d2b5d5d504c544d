"""Bodies between clients and brokers: dialects of the clients, refusals."""

import json

import pytest

from cometmq.errors import CodecError
from cometmq.model.group import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from cometmq.model.queue import MessageQueue
from cometmq.wire.body.client import (
    CheckClientConfigBody,
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerListBody,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    ResetOffsetBody,
    subscription_from_json,
)

SUBSCRIPTION = SubscriptionData(
    "t", "TagA || 标签", frozenset({"TagA", "标签"}), frozenset({2598919, 857175}), 1700000000000
)
HEARTBEAT = HeartbeatData(
    "10.0.0.9@4711#1",
    ("CLIENT_INNER_PRODUCER", "pg"),
    (
        ConsumerData(
            "g",
            ConsumeType.CONSUME_PASSIVELY,
            MessageModel.CLUSTERING,
            ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            (SUBSCRIPTION,),
        ),
    ),
    5,
)
QUEUES = (MessageQueue("t", "b", 0), MessageQueue("t", "b", 1))


def test_heartbeat_is_as_java_writes_it() -> None:
    """Names and order of docs/internals/protocol.md#heartbeats."""
    assert json.loads(HEARTBEAT.encode()) == {
        "clientID": "10.0.0.9@4711#1",
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": "g",
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": [
                    {
                        "classFilterMode": False,
                        "codeSet": [857175, 2598919],
                        "expressionType": "TAG",
                        "subString": "TagA || 标签",
                        "subVersion": 1700000000000,
                        "tagsSet": ["TagA", "标签"],
                        "topic": "t",
                    }
                ],
                "unitMode": False,
            }
        ],
        "heartbeatFingerprint": 5,
        "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}, {"groupName": "pg"}],
        "withoutSub": False,
    }
    assert HeartbeatData.decode(HEARTBEAT.encode()) == HEARTBEAT


def test_heartbeat_of_cpp() -> None:
    """Ordinals for enums, text for numbers, absent sets (T26)."""
    raw = (
        b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,'
        b'"groupName":"g","messageModel":0,"subscriptionDataSet":[{"codeSet":[2598919],'
        b'"subString":"TagA","subVersion":"1700000000000","tagsSet":["TagA"],"topic":"t"}]}]}'
    )
    heartbeat = HeartbeatData.decode(raw)
    assert heartbeat.producer_groups == ()
    (consumer,) = heartbeat.consumers
    assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is MessageModel.BROADCASTING
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert consumer.subscriptions[0].sub_version == 1700000000000
    assert consumer.subscriptions[0].expression_type == "TAG"
    assert HeartbeatData.decode(b'{"clientID":"c"}') == HeartbeatData("c")


def test_heartbeat_of_go() -> None:
    """Codes as text over the wrong bytes, nanoseconds, an empty expression type (T10, T22)."""
    raw = """{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"g",
        "consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",
        "consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{
        "classFilterMode":false,"topic":"t","subString":"标签","tagsSet":["标签"],
        "codeSet":["-1853217173"],"subVersion":1795264063239072238,"expressionType":""}],
        "unitMode":false}]}"""
    (subscription,) = HeartbeatData.decode(raw.encode()).consumers[0].subscriptions
    assert subscription.code_set == frozenset({857175})
    assert subscription.sub_version == 1795264063239072238
    assert subscription.expression_type == "TAG"


def test_subscriptions_default_to_everything() -> None:
    """Null and absent mean all (T22)."""
    for data in ({"topic": "t"}, {"topic": "t", "subString": None, "tagsSet": None}):
        assert subscription_from_json(data) == SubscriptionData("t")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "HeartbeatData"),
        (b"[]", "HeartbeatData"),
        (b"{}", "clientID is missing"),
        (b'{"clientID":[]}', "clientID"),
        (b'{"clientID":"c","producerDataSet":{}}', "producerDataSet"),
        (b'{"clientID":"c","producerDataSet":[1]}', "producerDataSet"),
        (b'{"clientID":"c","producerDataSet":[{}]}', "groupName is missing"),
        (b'{"clientID":"c","heartbeatFingerprint":"x"}', "heartbeatFingerprint"),
        (b'{"clientID":"c","heartbeatFingerprint":1e300}', "heartbeatFingerprint"),
        (b'{"clientID":"c","withoutSub":2}', "withoutSub"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":9}]}', "consumeType"),
        (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"X"}]}',
            "CLUSTERING",
        ),
        (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}',
            "topic is missing",
        ),
        (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
            b'[{"topic":"t","tagsSet":[1]}]}]}',
            "tagsSet",
        ),
    ],
)
def test_broken_heartbeats_are_refused(raw: bytes, words: str) -> None:
    """The error names body and field."""
    with pytest.raises(CodecError, match=words):
        HeartbeatData.decode(raw)


def test_words_for_truth_and_numbers() -> None:
    """What C++ and tools send instead of JSON's own."""
    raw = b'{"clientID":7,"heartbeatFingerprint":"-5","withoutSub":"TRUE"}'
    assert HeartbeatData.decode(raw) == HeartbeatData("7", (), (), -5, True)
    assert HeartbeatData.decode(b'{"clientID":"c","heartbeatFingerprint":5.0,"withoutSub":1}') == (
        HeartbeatData("c", (), (), 5, True)
    )


@pytest.mark.parametrize(
    "body",
    [
        ConsumerListBody(("a@1", "b@2")),
        ConsumerListBody(()),
        CheckClientConfigBody("c", "g", SUBSCRIPTION),
        CheckClientConfigBody("c", "g", SUBSCRIPTION, "ns"),
        LockBatchRequest("g", "c", QUEUES, True),
        LockBatchResponse(QUEUES),
        ResetOffsetBody({QUEUES[0]: 5, QUEUES[1]: -1}),
        ConsumerStatusBody({QUEUES[0]: 5}, {"c": {QUEUES[1]: 6}}),
        ConsumeDirectlyResult("CR_LATER", True, False, "why", 5),
        ConsumeDirectlyResult("CR_SUCCESS"),
        ConsumerRunningInfo(
            {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
            (SUBSCRIPTION,),
            {QUEUES[0]: {"droped": False, "locked": True}},
            {QUEUES[1]: {"waitAckCount": 0}},
            {"t": {"pullTPS": 0.5}},
            {"own": "info"},
            "stack",
        ),
        ConsumerRunningInfo(),
    ],
    ids=lambda body: type(body).__name__,
)
def test_bodies_come_back(body: ConsumerListBody) -> None:
    """What is written is read."""
    assert type(body).decode(body.encode()) == body


def test_running_info_is_spelled_as_java_spells_it() -> None:
    """T30: ``droped``."""
    info = ConsumerRunningInfo(queue_table={QUEUES[0]: {"droped": False}})
    assert b'{{"brokerName":"b","queueId":0,"topic":"t"}:{"droped":false}}' in info.encode()


def test_reset_table_has_a_form_for_each_language() -> None:
    """T21; all of them are read."""
    body = ResetOffsetBody({QUEUES[0]: 5})
    assert body.encode() == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5}}'
    assert body.encode_for_cpp() == (
        b'{"offsetTable":[{"brokerName":"b","offset":5,"queueId":0,"topic":"t"}]}'
    )
    pairs = b'{"offsetTable":[[{"brokerName":"b","queueId":0,"topic":"t"},5]]}'
    for raw in (body.encode(), body.encode_for_cpp(), pairs):
        assert ResetOffsetBody.decode(raw) == body
    assert ResetOffsetBody.decode(b"{}") == ResetOffsetBody({})
    for wrong in (b'{"offsetTable":5}', b'{"offsetTable":[5]}', b'{"offsetTable":[[1,2,3]]}'):
        with pytest.raises(CodecError, match="ResetOffsetBody"):
            ResetOffsetBody.decode(wrong)


def test_results_may_be_ordinals() -> None:
    """Go sends the number."""
    raw = b'{"consumeResult":4,"remark":"boom","spentTimeMills":3}'
    assert ConsumeDirectlyResult.decode(raw) == ConsumeDirectlyResult(
        "CR_THROW_EXCEPTION", False, True, "boom", 3
    )
    for wrong in (b"{}", b'{"consumeResult":9}', b'{"consumeResult":"X"}'):
        with pytest.raises(CodecError, match="CR_SUCCESS"):
            ConsumeDirectlyResult.decode(wrong)


def test_lock_requests_without_optional_fields() -> None:
    """Go and C++ leave onlyThisBroker out."""
    raw = (
        b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t","brokerName":"b","queueId":0}]}'
    )
    assert LockBatchRequest.decode(raw) == LockBatchRequest("g", "c", (QUEUES[0],))
    with pytest.raises(CodecError, match="no message queue"):
        LockBatchRequest.decode(b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t"}]}')

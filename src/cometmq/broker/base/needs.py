"""What each request to a broker needs: on which resources it does what.

Every code that the broker serves has an entry; a code without one is for super users only, and a
test compares this table with the table of processors.

Source: DefaultAuthorizationContextBuilder and the annotations of the header classes of RocketMQ
5.4.  Codes that RocketMQ leaves unchecked have entries of our own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cometmq.core.access.policies import Action, Resource, ResourceType
from cometmq.core.transaction.open_transactions import OpenHalves
from cometmq.errors import RemoteProtocolError
from cometmq.server.access.needs import (
    ACCOUNT_NEEDS,
    Need,
    Needs,
    json_body,
    need_of_topic,
    of_both,
    of_cluster,
    of_group,
    of_topic,
    topic_resource,
)
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.adopt import DESCRIBE_REPLICA
from cometmq.wire.extensions.backlog import BacklogCode
from cometmq.wire.extensions.bulk_pull import BulkPullCode
from cometmq.wire.extensions.log_range import LogRangeCode
from cometmq.wire.extensions.staging import StagingCode
from cometmq.wire.extensions.step_down import STEP_DOWN
from cometmq.wire.extensions.why import WhyCode
from cometmq.wire.header.headers import EndTransactionHeader

__all__ = ["broker_needs"]


def _heartbeat(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    """Each group's and each subscribed topic's Sub; producers need nothing."""
    data = json_body(request)
    consumers = data.get("consumerDataSet") or ()
    if not isinstance(consumers, list | tuple):
        raise RemoteProtocolError("the heartbeat's consumerDataSet is no list")
    for consumer in consumers:
        group = str(consumer.get("groupName") or "")
        yield Need(Resource(ResourceType.GROUP, group), (Action.SUB,))
        for subscription in consumer.get("subscriptionDataSet") or ():
            yield Need(topic_resource(str(subscription.get("topic") or "")), (Action.SUB,))


def _check_client(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    group = str(json_body(request).get("group") or "")
    return (Need(Resource(ResourceType.GROUP, group), (Action.SUB,)),)


def _unregister(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    group = request.ext_fields.get("consumerGroup")
    return (Need(Resource(ResourceType.GROUP, group), (Action.SUB,)),) if group else ()


def _locks(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    data = json_body(request)
    yield Need(Resource(ResourceType.GROUP, str(data.get("consumerGroup") or "")), (Action.SUB,))
    queues = data.get("mqSet") or ()
    if not isinstance(queues, list | tuple):
        raise RemoteProtocolError("the body's mqSet is no list")
    for topic in {str(queue.get("topic") or "") for queue in queues}:
        yield Need(topic_resource(topic), (Action.SUB,))


def _view(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    """A message by its offset: of the named topic, or else of any, the state topic included."""
    topic = request.ext_fields.get("topic")
    return (need_of_topic(topic, (Action.GET, Action.SUB)),) if topic else _SUPER(request, cluster)


def _group_config(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    name = str(json_body(request).get("groupName") or "")
    return (Need(Resource(ResourceType.GROUP, name), (Action.CREATE, Action.UPDATE)),)


def _topic_list(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    configs = json_body(request).get("topicConfigList") or ()
    if not isinstance(configs, list | tuple):
        raise RemoteProtocolError("the body's topicConfigList is no list")
    for config in configs:
        yield Need(topic_resource(str(config.get("topicName") or "")), (Action.CREATE,))


def _group_list(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    configs = json_body(request).get("groupConfigList") or ()
    if not isinstance(configs, list | tuple):
        raise RemoteProtocolError("the body's groupConfigList is no list")
    for config in configs:
        resource = Resource(ResourceType.GROUP, str(config.get("groupName") or ""))
        yield Need(resource, (Action.CREATE, Action.UPDATE))


_SEND: Final = of_topic(Action.PUB, fields=("topic", "b"))
_PULL: Final = of_both(Action.SUB)
_READ: Final = of_topic(Action.GET, Action.SUB)
_ANY_GET: Final = of_both(Action.GET)
_SEE: Final = of_cluster(Action.GET)
_CHANGE: Final = of_cluster(Action.UPDATE)
_SUPER: Final = of_cluster()

_NEEDS: Final[Mapping[int, Needs]] = {
    **ACCOUNT_NEEDS,
    **dict.fromkeys(
        (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.RECALL_MESSAGE),
        _SEND,
    ),
    **dict.fromkeys((Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2), _SEND),
    **dict.fromkeys((Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, BulkPullCode.BULK_PULL), _PULL),
    Code.CONSUMER_SEND_MSG_BACK: of_group(Action.SUB),
    Code.HEART_BEAT: _heartbeat,
    Code.CHECK_CLIENT_CONFIG: _check_client,
    Code.UNREGISTER_CLIENT: _unregister,
    Code.GET_CONSUMER_LIST_BY_GROUP: of_group(Action.SUB, Action.GET),
    Code.QUERY_CONSUMER_OFFSET: of_both(Action.SUB, Action.GET),
    Code.UPDATE_CONSUMER_OFFSET: of_both(Action.SUB, Action.UPDATE),
    **dict.fromkeys((Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ), _locks),
    **dict.fromkeys(
        (
            Code.QUERY_MESSAGE,
            Code.SEARCH_OFFSET_BY_TIMESTAMP,
            Code.GET_MAX_OFFSET,
            Code.GET_MIN_OFFSET,
            Code.GET_EARLIEST_MSG_STORETIME,
            Code.GET_TOPIC_CONFIG,
        ),
        _READ,
    ),
    Code.VIEW_MESSAGE_BY_ID: _view,
    LogRangeCode.READ_LOG_RANGE: _SUPER,
    Code.UPDATE_AND_CREATE_TOPIC: of_topic(Action.CREATE),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _topic_list,
    Code.DELETE_TOPIC_IN_BROKER: of_topic(Action.DELETE),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_config,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _group_list,
    Code.DELETE_SUBSCRIPTIONGROUP: of_group(Action.DELETE, fields=("groupName",)),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: of_both(Action.UPDATE),
    Code.RESUME_CHECK_HALF_MESSAGE: of_topic(Action.UPDATE),
    **dict.fromkeys(
        (Code.INVOKE_BROKER_TO_RESET_OFFSET, BacklogCode.RESCUE, BacklogCode.REPLAY),
        of_both(Action.UPDATE),
    ),
    Code.CLONE_GROUP_OFFSET: _CHANGE,
    **dict.fromkeys(
        (Code.GET_TOPIC_STATS_INFO, Code.QUERY_TOPIC_CONSUME_BY_WHO, Code.QUERY_CONSUME_QUEUE),
        _READ,
    ),
    **dict.fromkeys(
        (
            Code.GET_CONSUME_STATS,
            Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            Code.QUERY_CONSUME_TIME_SPAN,
            Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
            WhyCode.WHY,
            BacklogCode.SKIPPED,
        ),
        _ANY_GET,
    ),
    Code.QUERY_CORRECTION_OFFSET: _READ,
    **dict.fromkeys(
        (
            Code.GET_CONSUMER_CONNECTION_LIST,
            Code.GET_CONSUMER_RUNNING_INFO,
            Code.QUERY_TOPICS_BY_CONSUMER,
            Code.GET_SUBSCRIPTIONGROUP_CONFIG,
        ),
        of_group(Action.GET),
    ),
    Code.CONSUME_MESSAGE_DIRECTLY: of_both(Action.SUB),
    StagingCode.STAGE: of_topic(Action.PUB),
    **dict.fromkeys(
        (StagingCode.PUBLISH_STAGED, StagingCode.DROP_STAGED), of_cluster(Action.PUB, Action.UPDATE)
    ),
    StagingCode.LIST_STAGED: of_cluster(Action.PUB, Action.GET),
    StagingCode.FORGET_SINK: _CHANGE,
    **dict.fromkeys(
        (
            LogRangeCode.LOG_DIGEST,
            Code.GET_ALL_TOPIC_CONFIG,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            Code.GET_ALL_CONSUMER_OFFSET,
            Code.GET_ALL_DELAY_OFFSET,
            Code.GET_ALL_MESSAGE_REQUEST_MODE,
            Code.GET_TIMER_CHECK_POINT,
            Code.GET_TIMER_METRICS,
            Code.GET_BROKER_CONFIG,
            Code.GET_BROKER_RUNTIME_INFO,
            Code.GET_BROKER_CONSUME_STATS,
            Code.GET_BROKER_HA_STATUS,
            Code.GET_BROKER_EPOCH_CACHE,
            DESCRIBE_REPLICA,
            Code.GET_PRODUCER_CONNECTION_LIST,
            Code.GET_ALL_PRODUCER_INFO,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            Code.VIEW_BROKER_STATS_DATA,
            Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
            Code.GET_COLD_DATA_FLOW_CTR_INFO,
        ),
        _SEE,
    ),
    **dict.fromkeys(
        (
            Code.UPDATE_BROKER_CONFIG,
            Code.CLEAN_EXPIRED_CONSUMEQUEUE,
            Code.CLEAN_UNUSED_TOPIC,
            Code.DELETE_EXPIRED_COMMITLOG,
            Code.EXCHANGE_BROKER_HA_INFO,
            Code.NOTIFY_BROKER_ROLE_CHANGED,
            STEP_DOWN,
            Code.EXPORT_ROCKSDB_CONFIG_TO_JSON,
            Code.POP_ROLLBACK,
            Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
            Code.RESET_MASTER_FLUSH_OFFSET,
            Code.SET_COMMITLOG_READ_MODE,
            Code.SET_MESSAGE_REQUEST_MODE,
            Code.SWITCH_TIMER_ENGINE,
            Code.UPDATE_AND_CREATE_STATIC_TOPIC,
            Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        ),
        _CHANGE,
    ),
}


def broker_needs(halves: OpenHalves) -> dict[int, Needs]:
    """Return the needs by code; the end of a transaction needs Pub of its half message's topic."""

    def end(request: RemotingCommand, cluster: str) -> Iterable[Need]:
        header = EndTransactionHeader.from_command(request)
        half = halves.find(header.tran_state_table_offset)
        topic = header.topic if half is None else half.topic
        if not topic:
            raise RemoteProtocolError("the half message is not open, and no topic is named")
        # Whatever topic the request names: else anybody could commit another one's messages.
        return (Need(topic_resource(topic), (Action.PUB,)),)

    return {**_NEEDS, Code.END_TRANSACTION: end}

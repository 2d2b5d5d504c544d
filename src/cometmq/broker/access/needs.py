"""What each request needs: on which resources it does what.

Every code that the broker serves has an entry; a code without one is for super users only, and a
test compares this table with the table of processors.  Actions of one need are alternatives, and a
request passes when each of its needs does.

Names of retry, dead-letter and parking topics stand for their group, so that reading another
group's retries needs permission for that group.

Source: DefaultAuthorizationContextBuilder and the annotations of the header classes of RocketMQ
5.4.  Codes that RocketMQ leaves unchecked have entries of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from cometmq.core.access.policies import Action, Resource, ResourceType
from cometmq.errors import RemoteProtocolError
from cometmq.model.names import DLQ_PREFIX, PARK_PREFIX, RETRY_PREFIX, SENT_PREFIX
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.command.fastjson import loads_object
from cometmq.wire.extensions.backlog import BacklogCode
from cometmq.wire.extensions.bulk_pull import BulkPullCode
from cometmq.wire.extensions.log_range import LogRangeCode
from cometmq.wire.extensions.staging import StagingCode
from cometmq.wire.extensions.step_down import STEP_DOWN
from cometmq.wire.extensions.why import WhyCode

__all__ = ["NEEDS", "Need", "Needs", "topic_resource"]

_GROUP_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX, PARK_PREFIX, SENT_PREFIX)


class Need(NamedTuple):
    """One resource, and the actions of which one must be allowed."""

    resource: Resource
    actions: tuple[Action, ...]


Needs: TypeAlias = Callable[[RemotingCommand, str], Iterable[Need]]
"""Gives what a request needs; the text is the cluster's name."""


def topic_resource(topic: str) -> Resource:
    """Return what stands for a topic: its group, if it belongs to one."""
    for prefix in _GROUP_PREFIXES:
        if topic.startswith(prefix):
            return Resource(ResourceType.GROUP, topic.removeprefix(prefix))
    return Resource(ResourceType.TOPIC, topic)


def _field(request: RemotingCommand, *names: str) -> str:
    """Return the first of these fields.

    Raises:
        RemoteProtocolError: the request has none, so nobody can say what it needs.
    """
    for name in names:
        text = request.ext_fields.get(name)
        if text:
            return text
    raise RemoteProtocolError(f"the request has no field {names[0]}")


def _topic(*actions: Action, fields: tuple[str, ...] = ("topic",)) -> Needs:
    def needs(request: RemotingCommand, cluster: str) -> Iterable[Need]:
        return (_of_topic(_field(request, *fields), actions),)

    return needs


def _of_topic(topic: str, actions: tuple[Action, ...]) -> Need:
    resource = topic_resource(topic)
    if resource.type is ResourceType.GROUP and Action.PUB in actions:
        # A message for another try is the group's own business.
        actions = (Action.SUB,)
    return Need(resource, actions)


def _group(*actions: Action, fields: tuple[str, ...] = ("consumerGroup", "group")) -> Needs:
    def needs(request: RemotingCommand, cluster: str) -> Iterable[Need]:
        return (Need(Resource(ResourceType.GROUP, _field(request, *fields)), actions),)

    return needs


def _cluster(*actions: Action) -> Needs:
    def needs(request: RemotingCommand, cluster: str) -> Iterable[Need]:
        return (Need(Resource(ResourceType.CLUSTER, cluster), actions),)

    return needs


def _both(*actions: Action, second: tuple[Action, ...] = ()) -> Needs:
    """Topic and group; a request that names one of them needs that one."""

    def needs(request: RemotingCommand, cluster: str) -> Iterable[Need]:
        ext = request.ext_fields
        group = ext.get("consumerGroup") or ext.get("group")
        topic = ext.get("topic")
        if not group and not topic:
            raise RemoteProtocolError("the request names neither topic nor group")
        found = []
        if group:
            found.append(Need(Resource(ResourceType.GROUP, group), second or actions))
        if topic:
            found.append(_of_topic(topic, actions))
        return found

    return needs


def _body(request: RemotingCommand) -> Mapping[str, object]:
    return loads_object(request.body, "the body")


def _heartbeat(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    """Each group's and each subscribed topic's Sub; producers need nothing."""
    data = _body(request)
    consumers = data.get("consumerDataSet") or ()
    if not isinstance(consumers, list | tuple):
        raise RemoteProtocolError("the heartbeat's consumerDataSet is no list")
    for consumer in consumers:
        group = str(consumer.get("groupName") or "")
        yield Need(Resource(ResourceType.GROUP, group), (Action.SUB,))
        for subscription in consumer.get("subscriptionDataSet") or ():
            yield Need(topic_resource(str(subscription.get("topic") or "")), (Action.SUB,))


def _check_client(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    group = str(_body(request).get("group") or "")
    return (Need(Resource(ResourceType.GROUP, group), (Action.SUB,)),)


def _unregister(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    group = request.ext_fields.get("consumerGroup")
    return (Need(Resource(ResourceType.GROUP, group), (Action.SUB,)),) if group else ()


def _locks(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    data = _body(request)
    yield Need(Resource(ResourceType.GROUP, str(data.get("consumerGroup") or "")), (Action.SUB,))
    queues = data.get("mqSet") or ()
    if not isinstance(queues, list | tuple):
        raise RemoteProtocolError("the body's mqSet is no list")
    for topic in {str(queue.get("topic") or "") for queue in queues}:
        yield Need(topic_resource(topic), (Action.SUB,))


def _view(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    """A message by its offset: of the named topic, or else of any."""
    topic = request.ext_fields.get("topic")
    if topic:
        return (Need(topic_resource(topic), (Action.GET, Action.SUB)),)
    return (Need(Resource(ResourceType.CLUSTER, cluster), (Action.GET,)),)


def _group_config(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    name = str(_body(request).get("groupName") or "")
    return (Need(Resource(ResourceType.GROUP, name), (Action.CREATE, Action.UPDATE)),)


def _topic_list(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    configs = _body(request).get("topicConfigList") or ()
    if not isinstance(configs, list | tuple):
        raise RemoteProtocolError("the body's topicConfigList is no list")
    for config in configs:
        yield Need(topic_resource(str(config.get("topicName") or "")), (Action.CREATE,))


def _group_list(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    configs = _body(request).get("groupConfigList") or ()
    if not isinstance(configs, list | tuple):
        raise RemoteProtocolError("the body's groupConfigList is no list")
    for config in configs:
        resource = Resource(ResourceType.GROUP, str(config.get("groupName") or ""))
        yield Need(resource, (Action.CREATE, Action.UPDATE))


_SEND: Final = _topic(Action.PUB, fields=("topic", "b"))
_PULL: Final = _both(Action.SUB)
_READ: Final = _topic(Action.GET, Action.SUB)
_ANY_GET: Final = _both(Action.GET)
_SEE: Final = _cluster(Action.GET)
_CHANGE: Final = _cluster(Action.UPDATE)

NEEDS: Final[Mapping[int, Needs]] = {
    **dict.fromkeys(
        (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.RECALL_MESSAGE),
        _SEND,
    ),
    **dict.fromkeys((Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2), _SEND),
    **dict.fromkeys((Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, BulkPullCode.BULK_PULL), _PULL),
    Code.CONSUMER_SEND_MSG_BACK: _group(Action.SUB),
    Code.HEART_BEAT: _heartbeat,
    Code.CHECK_CLIENT_CONFIG: _check_client,
    Code.UNREGISTER_CLIENT: _unregister,
    Code.GET_CONSUMER_LIST_BY_GROUP: _group(Action.SUB, Action.GET),
    Code.QUERY_CONSUMER_OFFSET: _both(Action.SUB, Action.GET),
    Code.UPDATE_CONSUMER_OFFSET: _both(Action.SUB, Action.UPDATE),
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
    Code.UPDATE_AND_CREATE_TOPIC: _topic(Action.CREATE),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _topic_list,
    Code.DELETE_TOPIC_IN_BROKER: _topic(Action.DELETE),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_config,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _group_list,
    Code.DELETE_SUBSCRIPTIONGROUP: _group(Action.DELETE, fields=("groupName",)),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _both(Action.UPDATE),
    Code.RESUME_CHECK_HALF_MESSAGE: _topic(Action.UPDATE),
    **dict.fromkeys(
        (Code.INVOKE_BROKER_TO_RESET_OFFSET, BacklogCode.RESCUE, BacklogCode.REPLAY),
        _both(Action.UPDATE),
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
        _group(Action.GET),
    ),
    Code.CONSUME_MESSAGE_DIRECTLY: _both(Action.SUB),
    StagingCode.STAGE: _topic(Action.PUB),
    **dict.fromkeys(
        (StagingCode.PUBLISH_STAGED, StagingCode.DROP_STAGED), _cluster(Action.PUB, Action.UPDATE)
    ),
    StagingCode.LIST_STAGED: _cluster(Action.PUB, Action.GET),
    StagingCode.FORGET_SINK: _CHANGE,
    **dict.fromkeys(
        (
            LogRangeCode.LOG_DIGEST,
            LogRangeCode.READ_LOG_RANGE,
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
            Code.GET_PRODUCER_CONNECTION_LIST,
            Code.GET_ALL_PRODUCER_INFO,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            Code.VIEW_BROKER_STATS_DATA,
            Code.AUTH_GET_USER,
            Code.AUTH_LIST_USER,
            Code.AUTH_GET_ACL,
            Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
            Code.GET_COLD_DATA_FLOW_CTR_INFO,
            Code.AUTH_LIST_ACL,
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
            Code.AUTH_CREATE_USER,
            Code.AUTH_UPDATE_USER,
            Code.AUTH_DELETE_USER,
            Code.AUTH_CREATE_ACL,
            Code.AUTH_UPDATE_ACL,
            Code.EXPORT_ROCKSDB_CONFIG_TO_JSON,
            Code.POP_ROLLBACK,
            Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
            Code.RESET_MASTER_FLUSH_OFFSET,
            Code.SET_COMMITLOG_READ_MODE,
            Code.SET_MESSAGE_REQUEST_MODE,
            Code.SWITCH_TIMER_ENGINE,
            Code.UPDATE_AND_CREATE_STATIC_TOPIC,
            Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            Code.AUTH_DELETE_ACL,
        ),
        _CHANGE,
    ),
}
"""The needs by code; END_TRANSACTION (37) needs Pub of its half message's topic, see guard.py."""

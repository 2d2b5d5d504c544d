"""What each request to a name server needs; the codes that RocketMQ's leaves open too.

The cluster of a request is the one that it names, else the resource ``Cluster:nameserver``.  A
route shows where a topic is, so whoever may use the topic may ask for it; the list of brokers shows
no more than routes do, and needs a signature alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cometmq.core.access.policies import Action, Resource, ResourceType
from cometmq.model.names import DEFAULT_TOPIC
from cometmq.server.access.needs import ACCOUNT_NEEDS, Need, Needs, need_of_topic, of_topic
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand

__all__ = ["CLUSTER", "NAME_SERVER_NEEDS"]

CLUSTER: Final = "nameserver"


def _nothing(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    return ()


def _route(request: RemotingCommand, cluster: str) -> Iterable[Need]:
    topic = request.ext_fields.get("topic") or ""
    if topic == DEFAULT_TOPIC:
        # Producers ask by it which brokers create topics.
        return ()
    return (need_of_topic(topic, (Action.PUB, Action.SUB, Action.GET)),)


def _of_named_cluster(*actions: Action) -> Needs:
    def needs(request: RemotingCommand, cluster: str) -> Iterable[Need]:
        ext = request.ext_fields
        name = ext.get("clusterName") or ext.get("cluster") or cluster
        return (Need(Resource(ResourceType.CLUSTER, name), actions),)

    return needs


_SEE: Final = _of_named_cluster(Action.GET, Action.LIST)
_CHANGE: Final = _of_named_cluster(Action.UPDATE)

NAME_SERVER_NEEDS: Final[Mapping[int, Needs]] = {
    **ACCOUNT_NEEDS,
    Code.GET_ROUTEINFO_BY_TOPIC: _route,
    Code.GET_BROKER_CLUSTER_INFO: _nothing,
    Code.REGISTER_TOPIC_IN_NAMESRV: of_topic(Action.CREATE),
    Code.DELETE_TOPIC_IN_NAMESRV: of_topic(Action.DELETE),
    **dict.fromkeys(
        (
            Code.GET_KV_CONFIG,
            Code.GET_KVLIST_BY_NAMESPACE,
            Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            Code.GET_TOPICS_BY_CLUSTER,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            Code.GET_UNIT_TOPIC_LIST,
            Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
            Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            Code.GET_BROKER_MEMBER_GROUP,
            Code.QUERY_DATA_VERSION,
            Code.GET_NAMESRV_CONFIG,
        ),
        _SEE,
    ),
    **dict.fromkeys(
        (
            Code.PUT_KV_CONFIG,
            Code.DELETE_KV_CONFIG,
            Code.REGISTER_BROKER,
            Code.UNREGISTER_BROKER,
            Code.BROKER_HEARTBEAT,
            Code.WIPE_WRITE_PERM_OF_BROKER,
            Code.ADD_WRITE_PERM_OF_BROKER,
            Code.UPDATE_NAMESRV_CONFIG,
        ),
        _CHANGE,
    ),
}
"""The needs by code."""

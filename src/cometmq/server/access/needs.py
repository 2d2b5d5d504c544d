"""What a request needs, and the building stones of the tables that say so.

A need is one resource with actions, of which one must be allowed; a request passes when each of its
needs does.  Names of retry, dead-letter and parking topics stand for their group, so that reading
another group's retries needs permission for that group.

Source: DefaultAuthorizationContextBuilder of RocketMQ 5.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from cometmq.core.access.policies import Action, Resource, ResourceType
from cometmq.errors import RemoteProtocolError
from cometmq.model.names import (
    DLQ_PREFIX,
    PARK_PREFIX,
    RETRY_PREFIX,
    SENT_PREFIX,
    STATE_TOPIC,
)
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.command.fastjson import loads_object

__all__ = [
    "ACCOUNT_NEEDS",
    "Need",
    "Needs",
    "json_body",
    "need_of_topic",
    "of_both",
    "of_cluster",
    "of_group",
    "of_topic",
    "topic_resource",
]

_GROUP_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX, PARK_PREFIX, SENT_PREFIX)


class Need(NamedTuple):
    """One resource, and the actions of which one must be allowed; none: super users only."""

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


def needed_field(request: RemotingCommand, *names: str) -> str:
    """Return the first of these fields.

    Raises:
        RemoteProtocolError: the request has none, so nobody can say what it needs.
    """
    for name in names:
        text = request.ext_fields.get(name)
        if text:
            return text
    raise RemoteProtocolError(f"the request has no field {names[0]}")


def of_topic(*actions: Action, fields: tuple[str, ...] = ("topic",)) -> Needs:
    """The topic that the first of these fields names."""

    def needs(request: RemotingCommand, cluster: str) -> Iterable[Need]:
        return (need_of_topic(needed_field(request, *fields), actions),)

    return needs


def need_of_topic(topic: str, actions: tuple[Action, ...]) -> Need:
    """A need of one topic, or of the group that it belongs to."""
    resource = topic_resource(topic)
    if topic == STATE_TOPIC:
        # It has the accounts of a replica set, with their passwords.
        return Need(resource, ())
    if resource.type is ResourceType.GROUP and Action.PUB in actions:
        # A message for another try is the group's own business.
        actions = (Action.SUB, *((Action.GET,) if Action.GET in actions else ()))
    return Need(resource, actions)


def of_group(*actions: Action, fields: tuple[str, ...] = ("consumerGroup", "group")) -> Needs:
    """The group that the first of these fields names."""

    def needs(request: RemotingCommand, cluster: str) -> Iterable[Need]:
        return (Need(Resource(ResourceType.GROUP, needed_field(request, *fields)), actions),)

    return needs


def of_cluster(*actions: Action) -> Needs:
    """The cluster."""

    def needs(request: RemotingCommand, cluster: str) -> Iterable[Need]:
        return (Need(Resource(ResourceType.CLUSTER, cluster), actions),)

    return needs


def of_both(*actions: Action, second: tuple[Action, ...] = ()) -> Needs:
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
            found.append(need_of_topic(topic, actions))
        return found

    return needs


def json_body(request: RemotingCommand) -> Mapping[str, object]:
    """The object of a request's body.

    Raises:
        CodecError: it is no JSON object.
    """
    return loads_object(request.body, "the body")


_SEE: Final = of_cluster(Action.GET)
_CHANGE: Final = of_cluster(Action.UPDATE)

ACCOUNT_NEEDS: Final[Mapping[int, Needs]] = {
    **dict.fromkeys(
        (Code.AUTH_GET_USER, Code.AUTH_LIST_USER, Code.AUTH_GET_ACL, Code.AUTH_LIST_ACL), _SEE
    ),
    **dict.fromkeys(
        (
            Code.AUTH_CREATE_USER,
            Code.AUTH_UPDATE_USER,
            Code.AUTH_DELETE_USER,
            Code.AUTH_CREATE_ACL,
            Code.AUTH_UPDATE_ACL,
            Code.AUTH_DELETE_ACL,
        ),
        _CHANGE,
    ),
}
"""The needs of the accounts' own codes, wherever they are served."""

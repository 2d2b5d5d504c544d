"""Connected clients and their subscriptions: the requests behind consumerConnection and the like.

Serves GET_CONSUMER_CONNECTION_LIST (203), GET_PRODUCER_CONNECTION_LIST (204), GET_ALL_PRODUCER_INFO
(328), QUERY_TOPIC_CONSUME_BY_WHO (300), QUERY_TOPICS_BY_CONSUMER (343),
QUERY_SUBSCRIPTION_BY_CONSUMER (345) and UPDATE_AND_GET_GROUP_FORBIDDEN (353).  Requests that the
clients themselves answer are served by `cometmq.broker.clients.calls`.

Source: AdminBrokerProcessor of RocketMQ 5.4.
"""

from __future__ import annotations

from functools import partial

from cometmq.broker.base.state import BrokerState, Refusal, answer, refusing
from cometmq.broker.base.store_failure import answer_saved
from cometmq.core.group.consumer_group import GroupMember
from cometmq.errors import ResponseCode
from cometmq.net.server import Handler, ServerConnection
from cometmq.wire.body.admin import (
    ClientConnection,
    ConsumerConnection,
    encode_consumer_connection,
    encode_group_list,
    encode_producer_connection,
)
from cometmq.wire.body.route import encode_topic_list
from cometmq.wire.body.stats import (
    ProducerInfo,
    TopicSubscription,
    encode_group_forbidden,
    encode_producer_table,
    encode_topic_subscription,
)
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.admin import (
    GroupForbiddenHeader,
    GroupHeader,
    ProducerGroupHeader,
    QuerySubscriptionHeader,
    TopicHeader,
)
from cometmq.wire.header.headers import ConsumerGroupHeader

__all__ = ["ClientListProcessor"]


class ClientListProcessor:
    """The processors of codes 203, 204, 300, 328, 343, 345 and 353."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        """Map each code to its processor, with refusals turned into answers."""
        table: dict[int, Handler] = {
            Code.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            Code.GET_PRODUCER_CONNECTION_LIST: self.producers,
            Code.GET_ALL_PRODUCER_INFO: self.all_producers,
            Code.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            Code.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            Code.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            Code.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbidden,
        }
        return {code: refusing(handler) for code, handler in table.items()}

    def consumers(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_CONSUMER_CONNECTION_LIST (203); 206 when nobody is online.

        Raises:
            Refusal: no consumer of the group is online.
        """
        group = ConsumerGroupHeader.from_command(request).consumer_group
        online = self._state.consumers.get(group)
        if online is None:
            raise Refusal(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online"
            )
        body = ConsumerConnection(
            tuple(_shown(peer, member) for peer, member in online.members.items()),
            online.consume_type,
            online.message_model,
            online.consume_from_where,
            online.subscriptions,
        )
        return answer(request, body=encode_consumer_connection(body))

    def producers(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_PRODUCER_CONNECTION_LIST (204).

        Raises:
            Refusal: no producer of the group is online.
        """
        group = ProducerGroupHeader.from_command(request).producer_group
        members = self._state.producers.get(group)
        if members is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        shown = [_shown(peer, member) for peer, member in members.items()]
        return answer(request, body=encode_producer_connection(shown))

    def all_producers(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_ALL_PRODUCER_INFO (328)."""
        table = {
            group: [
                ProducerInfo(
                    member.client_id,
                    f"/{peer.peer}",
                    member.language,
                    member.version,
                    member.last_update_ms,
                )
                for peer, member in members.items()
            ]
            for group, members in self._state.producers.all().items()
        }
        return answer(request, body=encode_producer_table(table))

    def groups_of_topic(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve QUERY_TOPIC_CONSUME_BY_WHO (300): groups that subscribe, or have offsets."""
        topic = TopicHeader.from_command(request).topic
        state = self._state
        groups = [*state.consumers.subscribers_of(topic), *state.offsets.groups_of(topic)]
        return answer(request, body=encode_group_list(dict.fromkeys(groups)))

    def topics_of_group(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve QUERY_TOPICS_BY_CONSUMER (343): topics in which the group has offsets."""
        group = GroupHeader.from_command(request).group
        topics = self._state.offsets.topics_of(group)
        return answer(request, body=encode_topic_list(topics, self._state.address))

    def subscription(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve QUERY_SUBSCRIPTION_BY_CONSUMER (345).

        Raises:
            Refusal: the request names no topic.
        """
        header = QuerySubscriptionHeader.from_command(request)
        if header.topic is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the request for a subscription of {header.group} names no topic; name one",
            )
        online = self._state.consumers.get(header.group)
        subscription = None if online is None else online.subscriptions.get(header.topic)
        body = TopicSubscription(header.group, header.topic, subscription)
        return answer(request, body=encode_topic_subscription(body))

    def forbidden(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve UPDATE_AND_GET_GROUP_FORBIDDEN (353): may the group read the topic?"""
        header = GroupForbiddenHeader.from_command(request)
        groups = self._state.groups
        if header.readable is not None:
            groups.forbid_reading(header.group, header.topic, not header.readable, now_ms)
            self._state.groups_changed()
        readable = not groups.is_read_forbidden(header.group, header.topic)
        body = encode_group_forbidden(header.group, header.topic, readable=readable)
        frame = answer(request, remark="", body=body)
        if header.readable is None or request.is_oneway:
            return frame
        self._state.when_groups_saved(
            partial(answer_saved, self._state, request, connection, frame)
        )
        return None


def _shown(peer: ServerConnection, member: GroupMember) -> ClientConnection:
    return ClientConnection(member.client_id, peer.peer, member.language, member.version)

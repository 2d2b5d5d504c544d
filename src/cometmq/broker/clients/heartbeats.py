"""Clients: heartbeats, leaving, membership of groups, and the notices that follow from them.

Serves HEART_BEAT, UNREGISTER_CLIENT, GET_CONSUMER_LIST_BY_GROUP and CHECK_CLIENT_CONFIG, tells the
members of a group to rebalance (NOTIFY_CONSUMER_IDS_CHANGED), and drops silent and lost clients.
`cometmq.core.group.consumer_group` decides who is a member.

A client expects its group's retry topic in the routes once its first heartbeat is answered, so that
answer waits, at most a second, until the name servers know the topic.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from cometmq.broker.base.state import BrokerState, Refusal, answer
from cometmq.broker.pull.filters import FilterService
from cometmq.core.filter.tag_filter import filter_codes, is_tag_type, parse_subscription
from cometmq.core.group.consumer_group import GroupMember
from cometmq.errors import RemoteProtocolError, ResponseCode
from cometmq.model.group import SUBSCRIBE_ALL, SubscriptionData
from cometmq.model.names import retry_topic
from cometmq.net.server import ServerConnection
from cometmq.wire.body.client import (
    CheckClientConfigBody,
    ConsumerData,
    ConsumerListBody,
    HeartbeatData,
)
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.bulk_pull import BULK_PULL_FEATURE, FEATURES_FIELD
from cometmq.wire.extensions.staging import STAGING_FEATURE
from cometmq.wire.header.headers import ConsumerGroupHeader, UnregisterClientHeader

__all__ = ["ClientProcessor"]

log = logging.getLogger("cometmq.broker")

EXPIRY_SCAN_MS: Final = 10_000
"""Time between two searches for silent clients (ClientHousekeepingService)."""
_HAS_V2: Final = "IS_SUPPORT_HEART_BEAT_V2"
_SUB_CHANGED: Final = "IS_SUB_CHANGE"
_FEATURES: Final = ",".join([BULK_PULL_FEATURE, STAGING_FEATURE])
"""What this broker does beyond RocketMQ; clients that do not know the field ignore it."""


class ClientProcessor:
    """The processors of codes 34, 35, 38 and 46, and what happens when a connection ends."""

    def __init__(self, state: BrokerState, filters: FilterService) -> None:
        self._state = state
        self._filters = filters

    # -- requests -------------------------------------------------------------------------

    def heartbeat(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve HEART_BEAT (34), version 1 and 2."""
        data = HeartbeatData.decode(request.body)
        connection.client_id = data.client_id
        connection.language = request.language
        connection.version = request.version
        member = GroupMember(data.client_id, request.language, request.version, now_ms)
        revision = self._state.topics.revision
        is_v2 = data.heartbeat_fingerprint != 0
        is_changed = not is_v2
        for consumer in data.consumers:
            if self._consumer(connection, member, consumer, data, now_ms):
                is_changed = True
        for group in data.producer_groups:
            self._state.producers.heartbeat(connection, group, member)
        frame = answer(
            request,
            ext={
                _HAS_V2: "true",
                _SUB_CHANGED: "true" if is_changed else "false",
                FEATURES_FIELD: _FEATURES,
            },
        )
        if self._state.topics.revision == revision or request.is_oneway:
            return frame
        self._state.when_registered(lambda: connection.send(frame))
        return None

    def _consumer(
        self,
        connection: ServerConnection,
        member: GroupMember,
        consumer: ConsumerData,
        data: HeartbeatData,
        now_ms: int,
    ) -> bool:
        """Apply one group of a heartbeat; True when a V2 client should send its subscription."""
        state = self._state
        settings = state.groups.find(consumer.group_name, now_ms)
        if settings is None:
            return False
        state.ensure_topic(retry_topic(consumer.group_name), settings.retry_queue_count, now_ms)
        outcome = state.consumers.heartbeat(
            connection,
            consumer.group_name,
            member,
            consumer.consume_type,
            consumer.message_model,
            consumer.consume_from_where,
            None if data.without_sub else map(_with_codes, consumer.subscriptions),
            data.heartbeat_fingerprint,
        )
        if not data.without_sub:
            # If the clock went back, an older bitmap must not count for this filter.
            born_ms = max(now_ms, state.store.last_store_ms)
            self._filters.subscribed(consumer.group_name, consumer.subscriptions, born_ms)
        if outcome.is_changed and settings.notify_consumer_ids_changed_enable:
            self._notify(consumer.group_name)
        return outcome.needs_subscription or outcome.is_fingerprint_new

    def unregister(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve UNREGISTER_CLIENT (35)."""
        header = UnregisterClientHeader.from_command(request)
        if header.producer_group is not None:
            self._state.producers.leave(connection, header.producer_group)
        group = header.consumer_group
        if group is not None and self._state.consumers.leave(connection, group):
            self._unregister_if_empty(group, now_ms)
            settings = self._state.groups.get(group)
            if settings is None or settings.notify_consumer_ids_changed_enable:
                self._notify(group)
        return answer(request)

    def consumer_list(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_CONSUMER_LIST_BY_GROUP (38); an empty list is an error, as in Java."""
        group = ConsumerGroupHeader.from_command(request).consumer_group
        online = self._state.consumers.get(group)
        if online is None:
            return answer(
                request, ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}"
            )
        body = ConsumerListBody(tuple(online.client_ids())).encode()
        return answer(request, body=body)

    def check_config(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve CHECK_CLIENT_CONFIG (46): tags are fine, SQL92 is compiled."""
        subscription = CheckClientConfigBody.decode(request.body).subscription
        if not is_tag_type(subscription.expression_type):
            try:
                self._filters.check(subscription)
            except Refusal as refusal:
                return answer(request, refusal.code, refusal.remark)
        return answer(request)

    # -- events ---------------------------------------------------------------------------

    def connection_closed(self, connection: ServerConnection) -> None:
        """Remove a lost client from its groups and have their other members rebalance."""
        self._state.producers.leave_all(connection)
        for group in self._state.consumers.leave_all(connection):
            self._unregister_if_empty(group, self._state.env.clock.now_ms())
            self._notify(group)

    def _unregister_if_empty(self, group: str, now_ms: int) -> None:
        if self._state.consumers.get(group) is None:
            self._filters.unregister_group(group, now_ms)

    def drop_expired(self, now_ms: int) -> None:
        """Cut clients without a heartbeat for channelExpiredTimeout, and forget unused filters."""
        self._filters.forget(now_ms)
        timeout_ms = self._state.config.channel_expired_timeout
        silent = dict.fromkeys(self._state.consumers.expired(now_ms, timeout_ms))
        silent.update(dict.fromkeys(self._state.producers.expired(now_ms, timeout_ms)))
        for connection in silent:
            self.connection_closed(connection)
            connection.abort(f"client {connection.client_id} sent no heartbeat for {timeout_ms} ms")

    def _notify(self, group: str) -> None:
        """Tell every member of a clustering group to rebalance now."""
        online = self._state.consumers.get(group)
        if (
            online is None
            or online.is_broadcast
            or not self._state.config.notify_consumer_ids_changed_enable
        ):
            return
        for member in online.members:
            member.oneway(
                RemotingCommand.request(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}
                )
            )


def _with_codes(subscription: SubscriptionData) -> SubscriptionData:
    """Compute the tag codes once, so that a pull only reads them.

    A client may send the expression alone, without its tags.
    """
    if not is_tag_type(subscription.expression_type):
        return subscription
    tags = subscription.tags_set
    if not tags and subscription.sub_string not in ("", SUBSCRIBE_ALL):
        try:
            tags = parse_subscription(subscription.topic, subscription.sub_string).tags_set
        except RemoteProtocolError as error:
            log.warning("a heartbeat's subscription is taken as all messages: %s", error)
    parsed = replace(subscription, tags_set=tags, expression_type="TAG")
    return replace(parsed, code_set=filter_codes(parsed) or frozenset())

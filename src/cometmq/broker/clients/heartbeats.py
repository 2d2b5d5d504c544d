"""Clients: heartbeats, leaving, membership of groups, and the notices that follow from them.

Serves HEART_BEAT, UNREGISTER_CLIENT, GET_CONSUMER_LIST_BY_GROUP and CHECK_CLIENT_CONFIG, tells the
members of a group to rebalance (NOTIFY_CONSUMER_IDS_CHANGED), and drops silent and lost clients.
`cometmq.core.group.consumer_group` decides who is a member, and `filter_shares` beside it how
members read whose subscriptions differ.  They learn the difference in the answer to each heartbeat
and with each notice; the log and the runtime information have it too.  A strict group refuses a
member that would differ.

A client expects its group's retry topic in the routes once its first heartbeat is answered, so that
answer waits, at most a second, until the name servers know the topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cometmq.broker.base.state import BrokerState, Refusal, WhenSaved, answer
from cometmq.broker.pull.filters import FilterService
from cometmq.core.filter.tag_filter import filter_codes, is_tag_type, parse_subscription
from cometmq.core.group.consumer_group import GroupMember
from cometmq.core.group.filter_shares import difference_text
from cometmq.errors import RemoteProtocolError, ResponseCode
from cometmq.model.group import SUBSCRIBE_ALL, SubscriptionData, SubscriptionGroupConfig
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
from cometmq.wire.extensions.subscriptions import (
    DIFFERENCE_FIELD,
    DIFFERENCES_FIELD,
    encode_differences,
)
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
    """The processors of codes 34, 35, 38 and 46, and what happens when a connection ends.

    Args:
        group_changed: called with a group whose members read otherwise now.
        when_shares_saved: writes the shares of groups if they changed, and calls its argument when
            they are written.
    """

    def __init__(
        self,
        state: BrokerState,
        filters: FilterService,
        group_changed: Callable[[str], None],
        when_shares_saved: WhenSaved,
    ) -> None:
        self._state = state
        self._filters = filters
        self._group_changed = group_changed
        self._when_shares_saved = when_shares_saved

    # -- requests -------------------------------------------------------------------------

    def heartbeat(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve HEART_BEAT (34), version 1 and 2."""
        data = HeartbeatData.decode(request.body)
        connection.client_id = data.client_id
        connection.language = request.language
        connection.version = request.version
        state = self._state
        member = GroupMember(data.client_id, request.language, request.version, now_ms)
        revision, split_revision = state.topics.revision, state.shares.split_revision
        is_v2 = data.heartbeat_fingerprint != 0
        is_changed = not is_v2
        refusals: list[str] = []
        differences: dict[str, str] = {}
        for consumer in data.consumers:
            try:
                if self._consumer(connection, member, consumer, data, now_ms):
                    is_changed = True
            except Refusal as refusal:
                refusals.append(refusal.remark)
                self._leave(connection, consumer.group_name, now_ms)
            difference = state.subscription_differences.get(consumer.group_name)
            if difference is not None:
                differences[consumer.group_name] = difference
        for group in data.producer_groups:
            state.producers.heartbeat(connection, group, member)
        ext = {
            _HAS_V2: "true",
            _SUB_CHANGED: "true" if is_changed else "false",
            FEATURES_FIELD: _FEATURES,
        }
        if differences:
            ext[DIFFERENCES_FIELD] = encode_differences(differences)
        code = ResponseCode.SUBSCRIPTION_CONFLICT if refusals else ResponseCode.SUCCESS
        frame = answer(request, code, " ".join(refusals) or None, ext)
        if request.is_oneway:
            return frame
        if state.shares.split_revision != split_revision:
            # A restart must know what the member wants before it counts on being a member.
            self._when_shares_saved(lambda _: self._answer_registered(connection, frame, revision))
            return None
        if state.topics.revision == revision:
            return frame
        self._answer_registered(connection, frame, revision)
        return None

    def _answer_registered(self, connection: ServerConnection, frame: bytes, revision: int) -> None:
        """Answer when the name servers know the topics that a heartbeat has made."""
        if self._state.topics.revision == revision:
            connection.send(frame)
        else:
            self._state.when_registered(lambda: connection.send(frame))

    def _consumer(
        self,
        connection: ServerConnection,
        member: GroupMember,
        consumer: ConsumerData,
        data: HeartbeatData,
        now_ms: int,
    ) -> bool:
        """Apply one group of a heartbeat; True when a V2 client should send its subscription.

        Raises:
            Refusal: the group is strict, and the member wants other messages than those before it.
        """
        state = self._state
        settings = state.groups.find(consumer.group_name, now_ms)
        if settings is None:
            return False
        subscriptions = (
            None if data.without_sub else [_with_codes(item) for item in consumer.subscriptions]
        )
        if subscriptions is not None and self._is_strict(settings):
            self._refuse_conflict(connection, member, consumer, subscriptions)
        state.ensure_topic(retry_topic(consumer.group_name), settings.retry_queue_count, now_ms)
        outcome = state.consumers.heartbeat(
            connection,
            consumer.group_name,
            member,
            consumer.consume_type,
            consumer.message_model,
            consumer.consume_from_where,
            subscriptions,
            data.heartbeat_fingerprint,
        )
        if subscriptions is not None:
            # If the clock went back, an older bitmap must not count for this filter.
            born_ms = max(now_ms, state.store.last_store_ms)
            online = state.consumers.get(consumer.group_name)
            wanted = () if online is None else online.subscriptions.values()
            others = [item for item in wanted if item.topic not in {s.topic for s in subscriptions}]
            self._filters.subscribed(consumer.group_name, [*subscriptions, *others], born_ms)
        reads_otherwise = self._read_together(consumer.group_name, now_ms)
        if (outcome.is_changed or reads_otherwise) and settings.notify_consumer_ids_changed_enable:
            self._notify(consumer.group_name)
        return outcome.needs_subscription or outcome.is_fingerprint_new

    # -- members that want different messages -------------------------------------------------

    def _is_strict(self, settings: SubscriptionGroupConfig) -> bool:
        strict = settings.attributes.get("subscription.strict")
        return self._state.config.strict_subscriptions if strict is None else strict == "true"

    def _refuse_conflict(
        self,
        connection: ServerConnection,
        member: GroupMember,
        consumer: ConsumerData,
        subscriptions: list[SubscriptionData],
    ) -> None:
        online = self._state.consumers.get(consumer.group_name)
        if online is None or online.is_broadcast:
            return
        others = {
            online.members[key].client_id: wishes
            for key, wishes in online.wishes.items()
            if key is not connection and wishes
        }
        own = {item.topic: item for item in subscriptions}
        difference = difference_text({**others, member.client_id: own}) if others and own else None
        if difference is None:
            return
        log.warning("group %s is strict and refuses a member: %s", consumer.group_name, difference)
        raise Refusal(
            ResponseCode.SUBSCRIPTION_CONFLICT,
            f"group {consumer.group_name} is strict, and {member.client_id} wants other messages "
            f"than the members before it: {difference}. Subscribe as they do, use another group, "
            "or set the group's attribute subscription.strict=false: then each message goes to a "
            "member that wants it",
        )

    def _read_together(self, group: str, now_ms: int) -> bool:
        """Divide the messages of a group among its present members; True if some read otherwise."""
        state = self._state
        online = state.consumers.get(group)
        members = {} if online is None or online.is_broadcast else online.wishes
        reads_otherwise = state.shares.update(group, members, now_ms)
        by_client = {} if online is None or online.is_broadcast else online.wishes_by_client()
        difference = difference_text(by_client)
        before = state.subscription_differences.get(group)
        if difference != before:
            if difference is None:
                del state.subscription_differences[group]
                log.info("the members of group %s want the same messages again", group)
            else:
                state.subscription_differences[group] = difference
                log.warning(
                    "the members of group %s want different messages; each message goes to one that"
                    " wants it: %s",
                    group,
                    difference,
                )
        if reads_otherwise:
            self._group_changed(group)
        return reads_otherwise

    def unregister(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve UNREGISTER_CLIENT (35)."""
        header = UnregisterClientHeader.from_command(request)
        if header.producer_group is not None:
            self._state.producers.leave(connection, header.producer_group)
        if header.consumer_group is not None:
            self._leave(connection, header.consumer_group, now_ms)
        return answer(request)

    def _leave(self, connection: ServerConnection, group: str, now_ms: int) -> None:
        """Remove a member, if it is one, and have the others rebalance."""
        if not self._state.consumers.leave(connection, group):
            return
        self._unregister_if_empty(group, now_ms)
        self._read_together(group, now_ms)
        settings = self._state.groups.get(group)
        if settings is None or settings.notify_consumer_ids_changed_enable:
            self._notify(group)

    def consumer_list(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_CONSUMER_LIST_BY_GROUP (38); an empty list is an error, as in Java.

        A member whose group differs is answered its twins: it divides queues among these.
        """
        group = ConsumerGroupHeader.from_command(request).consumer_group
        online = self._state.consumers.get(group)
        if online is None:
            return answer(
                request, ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}"
            )
        twins = self._state.shares.twins(group, connection)
        names = online.client_ids()
        if twins is not None:
            names = list(dict.fromkeys(online.members[key].client_id for key in twins))
        return answer(request, body=ConsumerListBody(tuple(names)).encode())

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
        now_ms = self._state.env.clock.now_ms()
        for group in self._state.consumers.leave_all(connection):
            self._unregister_if_empty(group, now_ms)
            self._read_together(group, now_ms)
            self._notify(group)

    def _unregister_if_empty(self, group: str, now_ms: int) -> None:
        if self._state.consumers.get(group) is None:
            self._filters.unregister_group(group, now_ms)

    def drop_expired(self, now_ms: int) -> None:
        """Cut clients without a heartbeat for channelExpiredTimeout, and forget unused filters."""
        self._filters.forget(now_ms)
        retain_ms = self._state.config.absent_filter_retain_time
        for group, ended in self._state.shares.expire(now_ms, retain_ms).items():
            log.warning(
                "nobody in group %s has wanted this for %d ms, and it waits no longer: %s",
                group,
                retain_ms,
                "; ".join(ended),
            )
            self._group_changed(group)
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
        ext = {"consumerGroup": group}
        difference = self._state.subscription_differences.get(group)
        if difference is not None:
            ext[DIFFERENCE_FIELD] = difference
        for member in online.members:
            member.oneway(
                RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, dict(ext))
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

"""SQL92 filters in the broker: who has one, and what a pull is to be filtered by.

Job: keep the table of filters in step with heartbeats and with consumers that go, answer for a
pull which filter holds and why there is none, compile an expression for CHECK_CLIENT_CONFIG.  It
must not read messages (the store does, with what is given here) and must not write its file.

A pull without the flag SUBSCRIPTION is filtered by what its group's heartbeat brought; one with it
brings its own text, and uses the group's bitmaps where that is the same text.

Source: PullMessageProcessor, ClientManageProcessor and ConsumerFilterManager of RocketMQ 5.4.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.state import Refusal
from cometmq.core.filter.bloom_filter import BloomFilter
from cometmq.core.filter.consumer_filter import ConsumerFilter, encode_filter_file
from cometmq.core.filter.filter_table import FilterTable
from cometmq.core.filter.property_filter import PropertyFilter, RetryFilter
from cometmq.core.filter.sql92.expression import compile_expression
from cometmq.core.filter.subscription import SQL92
from cometmq.errors import ExpressionIllegal, ResponseCode
from cometmq.model.group import SubscriptionData
from cometmq.model.names import RETRY_PREFIX, is_system_topic
from cometmq.wire.header.headers import PullMessageHeader

__all__ = ["FilterService", "RecordFilter"]

log = logging.getLogger("cometmq.broker")

RecordFilter = PropertyFilter | RetryFilter
_FORGET_INTERVAL_MS: Final = 10_000


@lru_cache(maxsize=1024)
def _filter_of_text(text: str) -> PropertyFilter:
    return PropertyFilter.of_text(text)


class FilterService:
    """The filters of one broker.

    Args:
        config: asked each time, as its values may change.
        saved: what consumerFilter.json held, None for nothing.
        now_ms: the time of the start.
        was_killed: the life before did not end in peace.  Its last filters may not be in the
            file, and their bits are those of its groups; so bitmaps of before say nothing.
    """

    __slots__ = ("_config", "_forget_due_ms", "_of", "table")

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        saved: Iterable[ConsumerFilter] | None,
        now_ms: int,
        *,
        was_killed: bool = False,
    ) -> None:
        self._config = config
        given = config()
        self.table = FilterTable(
            BloomFilter(given.max_error_rate_of_bloom_filter, given.expect_consumer_num_use_filter)
        )
        self._of: dict[tuple[str, str], tuple[ConsumerFilter, PropertyFilter | None]] = {}
        self._forget_due_ms = 0
        saved = None if saved is None else list(saved)
        for one in saved if saved is not None and was_killed else ():
            one.born_ms = max(one.born_ms, now_ms)
            one.dead_ms = one.born_ms
        if saved is not None and not self.table.load(saved, now_ms):
            log.warning(
                "consumerFilter.json was written under other settings of maxErrorRateOfBloomFilter"
                " and expectConsumerNumUseFilter; its filters are registered anew by their"
                " consumers"
            )

    @property
    def count(self) -> int:
        """How many filters there are, those without consumers included."""
        return sum(1 for _ in self.table)

    # -- consumers come and go --------------------------------------------------------------

    def subscribed(
        self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int
    ) -> None:
        """Take the subscriptions that a group has by its last heartbeat, all of them."""
        for fault in self.table.register_group(group, subscriptions, now_ms):
            log.warning("group %s subscribes by what is no filter: %s", group, fault)

    def left(self, group: str, now_ms: int) -> None:
        """Note that the last consumer of a group went."""
        self.table.unregister(group, now_ms)

    def forget(self, now_ms: int) -> None:
        """Drop filters nobody has had for filterDataCleanTimeSpan; looks every ten seconds."""
        if now_ms < self._forget_due_ms:
            return
        self._forget_due_ms = now_ms + _FORGET_INTERVAL_MS
        if self.table.forget(now_ms, self._config().filter_data_clean_time_span):
            self._of.clear()

    # -- what a pull is filtered by ---------------------------------------------------------

    def of_request(self, header: PullMessageHeader) -> PropertyFilter:
        """Give the filter a pull brings; Refusal where it is none."""
        text = header.subscription or ""
        try:
            self._check_type(header.expression_type)
            found = _filter_of_text(text)
        except ExpressionIllegal as error:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}",
            ) from error
        self._check_enabled(header.expression_type)
        registered = self.table.get(header.topic, header.consumer_group)
        if registered is not None and registered.text == text:
            return self._compiled(registered) or found
        return found

    def of_group(self, header: PullMessageHeader, subscription: SubscriptionData) -> PropertyFilter:
        """Give the filter that a group registered; Refusal where there is none, or an older one."""
        registered = self.table.get(header.topic, header.consumer_group)
        found = None if registered is None else self._compiled(registered)
        if registered is None or found is None:
            raise Refusal(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!"
                + _why(subscription),
            )
        if registered.client_version < header.sub_version:
            raise Refusal(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest",
            )
        self._check_enabled(subscription.expression_type)
        return found

    def of_retry(self, topic: str) -> RetryFilter | None:
        """Give the filter of a retry topic; None unless filterSupportRetry and it is one."""
        if not self._config().filter_support_retry or not topic.startswith(RETRY_PREFIX):
            return None
        group, table = topic.removeprefix(RETRY_PREFIX), self.table
        return RetryFilter(lambda real_topic: table.get(real_topic, group))

    def _compiled(self, registered: ConsumerFilter) -> PropertyFilter | None:
        key = (registered.topic, registered.group)
        known = self._of.get(key)
        if known is None or known[0] is not registered:
            known = self._of[key] = registered, PropertyFilter.of(registered)
        return known[1]

    # -- what is asked before ---------------------------------------------------------------

    def check(self, subscription: SubscriptionData) -> None:
        """Compile a subscription's expression; Refusal says what is wrong and where."""
        self._check_enabled(subscription.expression_type)
        try:
            self._check_type(subscription.expression_type)
            compile_expression(subscription.sub_string)
        except ExpressionIllegal as error:
            raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error

    def _check_enabled(self, expression_type: str | None) -> None:
        if not self._config().enable_property_filter:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by "
                f"{expression_type}; set enablePropertyFilter=true, or subscribe by tags",
            )

    @staticmethod
    def _check_type(expression_type: str | None) -> None:
        if expression_type != SQL92:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: the expression type is"
                f" {expression_type!r:.80}, neither TAG nor SQL92",
            )

    # -- what is made of messages and kept ---------------------------------------------------

    def bitmaps(self, topic: str) -> Callable[[bytes], bytes | None] | None:
        """Give what makes bitmaps of a topic's property strings; None where nobody filters it.

        Called in workers, and so is what it gives.
        """
        table = self.table
        if not table.is_filtered(topic) or is_system_topic(topic):
            return None
        # Of filters that come while the result is used, only these bits may be missing: their
        # messages are older than they.
        return table.bitmaps_of(topic)

    def snapshot(self) -> Callable[[], bytes]:
        """Give what encodes the filters as they are now."""
        raw = encode_filter_file(self.table)
        return lambda: raw


def _why(subscription: SubscriptionData) -> str:
    """What is wrong with the expression, for the remark; empty where it is sound."""
    try:
        compile_expression(subscription.sub_string)
    except ExpressionIllegal as error:
        return f" {error}"
    return ""

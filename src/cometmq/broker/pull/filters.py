"""SQL92 filters in the broker: which groups have one, and which filter applies to a pull.

`FilterService` follows heartbeats and leaving consumers, finds the filter of a pull or says why
there is none, and compiles an expression for CHECK_CLIENT_CONFIG.  The store applies the filters.

A pull without the flag SUBSCRIPTION is filtered by the expression of its group's heartbeat.  A pull
with the flag brings its own text, and uses the group's bitmaps if the text is the same.

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
from cometmq.core.filter.share_filter import ShareFilter
from cometmq.core.filter.skip_filter import SkipFilter
from cometmq.core.filter.sql92.expression import compile_expression
from cometmq.core.filter.subscription import SQL92
from cometmq.errors import ExpressionIllegal, ResponseCode
from cometmq.model.group import SubscriptionData
from cometmq.model.names import RETRY_PREFIX, is_system_topic
from cometmq.wire.header.headers import PullMessageHeader

__all__ = ["FilterService", "OwnFilter", "RecordFilter"]

log = logging.getLogger("cometmq.broker")

OwnFilter = PropertyFilter | RetryFilter
"""What a pull or its group asks for."""
RecordFilter = OwnFilter | ShareFilter | SkipFilter
_FORGET_INTERVAL_MS: Final = 10_000


@lru_cache(maxsize=1024)
def _filter_of_text(text: str) -> PropertyFilter:
    return PropertyFilter.of_text(text)


class FilterService:
    """The filters of one broker.

    Args:
        config: gives the present configuration.
        saved: the filters of consumerFilter.json; None if there is no such file.
        now_ms: the time of the start.
        was_killed: the broker did not stop in order.  Its last filters may be missing in the file,
            and other filters get their bits now, so older bitmaps prove nothing.
    """

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        saved: Iterable[ConsumerFilter] | None,
        now_ms: int,
        *,
        was_killed: bool = False,
    ) -> None:
        self._config = config
        present_config = config()
        self.table = FilterTable(
            BloomFilter(
                present_config.max_error_rate_of_bloom_filter,
                present_config.expect_consumer_num_use_filter,
            )
        )
        self._compiled_filters: dict[
            tuple[str, str], tuple[ConsumerFilter, PropertyFilter | None]
        ] = {}
        self._forget_due_ms = 0
        saved = None if saved is None else list(saved)
        for consumer_filter in saved if saved is not None and was_killed else ():
            consumer_filter.born_ms = max(consumer_filter.born_ms, now_ms)
            consumer_filter.dead_ms = consumer_filter.born_ms
        if saved is not None and not self.table.load(saved, now_ms):
            log.warning(
                "consumerFilter.json was written under other settings of maxErrorRateOfBloomFilter"
                " and expectConsumerNumUseFilter; its filters are registered anew by their"
                " consumers"
            )

    @property
    def count(self) -> int:
        """The number of filters, including those whose consumers are gone."""
        return sum(1 for _ in self.table)

    # -- consumers come and go --------------------------------------------------------------

    def subscribed(
        self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int
    ) -> None:
        """Register all subscriptions of a group, as its last heartbeat has them."""
        for fault in self.table.register_group(group, subscriptions, now_ms):
            log.warning("group %s has a subscription that is no filter: %s", group, fault)

    def unregister_group(self, group: str, now_ms: int) -> None:
        """Note that the last consumer of a group is gone."""
        self.table.unregister(group, now_ms)

    def forget(self, now_ms: int) -> None:
        """Drop filters unused for filterDataCleanTimeSpan; does so at most every ten seconds."""
        if now_ms < self._forget_due_ms:
            return
        self._forget_due_ms = now_ms + _FORGET_INTERVAL_MS
        if self.table.forget(now_ms, self._config().filter_data_clean_time_span):
            self._compiled_filters.clear()

    # -- what a pull is filtered by ---------------------------------------------------------

    def of_request(self, header: PullMessageHeader) -> PropertyFilter:
        """Give the filter that a pull brings.

        Raises:
            Refusal: it is no filter, or filters are switched off.
        """
        text = header.subscription or ""
        try:
            self._check_type(header.expression_type)
            own = _filter_of_text(text)
        except ExpressionIllegal as error:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}",
            ) from error
        self._check_enabled(header.expression_type)
        registered = self.table.get(header.topic, header.consumer_group)
        if registered is not None and registered.text == text:
            return self._compiled(registered) or own
        return own

    def of_group(self, header: PullMessageHeader, subscription: SubscriptionData) -> PropertyFilter:
        """Give the filter that a group registered.

        Raises:
            Refusal: the group has none, or an older one than the pull asks for.
        """
        registered = self.table.get(header.topic, header.consumer_group)
        compiled = None if registered is None else self._compiled(registered)
        if registered is None or compiled is None:
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
        return compiled

    def of_retry(self, topic: str) -> RetryFilter | None:
        """Give the filter of a retry topic, where filterSupportRetry asks for one; else None."""
        if not self._config().filter_support_retry or not topic.startswith(RETRY_PREFIX):
            return None
        group, table = topic.removeprefix(RETRY_PREFIX), self.table
        return RetryFilter(lambda real_topic: table.get(real_topic, group))

    def _compiled(self, registered: ConsumerFilter) -> PropertyFilter | None:
        key = (registered.topic, registered.group)
        entry = self._compiled_filters.get(key)
        if entry is None or entry[0] is not registered:
            entry = self._compiled_filters[key] = registered, PropertyFilter.of(registered)
        return entry[1]

    # -- checks -----------------------------------------------------------------------------

    def check(self, subscription: SubscriptionData) -> None:
        """Compile a subscription's expression.

        Raises:
            Refusal: the remark says what is wrong and where.
        """
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

    # -- bitmaps and file --------------------------------------------------------------------

    def bitmaps(self, topic: str) -> Callable[[bytes], bytes | None] | None:
        """Give the function that makes a bitmap of a property string of a topic.

        Gives None for a topic that nobody filters.  Workers call this method and its result.
        """
        table = self.table
        if not table.is_filtered(topic) or is_system_topic(topic):
            return None
        # A filter that comes while the result is in use lacks bits only for older messages.
        return table.bitmaps_of(topic)

    def snapshot(self) -> Callable[[], bytes]:
        """Encode the filters as they are now; the result gives the bytes."""
        raw = encode_filter_file(self.table)
        return lambda: raw


def _why(subscription: SubscriptionData) -> str:
    """Say what is wrong with the expression, for the remark; empty if it compiles."""
    try:
        compile_expression(subscription.sub_string)
    except ExpressionIllegal as error:
        return f" {error}"
    return ""

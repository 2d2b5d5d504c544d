"""The page of a broker's metrics: RocketMQ 5's names and labels, and some of our own.

The page is built from counters that exist, in pieces of some hundred samples, each in a turn of the
loop.  Series of topics and groups that are deleted are gone with the next page.

Source of names, units and labels: BrokerMetricsManager and what its exporter prints in RocketMQ
5.4.  A gauge or histogram carries its unit as a suffix, as that exporter writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from cometmq.broker.base.stats import SEND_BACKS, TOPIC_PUTS
from cometmq.broker.metrics.latencies import RequestLatencies, answer_name, request_name
from cometmq.broker.metrics.sizes import MessageSizes
from cometmq.broker.services import Services
from cometmq.core.base.exposition import MetricsText
from cometmq.errors import CometError
from cometmq.model.names import (
    DLQ_PREFIX,
    PARK_PREFIX,
    RETRY_PREFIX,
    dlq_topic,
    is_system_group,
    is_system_topic,
    park_topic,
)
from cometmq.wire.command.codes import release_of

__all__ = ["FileFigures", "TopicBacklog", "broker_pieces", "collect_backlogs", "measure_files"]

PIECE: Final = 500
"""Queues or topics in one turn of the loop."""
_DISK: Final = {"storage_type": "local", "storage_medium": "disk"}


class TopicBacklog(NamedTuple):
    """What a group has not consumed of one topic."""

    group: str
    topic: str
    lag: int
    in_flight: int
    firsts: tuple[tuple[int, int], ...]
    """Queue id and queue offset of the first unconsumed message of each queue with a lag."""


class FileFigures(NamedTuple):
    """What only files tell."""

    oldest_ms: dict[tuple[str, str], int]
    """When the oldest message that a group has not consumed of a topic was stored."""
    disk_used: float
    """The used part of the store's disk."""
    overdue_timers: int = 0


def _bool(is_so: bool) -> str:
    return "true" if is_so else "false"


def collect_backlogs(services: Services, backlogs: list[TopicBacklog]) -> Iterator[None]:
    """Fill `backlogs` with what each group has not consumed, in pieces.

    A group has a row for each topic that its online members subscribe to, and, which RocketMQ
    leaves out, for each topic in which it has an offset: a group that is offline waits too.
    """
    state, store = services.state, services.store
    pairs: dict[tuple[str, str], None] = {}
    for key in state.offsets.all():
        topic, _, group = key.partition("@")
        pairs[group, topic] = None
    for group, online in state.consumers.all().items():
        for topic in online.subscriptions:
            if not online.is_broadcast:
                pairs[group, topic] = None
    queues = 0
    for group, topic in pairs:
        config = state.topics.get(topic)
        if config is None or topic.startswith((RETRY_PREFIX, PARK_PREFIX)):
            continue
        lag = in_flight = 0
        firsts = []
        for queue_id in range(config.read_queue_count):
            end = store.max_queue_offset(topic, queue_id)
            consumed = max(0, state.offsets.query(group, topic, queue_id) or 0)
            if end > consumed:
                lag += end - consumed
                pulled = state.stats.pulled_offset(topic, group, queue_id)
                in_flight += max(0, min(pulled, end) - consumed)
                firsts.append((queue_id, consumed))
        backlogs.append(TopicBacklog(group, topic, lag, in_flight, tuple(firsts)))
        queues += config.read_queue_count
        if queues >= PIECE:
            queues = 0
            yield


def measure_files(
    services: Services,
    backlogs: list[TopicBacklog],
    overdue_timers: Callable[[], int] | None = None,
) -> FileFigures:
    """Measure what only files tell; in a worker.

    A message that retention took away, and a record that is damaged, has no time.
    """
    store = services.store
    oldest_ms: dict[tuple[str, str], int] = {}
    for item in backlogs:
        for queue_id, queue_offset in item.firsts:
            try:
                first = max(queue_offset, store.min_queue_offset(item.topic, queue_id))
                at_ms = store.store_time_at(item.topic, queue_id, first)
            except CometError:
                continue
            if at_ms > 0:
                key = item.group, item.topic
                oldest_ms[key] = min(at_ms, oldest_ms.get(key, at_ms))
    total, used = services.state.disk_usage()
    overdue = 0 if overdue_timers is None else overdue_timers()
    return FileFigures(oldest_ms, used / total if total else 0.0, overdue)


def broker_pieces(
    page: MetricsText,
    services: Services,
    now_ms: int,
    backlogs: list[TopicBacklog],
    figures: FileFigures,
    sizes: MessageSizes,
    latencies: RequestLatencies,
) -> Iterator[None]:
    """Write a broker's samples to `page`, in pieces."""
    state, store = services.state, services.store
    config = state.config
    page.value(
        "rocketmq_broker_permission",
        "gauge",
        "What clients may do: 2 writes, 4 reads.",
        config.broker_permission,
    )
    page.value("rocketmq_topic_number", "gauge", "Topics.", len(state.topics))
    page.value(
        "rocketmq_consumer_group_number", "gauge", "Consumer groups.", len(state.groups.all())
    )
    state.stats.count_puts()
    yield
    yield from _messages(page, services)
    yield from _sizes(page, services, sizes)
    _latencies(page, latencies)
    yield from _connections(page, services)
    yield from _lags(page, now_ms, backlogs, figures.oldest_ms)
    page.value(
        "cometmq_disk_used_ratio", "gauge", "Used part of the store's disk.", figures.disk_used
    )
    _storage(page, services, now_ms)
    differences = page.family(
        "cometmq_subscription_differences",
        "gauge",
        "1 for each consumer group whose members want different messages.",
    )
    for name in state.subscription_differences:
        differences.add(1, {"consumer_group": name})
    halves = page.family("rocketmq_half_messages", "gauge", "Half messages without a decision.")
    for topic, count in services.transactions.halves.counts.items():
        halves.add(count, {"topic": topic})
    timers = services.timers
    if timers is not None:
        page.value(
            "rocketmq_timer_enqueue_lag",
            "gauge",
            "Timed messages that are stored and not yet taken up.",
            timers.intake.message_count(),
            _DISK,
        )
        page.value(
            "rocketmq_timer_dequeue_latency_milliseconds",
            "gauge",
            "How far timed deliveries are behind the clock.",
            timers.read_behind_ms(now_ms),
            _DISK,
        )
        page.value(
            "cometmq_timer_overdue_messages",
            "gauge",
            "Timed messages whose time has passed and that are not delivered.",
            figures.overdue_timers,
        )
        page.value(
            "cometmq_timer_deliver_rate",
            "gauge",
            "The most timed messages delivered in a second; 0 for as many as possible.",
            config.timer_deliver_rate,
        )
    yield from _skipped(page, services)
    page.value(
        "cometmq_held_pulls", "gauge", "Pulls that wait for a message.", len(services.pull.hold)
    )
    if services.replicas is not None:
        page.value(
            "cometmq_in_sync_replicas",
            "gauge",
            "Replicas that have the log, this one included.",
            services.replicas.in_sync_count(),
        )
    page.value(
        "cometmq_log_written_bytes_total",
        "counter",
        "Physical offset where the log ends.",
        store.max_physical_offset,
    )
    yield


def _messages(page: MetricsText, services: Services) -> Iterator[None]:
    """Messages in and out."""
    stats, topics = services.state.stats, services.state.topics
    puts = stats.totals(TOPIC_PUTS)
    family = page.family("rocketmq_messages_in_total", "counter", "Messages stored.")
    for place, (topic, count) in enumerate(puts.items()):
        if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            config = topics.get(topic)
            kind = "" if config is None else config.attributes.get("message.type", "")
            family.add(
                count,
                {
                    "topic": topic,
                    "message_type": kind.lower() or "normal",
                    "is_system": _bool(is_system_topic(topic)),
                },
            )
        if place % PIECE == PIECE - 1:
            yield
    # A counter that begins with its first event shows no increase: each group has these from 0 on.
    groups = [group for group in services.state.groups.all() if not is_system_group(group)]
    returned: Counter[str] = Counter()
    for key, count in stats.totals(SEND_BACKS).items():
        returned[key.partition("@")[2]] += count
    yield
    family = page.family(
        "rocketmq_send_to_dlq_messages_total", "counter", "Messages given up: dead letters."
    )
    for group in groups:
        topic = dlq_topic(group)
        family.add(
            puts.get(topic, 0), {"consumer_group": group, "topic": topic, "is_system": "false"}
        )
    yield
    family = page.family(
        "cometmq_parking_records_total",
        "counter",
        "Messages that groups parked, and records of what became of them.",
    )
    for group in groups:
        family.add(puts.get(park_topic(group), 0), {"consumer_group": group})
    yield
    family = page.family(
        "cometmq_returned_messages_total",
        "counter",
        "Messages that consumers sent back for another try.",
    )
    for group in groups:
        family.add(returned[group], {"consumer_group": group})
    yield
    gets = stats.group_gets()
    for name, help_text, field in (
        ("rocketmq_messages_out_total", "Messages handed out.", 0),
        ("rocketmq_throughput_out_total", "Bytes of messages handed out.", 1),
    ):
        family = page.family(name, "counter", help_text)
        for place, ((topic, group), counts) in enumerate(gets.items()):
            labels = {
                "topic": topic,
                "consumer_group": group,
                "is_system": _bool(is_system_topic(topic) or is_system_group(group)),
                "is_retry": _bool(topic.startswith(RETRY_PREFIX)),
            }
            family.add(counts[field], labels)
            if place % PIECE == PIECE - 1:
                yield


def _skipped(page: MetricsText, services: Services) -> Iterator[None]:
    """What groups pass over in a backlog."""
    service = services.backlog
    family = page.family(
        "cometmq_skipped_messages_total", "counter", "Messages that groups passed over, by reason."
    )
    for (group, reason), count in service.skipped_counts.items():
        family.add(count, {"consumer_group": group, "reason": reason})
    family = page.family(
        "cometmq_copied_messages_total", "counter", "Copies made of messages that were passed over."
    )
    for group, count in service.copier.copied_counts.items():
        family.add(count, {"consumer_group": group})
    family = page.family(
        "cometmq_skipped_waiting_messages", "gauge", "Skipped messages that wait for their copy."
    )
    for group, entry in services.state.skipped.all().items():
        waiting = sum(item.waiting_count for item in entry.ranges)
        family.add(waiting, {"consumer_group": group})
    yield


def _sizes(page: MetricsText, services: Services, sizes: MessageSizes) -> Iterator[None]:
    """Bytes that came in, and how large their messages are."""
    topics = services.state.topics
    labels = {}
    for topic in sizes.by_topic:
        config = topics.get(topic)
        if config is not None and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            kind = config.attributes.get("message.type", "").lower() or "normal"
            labels[topic] = {"topic": topic, "message_type": kind}
    family = page.family("rocketmq_throughput_in_total", "counter", "Bytes of messages stored.")
    for topic, own in labels.items():
        total = int(sizes.by_topic[topic].total)
        family.add(total, {**own, "is_system": _bool(is_system_topic(topic))})
    yield
    family = page.family("rocketmq_message_size", "histogram", "Bytes of a stored message.")
    for place, (topic, own) in enumerate(labels.items()):
        family.add_histogram(sizes.by_topic[topic], own)
        if place % PIECE == PIECE - 1:
            yield


def _latencies(page: MetricsText, latencies: RequestLatencies) -> None:
    family = page.family(
        "rocketmq_rpc_latency_milliseconds",
        "histogram",
        "How long requests take that are answered at once.",
    )
    for (code, answer, result), histogram in latencies.histograms.items():
        family.add_histogram(
            histogram,
            {
                "protocol_type": "remoting",
                "request_code": request_name(code),
                "response_code": answer_name(answer),
                "is_long_polling": "false",
                "result": result,
            },
        )


def _connections(page: MetricsText, services: Services) -> Iterator[None]:
    """Clients that are online."""
    state = services.state
    producers = {
        peer: (member.language, release_of(member.version))
        for members in state.producers.all().values()
        for peer, member in members.items()
    }
    family = page.family("rocketmq_producer_connections", "gauge", "Connections of producers.")
    for (language, version), count in Counter(producers.values()).items():
        family.add(count, {"language": language, "version": version, "protocol_type": "remoting"})
    yield
    family = page.family("rocketmq_consumer_connections", "gauge", "Connections of consumers.")
    for group, online in list(state.consumers.all().items()):
        kinds = Counter(
            (member.language, release_of(member.version)) for member in online.members.values()
        )
        mode = "push" if online.consume_type.name == "CONSUME_PASSIVELY" else "pull"
        for (language, version), count in kinds.items():
            family.add(
                count,
                {
                    "consumer_group": group,
                    "language": language,
                    "version": version,
                    "consume_mode": mode,
                    "protocol_type": "remoting",
                    "is_system": _bool(is_system_group(group)),
                },
            )
    yield


def _lags(
    page: MetricsText,
    now_ms: int,
    backlogs: list[TopicBacklog],
    times: dict[tuple[str, str], int],
) -> Iterator[None]:
    """What groups have not consumed."""

    def latency_ms(item: TopicBacklog) -> int:
        return max(0, now_ms - times.get((item.group, item.topic), now_ms))

    for name, help_text, measure in (
        (
            "rocketmq_consumer_lag_messages",
            "Stored messages that are not consumed.",
            lambda item: item.lag,
        ),
        (
            "rocketmq_consumer_inflight_messages",
            "Messages that consumers hold and have not acknowledged.",
            lambda item: item.in_flight,
        ),
        (
            "rocketmq_consumer_ready_messages",
            "Messages that no consumer has got yet.",
            lambda item: item.lag - item.in_flight,
        ),
        (
            "rocketmq_consumer_lag_latency_milliseconds",
            "Age of the oldest message that is not consumed.",
            latency_ms,
        ),
    ):
        family = page.family(name, "gauge", help_text)
        for place, item in enumerate(backlogs):
            labels = {
                "consumer_group": item.group,
                "topic": item.topic,
                "is_retry": "false",
                "is_system": _bool(is_system_group(item.group)),
            }
            family.add(measure(item), labels)
            if place % PIECE == PIECE - 1:
                yield


def _storage(page: MetricsText, services: Services, now_ms: int) -> None:
    store = services.store
    for name, help_text, value in (
        (
            "rocketmq_storage_size_bytes",
            "Bytes of the log.",
            store.max_physical_offset - store.min_physical_offset,
        ),
        (
            "rocketmq_storage_flush_behind_bytes",
            "Bytes of the log that are not on disk yet.",
            store.max_physical_offset - store.flushed_offset,
        ),
        ("rocketmq_storage_dispatch_behind_bytes", "Always 0: queues follow at once.", 0),
    ):
        page.value(name, "gauge", help_text, value, _DISK)

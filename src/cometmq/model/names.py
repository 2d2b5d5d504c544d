"""Topic and group names: reserved names, derived names, and the rules for legal names.

Source: ``TopicValidator``, ``MixAll`` and ``TopicConfigManager`` of RocketMQ 5.4.0.
"""

import re
from typing import Final

__all__ = [
    "BENCHMARK_TOPIC",
    "CLIENT_INNER_PRODUCER",
    "DEFAULT_TOPIC",
    "DLQ_PREFIX",
    "GROUP_LENGTH_MAX",
    "HALF_TOPIC",
    "LMQ_PREFIX",
    "OFFSET_MOVED_TOPIC",
    "OP_HALF_TOPIC",
    "PARK_PREFIX",
    "RETRY_PREFIX",
    "SCHEDULE_TOPIC",
    "SELF_TEST_TOPIC",
    "SEND_FORBIDDEN_TOPICS",
    "SENT_PREFIX",
    "STAGED_DECISION_TOPIC",
    "STAGED_TOPIC",
    "STATE_TOPIC",
    "SYSTEM_GROUPS",
    "SYSTEM_TOPICS",
    "SYSTEM_TOPIC_PREFIX",
    "TIMER_TOPIC",
    "TOOLS_GROUP",
    "TOPIC_LENGTH_MAX",
    "TRACE_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "check_group",
    "check_sink",
    "check_topic",
    "dlq_topic",
    "group_of_retry_topic",
    "is_system_group",
    "is_system_topic",
    "park_topic",
    "reply_topic",
    "retry_topic",
    "sent_topic",
]

DEFAULT_TOPIC: Final = "TBW102"
"""The template topic that automatic topic creation copies."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
STAGED_TOPIC: Final = "rmq_sys_COMETMQ_STAGED"
"""Our own: blocks of messages that a batch producer has staged and not yet published."""
STAGED_DECISION_TOPIC: Final = "rmq_sys_COMETMQ_STAGED_DECISION"
"""Our own: which staged batches are published, and how far."""
STATE_TOPIC: Final = "rmq_sys_COMETMQ_STATE"
"""Our own: what a replica set's master changes in its tables, see `broker.replication.journal`."""
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
ROCKSDB_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_OP_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
PARK_PREFIX: Final = "%PARK%"
"""Our own: parked messages of an ordered consumer group, see `core.extensions.parking`."""
SENT_PREFIX: Final = "%SENT%"
"""Our own: which dead letters of a group were sent again, see `client.admin.redrive_ledger`."""
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
CLIENT_INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"

TOPIC_LENGTH_MAX: Final = 127
"""UTF-16 units; a longer name would need the V2 record, which Go and C++ cannot decode."""
GROUP_LENGTH_MAX: Final = 120
RETRY_TOPIC_LENGTH_MAX: Final = 255

SYSTEM_TOPICS: Final = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRACE_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_HALF_TOPIC,
    }
)
SEND_FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_HALF_TOPIC,
        STAGED_TOPIC,
        STAGED_DECISION_TOPIC,
        STATE_TOPIC,
        TIMER_TOPIC,
    }
)
"""Topics only the broker itself writes; a client's send is refused with NO_PERMISSION."""

SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
"""Groups that exist from a broker's first start."""

_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def retry_topic(consumer_group: str) -> str:
    """The topic of a group's messages that wait for another try."""
    return RETRY_PREFIX + consumer_group


def dlq_topic(consumer_group: str) -> str:
    """The topic of a group's dead letters."""
    return DLQ_PREFIX + consumer_group


def park_topic(consumer_group: str) -> str:
    """The topic of a group's parked messages."""
    return PARK_PREFIX + consumer_group


def sent_topic(consumer_group: str) -> str:
    """The topic that records which dead letters of a group were sent again."""
    return SENT_PREFIX + consumer_group


def reply_topic(cluster: str) -> str:
    """The topic of a cluster's replies."""
    return f"{cluster}_REPLY_TOPIC"


def group_of_retry_topic(topic: str) -> str:
    """The consumer group of a retry topic."""
    return topic[len(RETRY_PREFIX) :]


def is_system_topic(topic: str) -> bool:
    """Whether the topic is one of RocketMQ's own; users neither create nor delete these."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(consumer_group: str) -> bool:
    """Whether the group is one of RocketMQ's own."""
    return consumer_group in SYSTEM_GROUPS or consumer_group.startswith("CID_RMQ_SYS_")


def check_topic(topic: str) -> str | None:
    """None for a legal topic name, else one sentence that names the fault."""
    if not topic or topic.isspace():
        return "The specified topic is blank."
    derived = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    limit = RETRY_TOPIC_LENGTH_MAX if derived else TOPIC_LENGTH_MAX
    return _check_name("topic", topic, limit)


def check_group(consumer_group: str) -> str | None:
    """None for a legal group name, else one sentence that names the fault."""
    if not consumer_group or consumer_group.isspace():
        return "The specified group is blank."
    return _check_name("group", consumer_group, GROUP_LENGTH_MAX)


def check_sink(sink: str) -> str | None:
    """None for a legal name of a sink of staged batches, else one sentence that names the fault."""
    if not sink or sink.isspace():
        return "The specified sink is blank."
    return _check_name("sink", sink, GROUP_LENGTH_MAX)


def _check_name(kind: str, name: str, limit: int) -> str | None:
    units = len(name.encode("utf-16-be", "surrogatepass")) // 2
    if units > limit:
        return (
            f"The specified {kind}: {name}, is longer than {kind} max length: {limit} "
            f"(it has {units})"
        )
    if not _LEGAL_NAME.match(name):
        return (
            f"The specified {kind}: {name}, contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$"
        )
    return None

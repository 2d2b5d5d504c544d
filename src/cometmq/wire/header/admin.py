"""Headers of the administration codes on the broker and of POP (docs/internals/protocol.md#pop and
#administration)."""

from cometmq.wire.header.header import Header, Int32, Int64, wire_names

__all__ = [
    "AckMessageHeader",
    "BrokerConfigResponseHeader",
    "ChangeInvisibleTimeHeader",
    "ChangeInvisibleTimeResponseHeader",
    "CloneGroupOffsetHeader",
    "ConsumeStatsHeader",
    "CorrectionOffsetHeader",
    "DeleteGroupHeader",
    "FilterHeader",
    "GetAllGroupsHeader",
    "GetAllGroupsResponseHeader",
    "GetAllTopicsHeader",
    "GetAllTopicsResponseHeader",
    "GroupForbiddenHeader",
    "GroupHeader",
    "IsOrderHeader",
    "NotificationHeader",
    "NotificationResponseHeader",
    "PeekMessageHeader",
    "PollingInfoHeader",
    "PollingInfoResponseHeader",
    "PopMessageHeader",
    "PopResponseHeader",
    "ProducerGroupHeader",
    "QueryConsumeQueueHeader",
    "QuerySubscriptionHeader",
    "ResumeCheckHeader",
    "StatsDataHeader",
    "TopicHeader",
]


class TopicHeader(Header):
    """Every code that asks about one topic: 202, 206 (from Go), 215, 300, 351."""

    topic: str


class GetAllTopicsHeader(Header):
    """GET_ALL_TOPIC_CONFIG 21; paging, which may be ignored."""

    topic_seq: Int32 | None = None
    max_topic_num: Int32 | None = None
    data_version: str | None = None


class GetAllTopicsResponseHeader(Header):
    """Answer to 21."""

    total_topic_num: Int32 | None = None


class GetAllGroupsHeader(Header):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG 201; paging, which may be ignored."""

    group_seq: Int32 | None = None
    max_group_num: Int32 | None = None
    data_version: str | None = None


class GetAllGroupsResponseHeader(Header):
    """Answer to 201."""

    total_group_num: Int32 | None = None


class BrokerConfigResponseHeader(Header):
    """Answer to GET_BROKER_CONFIG 26; ``version`` is a DataVersion as JSON."""

    version: str | None = None


class ProducerGroupHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST 204."""

    producer_group: str


class DeleteGroupHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP 207."""

    group_name: str
    clean_offset: bool = False


class ConsumeStatsHeader(Header):
    """GET_CONSUME_STATS 208; ``topic_list`` is joined with semicolons."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GroupHeader(Header):
    """QUERY_TOPICS_BY_CONSUMER 343 and GET_SUBSCRIPTIONGROUP_CONFIG 352."""

    group: str


class QuerySubscriptionHeader(Header):
    """QUERY_SUBSCRIPTION_BY_CONSUMER 345."""

    group: str
    topic: str | None = None


class GroupForbiddenHeader(Header):
    """UPDATE_AND_GET_GROUP_FORBIDDEN 353."""

    group: str
    topic: str
    readable: bool | None = None


class CorrectionOffsetHeader(Header):
    """QUERY_CORRECTION_OFFSET 308."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneGroupOffsetHeader(Header):
    """CLONE_GROUP_OFFSET 314."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class StatsDataHeader(Header):
    """VIEW_BROKER_STATS_DATA 315."""

    stats_name: str
    stats_key: str


class IsOrderHeader(Header):
    """GET_BROKER_CONSUME_STATS 317."""

    is_order: bool = False


class QueryConsumeQueueHeader(Header):
    """QUERY_CONSUME_QUEUE 321."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class ResumeCheckHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE 323."""

    msg_id: str
    topic: str | None = None


class FilterHeader(Header):
    """AUTH_LIST_USER 3005 and the two filters of AUTH_LIST_ACL 3010."""

    filter: str | None = None
    subject_filter: str | None = None
    resource_filter: str | None = None


class PopMessageHeader(Header):
    """POP_MESSAGE 200050; ``init_mode`` 0 starts at the minimum, 1 at the maximum."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time_ms: Int64
    poll_time_ms: Int64
    born_time_ms: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


class PopResponseHeader(Header):
    """Answer to 200050 and 200052."""

    pop_time_ms: Int64
    invisible_time_ms: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageHeader(Header, rename=wire_names(queue_offset="offset")):
    """ACK_MESSAGE 200051; ``extra_info`` is the POP_CK of the message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    queue_offset: Int64


class ChangeInvisibleTimeHeader(Header, rename=wire_names(queue_offset="offset")):
    """CHANGE_MESSAGE_INVISIBLETIME 200053."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    queue_offset: Int64
    invisible_time_ms: Int64


class ChangeInvisibleTimeResponseHeader(Header):
    """Answer to 200053."""

    pop_time_ms: Int64
    invisible_time_ms: Int64
    revive_qid: Int32


class NotificationHeader(Header):
    """NOTIFICATION 200054."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time_ms: Int64
    born_time_ms: Int64
    order: bool | None = None
    attempt_id: str | None = None


class NotificationResponseHeader(Header):
    """Answer to 200054."""

    has_msg: bool
    polling_full: bool | None = None


class PeekMessageHeader(Header):
    """PEEK_MESSAGE 200052."""

    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str


class PollingInfoHeader(Header):
    """POLLING_INFO 200055."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(Header):
    """Answer to 200055."""

    polling_num: Int32

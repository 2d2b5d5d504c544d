"""Headers of the codes that ordinary clients and brokers exchange
(docs/internals/protocol.md#request-codes and #client-registration).

Each header is a class; codes with the same fields share one. Names are RocketMQ's in snake case,
times end in ``_ms``. Optional fields are None when absent. ``admin`` has the headers of
administration, ``namesrv`` those of the name server.
"""

from typing import Final

import msgspec

from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.header import Header, Int32, Int64, convert_ext, wire_names

__all__ = [
    "CheckTransactionHeader",
    "ConsumeDirectlyHeader",
    "ConsumerGroupHeader",
    "ConsumerSendMsgBackHeader",
    "CreateTopicHeader",
    "EndTransactionHeader",
    "GetMaxOffsetHeader",
    "HeartbeatResponseHeader",
    "OffsetResponseHeader",
    "PullMessageHeader",
    "PullResponseHeader",
    "PushReplyHeader",
    "QueryConsumerOffsetHeader",
    "QueryMessageHeader",
    "QueryMessageResponseHeader",
    "QueueHeader",
    "RecallMessageHeader",
    "RecallResponseHeader",
    "ResetOffsetHeader",
    "RunningInfoHeader",
    "SearchOffsetHeader",
    "SendMessageHeader",
    "SendMessageLongHeader",
    "SendResponseHeader",
    "TimestampResponseHeader",
    "TopicGroupHeader",
    "UnregisterClientHeader",
    "UpdateConsumerOffsetHeader",
    "ViewMessageHeader",
]


class SendMessageHeader(
    Header,
    rename={
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp_ms": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "broker_name": "n",
    },
):
    """SEND_MESSAGE_V2 310, SEND_BATCH 320, SEND_REPLY_V2 325, short names; reads the long too.

    A negative ``queue_id`` leaves the choice to the broker; ``properties`` is the property
    string of ``codec.properties``.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp_ms: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    broker_name: str | None = None

    @classmethod
    def from_command(cls, command: RemotingCommand) -> "SendMessageHeader":
        """Return the header of a send in either layout; attributes are the same."""
        if command.decoded_ext is None:
            is_long = command.code in _LONG_NAME_CODES
            try:
                if is_long:
                    return _decode_send_long(command.raw_ext)
                return _decode_send(command.raw_ext)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                pass
        return SendMessageHeader.from_ext(command.ext_fields)

    @classmethod
    def from_ext(cls, ext: dict[str, str]) -> "SendMessageHeader":
        """Return the header of ext fields in either layout."""
        layout = SendMessageLongHeader if "producerGroup" in ext else SendMessageHeader
        return convert_ext(layout, ext)


class SendMessageLongHeader(SendMessageHeader, rename=wire_names(broker_name="bname")):
    """SEND_MESSAGE 10 and SEND_REPLY 324: the same fields under their long names.

    They are declared again, because a renaming reaches only the fields of its own class.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp_ms: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    broker_name: str | None = None


_LONG_NAME_CODES: Final = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE))
_decode_send: Final = msgspec.json.Decoder(SendMessageHeader, strict=False).decode
_decode_send_long: Final = msgspec.json.Decoder(SendMessageLongHeader, strict=False).decode


class SendResponseHeader(
    Header,
    rename=wire_names(region="MSG_REGION", trace_on="TRACE_ON"),
):
    """Answer to a send that was stored; msg_id is the offset message id (comma-joined)."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str | None = None
    trace_on: bool | None = None
    cmq_barrier: str | None = None
    """What the message has passed, of a broker of ours whose sends wait: flush, replicas."""


class PullMessageHeader(
    Header,
    rename=wire_names(
        suspend_timeout_ms="suspendTimeoutMillis",
        # The misspelling is Java's.
        proxy_forward_client_id="proxyFrowardClientId",
    ),
):
    """PULL_MESSAGE 11 and LITE_PULL_MESSAGE 361; ``sys_flag`` holds the PULL_ bits."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_ms: Int64
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_forward_client_id: str | None = None


class PullResponseHeader(Header):
    """Answer to a pull; the four offsets are always there for codes 0, 19, 20 and 21."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class QueryMessageHeader(Header, rename=wire_names(unique_key_query="_UNIQUE_KEY_QUERY")):
    """QUERY_MESSAGE 12; ``index_type`` is K for keys, U for unique ids, T for tags (5.4)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp_ms: Int64
    end_timestamp_ms: Int64
    index_type: str | None = None
    last_key: str | None = None
    unique_key_query: bool | None = None


class QueryMessageResponseHeader(Header):
    """Answer to QUERY_MESSAGE, found or not."""

    index_last_update_timestamp_ms: Int64
    index_last_update_phyoffset: Int64


class QueryConsumerOffsetHeader(Header):
    """QUERY_CONSUMER_OFFSET 14."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(Header):
    """UPDATE_CONSUMER_OFFSET 15."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class CreateTopicHeader(Header):
    """UPDATE_AND_CREATE_TOPIC 17; ``attributes`` reads ``+key=value,-key``."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class SearchOffsetHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP 29; ``boundary_type`` is LOWER or UPPER in any case."""

    topic: str
    queue_id: Int32
    timestamp_ms: Int64
    boundary_type: str = "LOWER"


class GetMaxOffsetHeader(Header):
    """GET_MAX_OFFSET 30."""

    topic: str
    queue_id: Int32
    committed: bool = True


class QueueHeader(Header):
    """GET_MIN_OFFSET 31 and GET_EARLIEST_MSG_STORETIME 32."""

    topic: str
    queue_id: Int32


class OffsetResponseHeader(Header, rename=wire_names(queue_offset="offset")):
    """Answer to 14, 29, 30 and 31."""

    queue_offset: Int64


class TimestampResponseHeader(Header):
    """Answer to 32; -1 when the queue is empty."""

    timestamp_ms: Int64


class ViewMessageHeader(Header, rename=wire_names(physical_offset="offset")):
    """VIEW_MESSAGE_BY_ID 33."""

    physical_offset: Int64
    topic: str | None = None


class HeartbeatResponseHeader(
    Header,
    rename=wire_names(
        is_support_heart_beat_v2="IS_SUPPORT_HEART_BEAT_V2", is_sub_change="IS_SUB_CHANGE"
    ),
):
    """Answer to HEART_BEAT 34; a 5.4.0 broker always sends both."""

    is_support_heart_beat_v2: bool | None = None
    is_sub_change: bool | None = None


class UnregisterClientHeader(Header, rename=wire_names(client_id="clientID")):
    """UNREGISTER_CLIENT 35: one group of one client."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerSendMsgBackHeader(Header, rename=wire_names(physical_offset="offset")):
    """CONSUMER_SEND_MSG_BACK 36; level -1 is the dead-letter topic, 0 the broker's choice."""

    physical_offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None


class EndTransactionHeader(Header):
    """END_TRANSACTION 37; ``commit_or_rollback`` is 0 unknown, 8 commit, 12 rollback."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None
    topic: str | None = None


class ConsumerGroupHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP 38, NOTIFY_CONSUMER_IDS_CHANGED 40, connection list 203."""

    consumer_group: str


class CheckTransactionHeader(Header, rename=wire_names(broker_name="bname")):
    """CHECK_TRANSACTION_STATE 39, broker to client."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = None


class ResetOffsetHeader(Header, rename=wire_names(queue_offset="offset")):
    """INVOKE_BROKER_TO_RESET_OFFSET 222 and, from broker to client, 220."""

    topic: str
    group: str
    timestamp_ms: Int64
    is_force: bool = False
    queue_id: Int32 | None = None
    queue_offset: Int64 | None = None


class TopicGroupHeader(Header):
    """GET_CONSUMER_STATUS_FROM_CLIENT 221, and 223 and 303 on the broker."""

    topic: str
    group: str
    client_addr: str | None = None


class RunningInfoHeader(Header):
    """GET_CONSUMER_RUNNING_INFO 307, relayed by the broker to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeDirectlyHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY 309, relayed by the broker to the client."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class PushReplyHeader(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT 326; hosts are ``ip:port``."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp_ms: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp_ms: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None


class RecallMessageHeader(Header):
    """RECALL_MESSAGE 370."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallResponseHeader(Header, rename=wire_names(region="MSG_REGION")):
    """Answer to 370; ``msg_id`` is the unique id, absent on failure."""

    msg_id: str | None = None
    region: str | None = None

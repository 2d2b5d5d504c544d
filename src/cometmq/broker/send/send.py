"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: the way into the store.

Job: rewrite the properties of a send, put it, answer it.  It must not touch the disk (the store
does) or wait: the answer of a synchronous flush leaves when the store calls back.

Two ways lead through this module.  The *fast* one serves a plain message to a topic that passed
every check before: `_limits` maps such topics to their number of queues, and a look at the
property string tells that no property asks for special treatment.  Everything else, including
every mistake, takes the *checked* one, which makes all checks in order (`send_check`).  Several
plain messages that arrive together go the fast way in one step (`send_run`).

On the fast way properties stay the string the client sent; what the broker adds is appended, and
a reader lets the last of two equal names win (so the last UNIQ_KEY and TAGS are looked for).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from cometmq.broker.base.state import BrokerState, Refusal
from cometmq.broker.base.store_failure import store_failure, when_topic_saved
from cometmq.broker.delay.levels.delayed_send import DelayedKind
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.delay.waiting_items import WaitingItems
from cometmq.broker.delay.wheel.intake import Fresh
from cometmq.broker.delay.wheel.service import TimerService
from cometmq.broker.delay.wheel.timed_send import TimedKind
from cometmq.broker.extensions.growing import GrowingTopics
from cometmq.broker.send.batch_keys import BatchLook, MayWait
from cometmq.broker.send.run_answers import RunAnswers
from cometmq.broker.send.send_check import Destination, SendChecks, prepared, scheduled, timed
from cometmq.broker.send.send_run import (
    CLIENT_SYS_FLAGS,
    SendRuns,
    is_plain_id,
    make_frame,
    make_look,
)
from cometmq.broker.send.special_send import SpecialKind, SpecialRuns
from cometmq.broker.transaction.half_send import HALF_MARK, HalfKind, make_half_look, put_half
from cometmq.codec.batch import decode_batch
from cometmq.codec.ids import offset_message_ids
from cometmq.codec.java_hash import tags_code as hash_tags
from cometmq.codec.properties import (
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
)
from cometmq.codec.recall import RecallHandle, encode_recall_handle
from cometmq.errors import (
    CodecError,
    LocalProtocolError,
    ResponseCode,
    StoreError,
)
from cometmq.model import flags
from cometmq.model import properties as prop
from cometmq.model.names import RETRY_PREFIX
from cometmq.model.topic import TopicConfig
from cometmq.net.server import Run, ServerConnection
from cometmq.store.base.results import BatchItem, IndexKeys, PutResult
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.frame.framing import full_command
from cometmq.wire.header.fast_decode import (
    PlainSend,
    SendCommand,
    decode_plain_send,
    decode_plain_send_long,
)
from cometmq.wire.header.fast_encode import SendResponseEncoder
from cometmq.wire.header.headers import SendMessageHeader

__all__ = ["SendProcessor"]

Request = RemotingCommand | SendCommand
Processor = Callable[[Request, ServerConnection, int], bytes | None]

PLAIN_PROPERTIES_CHARS_MAX: Final = 8000
"""Property strings up to this length fit 32,767 bytes of UTF-8 with what the broker adds."""
CHECK_BYTES_MAX: Final = 100
"""What the checks of a transaction add to the properties of its half message, and the delivery of
a timed message to its own."""
_NOT_PLAIN: Final = (msgspec.MsgspecError, KeyError, ValueError, RecursionError)
"""Not a JSON header, not a known topic, not Unicode: reasons to take the checked way."""
_ONEWAY: Final = 2


class SendProcessor:
    """The processors of codes 10, 310 and 320; `send` is one function for all of them."""

    __slots__ = (
        "_answers",
        "_batch_look",
        "_checks",
        "_frame",
        "_half_look",
        "_is_sync_flush",
        "_limits",
        "_look",
        "_other_runs",
        "_region_properties",
        "_schedule",
        "_state",
        "_suffix",
        "_timers",
        "growing",
        "half_added",
        "half_runs",
        "send",
        "send_long",
        "send_run",
        "waiting",
    )

    def __init__(
        self,
        state: BrokerState,
        schedule: ScheduleService,
        timers: TimerService | None = None,
    ) -> None:
        config = state.config
        self._state = state
        self._schedule = schedule
        self._checks = SendChecks(state)
        self._timers = timers
        if timers is not None:
            self._checks.rules = timers.rules
            self._checks.slot_count = timers.slot_count
        self._answers = SendResponseEncoder(config.region_id, trace_on=config.trace_on)
        self._region_properties = {
            prop.MSG_REGION: config.region_id,
            prop.TRACE_ON: "true" if config.trace_on else "false",
            prop.CLUSTER: config.broker_cluster_name,
        }
        self.half_added: Callable[[PutResult, int, bytes], None] = lambda *_: None
        """Told of each half message that was checked: where it is, when it was born, its
        properties."""
        self.growing = GrowingTopics(state)
        """Topics with message groups that move; the hot path reads its `topics` as a set."""
        self._limits: dict[str, int] = {}
        self._is_sync_flush = config.flush_disk_type == "SYNC_FLUSH"
        self._suffix = encode_properties(self._region_properties)
        self._look = make_look()
        self._batch_look = BatchLook(stops_at_waiting=True)
        self.waiting = WaitingItems(state, self._checks, schedule, timers)
        """Where messages of batches wait that ask for a time."""
        self._frame = make_frame(config.region_id, config.trace_on)
        self.send: Processor = self._make_send(decode_plain_send)
        self.send_long: Processor = self._make_send(decode_plain_send_long)
        self._half_look = make_half_look(self._look)
        answers = RunAnswers(state, self._frame, self._stored)
        self.half_runs = HalfKind(state, self._half_look, self._suffix)
        """Its `added` is told of every half message that was put the fast way."""
        kinds: tuple[SpecialKind[Any], ...] = (
            self.half_runs,
            DelayedKind(state, schedule, self._look, self._suffix),
            TimedKind(state, timers, self._look, self._suffix),
        )
        self._other_runs: tuple[Run, ...] = tuple(
            SpecialRuns(state, self._limits, kind, answers, self.growing.topics).serve
            for kind in kinds
        )
        self.send_run: Run = SendRuns(
            state,
            self._limits,
            self._look,
            self._suffix,
            answers,
            self._other_run,
            self.growing.topics,
        ).serve

    def _other_run(
        self, commands: Sequence[Any], start: int, connection: ServerConnection, now_ms: int
    ) -> tuple[int, bytes]:
        """A run whose first send is not plain: half, delayed or timed messages."""
        for serve in self._other_runs:
            end, answers = serve(commands, start, connection, now_ms)
            if end != start:
                return end, answers
        return start, b""

    def forget_topics(self) -> None:
        """Send every topic through the checks again; called whenever a topic changes."""
        self._limits.clear()

    # -- the fast way ---------------------------------------------------------------------

    def _make_send(self, decode: Callable[[Any], PlainSend]) -> Processor:
        """Build the processor with everything it needs in local variables."""
        limits = self._limits
        put = self._state.store.put
        checked = self.send_checked
        body_bytes_max = self._state.config.max_message_size
        suffix = self._suffix
        is_sync_flush = self._is_sync_flush
        frame = self._frame
        prefix = self._state.message_id_prefix
        look = self._look
        half = self._send_half
        growing = self.growing.topics

        def send(request: Request, connection: ServerConnection, now_ms: int) -> bytes | None:
            try:
                if isinstance(request, SendCommand):
                    header = request.ext
                else:
                    header = decode(request.raw_ext)
                queue_id = header.queue_id
                if not 0 <= queue_id < limits[header.topic]:
                    return checked(request, connection, now_ms)
            except _NOT_PLAIN:
                return checked(request, connection, now_ms)
            text = header.properties
            if text[-1:] != "\x02":
                text += "\x02"
            looked = look(text)
            body = request.body
            if looked is None and HALF_MARK in text:
                return half(request, header, text, connection, now_ms)
            if (
                looked is None
                or not 0 < len(body) <= body_bytes_max
                or header.batch
                or header.reconsume_times
                or (header.place and header.topic in growing)
                or len(text) > PLAIN_PROPERTIES_CHARS_MAX
            ):
                return checked(request, connection, now_ms)
            keys, shape = looked
            try:
                result = put(
                    header.topic,
                    queue_id,
                    body,
                    text.encode() + suffix,
                    flag=header.flag,
                    sys_flag=header.sys_flag & CLIENT_SYS_FLAGS,
                    born_ms=header.born_timestamp_ms,
                    born_host=connection.peer_host,
                    tags_code=shape[1],
                    store_ms=now_ms,
                    index_keys=keys,
                )
            except StoreError as error:
                return self._refused(request, *store_failure(self._state, error))
            except UnicodeEncodeError:
                return checked(request, connection, now_ms)
            uniq_key = keys[0]
            if is_sync_flush and shape[2]:
                self._park(request, connection, result, queue_id, uniq_key)
                return None
            if not is_plain_id(uniq_key):
                return self._stored(request, 0, result, queue_id, uniq_key)
            message_id = f"{prefix}{result.physical_offset:016X}"
            answer = frame(message_id, queue_id, result.queue_offset, uniq_key, request.opaque)
            return answer.encode("latin-1")

        return send

    def _send_half(
        self,
        request: Request,
        header: PlainSend,
        text: str,
        connection: ServerConnection,
        now_ms: int,
    ) -> bytes | None:
        """Store a half message to a known topic; anything special takes the checked way."""
        if header.place and header.topic in self.growing.topics:
            return self.send_checked(request, connection, now_ms)
        stored = put_half(
            self._state,
            self._half_look,
            self._suffix,
            header,
            text,
            request.body,
            connection,
            now_ms,
        )
        if stored is None:
            return self.send_checked(request, connection, now_ms)
        result, half, uniq_key, is_flush_awaited = stored
        self.half_runs.added(half)
        if self._is_sync_flush and is_flush_awaited:
            self._park(request, connection, result, header.queue_id, uniq_key)
            return None
        return self._stored(request, 0, result, header.queue_id, uniq_key)

    # -- the checked way ------------------------------------------------------------------

    def send_checked(
        self,
        request: Request,
        connection: ServerConnection,
        now_ms: int,
    ) -> bytes | None:
        """Serve any send with all checks; SEND_BATCH_MESSAGE always comes here."""
        if isinstance(request, SendCommand):
            request = full_command(request)
        header = SendMessageHeader.from_command(request)
        try:
            stored = self.growing.check(header.topic, header.queue_id, request)
            config = self._checks.topic(header, connection, now_ms)
            if header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
                answered = self._send_batch(request, header, config, connection, now_ms)
            else:
                answered = self._send_one(request, header, config, connection, now_ms)
            if stored is not None:
                stored()
        except Refusal as refusal:
            return self._refused(request, refusal.code, refusal.remark)
        except StoreError as error:
            return self._refused(request, *store_failure(self._state, error))
        except (CodecError, LocalProtocolError) as error:
            return self._refused(request, ResponseCode.MESSAGE_ILLEGAL, str(error))
        if self._state.would_topic_survive(config.topic):
            self._remember(config)
            return answered
        if answered is not None and not request.flag & _ONEWAY:
            self._answer_kept(request, connection, config.topic, answered)
        return None

    def _answer_kept(
        self, request: Request, connection: ServerConnection, topic: str, frame: bytes
    ) -> None:
        """Answer when a restart would find the topic, or why it would not."""

        def settle(fault: tuple[int, str] | None) -> None:
            connection.send(frame if fault is None else self._refused(request, *fault))

        when_topic_saved(self._state, topic, settle)

    def _remember(self, config: TopicConfig) -> None:
        """Let the next plain message to this topic take the fast way."""
        is_plain = (
            not config.topic.startswith(RETRY_PREFIX)
            and config.topic_filter_type == "SINGLE_TAG"
            and config.attributes.get("cleanup.policy") != "COMPACTION"
        )
        if is_plain:
            count = max(config.write_queue_count, config.read_queue_count)
            self._limits[config.topic] = count

    def _send_one(
        self,
        request: RemotingCommand,
        header: SendMessageHeader,
        config: TopicConfig,
        connection: ServerConnection,
        now_ms: int,
    ) -> bytes | None:
        self._checks.body(request.body)
        properties = decode_properties(header.properties)
        properties.pop(prop.POP_CK, None)
        uniq_key = properties.get(prop.UNIQ_KEY)
        if uniq_key is None:
            uniq_key = properties[prop.UNIQ_KEY] = self._state.uniq_ids.next_id()
        target = self._checks.destination(request, header, config, properties, now_ms)
        target.properties.update(self._region_properties)
        # Clients are told the queue the message is for, also while it waits in the schedule.
        queue_id = target.queue_id
        result = self.put(target, header, config, request.body, connection.peer_host, now_ms)
        handle = self._recall_handle(header.topic, target, uniq_key)
        if self._is_sync_flush and properties.get(prop.WAIT) != "false":
            self._park(request, connection, result, queue_id, uniq_key, handle, config.topic)
            return None
        return self._stored(request, 0, result, queue_id, uniq_key, handle)

    def _recall_handle(self, topic: str, target: Destination, uniq_key: str) -> str | None:
        """What recalls a timed message (SendMessageProcessor.attachRecallHandle)."""
        if target.out_ms is None or topic.startswith(RETRY_PREFIX):
            return None
        name = self._state.config.broker_name
        return encode_recall_handle(RecallHandle(topic, name, target.out_ms + 1, uniq_key))

    def put(
        self,
        target: Destination,
        header: SendMessageHeader,
        config: TopicConfig,
        body: bytes,
        born_host: bytes,
        now_ms: int,
    ) -> PutResult:
        """Put a checked message, through the schedule when it is delayed.

        Raises:
            Refusal: the properties are too long with what the broker adds.
            StoreError: the store does not take the message.
        """
        tags = target.properties.get(prop.TAGS)
        code = hash_tags(tags)
        if target.delay_level > 0:
            scheduled(target)
            code = self._state.delay.deliver_time_ms(target.delay_level, now_ms)
        elif target.is_half:
            prepared(target)
        elif target.out_ms is not None:
            timed(target)
        sys_flag = header.sys_flag & CLIENT_SYS_FLAGS
        if config.topic_filter_type == "MULTI_TAG":
            sys_flag |= flags.MULTI_TAGS
        raw = encode_properties(target.properties)
        is_longer_later = target.is_half or target.out_ms is not None
        most = PROPERTIES_BYTES_MAX - (CHECK_BYTES_MAX if is_longer_later else 0)
        if len(raw) > most:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: its properties have {len(raw)} bytes with those the "
                f"broker adds, {most} are allowed",
            )
        result = self._state.store.put(
            target.topic,
            target.queue_id,
            body,
            raw,
            flag=header.flag,
            sys_flag=sys_flag,
            born_ms=header.born_timestamp_ms,
            born_host=born_host,
            reconsume_times=header.reconsume_times,
            prepared_offset=0,
            tags_code=code,
            store_ms=now_ms,
            index_keys=(
                target.properties.get(prop.UNIQ_KEY),
                target.properties.get(prop.KEYS),
                tags,
            ),
        )
        if target.delay_level > 0:
            self._schedule.added(target.delay_level, result.queue_offset, now_ms)
        elif target.is_half:
            self.half_added(result, header.born_timestamp_ms, raw)
        elif target.out_ms is not None and self._timers is not None:
            fresh = Fresh(
                result.queue_offset,
                result.physical_offset,
                result.end_offset - result.physical_offset,
                target.out_ms,
                target.properties[prop.REAL_TOPIC],
                target.properties.get(prop.TIMER_DEL_UNIQKEY),
            )
            self._timers.added([fresh])
        return result

    def _send_batch(
        self,
        request: RemotingCommand,
        header: SendMessageHeader,
        config: TopicConfig,
        connection: ServerConnection,
        now_ms: int,
    ) -> bytes | None:
        """Explode a batch into consecutive messages of one queue, property bytes unchanged.

        Those that ask for a time go where they wait (`WaitingItems.put_all`).
        """
        if header.topic.startswith(RETRY_PREFIX):
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch request does not support retry group {header.topic}",
            )
        self._checks.body(request.body)
        outer = decode_properties(header.properties)
        self._checks.batch(outer)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._state.random_queue(config.write_queue_count)
        sys_flag = header.sys_flag & CLIENT_SYS_FLAGS & ~flags.COMPRESSED
        if config.topic_filter_type == "MULTI_TAG":
            sys_flag |= flags.MULTI_TAGS
        how: dict[str, Any] = {
            "sys_flag": sys_flag,
            "born_ms": header.born_timestamp_ms,
            "born_host": connection.peer_host,
        }
        store = self._state.store
        look = self._batch_look.find
        topic = header.topic
        try:
            result = store.put_packed(topic, queue_id, request.body, look, store_ms=now_ms, **how)
            if result is None:
                items = _batch_items(request.body, look)
                result = store.put_batch(topic, queue_id, items, store_ms=now_ms, **how)
        except MayWait:
            packed = decode_batch(request.body)
            result = self.waiting.put_all(topic, queue_id, packed, now_ms, **how)
        # A batch without an id of its own (4.9, Go) gets none: its messages carry theirs.
        uniq_key = outer.get(prop.UNIQ_KEY)
        if self._is_sync_flush and outer.get(prop.WAIT) != "false":
            self._park(request, connection, result, queue_id, uniq_key, topic=topic)
            return None
        return self._stored(request, 0, result, queue_id, uniq_key)

    # -- answers --------------------------------------------------------------------------

    def _park(
        self,
        request: Request,
        connection: ServerConnection,
        result: PutResult,
        queue_id: int,
        uniq_key: str | None,
        recall_handle: str | None = None,
        topic: str | None = None,
    ) -> None:
        """Answer when the message is durable; a one-way send has nobody to answer.

        `topic` is one that may be new.
        """
        if request.flag & _ONEWAY:
            return

        def settle(is_durable: bool) -> None:
            code = 0 if is_durable else ResponseCode.FLUSH_DISK_TIMEOUT
            frame = self._stored(request, code, result, queue_id, uniq_key, recall_handle)
            if topic is None:
                connection.send(frame)
            else:
                self._answer_kept(request, connection, topic, frame)

        self._state.store.when_durable(result.end_offset, settle)

    def _stored(
        self,
        request: Request,
        code: int,
        result: PutResult,
        queue_id: int,
        uniq_key: str | None,
        recall_handle: str | None = None,
    ) -> bytes:
        offsets = result.physical_offsets or (result.physical_offset,)
        message_id = offset_message_ids(self._state.host, offsets)
        opaque, kind, offset = request.opaque, request.serialize_type, result.queue_offset
        if code or uniq_key is None or recall_handle is not None:
            return self._answers.encode_full(
                opaque,
                kind,
                code,
                queue_id,
                offset,
                message_id,
                uniq_key,
                recall_handle=recall_handle,
            )
        return self._answers.encode(opaque, kind, queue_id, offset, message_id, uniq_key)

    def _refused(self, request: Request, code: int, remark: str) -> bytes:
        return self._answers.encode_refusal(request.opaque, request.serialize_type, code, remark)


def _batch_items(
    body: bytes, look: Callable[[Sequence[bytes]], tuple[list[int], list[IndexKeys]]]
) -> list[BatchItem]:
    """Take a batch apart and add tag code and index keys to each message.

    Raises:
        CodecError: lengths that do not fit.
    """
    items = decode_batch(body)
    codes, keys = look([properties for _, _, properties in items])
    return [
        (flag, payload, properties, code, key)
        for (flag, payload, properties), code, key in zip(items, codes, keys, strict=True)
    ]

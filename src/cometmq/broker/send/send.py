"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: the one way of sends into the store.

1. *Decode* the sends that one read of a socket has brought: a run.  A single send is a run of one.
2. *Find the kind* of each by its property string (`kinds`).  A run has messages of one kind.
3. *Prepare*: the kind says where a message is stored and which properties are added.
4. *Append* the run to the store with one call, and let the kind take note of it.
5. *Answer*, at once or when the messages are durable.

This fast way is for a topic that passed the checks before (`CheckedTopics`) and for properties
that need no check.  The property string stays as the producer sent it, and the broker's own entries
are appended; of two equal names, readers take the last.

Any other send goes through the checks in order (`checks`).  They refuse it, or they make it ready
for steps 3 to 5, alone.

A batch is stored as a whole, so it has its own way into the store.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, Final, Protocol

import msgspec

from cometmq.broker.base.state import BrokerState, Refusal
from cometmq.broker.base.store_failure import store_failure
from cometmq.broker.send.answers import Request, SendAnswers
from cometmq.broker.send.batch_keys import BatchKeysReader, MayWait
from cometmq.broker.send.checks import CheckedTopics, SendChecks
from cometmq.broker.send.kinds import (
    PLAIN,
    Destination,
    Send,
    SendKind,
    Shape,
    make_property_reader,
)
from cometmq.broker.send.native_sends import NativeKinds, NumberedSends, native_front
from cometmq.codec.batch import decode_batch
from cometmq.codec.java_hash import tags_code as hash_tags
from cometmq.codec.properties import decode_properties, encode_properties
from cometmq.errors import CodecError, LocalProtocolError, ResponseCode, StoreError
from cometmq.model import flags
from cometmq.model import properties as prop
from cometmq.model.names import RETRY_PREFIX
from cometmq.model.topic import TopicConfig
from cometmq.net.server import Front, ServerConnection
from cometmq.store.base.results import PutResult
from cometmq.store.log.reader import ScannedRecord
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from cometmq.wire.frame.framing import full_command
from cometmq.wire.header.fast_decode import (
    PlainSend,
    PlainSendLong,
    SendCommand,
    plain_send_of,
)
from cometmq.wire.header.headers import SendMessageHeader

__all__ = ["RUN_SENDS_MAX", "GroupHomes", "SendProcessor", "WaitingBatches", "client_sys_flag"]

RUN_SENDS_MAX: Final = 512
"""More sends of one read are several runs, so that what a run gathers stays small."""
_BROKER_SYS_FLAGS: Final = flags.BORN_HOST_V6 | flags.STORE_HOST_V6 | flags.TRANSACTION_MASK
"""Bits of sysFlag that only the broker sets; those that a client sends are dropped."""
_CLIENT_SYS_FLAGS: Final = ~_BROKER_SYS_FLAGS
_SEQUENCE_MARK: Final = f"{prop.PRODUCER_SEQUENCE}\x01".encode()


class GroupHomes(Protocol):
    """Knows the topics whose message groups move between brokers."""

    @property
    def topics(self) -> Container[str]:
        """The names of these topics; the container is always up to date."""

    def check(
        self, topic: str, queue_id: int, request: RemotingCommand
    ) -> Callable[[], None] | None:
        """Return what is to be called once the send is stored; None for nothing.

        Raises:
            Refusal: the message group is at home elsewhere.
        """


class WaitingBatches(Protocol):
    """Stores batches with messages that ask for a time of their own."""

    def check_batch(self, properties: dict[str, str]) -> None:
        """Check the properties of a batch itself.

        Raises:
            Refusal: it asks for a time as a whole.
        """

    def put_all(
        self,
        topic: str,
        queue_id: int,
        items: Sequence[tuple[int, bytes, bytes]],
        now_ms: int,
        **how: Any,
    ) -> PutResult:
        """Put each message where it waits, or into the queue; `how` as `MessageStore.put_batch`.

        Raises:
            Refusal: a message cannot wait as it asks; nothing was stored.
            StoreError: the store does not take them.
        """


class Sequences(NumberedSends, Protocol):
    """Knows which messages of a producer that numbers them are stored."""

    def when_ready(self, done: Callable[[StoreError | None], None]) -> None:
        """Call `done` when they may, or with the error that prevents it."""

    def take(self, properties: dict[str, str]) -> Any:
        """Give a message's number its stored name, and return it; None without one.

        Raises:
            Refusal: it is none.
        """

    def earlier(self, number: Any) -> ScannedRecord | None:
        """Return the message that is stored with a number.

        Raises:
            Refusal: the number is too old to say so.
        """

    def note(self, number: Any, physical_offset: int) -> None:
        """Remember that a message is stored."""


class SendProcessor:
    """The processors of codes 10, 310 and 320, and of runs of sends."""

    def __init__(
        self,
        state: BrokerState,
        kinds: Sequence[SendKind],
        batches: WaitingBatches,
        group_homes: GroupHomes,
        sequences: Sequences,
    ) -> None:
        """`kinds` are those that properties ask for, in the order of their checks."""
        config = state.config
        self._state = state
        self._checks = SendChecks(state, kinds)
        self._answers = SendAnswers(state)
        self._batches = batches
        self._batch_keys = BatchKeysReader(stops_at_waiting=True)
        self._group_homes = group_homes
        self.sequences = sequences
        self._read_properties = make_property_reader(kinds)
        self._region_properties = {
            prop.MSG_REGION: config.region_id,
            prop.TRACE_ON: "true" if config.trace_on else "false",
            prop.CLUSTER: config.broker_cluster_name,
        }
        self._suffix = encode_properties(self._region_properties)
        self._passed = CheckedTopics()
        self.forget_topics = self._passed.forget
        """Send every topic through the checks again; called whenever a topic changes."""

    def front(self, kinds: NativeKinds) -> Front | None:
        """Return what serves sends by the native core; None where it is not there."""
        return native_front(
            self._state,
            self._passed,
            self._group_homes.topics,
            self._suffix,
            _CLIENT_SYS_FLAGS,
            kinds,
        )

    # -- the fast way ---------------------------------------------------------------------

    def send_run(
        self, commands: Sequence[Any], start: int, connection: ServerConnection, now_ms: int
    ) -> tuple[int, bytes]:
        """Serve sends from `start` on; return the index of the first other one, and the answers."""
        sends = self._gather(commands, start, now_ms)
        return start + len(sends), self._store(sends, connection, now_ms)

    def send(self, request: Request, connection: ServerConnection, now_ms: int) -> bytes | None:
        """Serve SEND_MESSAGE_V2 (310)."""
        if type(request) is SendCommand:
            sends = self._gather((request,), 0, now_ms)
            if sends:
                return self._store(sends, connection, now_ms)
            return self.send_checked(request, connection, now_ms)
        return self._send_decoded(request, connection, now_ms, PlainSend)

    def send_long(
        self, request: Request, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve SEND_MESSAGE (10)."""
        return self._send_decoded(request, connection, now_ms, PlainSendLong)

    def _send_decoded(
        self,
        request: Request,
        connection: ServerConnection,
        now_ms: int,
        kind: type[PlainSend],
    ) -> bytes | None:
        """Serve a send whose header was not decoded in one pass with its command."""
        assert isinstance(request, RemotingCommand)
        try:
            header = plain_send_of(request, kind)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # A field is missing or wrong, or the header is not Unicode.
            return self.send_checked(request, connection, now_ms)
        command = SendCommand(
            request.code,
            header,
            request.opaque,
            request.flag,
            body=request.body,
            serialize_type=request.serialize_type,
        )
        sends = self._gather((command,), 0, now_ms)
        if not sends:
            return self.send_checked(request, connection, now_ms)
        return self._store(sends, connection, now_ms)

    def _gather(self, commands: Sequence[Any], start: int, now_ms: int) -> list[Send]:
        """Make sends of one kind from `start` on ready, up to the first for the checks.  HOT."""
        read, suffix = self._read_properties, self._suffix
        body_bytes_max = self._state.config.max_message_size
        queue_count_of = self._passed.queue_counts.get
        moving_topics = self._group_homes.topics
        sends: list[Send] = []
        kind: SendKind | None = None
        for request in commands[start : start + RUN_SENDS_MAX]:
            if type(request) is not SendCommand or request.flag & FLAG_RESPONSE:
                break
            header = request.ext
            topic = header.topic
            queue_id = header.queue_id
            body = request.body
            if (
                not 0 <= queue_id < queue_count_of(topic, 0)
                or len(body) > body_bytes_max
                or header.batch
                or header.reconsume_times
                or (header.group_home and topic in moving_topics)
            ):
                break
            text = header.properties
            if text[-1:] != "\x02":
                text += "\x02"
            keys_and_shape = read(text)
            if keys_and_shape is None:
                break
            keys, shape = keys_and_shape
            if shape.kind is not kind:
                if kind is not None or not shape.kind.is_open():
                    break
                kind = shape.kind
            try:
                properties = text.encode() + suffix
            except UnicodeEncodeError:
                break
            stored_topic, stored_queue_id, tags_code = topic, queue_id, shape.tags_code
            if kind is not PLAIN:
                if kind.is_varying and kind.needs_checks(shape, now_ms):
                    break
                stored_topic, stored_queue_id, tags_code, added = kind.prepare(
                    topic, queue_id, shape, keys[0], now_ms
                )
                properties = kind.stored_properties(properties) + added
                if len(properties) > kind.properties_bytes_max:
                    break
            sends.append(
                Send(
                    stored_topic,
                    stored_queue_id,
                    body,
                    properties,
                    header.flag,
                    header.sys_flag & _CLIENT_SYS_FLAGS,
                    header.born_timestamp_ms,
                    tags_code,
                    keys,
                    0,
                    0,
                    request,
                    keys[0],
                    shape,
                    topic,
                    queue_id,
                )
            )
        return sends

    def _store(self, sends: list[Send], connection: ServerConnection, now_ms: int) -> bytes:
        """Append a run and return the answers that leave now; each refused message has its own."""
        append = self._state.store.append
        answers = b""
        host = connection.peer_host
        while sends:
            try:
                results = append(sends, born_host=host, store_ms=now_ms)
            except StoreError as error:
                request = sends.pop(0).request
                if not request.flag & FLAG_ONEWAY:
                    answers += self._answers.refused(request, *store_failure(self._state, error))
                continue
            kind = sends[0].shape.kind
            handles = None
            if kind is not PLAIN:
                handles = kind.stored(sends, results, host, now_ms)
            answers += self._answers.of_run(sends, results, handles, connection)
            if len(results) == len(sends):
                break
            sends = sends[len(results) :]
        return answers

    def _append(
        self, sends: Sequence[Send], born_host: bytes, now_ms: int
    ) -> tuple[list[PutResult], Sequence[str] | None]:
        """Append messages of one kind, as many as the store takes.

        Returns their results, and their recall handles if they have some.
        """
        results = self._state.store.append(sends, born_host=born_host, store_ms=now_ms)
        return results, sends[0].shape.kind.stored(sends, results, born_host, now_ms)

    # -- the way with all checks ----------------------------------------------------------

    def send_checked(
        self, request: Request, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve any send with all checks; SEND_BATCH_MESSAGE (320) always comes here."""
        if isinstance(request, SendCommand):
            request = full_command(request)
        header = SendMessageHeader.from_command(request)
        if not self.sequences.is_ready and _may_have_sequence(request, header):
            self.sequences.when_ready(
                lambda error: self._send_later(request, connection, now_ms, error)
            )
            return None
        try:
            when_stored = self._group_homes.check(header.topic, header.queue_id, request)
            config = self._checks.topic(header, connection, now_ms)
            is_batch = header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
            serve = self._send_batch if is_batch else self._send_one
            answer = serve(request, header, config, connection, now_ms)
            if when_stored is not None:
                when_stored()
        except Refusal as refusal:
            return self._answers.refused(request, refusal.code, refusal.remark)
        except StoreError as error:
            return self._answers.refused(request, *store_failure(self._state, error))
        except (CodecError, LocalProtocolError) as error:
            return self._answers.refused(request, ResponseCode.MESSAGE_ILLEGAL, str(error))
        self._remember(config)
        return answer

    def _send_later(
        self,
        request: RemotingCommand,
        connection: ServerConnection,
        now_ms: int,
        error: StoreError | None,
    ) -> None:
        """Serve the first sends with a sequence, which have waited for its file."""
        if error is not None:
            answer: bytes | None = self._answers.refused(
                request, *store_failure(self._state, error)
            )
        else:
            answer = self.send_checked(request, connection, now_ms)
        if answer and not request.flag & FLAG_ONEWAY:
            connection.send(answer)

    def _remember(self, config: TopicConfig) -> None:
        """Let the next message to this topic go the fast way."""
        topic = config.topic
        if (
            self._state.would_topic_survive(topic)
            and not topic.startswith(RETRY_PREFIX)
            and config.topic_filter_type == "SINGLE_TAG"
            and config.attributes.get("cleanup.policy") != "COMPACTION"
            and config.attributes.get("message.type") != "PRIORITY"  # a check finds the queue
        ):
            self._passed.queue_counts[topic] = max(
                config.write_queue_count, config.read_queue_count
            )

    def _send_one(
        self,
        request: RemotingCommand,
        header: SendMessageHeader,
        config: TopicConfig,
        connection: ServerConnection,
        now_ms: int,
    ) -> bytes | None:
        self._checks.body_size(request.body)
        properties = decode_properties(header.properties)
        properties.pop(prop.POP_CK, None)
        if prop.UNIQ_KEY not in properties:
            properties[prop.UNIQ_KEY] = self._state.uniq_ids.next_id()
        number = self.sequences.take(properties)
        earlier = None if number is None else self.sequences.earlier(number)
        if earlier is not None:
            return self._send_again(request, earlier, config, connection)
        target = self._checks.destination(request, header, config, properties, now_ms)
        properties.update(self._region_properties)
        send = self._checked(
            target,
            request.body,
            flag=header.flag,
            sys_flag=client_sys_flag(header, config),
            born_ms=header.born_timestamp_ms,
            reconsume_times=header.reconsume_times,
            now_ms=now_ms,
        )
        (result,), handles = self._append([send], connection.peer_host, now_ms)
        if number is not None:
            self.sequences.note(number, result.physical_offset)
        # A consumer copies the properties of a retry, WAIT=false among them, and drops the message
        # once its copy is answered.
        is_retry = header.topic.startswith(RETRY_PREFIX)

        def answer(code: int, has_waited: bool) -> bytes:
            handle = handles[0] if handles else None
            return self._answers.stored(
                request,
                result,
                send.real_queue_id,
                send.uniq_key,
                handle,
                code,
                has_waited=has_waited,
            )

        return self._answers.checked(
            request,
            connection,
            config.topic,
            result.end_offset,
            answer,
            is_flush_awaited=is_retry or properties.get(prop.WAIT) != "false",
        )

    def _send_again(
        self,
        request: RemotingCommand,
        earlier: ScannedRecord,
        config: TopicConfig,
        connection: ServerConnection,
    ) -> bytes | None:
        """Answer a repetition as the message that is stored; it waits for the same barrier."""
        end_offset = earlier.physical_offset + earlier.size
        result = PutResult(earlier.physical_offset, earlier.queue_offset, end_offset)
        properties = decode_properties(earlier.properties)
        queue_id = int(properties.get(prop.REAL_QUEUE_ID, earlier.queue_id))

        def answer(code: int, has_waited: bool) -> bytes:
            uniq_key = properties.get(prop.UNIQ_KEY)
            return self._answers.stored(
                request, result, queue_id, uniq_key, None, code, has_waited=has_waited
            )

        return self._answers.checked(
            request,
            connection,
            config.topic,
            end_offset,
            answer,
            is_flush_awaited=properties.get(prop.WAIT) != "false",
        )

    def put(
        self,
        target: Destination,
        body: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int,
        now_ms: int,
    ) -> PutResult:
        """Store a checked message where its kind wants it.

        Raises:
            Refusal: the properties are too long with what the broker adds.
            StoreError: the store does not take the message.
        """
        send = self._checked(
            target,
            body,
            flag=flag,
            sys_flag=sys_flag,
            born_ms=born_ms,
            reconsume_times=reconsume_times,
            now_ms=now_ms,
        )
        return self._append([send], born_host, now_ms)[0][0]

    def _checked(
        self,
        target: Destination,
        body: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_ms: int,
        reconsume_times: int,
        now_ms: int,
    ) -> Send:
        """Make a checked message ready for the store.

        Raises:
            Refusal: the properties are too long with what the broker adds.
        """
        kind, properties = target.kind, target.properties
        tags = properties.get(prop.TAGS)
        uniq_key = properties.get(prop.UNIQ_KEY, "")
        is_flush_awaited = properties.get(prop.WAIT) != "false"
        shape = Shape(kind, tags, hash_tags(tags), is_flush_awaited, target.detail)
        topic, queue_id, tags_code, added = kind.prepare(
            target.topic, target.queue_id, shape, uniq_key, now_ms
        )
        for name in kind.dropped:
            properties.pop(name, None)
        properties.update(decode_properties(added.decode()))
        raw = encode_properties(properties)
        if len(raw) > kind.properties_bytes_max:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: its properties have {len(raw)} bytes with those the "
                f"broker adds, {kind.properties_bytes_max} are allowed",
            )
        return Send(
            topic,
            queue_id,
            body,
            raw,
            flag,
            sys_flag,
            born_ms,
            tags_code,
            (properties.get(prop.UNIQ_KEY), properties.get(prop.KEYS), tags),
            reconsume_times,
            uniq_key=uniq_key,
            shape=shape,
            real_topic=target.topic,
            real_queue_id=target.queue_id,
        )

    def _send_batch(
        self,
        request: RemotingCommand,
        header: SendMessageHeader,
        config: TopicConfig,
        connection: ServerConnection,
        now_ms: int,
    ) -> bytes | None:
        """Store a batch as consecutive messages of one queue, their property bytes unchanged.

        A message that asks for a time of its own is stored where it waits.
        """
        topic = header.topic
        if topic.startswith(RETRY_PREFIX):
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic}"
            )
        self._checks.body_size(request.body)
        properties = decode_properties(header.properties)
        self._batches.check_batch(properties)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._state.random_queue(config.write_queue_count)
        how: dict[str, Any] = {
            "sys_flag": client_sys_flag(header, config) & ~flags.COMPRESSED,
            "born_ms": header.born_timestamp_ms,
            "born_host": connection.peer_host,
        }
        if _SEQUENCE_MARK in request.body:
            result = self._put_sequenced(topic, queue_id, request.body, now_ms, how)
        else:
            try:
                result = self._state.store.put_packed(
                    topic, queue_id, request.body, self._batch_keys.read, store_ms=now_ms, **how
                )
            except MayWait:
                items = decode_batch(request.body)
                result = self._batches.put_all(topic, queue_id, items, now_ms, **how)
        # Clients 4.9 and Go give a batch no id of its own; then its answer has none.
        uniq_key = properties.get(prop.UNIQ_KEY)

        def answer(code: int, has_waited: bool) -> bytes:
            return self._answers.stored(
                request, result, queue_id, uniq_key, None, code, has_waited=has_waited
            )

        return self._answers.checked(
            request,
            connection,
            topic,
            result.end_offset,
            answer,
            is_flush_awaited=properties.get(prop.WAIT) != "false",
        )

    def _put_sequenced(
        self, topic: str, queue_id: int, body: bytes, now_ms: int, how: dict[str, Any]
    ) -> PutResult:
        """Store those messages of a batch that are not stored already.

        A crash may have torn a batch that was not acknowledged; then only its rest is stored.
        """
        items: list[tuple[int, bytes, bytes]] = []
        numbers: list[Any] = []
        stored: dict[int, ScannedRecord] = {}
        for index, (flag, content, raw) in enumerate(decode_batch(body)):
            properties = decode_properties(raw)
            number = self.sequences.take(properties)
            earlier = None if number is None else self.sequences.earlier(number)
            if earlier is not None:
                stored[index] = earlier
                continue
            items.append((flag, content, encode_properties(properties)))
            numbers.append(number)
        new: Sequence[int] = ()
        end_offset = first = 0
        if items:
            result = self._batches.put_all(topic, queue_id, items, now_ms, **how)
            new, end_offset, first = result.physical_offsets, result.end_offset, result.queue_offset
            for number, physical_offset in zip(numbers, new, strict=True):
                if number is not None:
                    self.sequences.note(number, physical_offset)
        added = iter(new)
        offsets = tuple(
            stored[index].physical_offset if index in stored else next(added)
            for index in range(len(stored) + len(new))
        )
        for earlier in stored.values():
            end_offset = max(end_offset, earlier.physical_offset + earlier.size)
        if 0 in stored:
            first = stored[0].queue_offset
        return PutResult(offsets[0], first, end_offset, offsets)


def _may_have_sequence(request: RemotingCommand, header: SendMessageHeader) -> bool:
    return prop.PRODUCER_SEQUENCE in header.properties or _SEQUENCE_MARK in request.body


def client_sys_flag(header: SendMessageHeader, config: TopicConfig) -> int:
    """Return the sysFlag under which a client's message is stored."""
    sys_flag = header.sys_flag & _CLIENT_SYS_FLAGS
    if config.topic_filter_type == "MULTI_TAG":
        sys_flag |= flags.MULTI_TAGS
    return sys_flag

"""Staged batches: STAGE, PUBLISH_STAGED, DROP_STAGED, LIST_STAGED, FORGET_SINK (31010 to 31014).

Job: serve these requests, find after a start what was staged and published, and keep the log
files and the ledger's file that this needs.  It must not append batches to their queues itself
(`cometmq.broker.extensions.staging.publication`).

Staged messages wait in `STAGED_TOPIC`, a topic no client can read or send to: one record for each
block, with topic and queue in REAL_TOPIC and REAL_QID and the token in properties of our own.  To
RocketMQ's broker both topics are system topics with ordinary messages in them.

A block is answered when it is in the log; that it is on stable storage is made sure by the
publish, for all blocks with one flush.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec

from cometmq.broker.base.state import BrokerState, Refusal, answer, refusing
from cometmq.broker.base.store_failure import store_failure, when_topic_saved
from cometmq.broker.delay.waiting_items import WaitingItems
from cometmq.broker.extensions.staging.items import check_block
from cometmq.broker.extensions.staging.ledger import (
    Forgotten,
    Ledger,
    LedgerFile,
    Record,
    decode_record,
    encode_record,
)
from cometmq.broker.extensions.staging.publication import Outcome, Publisher
from cometmq.broker.extensions.staging.tokens import StagedBlock, StagedTokens
from cometmq.broker.send.checks import SendChecks
from cometmq.codec.properties import encode_properties
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.errors import CodecError, RemoteProtocolError, ResponseCode, StoreError
from cometmq.model import properties as prop
from cometmq.model.names import (
    DEFAULT_TOPIC,
    RETRY_PREFIX,
    STAGED_DECISION_TOPIC,
    STAGED_TOPIC,
    check_sink,
)
from cometmq.net.server import Handler, ServerConnection
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.staging import (
    CountResponseHeader,
    DropBody,
    PublishBody,
    PublishHeader,
    PublishResponseHeader,
    PublishStatus,
    SinkHeader,
    StagedListing,
    StageHeader,
    StageResponseHeader,
    StagingCode,
    decode_body,
    encode_body,
)
from cometmq.wire.header.headers import SendMessageHeader

__all__ = ["StagingService"]

log = logging.getLogger("cometmq.broker")

_SINK: Final = "STAGED_SINK"
_BATCH: Final = "STAGED_BATCH"
_PART: Final = "STAGED_PART"
_TOKEN: Final = "STAGED_TOKEN"  # noqa: S105 - the name of a property
_ROWS: Final = "STAGED_ROWS"
_TOKEN_CHARS_MAX: Final = 600
_TOPIC_QUEUES: Final = 4
"""Queues asked for when a topic is created by staging, as by a send."""
_CHECK_S: Final = 10.0
"""Pace at which tokens whose time is up are looked for."""
_UNITS: Final = 256

_Body = TypeVar("_Body", PublishBody, DropBody)


class StagingService:
    """Everything a broker knows about staged batches."""

    __slots__ = (
        "_checks",
        "_is_saved",
        "_saved",
        "_settling",
        "_state",
        "_timer",
        "_unsaved_from",
        "_waiting",
        "ledger",
        "on_ledger_changed",
        "publisher",
        "tokens",
    )

    def __init__(
        self,
        state: BrokerState,
        found: LedgerFile | None,
        grown: Callable[[str, int], None],
        waiting: WaitingItems,
    ) -> None:
        self._state = state
        self._checks = SendChecks(state)
        self._waiting = waiting
        self._timer: asyncio.TimerHandle | None = None
        self.tokens = StagedTokens()
        self.ledger = Ledger(found)
        self.publisher = Publisher(state, self.tokens, self.ledger, grown, self._changed, waiting)
        self.on_ledger_changed: Callable[[], None] = lambda: None
        """Called when the ledger's file has to be written."""
        self._is_saved: Callable[[], bool] = lambda: True
        self._unsaved_from: int | None = None
        self._load(found)
        state.store.hold_log("staged messages", self._oldest)

    # -- life ----------------------------------------------------------------------------------

    def _load(self, found: LedgerFile | None) -> None:
        """Read what the file does not have, and take up a batch that was being published.  Blocks,
        before anybody reads."""
        store = self._state.store
        first, staged_next = (0, 0) if found is None else (found.decision_next, found.staged_next)
        ends = [store.end_of_queue(topic, 0) for topic in (STAGED_DECISION_TOPIC, STAGED_TOPIC)]
        if first > ends[0] or staged_next > ends[1]:
            # A log that lost its end, and this file came from somewhere else: never skip records.
            log.error(
                "the ledger of staged batches knows %d decisions and %d blocks, the log has %d "
                "and %d: both are read anew",
                first,
                staged_next,
                *ends,
            )
            first = staged_next = 0
            self.ledger.revision += 1
        unfinished = self.ledger.replay(self._decisions(first))
        going_on = set()
        if unfinished is not None:
            going_on = {claim.token for claim in unfinished.decision.tokens}
        for message, end_offset in self._records(STAGED_TOPIC, staged_next):
            self._take(message, end_offset, going_on)
        if unfinished is not None:
            self._unsaved_from = unfinished.physical_offset
            self.publisher.resume(unfinished)

    def _decisions(self, first: int) -> Iterator[tuple[int, int, int, Record]]:
        for message, end_offset in self._records(STAGED_DECISION_TOPIC, first):
            try:
                record = decode_record(bytes(message.body))
            except CodecError as error:
                log.error(
                    "%s: record %d cannot be read and is passed over: %s",
                    STAGED_DECISION_TOPIC,
                    message.queue_offset,
                    error,
                )
                continue
            yield message.queue_offset, message.physical_offset, end_offset, record

    def _records(self, topic: str, first: int) -> Iterator[tuple[StoredMessage, int]]:
        """The messages of queue 0 from an offset on, with the physical offsets behind them."""
        store = self._state.store
        position = max(first, store.min_queue_offset(topic, 0))
        while units := store.units(topic, 0, position, _UNITS):
            for unit in units:
                position += 1
                try:
                    found = store.message_at(unit.physical_offset)
                except StoreError as error:
                    log.error("%s: message %d cannot be read: %s", topic, position - 1, error)
                    continue
                if found is not None:
                    yield decode_message(found), unit.physical_offset + unit.size

    def _take(self, message: StoredMessage, end_offset: int, going_on: set[str]) -> None:
        """Put a block that was found into the table, unless it can never be published."""
        names = message.properties
        try:
            sink, batch_id, token = names[_SINK], int(names[_BATCH]), names[_TOKEN]
            block = StagedBlock(
                message.physical_offset,
                end_offset,
                message.queue_offset,
                names[prop.REAL_TOPIC],
                int(names[prop.REAL_QUEUE_ID]),
                int(names[_ROWS]),
            )
            part = names[_PART]
        except (KeyError, ValueError):
            log.error("%s: message %d is no block", STAGED_TOPIC, message.queue_offset)
            return
        if token in going_on or batch_id > self.ledger.last_batch(sink):
            now_ms = message.store_timestamp_ms
            self.tokens.add((token, sink, batch_id, part), block, message.body, now_ms)

    def attach(self, is_saved: Callable[[], bool], on_ledger_changed: Callable[[], None]) -> None:
        """Say how to learn whether the ledger's file is written, and how to have it written."""
        self._is_saved = is_saved
        self.on_ledger_changed = on_ledger_changed

    def start(self) -> None:
        """Go on with what was being published, and collect orphans from now on."""
        # A file that the log does not bear out must not outlive this start.
        self._changed()
        self.publisher.start()
        self._schedule()

    def stop(self) -> None:
        """Publish no further; the next start goes on."""
        self.publisher.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_S, self._tick)

    def _tick(self) -> None:
        self._schedule()
        self.collect(self._state.env.clock.now_ms())

    def collect(self, now_ms: int) -> int:
        """Drop tokens whose time is up; how many."""
        if self.publisher.is_busy:
            return 0
        limit_ms = self._state.config.staged_timeout_minutes * 60_000
        expired = self.tokens.before(now_ms - limit_ms)
        for token in expired:
            log.warning(
                "token %s was staged %d minutes ago and never published: its %d messages are "
                "dropped",
                token.token,
                (now_ms - token.updated_ms) // 60_000,
                token.rows,
            )
        if expired:
            self.tokens.drop(expired)
            self.ledger.revision += 1
            self._changed()
        return len(expired)

    # -- the file and the log -------------------------------------------------------------------

    def snapshot(self) -> Callable[[], bytes]:
        """Copy what the file holds; the result encodes it."""
        staged_next = self.tokens.first_queue_offset
        if staged_next is None:
            staged_next = self._state.store.end_of_queue(STAGED_TOPIC, 0)
        found = LedgerFile(dict(self.ledger.durable), self.ledger.decision_next, staged_next)
        return lambda: msgspec.json.encode(found)

    def _changed(self) -> None:
        self.on_ledger_changed()

    def _oldest(self) -> int | None:
        """The first record that is still needed: staged, or decided and not in the file."""
        if self._unsaved_from is not None and self._is_saved() and not self.publisher.is_busy:
            self._unsaved_from = None
        places = [self.tokens.first_physical_offset, self._unsaved_from]
        return min([place for place in places if place is not None], default=None)

    def _need_from(self, physical_offset: int) -> None:
        """Keep the log from here on, until the file has what is decided there."""
        if self._unsaved_from is None:
            self._unsaved_from = physical_offset

    # -- requests ------------------------------------------------------------------------------

    def handlers(self) -> dict[int, Handler]:
        """The processors by request code."""
        return {
            StagingCode.STAGE: refusing(self.stage),
            StagingCode.PUBLISH_STAGED: refusing(self.publish),
            StagingCode.DROP_STAGED: refusing(self.drop),
            StagingCode.LIST_STAGED: refusing(self.list),
            StagingCode.FORGET_SINK: refusing(self.forget),
        }

    def stage(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve STAGE (31010)."""
        header = StageHeader.from_command(request)
        self._check_names(header)
        if header.batch_id <= self.ledger.last_batch(header.sink):
            return answer(request, ext=StageResponseHeader(PublishStatus.ALREADY).to_ext())
        names = (header.token, header.sink, header.batch_id, header.part)
        if not self.tokens.is_repeated(*names[1:3], header.token, header.sequence):
            self._check_target(header, connection, now_ms)
            self._put(header, request.body, connection, now_ms)
            self.publisher.at("staged")
        staged = answer(request, ext=StageResponseHeader(PublishStatus.STAGED).to_ext())
        if self._state.would_topic_survive(header.topic):
            return staged
        # Otherwise a kill in this moment leaves a batch for a topic nobody knows.

        def settle(fault: tuple[int, str] | None) -> None:
            connection.send(staged if fault is None else answer(request, *fault))

        when_topic_saved(self._state, header.topic, settle)
        return None

    def _check_names(self, header: StageHeader) -> None:
        fault = check_sink(header.sink)
        if fault is not None:
            raise Refusal(ResponseCode.INVALID_PARAMETER, fault)
        is_legal = header.token.isprintable() and 0 < len(header.token) <= _TOKEN_CHARS_MAX
        if not is_legal or not header.part.isprintable() or header.batch_id < 0:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"token {header.token!r:.80}, part {header.part!r:.80} or batch "
                f"{header.batch_id} is not accepted: printable names and a batch from 0 on",
            )

    def _check_target(self, header: StageHeader, connection: ServerConnection, now_ms: int) -> None:
        """Refuse what a send to that topic and queue would be refused for."""
        if header.queue_id < 0 or header.topic.startswith(RETRY_PREFIX):
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"staging for topic {header.topic}, queue {header.queue_id} is not possible: name "
                "a queue, and no retry topic",
            )
        send = SendMessageHeader(
            header.sink,
            header.topic,
            DEFAULT_TOPIC,
            _TOPIC_QUEUES,
            header.queue_id,
            0,
            header.born_timestamp_ms,
            0,
        )
        self._checks.topic(send, connection, now_ms)

    def _put(
        self, header: StageHeader, data: bytes, connection: ServerConnection, now_ms: int
    ) -> None:
        state = self._state
        self._checks.body(data)
        try:
            rows = check_block(data, lambda items: self._waiting.check(items, now_ms, "block"))
            properties = encode_properties(
                {
                    prop.REAL_TOPIC: header.topic,
                    prop.REAL_QUEUE_ID: str(header.queue_id),
                    _TOKEN: header.token,
                    _SINK: header.sink,
                    _BATCH: str(header.batch_id),
                    _PART: header.part,
                    _ROWS: str(rows),
                }
            )
            result = state.store.put(
                STAGED_TOPIC,
                0,
                data,
                properties,
                born_ms=header.born_timestamp_ms,
                born_host=connection.peer_host,
                store_ms=now_ms,
            )
        except StoreError as error:
            raise Refusal(*store_failure(state, error)) from error
        except CodecError as error:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        self.tokens.add(
            (header.token, header.sink, header.batch_id, header.part),
            StagedBlock(
                result.physical_offset,
                result.end_offset,
                result.queue_offset,
                header.topic,
                header.queue_id,
                rows,
            ),
            data,
            now_ms,
        )

    def publish(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> None:
        """Serve PUBLISH_STAGED (31011); the answer leaves when the batch is durable."""
        header = PublishHeader.from_command(request)
        body = _body(request, PublishBody)

        def settle(outcome: Outcome) -> None:
            if connection.is_closed:
                return
            if isinstance(outcome, Refusal):
                connection.send(answer(request, outcome.code, outcome.remark))
                return
            ext = PublishResponseHeader(*outcome).to_ext()
            connection.send(answer(request, ext=ext))

        if header.prepare:
            self.publisher.prepare(header.sink, header.batch_id, body, settle)
            return
        self._need_from(self._state.store.max_physical_offset)
        self.publisher.publish(header.sink, header.batch_id, body, settle)

    def drop(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        """Serve DROP_STAGED (31012); tokens that are not here, or are published now, stay out."""
        sink = _sink(request)
        tokens = [
            token
            for name in _body(request, DropBody).tokens
            if (token := self.tokens.get(name)) is not None
            and token.sink == sink
            and token.batch_id > self.ledger.last_batch(sink)
        ]
        return answer(request, ext=CountResponseHeader(self.tokens.drop(tokens)).to_ext())

    def list(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        """Serve LIST_STAGED (31013): the ledger and what waits."""
        sink = SinkHeader.from_command(request).sink
        sinks = self.ledger.sinks
        if sink is not None:
            sinks = {sink: sinks[sink]} if sink in sinks else {}
        listing = StagedListing(sinks, self.tokens.listing(sink))
        return answer(request, body=encode_body(listing))

    def forget(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> None:
        """Serve FORGET_SINK (31014); the answer leaves when it is durable."""
        sink = _sink(request)
        if self.publisher.is_publishing(sink):
            raise Refusal(
                ResponseCode.SYSTEM_BUSY,
                f"a batch of sink {sink} is being published; try again when it is done",
            )
        store = self._state.store
        try:
            result = store.put(
                STAGED_DECISION_TOPIC,
                0,
                encode_record(Forgotten(sink)),
                b"",
                born_ms=now_ms,
                born_host=self._state.host,
                store_ms=now_ms,
            )
        except StoreError as error:
            raise Refusal(*store_failure(self._state, error)) from error
        self._need_from(result.physical_offset)
        self.ledger.sinks.pop(sink, None)
        count = self.tokens.drop([token for token in self.tokens if token.sink == sink])

        def settle() -> None:
            entry = self.ledger.sinks.get(sink)
            if entry is None or not entry.is_complete:
                self.ledger.settle(sink, None, self.publisher.decision_next)
                self._changed()
            if not connection.is_closed:
                connection.send(answer(request, ext=CountResponseHeader(count).to_ext()))

        self.publisher.when_durable(result.end_offset, settle)


def _sink(request: RemotingCommand) -> str:
    sink = SinkHeader.from_command(request).sink
    if sink is None:
        raise Refusal(ResponseCode.INVALID_PARAMETER, "the field sink is missing; name the sink")
    return sink


def _body(request: RemotingCommand, kind: type[_Body]) -> _Body:
    try:
        return decode_body(request.body, kind)
    except RemoteProtocolError as error:
        raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error

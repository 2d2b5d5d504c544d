"""Staged batches: STAGE, PUBLISH_STAGED, DROP_STAGED, LIST_STAGED, FORGET_SINK (31010 to 31014).

The service answers these requests.  When the broker starts, it reads the staged blocks and the
ledger.  It keeps the log files that they need, and the ledger's file.  The publisher appends the
batches to their queues (`cometmq.broker.extensions.staging.publication`).

Staged messages wait in `STAGED_TOPIC`, which no client can read or send to.  To RocketMQ's broker
both staging topics are system topics with ordinary messages.

The broker answers a block when it is in the log.  The publish later makes sure, with one flush for
all blocks, that they are on stable storage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

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
from cometmq.broker.extensions.staging.staged_send import StagedKind, TokenName, block_of
from cometmq.broker.extensions.staging.tokens import StagedTokens
from cometmq.broker.send.checks import SendChecks
from cometmq.broker.send.send import SendProcessor
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.errors import CodecError, RemoteProtocolError, ResponseCode, StoreError
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

_TOKEN_CHARS_MAX: Final = 600
_TOPIC_QUEUES: Final = 4
"""Queue count of a topic that staging creates; a send creates topics with the same count."""
_CHECK_S: Final = 10.0
"""Pause between two searches for expired tokens."""
_UNITS: Final = 256

_Body = TypeVar("_Body", PublishBody, DropBody)


class StagingService:
    """The requests of staged batches for one broker.

    Args:
        ledger_file: as it was read.
        ledger: made from that file; records of the log that the file does not have are added.
        tokens: empty; blocks of the log are added.
        is_saved: says whether the file has the ledger as it is now.
        save: has the file written if the ledger has changed.
        grown: called with topic and queue id when messages of a held queue become visible.
    """

    def __init__(
        self,
        state: BrokerState,
        send: SendProcessor,
        waiting: WaitingItems,
        ledger_file: LedgerFile,
        ledger: Ledger,
        tokens: StagedTokens,
        is_saved: Callable[[], bool],
        save: Callable[[], None],
        grown: Callable[[str, int], None],
    ) -> None:
        self._state = state
        self._send = send
        self._checks = SendChecks(state)
        self._waiting = waiting
        self._timer: asyncio.TimerHandle | None = None
        self.tokens = tokens
        self.ledger = ledger
        self._kind = StagedKind(tokens)
        self.publisher = Publisher(state, tokens, ledger, grown, save, waiting)
        self._is_saved = is_saved
        self._save = save
        self._unsaved_from: int | None = None
        self._load(ledger_file)
        state.store.hold_log("staged messages", self._oldest)

    # -- life ----------------------------------------------------------------------------------

    def _load(self, ledger_file: LedgerFile) -> None:
        """Read the records that the file does not have, and prepare the unfinished batch.

        Blocks; it runs before anybody reads.
        """
        store = self._state.store
        first, staged_next = ledger_file.decision_next, ledger_file.staged_next
        ends = [store.end_of_queue(topic, 0) for topic in (STAGED_DECISION_TOPIC, STAGED_TOPIC)]
        if first > ends[0] or staged_next > ends[1]:
            # The log lost its end or the file belongs to another log: skip no record.
            log.error(
                "the ledger of staged batches has %d decisions and %d blocks, the log has %d "
                "and %d: the broker reads both queues from their beginning",
                first,
                staged_next,
                *ends,
            )
            first = staged_next = 0
            self.ledger.revision += 1
        unfinished = self.ledger.replay(self._decisions(first))
        unfinished_tokens = set()
        if unfinished is not None:
            unfinished_tokens = {claim.token for claim in unfinished.decision.tokens}
        for message, end_offset in self._records(STAGED_TOPIC, staged_next):
            self._add_block(message, end_offset, unfinished_tokens)
        if unfinished is not None:
            self._unsaved_from = unfinished.physical_offset
            self.publisher.resume(unfinished)

    def _decisions(self, first: int) -> Iterator[tuple[int, int, int, Record]]:
        for message, end_offset in self._records(STAGED_DECISION_TOPIC, first):
            try:
                record = decode_record(bytes(message.body))
            except CodecError as error:
                log.error(
                    "%s: record %d cannot be read and is skipped: %s",
                    STAGED_DECISION_TOPIC,
                    message.queue_offset,
                    error,
                )
                continue
            yield message.queue_offset, message.physical_offset, end_offset, record

    def _records(self, topic: str, first: int) -> Iterator[tuple[StoredMessage, int]]:
        """The messages of queue 0 from an offset on, each with its physical end offset."""
        store = self._state.store
        position = max(first, store.min_queue_offset(topic, 0))
        while units := store.units(topic, 0, position, _UNITS):
            for unit in units:
                position += 1
                try:
                    record = store.message_at(unit.physical_offset)
                except StoreError as error:
                    log.error("%s: message %d cannot be read: %s", topic, position - 1, error)
                    continue
                if record is not None:
                    yield decode_message(record), unit.physical_offset + unit.size

    def _add_block(
        self, message: StoredMessage, end_offset: int, unfinished_tokens: set[str]
    ) -> None:
        """Add a block to the table, unless it can never be published."""
        staged = block_of(message, end_offset)
        if staged is None:
            log.error("%s: message %d is no block", STAGED_TOPIC, message.queue_offset)
            return
        name, block = staged
        if name.token in unfinished_tokens or name.batch_id > self.ledger.last_batch(name.sink):
            self.tokens.add(name, block, message.body, message.store_timestamp_ms)

    def start(self) -> None:
        """Continue the unfinished batch, and drop expired tokens from now on."""
        # A file that contradicts the log must not outlive this start.
        self._save()
        self.publisher.start()
        self._schedule()

    def stop(self) -> None:
        """Stop publishing; the next start continues the batch."""
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
        """Drop expired tokens and count them."""
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
            self._save()
        return len(expired)

    # -- the file and the log -------------------------------------------------------------------

    def _oldest(self) -> int | None:
        """Physical offset of the oldest record that is still needed: staged or not saved."""
        if self._unsaved_from is not None and self._is_saved() and not self.publisher.is_busy:
            self._unsaved_from = None
        offsets = [self.tokens.first_physical_offset, self._unsaved_from]
        return min([offset for offset in offsets if offset is not None], default=None)

    def _need_from(self, physical_offset: int) -> None:
        """Keep the log from this offset on until the file has the decisions after it."""
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
        if not self.tokens.is_repeated(header.sink, header.batch_id, header.token, header.sequence):
            self._check_target(header, connection, now_ms)
            self._put(header, request.body, connection, now_ms)
            self.publisher.at("staged")
        staged = answer(request, ext=StageResponseHeader(PublishStatus.STAGED).to_ext())
        if self._state.would_topic_survive(header.topic):
            return staged
        # A kill at this moment would lose the new topic and keep the block for it.

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
        """Refuse a topic or queue that would also refuse a send."""
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
        self._checks.body_size(data)
        try:
            rows = check_block(data, lambda items: self._waiting.check(items, now_ms, "block"))
            name = TokenName(header.token, header.sink, header.batch_id, header.part)
            self._send.put(
                self._kind.destination(header.topic, header.queue_id, name, rows),
                data,
                flag=0,
                sys_flag=0,
                born_ms=header.born_timestamp_ms,
                born_host=connection.peer_host,
                reconsume_times=0,
                now_ms=now_ms,
            )
        except StoreError as error:
            raise Refusal(*store_failure(self._state, error)) from error
        except CodecError as error:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error

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
        """Serve DROP_STAGED (31012); unknown tokens and those being published are ignored."""
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
        """Serve LIST_STAGED (31013): the ledger and the staged tokens."""
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
                self._save()
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

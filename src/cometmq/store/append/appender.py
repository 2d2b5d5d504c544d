"""Appends messages: the record to the log, the unit to its queue, the keys to the index's list.

`append` takes messages of any queues; a single put is an append of one message.  A batch
(`put_batch`, or `put_packed` for the bytes that a client packed) is stored as a whole or not at
all.

The usual message is *simple* (record_encoder.py) and fits the mapped window; the loop of `append`
encodes it.  `_append_generally` appends all others: those with IPv6 hosts, CRC tails, long
properties or no queue offset, and those that the window has no room for.

A message becomes visible when it is *confirmed*: at once, or (`confirm`) after its flush with
SYNC_FLUSH, and in a replica set when the in-sync replicas have it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Final
from zlib import crc32

from cometmq import native
from cometmq.codec.batch import decode_batch
from cometmq.codec.consume_queue import CQ_UNIT
from cometmq.codec.properties import PROPERTIES_BYTES_MAX
from cometmq.codec.stored_message import HEAD_WITH_ORIGIN_V4
from cometmq.errors import DiskFull, MessageIllegal, StoreClosed, StoreError
from cometmq.store.append.packed_batch import encode_packed, pack_units
from cometmq.store.append.record_encoder import RecordEncoder
from cometmq.store.base.results import BatchItem, Copied, PutItem, PutResult
from cometmq.store.queue.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from cometmq.native import EncodedRun
    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.results import IndexKeys
    from cometmq.store.index.service import IndexService
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.log.flush import Flusher
    from cometmq.store.queue.consume_queue import ConsumeQueues
    from cometmq.store.queue.writer import QueueWriter
    from cometmq.store.retention.retention import Retention

__all__ = ["Appender"]

_NO_HOST: Final = bytes(8)
# CommitLog adds this to maxMessageSize for everything but the body.
_HEAD_BYTES_MAX: Final = 64 << 10
# Prepared (sysFlag 4) and rolled-back (12) messages share this bit; they have no queue offset.
_UNQUEUED: Final = 0x4
_ROLLBACK: Final = 0xC
_NO_KEYS: Final = (None, None, None)
# With more messages than this to index, a put does not leave them to the timer.
_KEYS_WAITING_MAX: Final = 4096
# In place of a store time: the next put checks the store first.
_UNCHECKED: Final = -1

_CRC_MASK: Final = 0x7FFFFFFF

_pack_head: Final = HEAD_WITH_ORIGIN_V4.pack
_pack_unit: Final = CQ_UNIT.pack


class Appender:
    """Appends messages to one store.

    Args:
        leave_cut_file: ends the log's last file after something outside has cut it.
        confirm_copied: called after messages were put that wait for replicas, but for no flush.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueues,
        writer: QueueWriter,
        flusher: Flusher,
        index: IndexService,
        retention: Retention,
        leave_cut_file: Callable[[], None],
        confirm_copied: Callable[[], None],
    ) -> None:
        self._log = log
        self._queues = queues
        self._topics = queues.topics
        self._writer = writer
        self._flusher = flusher
        self._index = index
        self._retention = retention
        self._config = config
        self._keys = index.pending
        self._encoder = RecordEncoder(config)
        self._is_indexed = config.is_index_enabled
        self._is_late = config.is_confirmed_later
        self._wait_for_confirmation = flusher.request if config.is_sync_flush else confirm_copied
        self._copies = None
        if native.CopyEncoder is not None and self._encoder.is_simple(_NO_HOST):
            self._copies = native.CopyEncoder(
                queues.topics, ConsumeQueue, config.store_host, self._is_indexed, self._is_late
            )
        self._body_max = config.message_bytes_max
        self._size_max = config.message_bytes_max + _HEAD_BYTES_MAX
        self._refusal: StoreError | None = StoreClosed(
            f"store {config.root} is not loaded; call load() first"
        )
        self._standing: StoreError | None = None
        self._checked_ms = _UNCHECKED
        self._origins: dict[bytes, bytes] = {}
        self._unconfirmed: deque[tuple[int, ConsumeQueue, int, int]] = deque()
        self._leave_cut_file = leave_cut_file
        self.last_store_ms = -1
        """Store time of the newest message of this life, -1 for none."""
        self.arrival_listener: Callable[[str, int, int, int], None] | None = None
        """Called with topic, queue id, next queue offset and tags code when a message becomes
        visible on a watched queue."""

    # -- append --------------------------------------------------------------------------

    def append(  # noqa: C901, PLR0912, PLR0915 - one loop: a call in it costs three of its steps
        self, items: Sequence[PutItem], *, born_host: bytes, store_ms: int
    ) -> list[PutResult]:
        """Append messages of any queues, in order, until one is refused.

        Returns one result for each stored message.  With fewer results than items, the item behind
        the last result was refused.

        Raises:
            DiskFull, MessageIllegal, StoreClosed: the first message is refused, none is stored.
        """
        if store_ms != self._checked_ms:
            self._check(store_ms)
        usual_origin = self._origins.get(born_host) or self._origin(born_host, store_ms)
        log, topics, body_max = self._log, self._topics, self._body_max
        is_late, is_indexed = self._is_late, self._is_indexed
        self.last_store_ms = store_ms
        add_keys = self._keys.append
        first = position = log.wrote
        limit = log.limit
        parts: list[bytes] = []
        results: list[PutResult] = []
        arrivals: list[tuple[str, int, int, int]] = []
        try:
            for item in items:
                topic = item.topic
                body = item.body
                properties = item.properties
                sys_flag = item.sys_flag
                queue_id = item.queue_id
                try:
                    queue = topics[topic][queue_id]
                except KeyError:
                    queue = self.new_queue(topic, queue_id)
                body_bytes = len(body)
                properties_bytes = len(properties)
                size = queue.fixed_bytes + body_bytes + properties_bytes
                end = position + size
                if (
                    usual_origin is None
                    or end > limit
                    or body_bytes > body_max
                    or properties_bytes > PROPERTIES_BYTES_MAX
                    or sys_flag & _UNQUEUED
                ):
                    # Without parts nothing is written: there may be no window.
                    if parts:
                        self._write(first, b"".join(parts))
                        parts = []
                    # Pulls are answered in the order of the messages.
                    self._announce(arrivals)
                    arrivals = []
                    results.append(self._append_generally(queue, item, born_host, store_ms))
                    first = position = log.wrote
                    limit = log.limit
                    continue
                origin: bytes | None = usual_origin
                if item.prepared_offset or item.reconsume_times:
                    origin = self._encoder.origin(
                        born_host, store_ms, item.reconsume_times, item.prepared_offset
                    )
                queue_offset = queue.max
                head = _pack_head(
                    size, queue.magic, crc32(body) & _CRC_MASK, queue_id, item.flag,
                    queue_offset, position, sys_flag, item.born_ms, origin, body_bytes,
                )  # fmt: skip
                tags_code = item.tags_code
                queue.tail += _pack_unit(position, size, tags_code)
                # From here on nothing fails any more: record, unit and offsets belong together.
                parts += (
                    head,
                    body,
                    queue.topic_part,
                    properties_bytes.to_bytes(2, "big"),
                    properties,
                )
                following = queue.max = queue_offset + 1
                results.append(PutResult(position, queue_offset, end))
                index_keys = item.index_keys
                if is_indexed and index_keys is not None:
                    add_keys((topic, position, store_ms, index_keys))
                if not queue.is_dirty:
                    self._writer.mark(queue, position, store_ms)
                if is_late:
                    self._unconfirmed.append((end, queue, following, tags_code))
                else:
                    queue.visible = following
                    if queue.is_watched:
                        arrivals.append((topic, queue_id, following, tags_code))
                position = end
        except StoreError:
            if not results:
                raise
        finally:
            if parts:
                log.write(first, b"".join(parts))
                log.wrote = position
        if is_late:
            self._wait_for_confirmation()
        else:
            self._announce(arrivals)
        return results

    def _announce(self, arrivals: Sequence[tuple[str, int, int, int]]) -> None:
        """Tell the listener of the messages that watched queues got."""
        if arrivals and self.arrival_listener is not None:
            for arrival in arrivals:
                self.arrival_listener(*arrival)

    def room(self, born_host: bytes, store_ms: int) -> tuple[int, int, bytes] | None:
        """Return what simple records need: physical offset of the next one, end of the room for
        them, and origin (record_encoder.py).

        None means that `append` has something to say or to do first.
        """
        if store_ms != self._checked_ms:
            if self._refusal is not None:
                return None
            self._check(store_ms)
        log = self._log
        origin = self._origins.get(born_host) or self._origin(born_host, store_ms)
        if origin is None or log.limit <= log.wrote:
            return None
        return log.wrote, log.limit, origin

    def append_encoded(self, run: EncodedRun, store_ms: int) -> None:
        """Append simple records that the native core has encoded for the room that `room` gave."""
        records, queues, entries, arrivals = run
        extend_tails, advance_queues = native.extend_tails, native.advance_queues
        assert extend_tails is not None
        assert advance_queues is not None
        extend_tails(queues)
        end = self._write(self._log.wrote, records)
        self.last_store_ms = store_ms
        if entries is not None:
            self._index.add_run(entries)
        is_late = self._is_late
        advance_queues(queues, not is_late, self._writer.mark, store_ms)
        if is_late:
            for topic, queue_id, following, tags_code in arrivals:
                self._unconfirmed.append((end, self._topics[topic][queue_id], following, tags_code))
            self._wait_for_confirmation()
        else:
            self._announce(arrivals)

    def append_copies(
        self, records: bytes, stored_until_ms: int, store_ms: int, *, are_commits: bool = False
    ) -> Copied:
        """Append copies of records to the queues that their REAL_TOPIC and REAL_QID name.

        Of half messages it appends the commits, which have no such properties.  Only the native
        core does it, for records that are simple, up to the first one that was stored after
        `stored_until_ms`.
        """
        copies, total = self._copies, Copied(0, 0, -1, -1)
        while copies is not None and total.end < len(records) and total.waiting_ms < 0:
            room = self.room(_NO_HOST, store_ms)
            if room is None:
                break
            wrote, limit, _ = room
            end, count, last_offset, waiting_ms, run = copies.encode(
                records,
                total.end,
                wrote,
                limit,
                store_ms,
                stored_until_ms,
                self._body_max,
                are_commits,
            )
            if not count:
                return total._replace(waiting_ms=waiting_ms)
            self.append_encoded(run, store_ms)
            total = Copied(end, total.copy_count + count, last_offset, waiting_ms)
        return total

    def _append_generally(
        self, queue: ConsumeQueue, item: PutItem, born_host: bytes, store_ms: int
    ) -> PutResult:
        """Append one message of any form, and make room for it if needed.

        Raises:
            DiskFull, MessageIllegal, StoreClosed: it is refused.
        """
        log = self._log
        is_queued = not item.sys_flag & _UNQUEUED
        queue_offset = queue.max if is_queued else 0
        encode = self._encoder.encode
        position = log.wrote
        record = encode(queue, position, queue_offset, item, born_host, store_ms)
        size = len(record)
        if position + size > log.limit:
            position = self._make_room(size)
            record = encode(queue, position, queue_offset, item, born_host, store_ms)
        end = self._write(position, record)
        is_rolled_back = item.sys_flag & _ROLLBACK == _ROLLBACK
        if item.index_keys is not None and self._is_indexed and not is_rolled_back:
            self._keys.append((queue.topic, position, store_ms, item.index_keys))
        if is_queued:
            unit = _pack_unit(position, size, item.tags_code)
            self.add_units(queue, unit, 1, position, end, store_ms, (item.tags_code,))
        return PutResult(position, queue_offset, end)

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = _NO_HOST,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        tags_code: int = 0,
        store_ms: int = 0,
        index_keys: IndexKeys | None = None,
    ) -> PutResult:
        """Append one message; see `PutItem` for the arguments.

        Raises:
            DiskFull, MessageIllegal, StoreClosed: it is refused.
        """
        item = PutItem(
            topic, queue_id, body, properties, flag, sys_flag, born_ms, tags_code, index_keys,
            reconsume_times, prepared_offset,
        )  # fmt: skip
        return self.append((item,), born_host=born_host, store_ms=store_ms)[0]

    def put_packed(
        self,
        topic: str,
        queue_id: int,
        packed: bytes,
        read_keys: Callable[[Sequence[bytes]], tuple[list[int], list[IndexKeys]]],
        *,
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = _NO_HOST,
        store_ms: int = 0,
    ) -> PutResult:
        """Append a packed batch, all of its messages or none, as `put_batch` does.

        Args:
            packed: the batch as the client has packed it (codec/batch.py).
            read_keys: returns tags codes and index keys of property strings.  If it raises,
                nothing is stored.

        Raises:
            CodecError: the lengths of the batch do not fit.
            DiskFull, MessageIllegal, StoreClosed: it is refused.
        """
        if store_ms != self._checked_ms:
            self._check(store_ms)
        log = self._log
        position = log.wrote
        origin = self._origin(born_host, store_ms)
        queue = self._topics.get(topic, {}).get(queue_id)
        encoded = None
        if origin is not None and queue is not None:
            encoded = encode_packed(
                queue, packed, position, self._body_max, sys_flag, born_ms, origin
            )
        if queue is None or encoded is None or position + len(encoded.records) > log.limit:
            # Not simple, no room in the window, or not sound: decode_batch raises for the latter.
            items = decode_batch(packed)
            codes, keys = read_keys([properties for _, _, properties in items])
            return self.put_batch(
                topic,
                queue_id,
                [
                    BatchItem(flag, body, properties, code, key)
                    for (flag, body, properties), code, key in zip(items, codes, keys, strict=True)
                ],
                sys_flag=sys_flag,
                born_ms=born_ms,
                born_host=born_host,
                store_ms=store_ms,
            )
        # Before anything is stored, since `read_keys` may raise.
        codes, keys = read_keys([tail[2:] for tail in encoded.tails])
        offsets = encoded.positions
        units = pack_units(offsets, encoded.sizes, codes)
        end = self._write(position, encoded.records)
        if self._is_indexed:
            self._keys += zip(repeat(topic), offsets, repeat(store_ms), keys)
        self.last_store_ms = store_ms
        queue_offset = queue.max
        self.add_units(queue, units, len(codes), position, end, store_ms, set(codes))
        return PutResult(position, queue_offset, end, tuple(offsets))

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        items: Sequence[BatchItem],
        *,
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = _NO_HOST,
        store_ms: int = 0,
    ) -> PutResult:
        """Append messages of one queue, all in one file, all of them or none.

        A batch is acknowledged as a whole, so unlike `append` it stores none of its messages when
        one is refused.

        Raises:
            DiskFull, MessageIllegal, StoreClosed: it is refused.
        """
        try:
            queue = self._topics[topic][queue_id]
        except KeyError:
            queue = self.new_queue(topic, queue_id)
        if store_ms != self._checked_ms:
            self._check(store_ms)
        log = self._log
        encode = self._encoder.encode_batch
        position = log.wrote
        records, units, offsets = encode(
            queue, items, position, sys_flag, born_ms, born_host, store_ms
        )
        size = len(records)
        if position + size > log.limit:
            position = self._make_room(size)
            records, units, offsets = encode(
                queue, items, position, sys_flag, born_ms, born_host, store_ms
            )
        end = self._write(position, records)
        if self._is_indexed:
            keys = [item.index_keys or _NO_KEYS for item in items]
            self._keys += zip(repeat(topic), offsets, repeat(store_ms), keys)
        self.last_store_ms = store_ms
        queue_offset = queue.max
        codes = {item.tags_code for item in items}
        self.add_units(queue, units, len(items), position, end, store_ms, codes)
        return PutResult(position, queue_offset, end, tuple(offsets))

    def _write(self, position: int, records: bytes) -> int:
        """Put records into the log, which has room for them; return where they end."""
        log = self._log
        log.write(position, records)
        log.wrote = end = position + len(records)
        return end

    def add_units(
        self,
        queue: ConsumeQueue,
        units: bytes,
        count: int,
        position: int,
        end: int,
        store_ms: int,
        tags_codes: Collection[int],
    ) -> None:
        """Add the units of records that were just written, from `position` to `end`."""
        queue.tail += units
        queue.max = following = queue.max + count
        if not queue.is_dirty:
            self._writer.mark(queue, position, store_ms)
        if self._is_late:
            for code in tags_codes:
                self._unconfirmed.append((end, queue, following, code))
            self._wait_for_confirmation()
        else:
            queue.visible = following
            if queue.is_watched and self.arrival_listener is not None:
                for code in tags_codes:
                    self.arrival_listener(queue.topic, queue.queue_id, following, code)

    def show(self, queue: ConsumeQueue, end: int) -> None:
        """Make all units of a queue visible, once the log is confirmed to `end`."""
        if self._is_late:
            self._unconfirmed.append((end, queue, queue.max, 0))
        else:
            queue.visible = queue.max

    def request_flush(self) -> None:
        """Flush what was written, soon."""
        self._flusher.request()

    def _origin(
        self, born_host: bytes, store_ms: int, reconsume_times: int = 0, prepared_offset: int = 0
    ) -> bytes | None:
        if reconsume_times or prepared_offset:
            return self._encoder.origin(born_host, store_ms, reconsume_times, prepared_offset)
        origin = self._origins.get(born_host)
        if origin is None:
            origin = self._encoder.origin(born_host, store_ms)
            if origin is not None:
                self._origins[born_host] = origin
        return origin

    # -- refusals ----------------------------------------------------------------------------

    @property
    def refusal(self) -> StoreError | None:
        """The error that every put raises; None while messages are accepted."""
        return self._refusal

    def refuse(self, refusal: StoreError | None) -> None:
        """Raise this error in every put from now on; with None, accept messages again.

        A standing refusal (`refuse_puts`) stays.
        """
        self._refusal = refusal or self._standing
        # The next put checks for it, whatever its store time.
        self._checked_ms = _UNCHECKED

    def refuse_puts(self, standing: StoreError | None) -> None:
        """Raise this error in every put until this is called with None, whatever else is refused.

        Queues can still be made: readers may wait for the first message of a queue.
        """
        before, self._standing = self._standing, standing
        if self._refusal is before:
            self.refuse(None)

    @property
    def standing_refusal(self) -> StoreError | None:
        """What `refuse_puts` was called with."""
        return self._standing

    def new_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Make a queue, for its first message or its first watcher.

        Raises:
            MessageIllegal: the topic or the queue id cannot be the name of a directory.
            DiskFull, StoreClosed: the store accepts no messages.
        """
        if self._refusal is not self._standing:
            self._raise_refusal()
        if not topic or "/" in topic or topic in {".", ".."} or queue_id < 0:
            raise MessageIllegal(f"topic {topic!r}, queue id {queue_id} cannot be a directory")
        raw_bytes = len(topic.encode())
        if raw_bytes > 255:
            raise MessageIllegal(f"topic of {raw_bytes} bytes; a record holds at most 255")
        queue = self._queues.add(topic, queue_id)
        queue.min_checked_at = self._log.min_offset
        return queue

    def _raise_refusal(self) -> None:
        refusal = self._refusal
        if refusal is not None:
            raise type(refusal)(*refusal.args)

    def _make_room(self, size: int) -> int:
        if size > self._size_max:
            raise MessageIllegal(f"{size} bytes are over maxMessageSize {self._body_max}")
        try:
            return self._log.make_room(size)
        except DiskFull:
            # Refuse the next messages without trying again; the timer tries.
            self.look_for_space()
            raise

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Accept puts above the watermarks: messages that are put again so their file can go."""
        refusal = self._refusal
        is_watermark = isinstance(refusal, DiskFull) and not self._log.is_full
        if is_watermark:
            self.refuse(None)
        try:
            yield
        finally:
            if is_watermark and self._refusal is None:
                self.refuse(refusal)

    def look_for_space(self) -> None:
        """Refuse messages if the disk is full; accept them again if it no longer is."""
        log, retention, config = self._log, self._retention, self._config
        if log.is_full:
            log.reserve_next()
        if log.is_full:
            self.refuse(
                DiskFull(
                    f"no space for the next commit-log file in {log.path};"
                    " free space on this file system, writing starts again by itself"
                    + (f"; {retention.stuck_reason}" if retention.stuck_reason else "")
                )
            )
        elif retention.is_full:
            self.refuse(
                DiskFull(
                    f"disk of {config.root} is used to {retention.used_percent} %, above"
                    f" {config.disk_warning_percent} %: writes are refused until it is below"
                    f" {config.disk_clean_forcibly_percent} %"
                    + (f"; {retention.stuck_reason}" if retention.stuck_reason else "")
                )
            )
        elif retention.is_stuck:
            self.refuse(DiskFull(f"{retention.stuck_reason}; writes are refused until it can go"))
        elif isinstance(self._refusal, DiskFull):
            self.refuse(None)

    def _check(self, store_ms: int) -> None:
        """Check once a millisecond: for a refusal, for too many keys to index, for a cut file."""
        self._raise_refusal()
        self._checked_ms = store_ms
        self._origins = {}
        if self._index.waiting_count > _KEYS_WAITING_MAX:
            self._index.drain(store_ms)
        if self._log.is_active_file_cut():
            self._leave_cut_file()

    # -- confirmation --------------------------------------------------------------------

    def hide(self, queue: ConsumeQueue, end: int) -> None:
        """Hide the units of a queue from a queue offset on, until everything put is confirmed."""
        queue.visible = end
        self._unconfirmed.append((self._log.wrote, queue, queue.max, 0))

    def confirm(self, confirmed: int) -> None:
        """Make the messages below a physical offset visible."""
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= confirmed:
            _, queue, following, tags_code = unconfirmed.popleft()
            queue.visible = following
            if queue.is_watched and self.arrival_listener is not None:
                self.arrival_listener(queue.topic, queue.queue_id, following, tags_code)

"""Requests rendered ahead of time: a ring of frames in which only counters and the clock change.

A generator that must offer more than 250,000 sends a second on one core cannot build a header
for each of them. So a run owns one numpy matrix, a row per frame, all rows equally long. A frame
carries a *frame number* in nine digits; the last digits are those of its row and stay, the first
ones (the *lap*) are patched for a block of rows at a time, and the clock is patched into a burst
just before it is sent. So no two frames of a run are alike: opaque, born time, KEYS, UNIQ_KEY and
body differ in every one, queue id and tag from row to row.

    row 0217 | ...,"opaque":1|00003|0217,...   frame number 000030217 = lap 00003, row 0217
    body     | 00003|0217|index|...random, different in every row and in every run...

The message id of message `index` in frame number `n` is `n * 1000 + index` (twelve digits, the
first twelve bytes of its body); single sends have index 0. This module renders and recomputes;
it neither sends nor reads the clock.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bench.base.headers import (
    FRAME_DIGITS,
    OPAQUE_BASE,
    Bytes,
    Template,
    request_header,
)
from bench.base.loads import Form
from cometmq.errors import ConfigError
from cometmq.wire.command.command import BINARY

__all__ = [
    "ID_DIGITS",
    "MESSAGES_PER_FRAME_MAX",
    "FrameRing",
    "Targets",
]

INDEX_DIGITS: Final = 3
ID_DIGITS: Final = FRAME_DIGITS + INDEX_DIGITS
MESSAGES_PER_FRAME_MAX: Final = 10**INDEX_DIGITS
TIME_DIGITS: Final = 13
# A ring above this would only measure the generator's cache misses.
RING_BYTES_MAX: Final = 48 << 20
BLOCKS_PER_RING: Final = 10
TAGS: Final = (b"TagA", b"TagB", b"TagC", b"TagD")


@dataclass(frozen=True, slots=True)
class Targets:
    """The queues a run writes to: `topic_count` topics `<prefix>NNNN` of `queue_count` queues."""

    prefix: str
    topic_count: int = 1
    queue_count: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.queue_count <= 10:
            raise ConfigError(
                f"a load uses 1 to 10 queues a topic so that all frames are equally long, "
                f"not {self.queue_count}; use more topics"
            )
        if not 1 <= self.topic_count <= 10_000:
            raise ConfigError(f"a load uses 1 to 10000 topics, not {self.topic_count}")

    @property
    def queues(self) -> int:
        """The number of queues of all topics."""
        return self.topic_count * self.queue_count

    def topic(self, topic_index: int) -> str:
        """Name of one of the topics."""
        return f"{self.prefix}{topic_index:04d}"

    def of_row(self, row: int) -> tuple[int, int]:
        """(topic index, queue id) that a row of the ring sends to: round robin over all queues."""
        place = row % self.queues
        return place % self.topic_count, place // self.topic_count


def _digits(values: npt.NDArray[np.int64], width: int) -> Bytes:
    """ASCII digits of `values`, shape (len(values), width)."""
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return ((values[:, None] // powers) % 10 + 48).astype(np.uint8)


def _rows_for(frame_bytes: int) -> int:
    for rows in (10_000, 1_000, 100):
        if rows * frame_bytes <= RING_BYTES_MAX:
            return rows
    return 100


def _add_properties(template: Template, separator: bytes, end: bytes, *, is_grouped: bool) -> None:
    template.add(b"KEYS" + separator + b"k").number()
    template.mark("key_index", INDEX_DIGITS).add(end)
    template.add(b"UNIQ_KEY" + separator).mark("uniq_run", 32 - ID_DIGITS).number()
    template.mark("uniq_index", INDEX_DIGITS).add(end)
    template.add(b"WAIT" + separator + b"true" + end)
    if is_grouped:
        template.add(b"__SHARDINGKEY" + separator + b"g").mark("group_index", INDEX_DIGITS).add(end)
    template.add(b"TAGS" + separator).mark("tag", 4).add(end)


class FrameRing:
    """The frames of one run; `burst` returns the next ones as bytes for the socket.

    `batch_count` 0 renders SEND_MESSAGE_V2 (310) with one body each, n > 0 SEND_BATCH_MESSAGE
    (320) with n messages each. `body_bytes` is the size of one body, at least 12. `seed` makes
    bodies and unique ids; two runs with different seeds share no body.  `is_grouped` gives each
    message of a batch a message group of its own, the same in every batch.  `form` is that of the
    headers.
    """

    def __init__(
        self,
        targets: Targets,
        *,
        body_bytes: int = 128,
        batch_count: int = 0,
        broker_name: str = "broker-a",
        seed: int = 1,
        is_grouped: bool = False,
        form: Form = "java",
    ) -> None:
        if body_bytes < ID_DIGITS:
            raise ConfigError(f"a body needs at least {ID_DIGITS} bytes, not {body_bytes}")
        if not 0 <= batch_count <= MESSAGES_PER_FRAME_MAX:
            raise ConfigError(
                f"a batch holds 1 to {MESSAGES_PER_FRAME_MAX} messages, not {batch_count}"
            )
        self.targets = targets
        self.body_bytes = body_bytes
        self.batch_count = batch_count
        self.messages_per_frame = batch_count or 1
        self._is_grouped = is_grouped
        self.sent = 0
        self._time_ms = -1
        header = self._header(targets, broker_name, form)
        message = self._message()
        frame_bytes = header.size + message.size * self.messages_per_frame
        self.frame_bytes = frame_bytes
        self.rows = _rows_for(frame_bytes)
        self._row_digits = len(str(self.rows)) - 1
        self._block = self.rows // BLOCKS_PER_RING
        self._blocks_patched = 0
        self._matrix: Bytes = np.empty((self.rows, frame_bytes), np.uint8)
        self._messages = self._matrix[:, header.size :].reshape(
            self.rows, self.messages_per_frame, message.size
        )
        self._fill(header, message, np.random.default_rng(seed), seed)

    def _header(self, targets: Targets, broker_name: str, form: Form) -> Template:
        is_batch = self.batch_count > 0
        properties = Template()
        if not is_batch:
            marks = (b"\x01", b"\x02") if form == "binary" else (rb"\u0001", rb"\u0002")
            _add_properties(properties, *marks, is_grouped=self._is_grouped)
        fields = {
            "a": Template(b"cometmq_bench"),
            "b": Template(targets.prefix.encode()).mark("topic", 4),
            "c": Template(b"TBW102"),
            "d": Template(b"4"),
            "e": Template().mark("queue", 1),
            "f": Template(b"0"),
            "g": Template().mark("time", TIME_DIGITS),
            "h": Template(b"0"),
            "i": properties,
            "j": Template(b"0"),
            "k": Template(b"false"),
            "m": Template(b"true" if is_batch else b"false"),
            "n": Template(broker_name.encode()),
        }
        return request_header(form, 320 if is_batch else 310, fields)

    def _message(self) -> Template:
        """A body alone, or one message of a batch body (docs/internals/protocol.md#batch-body)."""
        template = Template()
        properties = Template()
        _add_properties(properties, b"\x01", b"\x02", is_grouped=self._is_grouped)
        if self.batch_count:
            total = 4 + 4 + 4 + 4 + 4 + self.body_bytes + 2 + properties.size
            template.add(total.to_bytes(4, "big") + bytes(12))
            template.add(self.body_bytes.to_bytes(4, "big"))
        template.marks["body"] = template.size
        template.number().mark("body_index", INDEX_DIGITS)
        template.mark("body_tail", self.body_bytes - ID_DIGITS)
        if self.batch_count:
            template.add(properties.size.to_bytes(2, "big"))
            _add_properties(template, b"\x01", b"\x02", is_grouped=self._is_grouped)
        return template

    def _fill(
        self, header: Template, message: Template, chance: np.random.Generator, seed: int
    ) -> None:
        matrix, messages, rows = self._matrix, self._messages, self.rows
        matrix[:, : header.size] = header.render()
        messages[:] = message.render()
        header_length = header.size - 8
        if "opaque" in header.marks:
            header_length |= BINARY << 24
        self._opaque_column = header.marks.get("opaque")
        length = self.frame_bytes - 4
        matrix[:, 0:4] = np.frombuffer(length.to_bytes(4, "big"), np.uint8)
        matrix[:, 4:8] = np.frombuffer(header_length.to_bytes(4, "big"), np.uint8)
        self._time_column = header.marks["time"]
        places = [self.targets.of_row(row) for row in range(rows)]
        topic = header.marks["topic"]
        matrix[:, topic : topic + 4] = _digits(np.array([p[0] for p in places], np.int64), 4)
        matrix[:, header.marks["queue"]] = np.array([p[1] for p in places], np.uint8) + 48
        tail = message.marks["body_tail"]
        tail_bytes = self.body_bytes - ID_DIGITS
        tails: Bytes = chance.integers(
            0, 256, (rows, self.messages_per_frame, tail_bytes), np.uint8
        )
        messages[:, :, tail : tail + tail_bytes] = tails
        self._tail_bytes = tail_bytes
        # Plain bytes: slicing them costs a fifth of indexing an array, for every verified message.
        self._tails = tails.tobytes()
        self._fill_ids(header, message, chance, seed)

    def _fill_ids(
        self, header: Template, message: Template, chance: np.random.Generator, seed: int
    ) -> None:
        """Row digits, message indexes, tags and the run's part of the unique ids."""
        row_digits = _digits(np.arange(self.rows, dtype=np.int64), self._row_digits)
        index_digits = _digits(np.arange(self.messages_per_frame, dtype=np.int64), INDEX_DIGITS)
        lap_width = FRAME_DIGITS - self._row_digits
        self._lap_width = lap_width
        self._lap_views: list[Bytes] = []
        tags = np.array([list(tag) for tag in TAGS], np.uint8)
        run = np.frombuffer(b"%020X" % (seed & 0xFFFFFFFFFFFFFFFF), np.uint8)
        heads = self._matrix[:, None, : header.size]
        for template, view in ((header, heads), (message, self._messages)):
            for column in template.numbers:
                self._lap_views.append(view[:, :, column : column + lap_width])
                end = column + FRAME_DIGITS
                view[:, :, column + lap_width : end] = row_digits[:, None, :]
            for name in ("key_index", "uniq_index", "group_index", "body_index"):
                if name in template.marks:
                    column = template.marks[name]
                    view[:, :, column : column + INDEX_DIGITS] = index_digits[None, : view.shape[1]]
            if "tag" in template.marks:
                column = template.marks["tag"]
                choice = chance.integers(0, len(TAGS), view.shape[:2])
                view[:, :, column : column + 4] = tags[choice]
                column = template.marks["uniq_run"]
                view[:, :, column : column + len(run)] = run

    @property
    def window_max(self) -> int:
        """The most frames in flight: with more, a block might be patched before it is sent."""
        return self.rows // 2

    def prepare(self) -> None:
        """Patch the next block of rows if the last patched one has been started.

        Called after a burst went out, while the broker works on it.
        """
        while self._blocks_patched * self._block < self.sent + 2 * self._block:
            self._patch_block(self._blocks_patched)
            self._blocks_patched += 1

    def _patch_block(self, block: int) -> None:
        first_frame = block * self._block
        lap, first = divmod(first_frame, self.rows)
        last = first + self._block
        text = np.frombuffer(b"%0*d" % (self._lap_width, lap), np.uint8)
        for view in self._lap_views:
            view[first:last] = text
        if self._opaque_column is not None:
            opaques = np.arange(first_frame, first_frame + self._block) + OPAQUE_BASE
            column = self._opaque_column
            self._matrix[first:last, column : column + 4] = (
                opaques.astype(">i4").view(np.uint8).reshape(-1, 4)
            )

    def burst(self, count: int, now_ms: int) -> bytes:
        """The next `count` frames, born `now_ms`; their frame numbers start at `sent` before."""
        self.prepare_for(count)
        first = self.sent % self.rows
        last = first + count
        self.sent += count
        if last <= self.rows:
            return self._slice(first, last, now_ms)
        return self._slice(first, self.rows, now_ms) + self._slice(0, last - self.rows, now_ms)

    def prepare_for(self, count: int) -> None:
        """Patch the next `count` frames that were not patched ahead."""
        while self._blocks_patched * self._block < self.sent + count:
            self._patch_block(self._blocks_patched)
            self._blocks_patched += 1

    def _slice(self, first: int, last: int, now_ms: int) -> bytes:
        if now_ms != self._time_ms:
            self._time_ms = now_ms
            self._time_text = np.frombuffer(b"%013d" % now_ms, np.uint8)
        rows = self._matrix[first:last]
        rows[:, self._time_column : self._time_column + TIME_DIGITS] = self._time_text
        return rows.tobytes()

    def _tail(self, frame_number: int, index: int) -> bytes:
        place = frame_number % self.rows * self.messages_per_frame + index
        start = place * self._tail_bytes
        return self._tails[start : start + self._tail_bytes]

    def body_crc(self, message_id: int) -> int:
        """CRC-32 (31 bits, as stored) of the body that was rendered for a message id."""
        frame, index = divmod(message_id, MESSAGES_PER_FRAME_MAX)
        head = b"%012d" % message_id
        return zlib.crc32(self._tail(frame, index), zlib.crc32(head)) & 0x7FFFFFFF

    def body(self, frame_number: int) -> bytes:
        """The body of a single send, for programs that send through a client."""
        return b"%09d000" % frame_number + self._tail(frame_number, 0)

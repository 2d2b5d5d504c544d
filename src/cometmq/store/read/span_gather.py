"""Gathers the records of a span into one buffer, with numpy.

A queue's records lie between those of other queues.  They are copied in blocks of one width, a
little wider than most records.  A block may run over the end of its record; the next record
overwrites the excess, and behind the last record it is cut off.  So two fancy indexings copy
thousands of records (0.18 us each where slices and a join took 0.65 us), and no bytes of other
queues remain in the buffer.

Ruler of the buffer::

    0            head_bytes          + 4 * count             end
    | room       | sizes, if wanted  | records               | (width of a block)
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cometmq.codec.consume_queue import CQ_UNIT_BYTES, CQ_UNIT_FIELDS, PRE_BLANK_SIZE
from cometmq.codec.stored_message import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from cometmq.model.offsets import PhysicalOffset
from cometmq.store.read.span import WINDOW_BYTES, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.store.queue.consume_queue import ConsumeQueue
    from cometmq.store.read.span import SpanWindows, SpanWish

__all__ = ["gather_span"]

_UNIT: Final = np.dtype(CQ_UNIT_FIELDS)
assert _UNIT.itemsize == CQ_UNIT_BYTES
_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("unused", "V20"), ("physical_offset", ">i8")]
)
_UNITS_MAX: Final = 1 << 16
"""Units examined in one step."""
_STEPS_MAX: Final = 4
"""Steps of a filtered span without a match: a quarter of a million units."""
_BLOCK_BYTES_MIN: Final = 64
_BLOCK_BYTES_MAX: Final = 2048
_COPY_BYTES: Final = 1 << 18
"""Bytes copied at once, so that they are checked while in the processor's cache."""
_CODE_MIN: Final = -(2**31)
_CODE_MAX: Final = 2**31 - 1

Ints = NDArray[np.int64]


class _Chosen(NamedTuple):
    """Units of a step that go into the span."""

    position: Ints
    size: Ints
    place: Ints
    """Number of each among the units of the step."""
    examined: int
    """Units of the step that were examined."""
    is_end: bool
    """Whether the span ends here."""


class _RecordRun(NamedTuple):
    """Records that lie in one window."""

    place: Ints
    """Where they begin in it."""
    size: Ints
    source: Any
    """The window's bytes."""
    base: int
    """Physical offset of the first."""
    queue_offset: Ints


def gather_span(
    windows: SpanWindows,
    wish: SpanWish,
    codes: frozenset[int] | None,
    may_match: Callable[[ConsumeQueue, bytes], Sequence[int]] | None = None,
) -> Span | None:
    """Return the span; see `SpanReader.read`.  `may_match` numbers the units that are wanted."""
    queue = windows.queue(wish)
    if queue is None:
        return None
    runs, here = _collect(windows, queue, wish, codes, may_match)
    if here == wish.queue_offset:
        return None
    size = np.concatenate([run.size for run in runs]) if runs else np.zeros(0, np.int64)
    count, byte_count = len(size), int(size.sum())
    sizes_bytes = 4 * count if wish.has_sizes else 0
    start = wish.head_bytes + sizes_bytes
    width = _width(size)
    data = windows.buffer(start + byte_count + width)
    wrong = _copy(runs, data, start, width)
    if wrong is not None:
        # Rare: gather again, up to the wrong record.
        return gather_span(windows, wish._replace(end=wrong), codes, may_match)
    if count:
        windows.mean_bytes = max(RECORD_BYTES_MIN, byte_count / count)
    if wish.has_sizes:
        np.frombuffer(data, ">i4", count, wish.head_bytes)[:] = size
    offsets = None
    if may_match is not None:
        offsets = [offset for run in runs for offset in run.queue_offset.tolist()]
    return Span(data, wish.head_bytes, start + byte_count, sizes_bytes, count, here, offsets)


def _collect(
    windows: SpanWindows,
    queue: ConsumeQueue,
    wish: SpanWish,
    codes: frozenset[int] | None,
    may_match: Callable[[ConsumeQueue, bytes], Sequence[int]] | None,
) -> tuple[list[_RecordRun], int]:
    """Return the records of the span and the queue offset behind the examined units."""
    wanted = None if codes is None else np.array(sorted(codes), np.int64)
    bounds = windows.bounds(wish.confirmed)
    here: int = wish.queue_offset
    runs: list[_RecordRun] = []
    count = byte_count = 0
    for _ in range(_STEPS_MAX):
        left = min(wish.end - here, _UNITS_MAX)
        if wanted is None and may_match is None:
            guess = int((wish.max_bytes - byte_count) / windows.mean_bytes * 1.25) + 64
            left = min(left, guess, wish.max_count - count)
        if left <= 0:
            break
        raw = windows.units(queue, here, left)
        found = np.frombuffer(raw, _UNIT, len(raw) // CQ_UNIT_BYTES)
        room = wish.max_count - count, wish.max_bytes - byte_count
        picked = None if may_match is None else may_match(queue, raw)
        chosen = _choose(found, bounds, *room, wanted, picked, at_least=0 if count else 1)
        runs += _by_window(windows, chosen, here)
        count += len(chosen.size)
        byte_count += int(chosen.size.sum())
        here += chosen.examined
        if chosen.is_end or len(found) < left:
            break
    return runs, here


def _choose(
    found: NDArray[Any],
    bounds: tuple[int, int, list[tuple[int, int]]],
    max_count: int,
    max_bytes: int,
    wanted: Ints | None,
    numbers: Sequence[int] | None,
    *,
    at_least: int,
) -> _Chosen:
    """What of these units is sound, wanted and within the limits; `at_least` so many."""
    log_start, log_end, damaged = bounds
    position = found["position"].astype(np.int64)
    size = found["size"].astype(np.int64)
    following = position + size
    is_sound = (size >= RECORD_BYTES_MIN) & (size < PRE_BLANK_SIZE)
    is_sound &= (position >= log_start) & (following <= log_end)
    for begin, stop in damaged:
        is_sound &= (position >= stop) | (following <= begin)
    examined = len(found)
    is_end = False
    if not is_sound.all():
        examined, is_end = int(np.argmin(is_sound)), True
    if numbers is not None:
        picked = np.asarray(numbers, np.int64)
        picked = picked[: int(np.searchsorted(picked, examined))]
    elif wanted is None:
        picked = np.arange(examined)
    else:
        code = found["code"][:examined].astype(np.int64)
        # Beyond 32 bits it is the address of an extension unit: the caller checks the tag.
        is_wanted = np.isin(code, wanted) | (code < _CODE_MIN) | (code > _CODE_MAX)
        picked = np.flatnonzero(is_wanted)
    total = np.cumsum(size[picked])
    fits = min(max(at_least, int(np.searchsorted(total, max_bytes, "right"))), max_count)
    if fits < len(picked):
        examined, is_end = int(picked[fits]), True
        picked = picked[:fits]
    return _Chosen(position[picked], size[picked], picked, examined, is_end)


def _by_window(windows: SpanWindows, chosen: _Chosen, here: int) -> list[_RecordRun]:
    """Return the records by window; a run without bytes ends at a unit without a record."""
    runs: list[_RecordRun] = []
    begin, total = 0, len(chosen.size)
    queue_offset = here + chosen.place
    while begin < total:
        found = windows.window(PhysicalOffset(int(chosen.position[begin])))
        source, base = found if found is not None else (b"", 0)
        place = chosen.position[begin:] - base
        ends = place + chosen.size[begin:]
        inside = (place >= 0) & (place < WINDOW_BYTES) & (ends <= len(source))
        if not inside[0]:
            runs.append(_RecordRun(place, chosen.size[begin:], None, 0, queue_offset[begin:]))
            break
        stop = total if inside.all() else begin + int(np.argmin(inside))
        part = slice(begin, stop)
        place = place[: stop - begin]
        runs.append(_RecordRun(place, chosen.size[part], source, base, queue_offset[part]))
        begin = stop
    return runs


def _width(size: Ints) -> int:
    """Return a width such that most records are one block and little excess is copied."""
    if not len(size):
        return _BLOCK_BYTES_MIN
    widest = min(int(size.max()), int(1.3 * float(size.mean())))
    return min(max(_BLOCK_BYTES_MIN, (widest + 7) // 8 * 8), _BLOCK_BYTES_MAX)


def _copy(runs: list[_RecordRun], data: bytearray, start: int, width: int) -> int | None:
    """Copy all records; return the queue offset of the first that does not match its unit."""
    step = max(1, _COPY_BYTES // width)
    for run in runs:
        if run.source is None:
            return int(run.queue_offset[0])
        ends = start + np.cumsum(run.size)
        target = ends - run.size
        for first, last in pairwise([*range(0, len(ends), step), len(ends)]):
            part = slice(first, last)
            _copy_part(run.source, run.place[part], run.size[part], data, target[part], width)
            # Checked here, while they are in the processor's cache.
            right = _count_right(data, target[part], run.place[part] + run.base, run.size[part])
            if right < last - first:
                return int(run.queue_offset[first + right])
        start = int(ends[-1])
    return None


def _count_right(data: bytearray, target: Ints, position: Ints, size: Ints) -> int:
    """Return how many of these records, from the first on, match their units."""
    count = len(data) - _HEAD.itemsize + 1
    head = np.ndarray((count,), f"V{_HEAD.itemsize}", data, strides=(1,))[target].view(_HEAD)
    magic = head["magic"]
    is_right = (head["size"] == size) & (head["physical_offset"] == position)
    is_right &= (magic == MAGIC_V1) | (magic == MAGIC_V2)
    return len(target) if is_right.all() else int(np.argmin(is_right))


def _copy_part(
    source: Any, place: Ints, size: Ints, data: bytearray, target: Ints, width: int
) -> None:
    blocks = -(-size // width)
    if int((place + blocks * width).max()) > len(source):
        # A block would run over the end of the file: the last records of a log file.
        view = memoryview(source)
        for begin, length, to in zip(place.tolist(), size.tolist(), target.tolist(), strict=True):
            data[to : to + length] = view[begin : begin + length]
        return
    if int(blocks.max()) > 1:
        ends = np.cumsum(blocks)
        along = (np.arange(int(ends[-1])) - np.repeat(ends - blocks, blocks)) * width
        place = np.repeat(place, blocks) + along
        target = np.repeat(target, blocks) + along
    kind = f"V{width}"
    blocks_in = np.ndarray((len(source) - width + 1,), kind, source, strides=(1,))
    blocks_out = np.ndarray((len(data) - width + 1,), kind, data, strides=(1,))
    # In order, so that each record overwrites what the block before it wrote too much.
    blocks_out[target] = blocks_in[place]

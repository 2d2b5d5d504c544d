"""Opens consume queues at load: finds begin and end of each, and repairs the shape of its files.

A sound file has its full size, valid units, and zeros behind the last one.  The loader extends or
cuts files to their size, and clears what recovery has cut off.  Recovery decides which units belong
into a queue.

Since zeros follow the valid units, bisection finds the end of a queue.  A damaged stretch in the
middle may make the end too early; the scan of the log then derives the units behind it again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_UNIT_BYTES, PRE_BLANK_SIZE
from cometmq.model.offsets import PhysicalOffset, QueueOffset
from cometmq.store.log.commit_log import log_file_name
from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues, queue_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from cometmq.store.base.disk import Disk

__all__ = ["QueueLoader"]

_LOG: Final = logging.getLogger("cometmq.store")
_ZEROS: Final = bytes(1 << 16)
_NAME_DIGITS: Final = 20


class QueueLoader:
    """Finds the queues of one store on the disk, and where they begin and end.

    Args:
        damages: gets a text for each damage.
    """

    def __init__(self, disk: Disk, queues: ConsumeQueues, damages: list[str]) -> None:
        self._disk = disk
        self._queues = queues
        self._damages = damages
        self.with_excess: list[ConsumeQueue] = []
        """Queues whose files may have units behind the queue's end."""

    def load_all(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Make a queue object for every directory `consumequeue/<topic>/<queue id>`."""
        root = self._queues.path
        topics = self._disk.listdir(root)
        for done, topic in enumerate(topics):
            if progress is not None and done % 256 == 0:
                progress("queues", done, len(topics))
            for name in self._disk.listdir(f"{root}/{topic}"):
                queue_id = queue_id_of(name)
                if queue_id is not None:
                    self.load(self._queues.add(topic, queue_id))

    def load_unknown(self, start: int, floors: Container[str]) -> None:
        """Load the queues that are on the disk but not in the side file, after a power cut.

        Args:
            start: physical offset from which the log is scanned.  Units of records from there on
                are cut, since the power cut may have taken their records; the scan derives them.
            floors: the deleted topics, whose queues are not loaded.
        """
        root = self._queues.path
        for topic in self._disk.listdir(root):
            if topic in floors:
                continue
            for name in self._disk.listdir(f"{root}/{topic}"):
                queue_id = queue_id_of(name)
                if queue_id is None or self._queues.find(topic, queue_id) is not None:
                    continue
                queue = self._queues.add(topic, queue_id)
                self.load(queue)
                if queue.last_physical_end > start:
                    self.cut_to(queue, self.end_below(queue, PhysicalOffset(start)))
                self.with_excess.append(queue)

    def starts(self, queue: ConsumeQueue) -> list[int]:
        """Return the positions in the queue at which its files begin, ascending."""
        return [
            int(name)
            for name in self._disk.listdir(queue.path)
            if len(name) == _NAME_DIGITS and name.isdigit()
        ]

    def load(self, queue: ConsumeQueue) -> None:
        """Set the queue's `min`, `max` and `last_physical_end` by its files."""
        starts = self._contiguous_starts(queue)
        if not starts:
            return
        for start in starts:
            self._mend_size(queue, start)
        queue.first_start = starts[0]
        queue.min = starts[0] // CQ_UNIT_BYTES
        end = starts[-1] + self._queues.file_bytes
        queue.max = queue.written = end // CQ_UNIT_BYTES
        self.cut_to(queue, self._end_where(queue, lambda offset, size: size > 0 and offset >= 0))

    def load_known(self, queue: ConsumeQueue, end: int) -> None:
        """As `load`, but with the end that the side file states.

        The caller compares `last_physical_end`, which follows from the last unit before this end.
        """
        starts = self._contiguous_starts(queue)
        if not starts:
            return
        queue.first_start = starts[0]
        queue.min = starts[0] // CQ_UNIT_BYTES
        if any(self._size(queue, start) != self._queues.file_bytes for start in starts):
            queue.last_physical_end = -1
            return
        room = (starts[-1] + self._queues.file_bytes) // CQ_UNIT_BYTES
        # With a missing file the end, and so `last_physical_end`, is not the stated one.
        end = max(queue.min, min(end, room))
        queue.written = end
        self.cut_to(queue, end)
        # `units` reads only written units from files.
        queue.written = end + 1
        next_unit = self._queues.units(queue, end, 1, may_block=True)
        queue.written = end
        if next_unit is not None and next_unit.strip(b"\0"):
            self.with_excess.append(queue)

    def _contiguous_starts(self, queue: ConsumeQueue) -> list[int]:
        """As `starts`, for the newest files that follow each other without a gap."""
        file_bytes = self._queues.file_bytes
        starts = self.starts(queue)
        contiguous = starts[-1:]
        for start in reversed(starts[:-1]):
            if contiguous[0] - start != file_bytes:
                self._damages.append(
                    f"{queue.path}/{log_file_name(start)} and earlier files are not followed by"
                    f" {log_file_name(start + file_bytes)}: they are ignored"
                )
                break
            contiguous.insert(0, start)
        return contiguous

    def _size(self, queue: ConsumeQueue, start: int) -> int:
        return self._disk.size(f"{queue.path}/{log_file_name(start)}")

    def _mend_size(self, queue: ConsumeQueue, start: int) -> None:
        """Cut a file, or extend it with zeros, to the configured size."""
        path = f"{queue.path}/{log_file_name(start)}"
        size = self._disk.size(path)
        if size == self._queues.file_bytes:
            return
        self._damages.append(
            f"{path} is {size} bytes long, expected {self._queues.file_bytes}: filled with zeros"
            if size < self._queues.file_bytes
            else f"{path} is {size} bytes long, expected {self._queues.file_bytes}: cut"
        )
        file = self._disk.open_random(path, self._queues.file_bytes, create=False)
        file.resize(self._queues.file_bytes)

    def _end_where(self, queue: ConsumeQueue, is_before: Callable[[int, int], bool]) -> int:
        """Return the end of the leading units for which a predicate of offset and size is true."""
        low, high = queue.min, queue.written
        while low < high:
            middle = (low + high) // 2
            unit = self._queues.unit(queue, QueueOffset(middle))
            if unit is not None and is_before(unit.physical_offset, unit.size):
                low = middle + 1
            else:
                high = middle
        return low

    def end_below(self, queue: ConsumeQueue, physical_offset: PhysicalOffset) -> int:
        """Return the first queue offset whose record does not end below a physical offset."""

        def is_below(offset: int, size: int) -> bool:
            # A pre-blank unit stands for a record that has expired.
            return size == PRE_BLANK_SIZE or (
                size > 0 and offset >= 0 and offset + size <= physical_offset
            )

        return self._end_where(queue, is_below)

    def cut_to(self, queue: ConsumeQueue, end: int) -> None:
        """Set the queue's end; its files keep the units behind it until `zero_behind`."""
        queue.max = queue.visible = queue.written = end
        queue.tail.clear()
        queue.last_physical_end = 0
        if end > queue.min:
            unit = self._queues.unit(queue, QueueOffset(end - 1))
            if unit is not None and unit.size != PRE_BLANK_SIZE:
                queue.last_physical_end = unit.physical_offset + unit.size

    def zero_behind(self, queue: ConsumeQueue) -> int:
        """Clear the units behind the queue's end in its files; return how many were cleared.

        A file that lies behind the end as a whole is deleted, and counts once.
        """
        file_bytes = self._queues.file_bytes
        end = queue.written * CQ_UNIT_BYTES
        cleared = 0
        for start in self.starts(queue):
            path = f"{queue.path}/{log_file_name(start)}"
            if start >= end and start > 0:
                if self._has_data(path, 0):
                    cleared += 1
                self._queues.forget_files(queue.path)
                self._disk.remove(path)
            elif start <= end < start + file_bytes:
                cleared += self._zero(path, end - start)
        return cleared

    def _has_data(self, path: str, position: int) -> bool:
        """Return whether a unit that is not zeros lies at this position of a file."""
        file = self._disk.open_random(path, self._queues.file_bytes, create=False)
        raw = file.read(position, CQ_UNIT_BYTES)
        return raw != bytes(len(raw))

    def _zero(self, path: str, position: int) -> int:
        """Write zeros over all data from a position on; return how many units that cleared.

        A power cut can leave units behind some that are zeros.
        """
        file = self._disk.open_random(path, self._queues.file_bytes, create=False)
        cleared = 0
        while (data := file.next_data(position)) is not None:
            position = max(position, data)
            raw = file.read(position, len(_ZEROS))
            if raw.count(0) != len(raw):
                file.write(position, _ZEROS[: len(raw)])
                cleared += -(-len(raw.rstrip(b"\0")) // CQ_UNIT_BYTES)
            position += len(raw)
        return cleared

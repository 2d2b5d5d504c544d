"""Damage of files: a disk that gives back other bytes than were written.

`Rot` spoils the body of a flushed message, where a unit of a queue leads, or hash or offset of an
entry of the index.

A spoilt unit is mended by the log: everything stays as it is, and the check of the store names the
file until then.  A spoilt entry hides one key and nothing else.  For a body less is possible.
What is promised then: everything else stays as it is over every start, whatever ends the broker,
and the check of the store names each spoilt record and nothing else.  Clients do not compare the
CRC of a body, as in RocketMQ, so a reader who goes back may receive it; handlers of the simulator
pass it over.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_UNIT_BYTES
from cometmq.codec.index import decode_index_header, entry_position
from cometmq.codec.stored_message import BODY_POSITION_V4
from cometmq.model.offsets import PhysicalOffset
from cometmq.store.log.commit_log import log_file_name
from cometmq.store.offline.verify import Finding, FindingKind
from cometmq.store.scrub.digests import BLOCK_BYTES

if TYPE_CHECKING:
    from cometmq.store.message_store import MessageStore
    from cometmq.testing.disk import SimDisk
    from cometmq.testing.simulate.broker_part import Position, Seen

__all__ = ["Rot"]

_SECTOR_BYTES: Final = 512
_LEADING_BYTES: Final = 12
"""The physical offset and the size in a unit, whose tags code nothing but the log proves; the hash
and the physical offset in an entry of the index."""


class Rot:
    """The spoilt records of one broker's log."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.spoilt: dict[Position, Seen] = {}
        self._units: dict[tuple[str, int], bytes] = {}
        """By file and position of each spoilt unit: where it led."""
        self._units_spoilt: dict[tuple[str, int], bytes] = {}
        """Where it leads since then; a power cut may take a unit that was not synced."""
        self._entries: dict[tuple[str, int], tuple[int, bytes]] = {}
        """By index file and position of each spoilt entry: its number, and the spoilt hash and
        offset.  The entry may be dropped with the last ones of a file, and another one may be
        written there."""

    def spoil(
        self, store: MessageStore, messages: list[Seen], proven: int, chance: random.Random
    ) -> bool:
        """Spoil the body of one of these messages; return False if none is known to be there.

        One bit changes, or a block comes to lie there that belongs elsewhere in the file.

        Args:
            proven: the next start knows that the log reaches this physical offset.
        """
        log = store._log
        # The end of the log may be torn, so nothing proves its last record.
        end = min(proven, max((seen.physical_offset for seen in messages), default=0))
        old = [
            seen
            for seen in messages
            if log.min_offset <= seen.physical_offset < end and seen.position not in self.spoilt
        ]
        if not old:
            return False
        seen = chance.choice(old)
        mapped = log.file_at(PhysicalOffset(seen.physical_offset))
        assert mapped is not None
        body = seen.physical_offset - mapped.start + BODY_POSITION_V4
        if len(seen.body) > _SECTOR_BYTES and chance.random() < 0.5:
            other = mapped.file.read(chance.randrange(body), _SECTOR_BYTES)
            begin = body + chance.randrange(len(seen.body) - _SECTOR_BYTES)
            if other == mapped.file.read(begin, _SECTOR_BYTES):
                return False
            self._disk.spoil(mapped.path, begin, other)
        else:
            position = body + chance.randrange(len(seen.body))
            self._disk.flip_bit(mapped.path, position, chance.randrange(8))
        self.spoilt[seen.position] = seen
        return True

    def spoil_unit(self, store: MessageStore, messages: list[Seen], chance: random.Random) -> bool:
        """Spoil where the unit of one of these messages leads, in its queue's file.

        Return False if no unit of them is in a file.
        """
        filed: list[tuple[str, int]] = []
        file_bytes = store._queues.file_bytes
        for seen in messages:
            _, topic, queue_id, queue_offset = seen.position
            queue = store._queues.find(topic, queue_id)
            if queue is None or not store._search.min_of(queue) <= queue_offset < queue.written:
                continue
            start, position = divmod(queue_offset * CQ_UNIT_BYTES, file_bytes)
            filed.append((f"{queue.path}/{log_file_name(start * file_bytes)}", position))
        filed = [unit for unit in filed if self._disk.exists(unit[0])]
        if not filed:
            return False
        path, position = chance.choice(filed)
        self._units.setdefault((path, position), self._leading(path, position))
        self._disk.flip_bit(path, position + chance.randrange(_LEADING_BYTES), chance.randrange(8))
        self._units_spoilt[path, position] = self._leading(path, position)
        return True

    def spoil_entry(self, store: MessageStore, chance: random.Random) -> bool:
        """Spoil hash or offset of an entry of the index; return False if there is none yet.

        Nothing but the log proves the last entry of a file, which is spared.
        """
        filed = [
            (file.path, entry_position(number, file.slot_count), number)
            for file in store._index.files
            for number in range(1, file.header.index_count - 1)
        ]
        filed = [entry for entry in filed if self._leading(*entry[:2]).strip(b"\0")]
        if not filed:
            return False
        path, position, number = chance.choice(filed)
        if (path, position) in self._entries:
            return False
        self._disk.flip_bit(path, position + chance.randrange(_LEADING_BYTES), chance.randrange(8))
        self._entries[path, position] = number, self._leading(path, position)
        return True

    def _leading(self, path: str, position: int) -> bytes:
        return self._disk.read_bytes(path)[position : position + _LEADING_BYTES]

    def has_unit_of(self, topic: str, queue_id: int) -> bool:
        """Whether a unit of this queue was spoilt."""
        return any(f"/{topic}/{queue_id}/" in path for path, _ in self._units)

    def unnamed_file(self, findings: list[Finding], log_begin: int) -> str | None:
        """Return the file of a spoilt unit or entry that the store's check does not name."""
        named = {finding.path for finding in findings}
        for (path, position), leading in self._units.items():
            if int.from_bytes(leading[:8], "big") < log_begin or not self._disk.exists(path):
                continue
            spoilt = self._units_spoilt[path, position]
            if leading != spoilt == self._leading(path, position) and path not in named:
                return path
        for (path, position), (number, spoilt) in self._entries.items():
            # What leads before the log's begin has expired, as far as the check can say.
            entry_offset = int.from_bytes(spoilt[4:], "big", signed=True)
            if entry_offset < log_begin or not self._disk.exists(path) or path in named:
                continue
            raw = self._disk.read_bytes(path)
            if raw[position : position + _LEADING_BYTES] == spoilt and (
                number < decode_index_header(raw).index_count
            ):
                return path
        return None

    def explains(self, finding: Finding, findings: list[Finding]) -> bool:
        """Whether a finding of the store's check is about a spoilt record, unit or entry.

        Args:
            findings: all of them.  Of a file whose size of the slot table cannot be told, since
                one of its few entries is spoilt, no entry is found.
        """
        if finding.path.endswith("/index"):
            heads = {other.path for other in findings if other.position == 0}
            return any(path in heads for path, _ in self._entries)
        return any(self._is_about(finding, seen) for seen in self.spoilt.values()) or any(
            finding.path == path for path, _ in (*self._units, *self._entries)
        )

    def unnamed(self, findings: list[Finding], log_begin: int) -> Seen | None:
        """Return a spoilt record that the store's check has not named; None if it named all."""
        for seen in self.spoilt.values():
            if seen.physical_offset >= log_begin and not any(
                finding.kind is FindingKind.DAMAGE and self._is_about(finding, seen)
                for finding in findings
            ):
                return seen
        return None

    @staticmethod
    def _is_about(finding: Finding, seen: Seen) -> bool:
        folder, _, name = finding.path.rpartition("/")
        if folder.endswith("/commitlog"):
            at = int(name) + finding.position
            block_bytes = BLOCK_BYTES if "sealed" in finding.text else 1
            return at <= seen.physical_offset < at + block_bytes
        _, topic, queue_id, _ = seen.position
        return folder.endswith((f"/{topic}/{queue_id}", "/index"))

"""Damage of a log file: a disk that gives back other bytes than were written.

`Rot` spoils the body of a flushed message.
What is promised then: everything else stays as it is over every start, whatever ends the broker,
and the check of the store names each spoilt record and nothing else.  Clients do not compare the
CRC of a body, as in RocketMQ, so a reader who goes back may receive it; handlers of the simulator
pass it over.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from cometmq.codec.stored_message import BODY_POSITION_V4
from cometmq.model.offsets import PhysicalOffset
from cometmq.store.offline.verify import Finding, FindingKind
from cometmq.store.scrub.digests import BLOCK_BYTES

if TYPE_CHECKING:
    from cometmq.store.message_store import MessageStore
    from cometmq.testing.disk import SimDisk
    from cometmq.testing.simulate.broker_part import Position, Seen

__all__ = ["Rot"]

_SECTOR_BYTES: Final = 512


class Rot:
    """The spoilt records of one broker's log."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.spoilt: dict[Position, Seen] = {}

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

    def explains(self, finding: Finding) -> bool:
        """Whether a finding of the store's check is about a spoilt record."""
        return any(self._is_about(finding, seen) for seen in self.spoilt.values())

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

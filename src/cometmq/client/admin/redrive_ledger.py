"""A file that knows which dead letters were sent again.

Job: remember, durably, what is about to be sent and what was; tell both to the next run.
Must not: send or choose anything.

One JSON object per line, each line on disk before the next step:

    {"about": [[offset, id], ...], "queue": text, "target": [topic, broker, queue], "from": offset}
    {"done": true}                     all of the line before was sent
    {"found": [place, ...]}            of it, these were sent: they were looked up in the target

A message is known by its place and its id, so that a ledger is of no harm where the topic was made
anew or another cluster has the same names.  A line without an end was being written when the
process died, and nothing of what it says had begun.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cometmq.core.retry.dead_letters import Death
from cometmq.errors import ConfigError
from cometmq.model import MessageQueue

__all__ = ["Pending", "RedriveLedger"]


@dataclass(frozen=True, slots=True)
class Pending:
    """A batch of which nobody knows how much was sent.

    ``target`` is the queue it went to and ``from_offset`` where that ended before.
    """

    places: dict[str, str]
    """Message id by place."""
    target: MessageQueue
    from_offset: int


@dataclass(slots=True)
class RedriveLedger:
    """The ledger of one group and one kind of target; `open` reads what is there."""

    path: Path
    pending: Pending | None = None
    _sent: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def open(cls, folder: str | Path, group: str, kind: str) -> RedriveLedger:
        """The ledger in ``folder``; empty where there is none yet.

        Raises:
            ConfigError: a line in the middle is not one of a ledger.
        """
        ledger = cls(Path(folder) / f"{quote(group, safe='')}.{kind}.jsonl")
        try:
            raw = ledger.path.read_bytes()
        except FileNotFoundError:
            return ledger
        except OSError as error:
            raise ConfigError(f"the ledger {ledger.path} cannot be read: {error}") from None
        whole, _, torn = raw.rpartition(b"\n")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                ledger._take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{ledger.path} line {number} is not one of a ledger: {error}. Name another "
                    "--ledger, or send nothing twice by hand"
                ) from None
        if torn:
            with ledger.path.open("rb+") as file:
                file.truncate(len(raw) - len(torn))
        return ledger

    def _take(self, line: dict[str, Any]) -> None:
        if "about" in line:
            places = {f"{line['queue']}:{offset}": str(name) for offset, name in line["about"]}
            topic, broker_name, queue_id = line["target"]
            self.pending = Pending(
                places, MessageQueue(topic, broker_name, int(queue_id)), int(line["from"])
            )
            return
        pending = self.pending
        if pending is None:
            raise ValueError("nothing was about to be sent")
        found = pending.places if "done" in line else dict.fromkeys(line["found"])
        self._sent |= {(place, pending.places[place]) for place in found}
        self.pending = None

    def __contains__(self, death: object) -> bool:
        """Whether this very message was sent."""
        return isinstance(death, Death) and (death.position, death.message_id) in self._sent

    @property
    def count(self) -> int:
        """Messages that were sent so far."""
        return len(self._sent)

    def about(self, deaths: list[Death], target: MessageQueue, from_offset: int) -> None:
        """Write down what is sent next; all of ``deaths`` are of one queue."""
        assert self.pending is None, "what was about to be sent must be settled first"
        self._write(
            {
                "about": [[death.queue_offset, death.message_id] for death in deaths],
                "queue": str(deaths[0].queue),
                "target": [target.topic, target.broker_name, target.queue_id],
                "from": from_offset,
            }
        )

    def done(self) -> None:
        """All of it was sent and acknowledged."""
        self._write({"done": True})

    def found(self, places: set[str]) -> None:
        """Of it these are in the target; the rest was not sent."""
        assert self.pending is not None
        self._write({"found": sorted(places & set(self.pending.places))})

    def _write(self, line: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(line)

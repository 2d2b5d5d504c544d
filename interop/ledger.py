"""The ledger of a soak: sends, acknowledgements, deliveries to each group, causes of repetitions.

Job: make messages whose bodies follow from their numbers, note every acknowledgement, delivery
and disturbance with its time, and list the faults at the end.
Must not: start or stop a process, or wait.

A message is *owed* to every group once its send was acknowledged.  If its send failed or was cut
off, the message may come or not.  A second delivery is *explained* by a disturbance of its group (a
member was killed, joined or left, the broker was restarted) that began before it, if the first
delivery lies within the disturbance or at most `WINDOW_S` before or after it.  The reason: offsets
are committed every few seconds, and the next owner of a queue handles the messages since the last
commit again; it may also read the offset before the old owner has committed.  Every other second
delivery is a fault.
"""

import base64
import hashlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from interop.driver import mark

__all__ = ["Ledger", "body_of", "letter_of"]

WINDOW_S: Final = 20.0
"""Offsets are written every 5 s at the latest; the rest is for a machine that is busy."""
SIZES: Final = (1, 17, 100, 100, 300, 300, 1000, 1100, 2500, 6000)
FAULTS_SHOWN: Final = 5
NEAR_S: Final = 90.0
UNEXPLAINED: Final = "unexplained"


def body_of(number: str) -> bytes:
    """The body of message `number`; it follows from the number, so a changed byte is detected."""
    seed = hashlib.blake2b(number.encode(), digest_size=32).digest()
    size = SIZES[seed[0] % len(SIZES)]
    return (seed * (size // len(seed) + 1))[:size]


def letter_of(topic: str, number: str) -> dict[str, Any]:
    """The message in the form of a driver's command."""
    return {
        "topic": topic,
        "body": base64.b64encode(body_of(number)).decode(),
        "tags": "soak",
        "keys": number,
        "properties": {"n": number},
    }


@dataclass(frozen=True)
class Again:
    """A repeated delivery of a message; times in seconds."""

    number: str
    first: float
    second: float
    story: str
    """Who got it and from which place, both times."""


@dataclass
class GroupBook:
    """The deliveries of one group."""

    first: dict[str, tuple[float, str]] = field(default_factory=dict)
    """When each message came first, and who got it from where."""
    counts: Counter[str] = field(default_factory=Counter)
    repeated: list["Again"] = field(default_factory=list)
    disturbances: list[tuple[float, float, str]] = field(default_factory=list)
    """Begin, end and what it was."""


class Ledger:
    """The ledger of all groups; safe to use from any thread."""

    def __init__(self, groups: list[str]) -> None:
        self._lock = threading.Lock()
        self.groups = {group: GroupBook() for group in groups}
        self.sent: set[str] = set()
        self.acknowledged: set[str] = set()
        self.failed: dict[str, str] = {}
        """Sends that ended with an error: number and text."""
        self.wrong: list[str] = []
        self.last_heard: dict[str, float] = {}
        """When a process last acknowledged or received something."""

    # -- notes ------------------------------------------------------------------------------

    def note_sent(self, numbers: list[str]) -> None:
        """Note messages that are about to be sent."""
        with self._lock:
            self.sent.update(numbers)

    def note_result(self, process: str, number: str, result: dict[str, Any]) -> None:
        """Note the result of a send."""
        with self._lock:
            self.last_heard[process] = time.monotonic()
            if result.get("status") == "SEND_OK":
                self.acknowledged.add(number)
            else:
                self.failed[number] = str(result.get("error") or result)[:300]

    def note_delivery(self, process: str, group: str, message: dict[str, Any]) -> None:
        """Note a delivery to a member."""
        number = message["properties"].get("n", "")
        now = time.monotonic()
        is_right = (
            message["body"] == mark(body_of(number))
            and message["tags"] == "soak"
            and message["keys"] == number
        )
        with self._lock:
            self.last_heard[process] = now
            book = self.groups[group]
            if number not in self.sent:
                self.wrong.append(f"{group} got {number!r}, which nobody sent")
            elif not is_right:
                self.wrong.append(f"{group} got {number} changed: {str(message)[:300]}")
            book.counts[number] += 1
            story = f"{process} from {message.get('queueId')}/{message.get('queueOffset')}"
            if number in book.first:
                when, who = book.first[number]
                book.repeated.append(Again(number, when, now, f"{who}, {story}"))
            else:
                book.first[number] = (now, story)

    def note_disturbance(
        self, groups: list[str], what: str, began: float, after_s: float = 0.0
    ) -> None:
        """Note a disturbance of these groups, which need another `after_s` seconds to settle."""
        end = time.monotonic() + after_s
        with self._lock:
            for group in groups:
                self.groups[group].disturbances.append((began, end, what))

    # -- questions --------------------------------------------------------------------------

    def silence_of(self, process: str) -> float:
        """Seconds since a process last received an acknowledgement or a message."""
        with self._lock:
            return time.monotonic() - self.last_heard.get(process, float("-inf"))

    def owed(self) -> dict[str, int]:
        """The number of acknowledged messages that each group has not received."""
        with self._lock:
            return {
                name: len(self.acknowledged - book.first.keys())
                for name, book in self.groups.items()
            }

    def missing(self, group: str) -> list[str]:
        """The acknowledged messages that the group has not received."""
        with self._lock:
            return sorted(self.acknowledged - self.groups[group].first.keys())

    def duplicates(self) -> dict[str, Counter[str]]:
        """Second deliveries of each group by their cause; `unexplained` is a fault."""
        with self._lock:
            return {
                name: Counter(self._cause(book, one) for one in book.repeated)
                for name, book in self.groups.items()
            }

    @staticmethod
    def _cause(book: GroupBook, again: Again) -> str:
        near = [
            (abs(begin - again.first), what)
            for begin, end, what in book.disturbances
            if begin <= again.second and begin - WINDOW_S <= again.first <= end + WINDOW_S
        ]
        kills = [one for one in near if one[1] in ("killed", "broker")]
        return min(kills or near, default=(0.0, UNEXPLAINED))[1]

    def _unexplained(self, group: str) -> list[str]:
        """A description of each second delivery without a cause."""
        book = self.groups[group]
        return [
            f"{one.number} ({one.second - one.first:.1f} s apart: {one.story}; disturbances near: "
            + ", ".join(
                f"{what} {begin - one.first:+.1f} to {end - one.first:+.1f} s"
                for begin, end, what in book.disturbances
                if abs(begin - one.first) < NEAR_S
            )
            + ")"
            for one in book.repeated
            if self._cause(book, one) == UNEXPLAINED
        ]

    def faults(self) -> list[str]:
        """All faults, a sentence each."""
        found = self.wrong[:FAULTS_SHOWN]
        for group, count in self.owed().items():
            if count:
                found.append(f"{group} never got {count}: {self.missing(group)[:FAULTS_SHOWN]}")
        for group, causes in self.duplicates().items():
            if causes[UNEXPLAINED]:
                found.append(
                    f"{group} got {causes[UNEXPLAINED]} twice without a reason: "
                    + "; ".join(self._unexplained(group)[:FAULTS_SHOWN])
                )
        return found

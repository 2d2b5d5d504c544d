"""Runs of sends that wait somewhere before they are delivered: half, delayed and timed messages.

Job: take the sends of one kind from the front of a run, store them with one call and answer them.
It must not refuse: what is special or wrong ends the run and takes the checked way (`send.py`),
which does it or explains.  What a kind is made of is in `half_send`, `delayed_send`, `timed_send`.

As on the fast way of ordinary messages (`send_run`), properties stay the string the client sent;
what the kind adds is appended.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import islice, takewhile
from typing import Any, Final, Generic, Protocol, TypeVar

from cometmq.broker.base.state import BrokerState
from cometmq.broker.send.run_answers import RunAnswers
from cometmq.broker.send.send_run import RUN_SENDS_MAX, is_plain_id
from cometmq.net.server import ServerConnection
from cometmq.store.base.results import PutItem
from cometmq.wire.header.fast_decode import PlainSend, SendCommand

__all__ = ["Send", "SpecialKind", "SpecialRuns"]

_CHARS_MAX: Final = 8000
_RESPONSE: Final = 1

M = TypeVar("M")
Send = tuple[PlainSend, str, bytes]
"""Header of a send, its properties with a separator at the end, its body: topic, queue and size of
the body are accepted."""


class SpecialKind(Protocol[M]):
    """One kind; `M` is what it keeps of a message from `items` to `stored`."""

    @property
    def mark(self) -> str:
        """What the property string of every message of this kind has in it."""

    def is_open(self) -> bool:
        """Whether runs are served now."""

    def items(self, sends: Sequence[Send], now_ms: int) -> tuple[list[PutItem], list[M]]:
        """What to put for each, up to the first that is not for the fast way.

        One loop for all: a call for each costs as much as half of its steps.
        """

    def stored(
        self,
        requests: Sequence[SendCommand],
        items: Sequence[PutItem],
        more: Sequence[M],
        placed: Sequence[tuple[int, int]],
        born_host: bytes,
        now_ms: int,
    ) -> Sequence[str] | None:
        """The first `len(placed)` are in the store; their recall handles, if they have some."""


class SpecialRuns(Generic[M]):
    """Serves the runs of one kind; `limits` maps topics that passed all checks to their queues,
    `growing` has those whose message groups move."""

    __slots__ = ("_answers", "_growing", "_kind", "_limits", "_state")

    def __init__(
        self,
        state: BrokerState,
        limits: dict[str, int],
        kind: SpecialKind[M],
        answers: RunAnswers,
        growing: Container[str],
    ) -> None:
        self._state = state
        self._growing = growing
        self._limits = limits
        self._kind = kind
        self._answers = answers

    def serve(
        self, commands: Sequence[Any], start: int, connection: ServerConnection, now_ms: int
    ) -> tuple[int, bytes]:
        """Store sends of this kind from `start` on; the place of the first other, the answers."""
        kind = self._kind
        if not kind.is_open():
            return start, b""
        items, more = self._gather(commands, start, now_ms)
        if not items:
            return start, b""
        host = connection.peer_host
        placed = self._state.store.put_many(items, born_host=host, store_ms=now_ms)
        if not placed:
            return start, b""
        end = start + len(placed)
        requests = commands[start:end]
        handles = kind.stored(requests, items, more, placed, host, now_ms)
        return end, self._answers.give(requests, items, placed, connection, handles)

    def _gather(
        self, commands: Sequence[Any], start: int, now_ms: int
    ) -> tuple[list[PutItem], list[M]]:
        mark = self._kind.mark
        limit_of = self._limits.get
        growing = self._growing
        body_bytes_max = self._state.config.max_message_size
        sends: list[Send] = []
        for request in islice(commands, start, start + RUN_SENDS_MAX):
            if type(request) is not SendCommand or request.flag & _RESPONSE:
                break
            header = request.ext
            body = request.body
            text = header.properties
            if text[-1:] != "\x02":
                text += "\x02"
            if (
                mark not in text
                or len(text) > _CHARS_MAX
                or not 0 <= header.queue_id < limit_of(header.topic, 0)
                or not 0 < len(body) <= body_bytes_max
                or header.batch
                or header.reconsume_times
                # The group may be at home elsewhere; see `growing`.
                or (header.place and header.topic in growing)
            ):
                break
            sends.append((header, text, body))
        if not sends:
            return [], []
        items, more = self._kind.items(sends, now_ms)
        if not is_plain_id("".join([item[8][0] or "-" for item in items])):
            # The first id that JSON has to escape ends the run.
            items = list(takewhile(lambda item: is_plain_id(item[8][0] or ""), items))
        return items, more

"""Runs of sends that wait somewhere before they are delivered: half, delayed and timed messages.

Job: take the sends of one kind from the front of a run, store them with one call and answer them.
It must not refuse: what is special or wrong ends the run and takes the checked way (`send.py`),
which does it or explains.  What a kind is made of is in `half_send`, `delayed_send`, `timed_send`.

As on the fast way of ordinary messages (`send_run`), properties stay the string the client sent;
what the kind adds is appended.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from cometmq.broker.run_answers import RunAnswers
from cometmq.broker.send_run import RUN_SENDS_MAX, is_plain_id
from cometmq.broker.state import BrokerState
from cometmq.net.server import ServerConnection
from cometmq.store.results import PutItem
from cometmq.wire.fast_decode import PlainSend, SendCommand

__all__ = ["Keys", "SpecialKind", "SpecialRuns", "make_shape_look"]

_CHARS_MAX: Final = 8000
_SHAPES_MAX: Final = 1024
_SHAPE_CHARS_MAX: Final = 512
_RESPONSE: Final = 1

S = TypeVar("S")
M = TypeVar("M")
Keys = tuple[str, str | None, str | None]


class SpecialKind(Protocol[M]):
    """One kind; `M` is what it keeps of a message from `item` to `stored`."""

    @property
    def mark(self) -> str:
        """What the property string of every message of this kind has in it."""

    def is_open(self) -> bool:
        """Whether runs are served now."""

    def item(
        self, header: PlainSend, text: str, body: bytes, now_ms: int
    ) -> tuple[PutItem, M] | None:
        """What to put for a message; None when it is not for the fast way.

        `text` ends with a separator, topic, queue and size of the body are accepted.
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
        mark, make = self._kind.mark, self._kind.item
        limit_of = self._limits.get
        growing = self._growing
        body_bytes_max = self._state.config.max_message_size
        items: list[PutItem] = []
        more: list[M] = []
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
            try:
                made = make(header, text, body, now_ms)
            except UnicodeEncodeError:
                break
            if made is None or not is_plain_id(made[0][8][0] or ""):
                break
            items.append(made[0])
            more.append(made[1])
        return items, more


def make_shape_look(
    closer: Callable[[str], tuple[Keys, S] | None], tags_of: Callable[[S], str | None]
) -> Callable[[str], tuple[Keys, S] | None]:
    """Build a look with a memory: `closer` is asked only about what is new but for the keys.

    It takes a string that ends with a separator; None when it is not plain.  A producer's strings
    differ in UNIQ_KEY and KEYS only, so what the rest asks for is remembered by its *shape*.
    """
    shapes: dict[tuple[str, str], tuple[S, str | None]] = {}
    known = shapes.get

    def look_at(text: str) -> tuple[Keys, S] | None:
        before, _, rest = text.partition("UNIQ_KEY\x01")
        uniq_key, _, after = rest.partition("\x02")
        head, has_keys, tail = before.partition("KEYS\x01")
        keys, _, between = tail.partition("\x02")
        around = head + between
        found = known((around, after))
        if found is not None and uniq_key and (keys or not has_keys):
            return (uniq_key, keys or None, found[1]), found[0]
        looked = closer(text)
        if (
            looked is not None
            and len(around) + len(after) <= _SHAPE_CHARS_MAX
            # Nothing of the other two may be in what is remembered, nor a name cut in two.
            and not any(f"{name}\x01" in around + after for name in ("UNIQ_KEY", "KEYS"))
            and all(part[-1:] in ("", "\x02") for part in (before, head, between))
            and looked[0][:2] == (uniq_key, keys or None)
        ):
            if len(shapes) >= _SHAPES_MAX:
                shapes.clear()
            shapes[around, after] = looked[1], tags_of(looked[1])
        return looked

    return look_at

"""Answers of sends that were stored together, at once or when they are durable.

Job: make the answers of a run.  With SYNC_FLUSH those who wait for the flush (WAIT is not false)
are answered together when the last of the run is durable, the others at once.  Their topics are in
``topics.json``: a send to one that is not comes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from cometmq.broker.base.state import BrokerState
from cometmq.codec.ids import offset_message_ids
from cometmq.errors import ResponseCode
from cometmq.net.server import ServerConnection
from cometmq.store.base.results import PutItem, PutResult
from cometmq.wire.header.fast_decode import SendCommand

if TYPE_CHECKING:
    from cometmq.broker.send.send_run import Frame

__all__ = ["RunAnswers", "waits_for_flush"]

_ONEWAY: Final = 2
_One = tuple[SendCommand, PutItem, tuple[int, int], str | None]
"""Request, what was put, physical and queue offset, recall handle."""
Stored = Callable[[SendCommand, int, PutResult, int, str, str | None], bytes]


def waits_for_flush(text: str) -> bool:
    """Whether the sender waits for a synchronous flush: its last WAIT is not false.

    Names that only end alike ("AWAIT") are the sender's own and must not cost durability.
    """
    _, name, rest = f"\x02{text}".rpartition("\x02WAIT\x01")
    return not name or rest.partition("\x02")[0] != "false"


class RunAnswers:
    """Makes them for one broker; ids have to be plain (`is_plain_id`)."""

    __slots__ = ("_frame", "_is_sync_flush", "_state", "_stored")

    def __init__(self, state: BrokerState, frame: Frame, stored: Stored) -> None:
        """`stored` gives any answer: request, code, place, queue, id, recall handle."""
        self._state = state
        self._is_sync_flush = state.config.flush_disk_type == "SYNC_FLUSH"
        self._frame = frame
        self._stored = stored

    def give(
        self,
        requests: Sequence[SendCommand],
        items: Sequence[PutItem],
        placed: Sequence[tuple[int, int]],
        connection: ServerConnection,
        handles: Sequence[str] | None = None,
    ) -> bytes:
        """Answers that leave now, of the first `len(placed)` requests; the others follow."""
        if self._is_sync_flush and placed:
            known: Sequence[str | None] = handles or [None] * len(placed)
            run = list(zip(requests, items, placed, known, strict=False))
            waiting = [one for one in run if waits_for_flush(one[0].ext.properties)]
            if waiting:
                self._park(waiting, connection)
                ready = [one for one in run if not waits_for_flush(one[0].ext.properties)]
                return self._text(ready).encode("latin-1")
        frame = self._frame
        ids = offset_message_ids(self._state.host, [place[0] for place in placed]).split(",")
        lasts = _lasts(items, handles)
        # Clients are told the queue the message is for, also while it waits somewhere else.
        frames = [
            frame(message_id, request.ext.queue_id, place[1], last, request.opaque)
            for message_id, request, last, place in zip(ids, requests, lasts, placed, strict=False)
            if not request.flag & _ONEWAY
        ]
        return "".join(frames).encode("latin-1")

    def _text(self, run: list[_One]) -> str:
        ids = offset_message_ids(self._state.host, [one[2][0] for one in run]).split(",")
        return "".join(
            self._frame(
                message_id, request.ext.queue_id, place[1], _last(item, handle), request.opaque
            )
            for message_id, (request, item, place, handle) in zip(ids, run, strict=False)
            if not request.flag & _ONEWAY
        )

    def _park(self, run: list[_One], connection: ServerConnection) -> None:
        """Answer all of them when the last one is durable."""
        state = self._state

        def settle(is_durable: bool) -> None:
            if is_durable:
                answers = self._text(run).encode("latin-1")
            else:
                code = ResponseCode.FLUSH_DISK_TIMEOUT
                answers = b"".join(
                    self._stored(
                        request,
                        code,
                        PutResult(*place, 0),
                        request.ext.queue_id,
                        item[8][0] or "",
                        handle,
                    )
                    for request, item, place, handle in run
                    if not request.flag & _ONEWAY
                )
            if answers:
                connection.send(answers)

        state.store.when_durable(state.store.max_physical_offset, settle)


def _lasts(items: Sequence[PutItem], handles: Sequence[str] | None) -> list[str]:
    if handles is None:
        return [item[8][0] or "" for item in items]
    return [_last(item, handle) for item, handle in zip(items, handles, strict=False)]


def _last(item: PutItem, handle: str | None) -> str:
    # The id is the last of the template's fields, so one more can stand behind it.
    uniq_key = item[8][0] or ""
    return uniq_key if handle is None else f'{uniq_key}","recallHandle":"{handle}'

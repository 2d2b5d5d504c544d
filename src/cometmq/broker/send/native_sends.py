"""Sends of every kind and batches through the native core: frames in, answers out.

The core (`cometmq.native`) encodes the usual sends at the beginning of what a read of a socket
brought, and the store appends them.  At the first other frame it stops, and `SendProcessor` serves
the rest of the read.

Where sends wait (SYNC_FLUSH, SYNC_MASTER), the answers of a run leave when its last message has
passed the barrier.  The core stops before a send that does not wait.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from cometmq import native
from cometmq.broker.base.barrier import SendBarrier
from cometmq.broker.base.state import BrokerState
from cometmq.broker.send.checks import CheckedTopics
from cometmq.errors import ResponseCode
from cometmq.net.server import Front, ServerConnection
from cometmq.wire.command.command import FRAME_HEAD, encode_response
from cometmq.wire.frame.framing import FrameReader
from cometmq.wire.header.fast_encode import SendResponseEncoder
from cometmq.wire.header.headers import SendResponseHeader

if TYPE_CHECKING:
    from cometmq.native import NotedHalf, NotedNumber, NotedTimed

__all__ = ["NativeKinds", "native_front"]

_SEND_STARTS: Final = (
    b'{"code":310,', b'{"code":320,', b'{"code":10,', b"\x01\x36", b"\x01\x40", b"\x00\x0a"
)  # fmt: skip
"""How the headers of sends begin, JSON and binary."""
_CODE_START: Final = b'{"code":'


def _may_be_send(data: bytes) -> bool:
    """Whether the first frame is worth a look: a send, or JSON with another key before its code."""
    start = FRAME_HEAD.size
    return data.startswith(_SEND_STARTS, start) or (
        data.startswith(b"{", start) and not data.startswith(_CODE_START, start)
    )


class DelayedSends(Protocol):
    """Takes note of delayed messages."""

    def encoded(self, level: int, following: int, now_ms: int) -> None:
        """Take note of messages of a level, the last one before a queue offset."""


class TimedSends(Protocol):
    """Takes note of timed messages."""

    @property
    def precision_ms(self) -> int:
        """The width of a slot of the wheel."""

    def native_span(self, now_ms: int) -> tuple[int, int]:
        """Return the first slot and the last due time that the core takes; (0, 0) for none."""

    def encoded(self, notes: Sequence[NotedTimed]) -> None:
        """Take note of messages, with queue offsets in a row."""


class HalfSends(Protocol):
    """Takes note of half messages."""

    def is_open(self) -> bool:
        """Whether the core may take them."""

    def encoded(self, notes: Sequence[NotedHalf]) -> None:
        """Take note of messages."""


class NumberTable(Protocol):
    """Knows which numbers of producers are stored."""

    def are_new(self, notes: Sequence[NotedNumber]) -> bool:
        """Whether none of the messages is stored already, or twice among these."""

    def note_run(self, notes: Sequence[NotedNumber]) -> None:
        """Take note of messages."""


class NumberedSends(Protocol):
    """Takes messages that their producer numbers."""

    @property
    def is_ready(self) -> bool:
        """Whether the core may take them."""

    @property
    def table(self) -> NumberTable:
        """What is stored."""


class NativeKinds(NamedTuple):
    """The kinds of messages of which Python takes note, as the core serves them."""

    delayed: DelayedSends
    timed: TimedSends
    half: HalfSends
    numbered: NumberedSends


def native_front(
    state: BrokerState,
    checked: CheckedTopics,
    moving_topics: Container[str],
    suffix: bytes,
    sys_flag_mask: int,
    kinds: NativeKinds,
) -> Front | None:
    """Return what serves sends by the native core; None where it is not there.

    Args:
        state: the broker's.
        checked: topics that passed every check.
        moving_topics: topics whose message groups move between brokers.
        suffix: the properties that the broker adds.
        sys_flag_mask: the bits of a sysFlag that a client may set.
        kinds: take note of their messages.
    """
    config, store = state.config, state.store
    if native.SendEncoder is None:
        return None
    barrier = state.barrier
    is_waiting = barrier.is_waiting
    answers = SendResponseEncoder(config.region_id, trace_on=config.trace_on, barrier=barrier.level)
    encode = native.SendEncoder(
        checked.queue_counts,
        moving_topics,
        store.queues_by_topic,
        store.queue_type,
        suffix,
        answers.json_parts(),
        answers.binary_parts(),
        state.message_id_prefix.encode(),
        sys_flag_mask & 0xFFFFFFFF,
        array("q", state.delay.delays_ms).tobytes(),
        kinds.timed.precision_ms,
        config.broker_name.encode(),
        store.config.is_index_enabled,
        is_waiting,
    ).encode
    room, append = store.room, store.append_encoded
    delayed, timed, half, numbered = kinds
    are_new, note_numbers = numbered.table.are_new, numbered.table.note_run

    def serve(data: bytes, connection: ServerConnection, now_ms: int) -> tuple[int, bytes]:
        if not _may_be_send(data):
            return 0, b""
        end = 0
        answers: list[bytes] = []
        # A run ends at a full log file too, and after many queues; then the next one goes on.
        while end < len(data):
            found = room(connection.peer_host, now_ms)
            if found is None:
                break
            position, limit, origin = found
            run = encode(
                data,
                end,
                position,
                limit,
                now_ms,
                origin,
                min(state.config.max_message_size, store.config.message_bytes_max),
                *timed.native_span(now_ms),
                half.is_open(),
                numbered.is_ready,
                checked.revision,
            )
            # Nothing of a run is stored yet: `SendProcessor` serves one with a repetition.
            if run is None or (run[6] and not are_new(run[6])):
                break
            end, run_answers, encoded, delayed_notes, timed_notes, half_notes, number_notes = run
            append(encoded, now_ms)
            for level, following in delayed_notes:
                delayed.encoded(level, following, now_ms)
            if timed_notes:
                timed.encoded(timed_notes)
            note_numbers(number_notes)
            if half_notes:
                half.encoded(half_notes)
            if is_waiting and run_answers:
                _answer_passed(barrier, position + len(encoded[0]), run_answers, connection)
            else:
                answers.append(run_answers)
        return end, b"".join(answers)

    return serve


def _answer_passed(
    barrier: SendBarrier, end_offset: int, answers: bytes, connection: ServerConnection
) -> None:
    """Send the answers when everything before a physical offset has passed the barrier."""

    def settle(code: int) -> None:
        passed = code == ResponseCode.SUCCESS
        connection.send(answers if passed else _timed_out(answers, code))

    barrier.when_passed(end_offset, settle)


def _timed_out(answers: bytes, code: int) -> bytes:
    """Return answers with another code in place of SUCCESS."""
    return b"".join(
        encode_response(
            answer.opaque,
            answer.serialize_type,
            code,
            None,
            msgspec.structs.replace(
                SendResponseHeader.from_ext(answer.ext_fields), cmq_barrier=None
            ).to_ext(),
        )
        for answer in FrameReader().receive(answers)
    )

"""END_TRANSACTION requests that arrive together: their commits in one step.

Commits of open half messages at the front of a run are stored with one call and answered together.
A rollback, an end that is repeated, and anything special or wrong ends the run: it is served alone
(`service`), with every check.

Durable when they are answered, as a single one: all of them are put / with SYNC_FLUSH flushed, as
they are answered when the last is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.base.state import BrokerState, answer
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.errors import CodecError, ResponseCode, StoreError
from cometmq.model.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from cometmq.model.names import HALF_TOPIC
from cometmq.store.base.results import GetResult, GetStatus, PutItem
from cometmq.wire.command.command import FLAG_ONEWAY, FLAG_RESPONSE, JSON, encode_response
from cometmq.wire.header.fast_decode import EndCommand
from cometmq.wire.header.fast_encode import json_frame_head

if TYPE_CHECKING:
    from cometmq.core.transaction.open_transactions import HalfMessage, KeptHalf, OpenHalves
    from cometmq.net.server import ServerConnection
    from cometmq.wire.header.headers import EndTransactionHeader

__all__ = ["RUN_ENDS_MAX", "EndRuns", "commit_item", "names_kept", "read_halves"]

RUN_ENDS_MAX: Final = 512
"""More ends of one read are several runs, so that what a run gathers stays small."""
_READ_BYTES_MAX: Final = 1 << 20
_CHARS_MAX: Final = len(str(-(2**31)))


class EndRuns:
    """Serves the runs of one broker."""

    __slots__ = ("_committed", "_frame", "_halves", "_is_refusing", "_is_sync_flush", "_made_by",
                 "_state")  # fmt: skip

    def __init__(
        self,
        state: BrokerState,
        halves: OpenHalves,
        made_by: Callable[[EndTransactionHeader, StoredMessage], KeptHalf | None],
        is_refusing: Callable[[], bool],
        committed: Callable[[Sequence[HalfMessage]], None],
    ) -> None:
        """`made_by` checks an end by the record it means and gives what its commit stores, if it
        may; `committed` is told of half messages whose commits were put."""
        self._state = state
        self._halves = halves
        self._made_by = made_by
        self._is_refusing = is_refusing
        self._committed = committed
        self._is_sync_flush = state.config.flush_disk_type == "SYNC_FLUSH"
        self._frame = _make_frame()

    def serve(
        self, commands: Sequence[Any], start: int, connection: ServerConnection, now_ms: int
    ) -> tuple[int, bytes]:
        """Commit from `start` on; the place of the first that was not committed, the answers."""
        if self._is_refusing():
            return start, b""
        ended, items, host = self._gather(commands, start)
        if not items:
            return start, b""
        try:
            results = self._state.store.append(items, born_host=host, store_ms=now_ms)
        except StoreError:
            # The single way says why.
            return start, b""
        end = start + len(results)
        self._committed(ended[: len(results)])
        asked = [one for one in commands[start:end] if not one.flag & FLAG_ONEWAY]
        if asked and self._is_sync_flush:
            self._park(asked, connection)
            return end, b""
        return end, self._answers(asked)

    def _gather(
        self, commands: Sequence[Any], start: int
    ) -> tuple[list[HalfMessage], list[PutItem], bytes]:
        """Half messages to be committed, what is put for each, and where all of them came from."""
        open_at = self._halves.at
        ended: dict[int, HalfMessage] = {}
        items: list[PutItem] = []
        host = b""
        read: dict[int, StoredMessage] = {}
        for place in range(start, min(start + RUN_ENDS_MAX, len(commands))):
            request = commands[place]
            if type(request) is not EndCommand or request.flag & FLAG_RESPONSE:
                break
            header = request.ext
            queue_offset = header.tran_state_table_offset
            half = open_at(queue_offset)
            if (
                half is None
                or header.commit_or_rollback != TRANSACTION_COMMIT
                or half.physical_offset != header.commit_log_offset
                or queue_offset in ended
            ):
                break
            made = half.cached
            if made is not None and not names_kept(header, half, made):
                break
            if made is None:
                if queue_offset not in read:
                    read = read_halves(self._state, queue_offset, _in_a_row(commands, place))
                message = read.get(queue_offset)
                made = None if message is None else self._made_by(header, message)
                if made is None:
                    break
            if items and made.born_host != host:
                break
            host = made.born_host
            ended[queue_offset] = half
            items.append(commit_item(half, made))
        return list(ended.values()), items, host

    def _answers(self, asked: Sequence[EndCommand]) -> bytes:
        frame = self._frame
        return "".join([frame(request.opaque) for request in asked]).encode("latin-1")

    def _park(self, asked: Sequence[EndCommand], connection: ServerConnection) -> None:
        """Answer all of them when the last one is durable."""

        def settle(is_durable: bool) -> None:
            if is_durable:
                connection.send(self._answers(asked))
                return
            timed_out = ResponseCode.FLUSH_DISK_TIMEOUT, "FLUSH_DISK_TIMEOUT"
            connection.send(b"".join([answer(request, *timed_out) for request in asked]))

        store = self._state.store
        store.when_durable(store.max_physical_offset, settle)


def commit_item(half: HalfMessage, made: KeptHalf) -> PutItem:
    """The message that the commit of a half message stores."""
    return PutItem(
        half.topic,
        made.queue_id,
        made.body,
        made.raw,
        made.flag,
        made.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
        half.born_ms,
        made.tags_code,
        made.index_keys,
        made.reconsume_times,
        half.physical_offset,
    )


def names_kept(header: EndTransactionHeader, half: HalfMessage, made: KeptHalf) -> bool:
    """Whether an end names group and id of a half message that any end of its producer ends."""
    return (
        header.producer_group == half.group
        and not half.has_immunity
        and made.index_keys[0] in (header.msg_id, header.transaction_id)
    )


def read_halves(state: BrokerState, queue_offset: int, count: int) -> dict[int, StoredMessage]:
    """Half messages in a row, by queue offset, as far as reading them does not block."""
    try:
        found = state.store.get(HALF_TOPIC, 0, queue_offset, count, _READ_BYTES_MAX)
        if isinstance(found, GetResult) and found.status is GetStatus.FOUND:
            messages = decode_messages(b"".join(found.chunks))
            return {message.queue_offset: message for message in messages}
    except (StoreError, CodecError):
        pass
    return {}


def _in_a_row(commands: Sequence[Any], start: int) -> int:
    """Count the ends from `start` on that name half messages in a row, in that order."""
    first = commands[start].ext.tran_state_table_offset
    place = start + 1
    while (
        place < min(start + RUN_ENDS_MAX, len(commands))
        and type(commands[place]) is EndCommand
        and commands[place].ext.tran_state_table_offset == first + place - start
    ):
        place += 1
    return place - start


def _make_frame() -> Callable[[int], str]:
    """Build the function that writes the answer of a commit as `answer` does, by its opaque.

    Every character of it is one byte (latin-1): the answers of a run are joined first.
    """
    mark = '"opaque":'
    header = encode_response(0, JSON, 0, None, {})[len(json_frame_head(0)) :].decode("latin-1")
    before, _, after = header.partition(f"{mark}0")
    fixed = len(header) - 1
    starts = [f"{json_frame_head(fixed + count)}{before}{mark}" for count in range(_CHARS_MAX + 1)]

    def frame(opaque: int) -> str:
        number = str(opaque)
        return f"{starts[len(number)]}{number}{after}"

    return frame

"""Serves END_TRANSACTION requests that arrive together: their commits are stored with one call.

The commits at the front of a run are stored and answered together.  A rollback, a repeated end, and
any end that is special or wrong ends the run: `service` serves it alone, with every check.

Durable when they are answered, as a single end: all commits are put / flushed with SYNC_FLUSH,
since they are answered when the last one is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.base.barrier import late_remark
from cometmq.broker.base.state import BrokerState, answer
from cometmq.broker.transaction.content import cached_content
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.errors import CodecError, ResponseCode, StoreError
from cometmq.model.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from cometmq.model.names import HALF_TOPIC
from cometmq.store.base.results import GetResult, GetStatus, PutItem
from cometmq.wire.command.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    FRAME_HEAD,
    JSON,
    encode_response,
)
from cometmq.wire.header.fast_decode import EndCommand

if TYPE_CHECKING:
    from cometmq.core.transaction.open_transactions import CommitContent, HalfMessage, OpenHalves
    from cometmq.net.server import ServerConnection
    from cometmq.wire.header.headers import EndTransactionHeader

__all__ = ["RUN_ENDS_MAX", "EndRuns", "commit_item", "names_cached", "read_halves"]

RUN_ENDS_MAX: Final = 512
"""More ends of one read are several runs, so that what a run gathers stays small."""
_READ_BYTES_MAX: Final = 1 << 20


class EndRuns:
    """Serves the runs of one broker."""

    def __init__(
        self,
        state: BrokerState,
        halves: OpenHalves,
        checked_commit: Callable[[EndTransactionHeader, StoredMessage], CommitContent | None],
        is_refusing: Callable[[], bool],
        committed: Callable[[Sequence[HalfMessage]], None],
    ) -> None:
        """`checked_commit` checks an end by the record it names, and returns what its commit
        stores, None when it is refused; `committed` is called with half messages whose commits
        were put."""
        self._state = state
        self._halves = halves
        self._checked_commit = checked_commit
        self._is_refusing = is_refusing
        self._committed = committed
        self._frame = _make_frame()

    def serve(
        self, commands: Sequence[Any], start: int, connection: ServerConnection, now_ms: int
    ) -> tuple[int, bytes]:
        """Commit from `start` on; return the number of the first other request, and the answers."""
        if self._is_refusing():
            return start, b""
        try:
            ended = self._put_natively(commands, start, now_ms) or self._put(
                commands, start, now_ms
            )
        except StoreError:
            # Served alone, each end is answered with the reason.
            ended = []
        if not ended:
            return start, b""
        end = start + len(ended)
        self._committed(ended)
        asked = [request for request in commands[start:end] if not request.flag & FLAG_ONEWAY]
        if asked and self._state.barrier.is_waiting:
            self._answer_passed(asked, connection)
            return end, b""
        return end, self._answers(asked)

    def _put_natively(self, commands: Sequence[Any], start: int, now_ms: int) -> list[HalfMessage]:
        """Have the native core store the commits of half messages that are cached as records.

        Returns those whose commits are stored, none where the first one is not plain.
        """
        open_at = self._halves.at
        ended: dict[int, HalfMessage] = {}
        records: list[bytes] = []
        for request in commands[start : start + RUN_ENDS_MAX]:
            if type(request) is not EndCommand or request.flag & FLAG_RESPONSE:
                break
            header = request.ext
            queue_offset = header.tran_state_table_offset
            half = open_at(queue_offset)
            if (
                half is None
                or type(half.cached) is not bytes
                or header.commit_or_rollback != TRANSACTION_COMMIT
                or half.physical_offset != header.commit_log_offset
                or queue_offset in ended
                or not names_cached(header, half)
            ):
                break
            ended[queue_offset] = half
            records.append(half.cached)
        if not records:
            return []
        copied = self._state.store.append_copies(
            b"".join(records), now_ms, now_ms, are_commits=True
        )
        return list(ended.values())[: copied.copy_count]

    def _put(self, commands: Sequence[Any], start: int, now_ms: int) -> list[HalfMessage]:
        """Store commits; return the half messages whose commits are stored."""
        ended, items, host = self._gather(commands, start)
        if not items:
            return []
        results = self._state.store.append(items, born_host=host, store_ms=now_ms)
        return ended[: len(results)]

    def _gather(
        self, commands: Sequence[Any], start: int
    ) -> tuple[list[HalfMessage], list[PutItem], bytes]:
        """Return the half messages to commit, what is put for each, and the host of all of them."""
        open_at = self._halves.at
        ended: dict[int, HalfMessage] = {}
        items: list[PutItem] = []
        host = b""
        read: dict[int, StoredMessage] = {}
        for number in range(start, min(start + RUN_ENDS_MAX, len(commands))):
            request = commands[number]
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
            commit = cached_content(half)
            if commit is not None and not names_cached(header, half):
                break
            if commit is None:
                if queue_offset not in read:
                    read = read_halves(self._state, queue_offset, _in_a_row(commands, number))
                message = read.get(queue_offset)
                commit = None if message is None else self._checked_commit(header, message)
                if commit is None:
                    break
            if items and commit.born_host != host:
                break
            host = commit.born_host
            ended[queue_offset] = half
            items.append(commit_item(half, commit))
        return list(ended.values()), items, host

    def _answers(self, asked: Sequence[EndCommand]) -> bytes:
        frame = self._frame
        return b"".join([frame(request.opaque) for request in asked])

    def _answer_passed(self, asked: Sequence[EndCommand], connection: ServerConnection) -> None:
        """Answer all ends when the last commit has passed the barrier."""

        def settle(code: int) -> None:
            if code == ResponseCode.SUCCESS:
                connection.send(self._answers(asked))
                return
            late = code, late_remark(code)
            connection.send(b"".join([answer(request, *late) for request in asked]))

        state = self._state
        state.barrier.when_passed(state.store.max_physical_offset, settle)


def commit_item(half: HalfMessage, commit: CommitContent) -> PutItem:
    """Return the message that the commit of a half message stores."""
    return PutItem(
        half.topic,
        commit.queue_id,
        commit.body,
        commit.raw,
        commit.flag,
        commit.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
        half.born_ms,
        commit.tags_code,
        commit.index_keys,
        commit.reconsume_times,
        half.physical_offset,
    )


def names_cached(header: EndTransactionHeader, half: HalfMessage) -> bool:
    """Whether an end names the group and the id of a cached half message, which has no time limit.

    Then it needs no other check.
    """
    return (
        half.cached is not None
        and header.producer_group == half.group
        and not half.has_immunity
        and half.uniq_key in (header.msg_id, header.transaction_id)
    )


def read_halves(state: BrokerState, queue_offset: int, count: int) -> dict[int, StoredMessage]:
    """Return half messages in a row, by queue offset, as far as reading them does not block."""
    try:
        result = state.store.get(HALF_TOPIC, 0, queue_offset, count, _READ_BYTES_MAX)
        if isinstance(result, GetResult) and result.status is GetStatus.FOUND:
            messages = decode_messages(b"".join(result.chunks))
            return {message.queue_offset: message for message in messages}
    except (StoreError, CodecError):
        pass
    return {}


def _in_a_row(commands: Sequence[Any], start: int) -> int:
    """Count the ends from `start` on that name half messages in a row, in that order."""
    first = commands[start].ext.tran_state_table_offset
    end = start + 1
    while (
        end < min(start + RUN_ENDS_MAX, len(commands))
        and type(commands[end]) is EndCommand
        and commands[end].ext.tran_state_table_offset == first + end - start
    ):
        end += 1
    return end - start


def _make_frame() -> Callable[[int], bytes]:
    """Build the function that writes the answer of a commit as `answer` does, by its opaque."""
    mark = b'"opaque":'
    header = encode_response(0, JSON, 0, None, {})[FRAME_HEAD.size :]
    before, _, after = header.partition(mark + b"0")

    def frame(opaque: int) -> bytes:
        header = b"%b%b%d%b" % (before, mark, opaque, after)
        return FRAME_HEAD.pack(4 + len(header), len(header)) + header

    return frame

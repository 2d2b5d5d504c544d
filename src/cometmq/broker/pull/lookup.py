"""Single messages: by commit-log offset (VIEW_MESSAGE_BY_ID) and by key (QUERY_MESSAGE).

Such messages are old and cold as a rule, so a worker reads them.
"""

from __future__ import annotations

from cometmq.broker.base.state import BrokerState, answer, in_worker
from cometmq.codec.properties import find_property
from cometmq.codec.stored_message import decode_message
from cometmq.errors import CometError, ResponseCode, StoreError
from cometmq.model.names import is_system_topic
from cometmq.net.server import ServerConnection
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import QueryMessageHeader, ViewMessageHeader

__all__ = ["LookupProcessor"]

_UNIQUE_KEY_COUNT_MAX = 32


class LookupProcessor:
    """The processors of codes 12 and 33."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def view(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> None:
        """Serve VIEW_MESSAGE_BY_ID (33)."""
        header = ViewMessageHeader.from_command(request)
        offset = header.physical_offset
        store = self._state.store
        # Without a topic it needs a super user (base/needs.py).
        named = header.topic if self._state.config.authentication_enabled else None

        def read() -> bytes | None:
            try:
                record = store.message_at(offset)
            except CometError:
                return None
            if record is None or (named and not _is_of(record, named)):
                return None
            return bytes(record)

        def finish(record: bytes | None) -> bytes:
            if record is None:
                return answer(
                    request,
                    ResponseCode.SYSTEM_ERROR,
                    f"can not find message by the offset, {offset}",
                )
            return answer(request, body=record)

        in_worker(self._state, request, connection, read, finish)

    def query(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve QUERY_MESSAGE (12)."""
        header = QueryMessageHeader.from_command(request)
        most = header.max_num
        if header.unique_key_query:
            most = self._state.config.default_query_max_num
        most = max(0, min(most, self._state.config.default_query_max_num * 2))
        kind = header.index_type or ("U" if header.unique_key_query else "K")
        store = self._state.store
        is_guarded = self._state.config.authentication_enabled
        # Two steps: entries that wait for the index are read on the loop, its files by a worker.
        try:
            search_index = store.prepare_query_index(
                header.topic,
                header.key,
                most,
                header.begin_timestamp_ms,
                header.end_timestamp_ms,
                kind,
            )
        except StoreError as error:
            return answer(request, ResponseCode.SYSTEM_ERROR, str(error))

        def read() -> tuple[bytes, int, int]:
            entries = search_index()
            records = []
            for offset in entries.physical_offsets:
                try:
                    record = store.message_at(offset)
                except CometError:
                    continue
                # Keys of other topics may have the same hash; clients leave these messages out.
                if record is not None and (not is_guarded or _is_of(record, header.topic)):
                    records.append(bytes(record))
            body = b"".join(records)
            return body, entries.last_update_timestamp_ms, entries.last_update_physical_offset

        def finish(result: tuple[bytes, int, int]) -> bytes:
            body, updated_ms, updated_offset = result
            if not body:  # Java gives the state of the index only together with messages
                updated_ms = updated_offset = 0
            ext = {
                "indexLastUpdatePhyoffset": str(updated_offset),
                "indexLastUpdateTimestamp": str(updated_ms),
            }
            if not body:
                return answer(
                    request,
                    ResponseCode.QUERY_NOT_FOUND,
                    "can not find message, maybe time range not correct",
                    ext,
                )
            return answer(request, ext=ext, body=body)

        in_worker(self._state, request, connection, read, finish)
        return None


def _is_of(record: memoryview, topic: str) -> bool:
    """Whether a message is of a topic, or waits for it in a system topic.

    What a request needs follows from the topic that it names, so it gets messages of no other one.
    """
    message = decode_message(record)
    if message.topic == topic:
        return True
    return is_system_topic(message.topic) and (
        find_property(message.raw_properties, b"REAL_TOPIC") == topic.encode()
    )

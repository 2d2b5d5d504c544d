"""Plain sends through the native core: frames in, answers out.

The core (`cometmq.native`) encodes the plain sends at the beginning of what a read of a socket
brought, and the store appends them.  At the first other frame it stops, and `SendProcessor` serves
the rest of the read.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from cometmq import native
from cometmq.broker.base.state import BrokerState
from cometmq.net.server import Front, ServerConnection
from cometmq.wire.command.command import FRAME_HEAD
from cometmq.wire.header.fast_encode import SendResponseEncoder

__all__ = ["native_front"]

_SEND_STARTS: Final = (b'{"code":310,', b'{"code":10,', b"\x01\x36", b"\x00\x0a")
"""How the headers of sends begin, JSON and binary; anything else is not worth a look."""


def native_front(
    state: BrokerState,
    queue_counts: Mapping[str, int],
    moving_topics: Container[str],
    suffix: bytes,
    sys_flag_mask: int,
) -> Front | None:
    """Return what serves plain sends by the native core; None where it is not there.

    Args:
        state: the broker's.
        queue_counts: topics that passed every check, with their number of queues.
        moving_topics: topics whose message groups move between brokers.
        suffix: the properties that the broker adds.
        sys_flag_mask: the bits of a sysFlag that a client may set.
    """
    config, store = state.config, state.store
    if native.SendEncoder is None or store.config.is_sync_flush:
        return None
    answers = SendResponseEncoder(config.region_id, trace_on=config.trace_on)
    encode = native.SendEncoder(
        queue_counts,
        moving_topics,
        store.queues_by_topic,
        store.queue_type,
        suffix,
        answers.json_parts(),
        answers.binary_parts(),
        state.message_id_prefix.encode(),
        sys_flag_mask & 0xFFFFFFFF,
        store.config.is_index_enabled,
    ).encode
    room, append = store.room, store.append_encoded

    def serve(data: bytes, connection: ServerConnection, now_ms: int) -> tuple[int, bytes]:
        if not data.startswith(_SEND_STARTS, FRAME_HEAD.size):
            return 0, b""
        found = room(connection.peer_host, now_ms)
        if found is None:
            return 0, b""
        position, limit, origin = found
        body_bytes_max = state.config.max_message_size
        run = encode(data, 0, position, limit, now_ms, origin, body_bytes_max)
        if run is None:
            return 0, b""
        end, records, answers, queues, keys, arrivals = run
        append(records, queues, keys, arrivals, now_ms)
        return end, answers

    return serve

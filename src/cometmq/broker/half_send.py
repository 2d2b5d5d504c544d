"""The fast way of half messages into the store.

Job: put a plain transactional message to a known topic without the checks every topic passed
before.  It must not refuse: whatever is special or wrong takes the checked way (`send.py`), which
does it or explains.

As on the fast way of ordinary messages, properties stay the string the client sent.  What makes
it a half message is appended, REAL_TOPIC and REAL_QID last, where the commit finds them quickly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cometmq.broker.send_run import CLIENT_SYS_FLAGS, Look
from cometmq.broker.state import BrokerState
from cometmq.errors import StoreError
from cometmq.model.names import HALF_TOPIC, RETRY_PREFIX
from cometmq.net.server import ServerConnection
from cometmq.store.results import PutResult
from cometmq.wire.fast_decode import PlainSend

__all__ = ["HALF_MARK", "put_half"]

HALF_MARK: Final = "TRAN_MSG\x01true\x02"
_SPECIAL: Final = ("REAL_", "CHECK_TIMES\x01", "TRAN_PREPARED", "__transactionId__")
_CHARS_MAX: Final = 8000

Stored = tuple[PutResult, bytes, str, bool]


def put_half(
    state: BrokerState,
    look: Look,
    suffix: bytes,
    header: PlainSend,
    text: str,
    body: bytes,
    connection: ServerConnection,
    now_ms: int,
) -> Stored | None:
    """Put a half message; where it is, its properties, its id, and whether a flush is awaited.

    None: nothing was stored, it is left to the checked way.
    """
    before, _, after = text.partition(HALF_MARK)
    looked = look(before + after)
    if (
        looked is None
        or "PGROUP\x01" not in after + before
        or any(name in text for name in _SPECIAL)
        or not 0 < len(body) <= state.config.max_message_size
        or header.batch
        or header.reconsume_times
        or len(text) > _CHARS_MAX
        or state.config.reject_transaction_message
        or header.topic.startswith(RETRY_PREFIX)
    ):
        return None
    keys, shape = looked
    own = (
        f"__transactionId__\x01{keys[0]}\x02"
        f"REAL_TOPIC\x01{header.topic}\x02REAL_QID\x01{header.queue_id}\x02"
    )
    put: Callable[..., Any] = state.store.put
    try:
        raw = text.encode() + suffix + own.encode()
        result = put(
            HALF_TOPIC,
            0,
            body,
            raw,
            flag=header.flag,
            sys_flag=header.sys_flag & CLIENT_SYS_FLAGS,
            born_ms=header.born_timestamp_ms,
            born_host=connection.peer_host,
            tags_code=shape[1],
            store_ms=now_ms,
            index_keys=keys,
        )
    except (StoreError, UnicodeEncodeError):
        return None
    return result, raw, keys[0], shape[2]

"""ADOPT 31024 and DESCRIBE_REPLICA 31025, requests of our own: a set is recorded anew.

ADOPT goes to the controller that leads, which asks each living broker of the set for its
`ReplicaView` (DESCRIBE_REPLICA), a JSON body, and records the set.  The answer has the body of
CONTROLLER_GET_SYNC_STATE_DATA.  Code SYSTEM_ERROR: nothing is recorded, and the remark says why.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cometmq.errors import CodecError
from cometmq.wire.header.header import Header, Int32

__all__ = ["ADOPT", "DESCRIBE_REPLICA", "AdoptHeader", "ReplicaView"]

ADOPT: Final = 31024
DESCRIBE_REPLICA: Final = 31025


class AdoptHeader(Header):
    """Which set; `replica_count` is how many brokers it has, and says that its master is dead."""

    broker_name: str
    replica_count: Int32 | None = None


class ReplicaView(msgspec.Struct, frozen=True, rename="camel"):
    """What one broker of a set knows of itself and of its set."""

    cluster: str
    is_master: bool
    master_epoch: int
    """The newest mastership it has heard of; 0 since its start none."""
    last_epoch: int
    """The epoch of the end of its log; -1 for none."""
    log_end: int
    in_sync: tuple[int, ...]
    """The ids of the in-sync replicas that it has heard of."""
    in_sync_min: int
    """minInSyncReplicas."""

    def encode(self) -> bytes:
        """Return the body."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, raw: bytes) -> ReplicaView:
        """Read a body.

        Raises:
            CodecError: it is something else.
        """
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.DecodeError as error:
            raise CodecError(f"no view of a replica: {error}") from error

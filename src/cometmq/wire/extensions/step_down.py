"""STEP_DOWN 31023, a request of our own: the master of a replica set hands its mastership over.

``brokerId``, optional, is the id of the in-sync replica that is to be the master.  Answer: the
fields of `MasterHeader` with the new master.  Code SYSTEM_ERROR: it stays the master, and the
remark says why.
"""

from __future__ import annotations

from typing import Final

from cometmq.wire.header.header import Header, Int64

__all__ = ["STEP_DOWN", "StepDownHeader"]

STEP_DOWN: Final = 31023


class StepDownHeader(Header):
    """Who is to be the master; None for any in-sync replica."""

    broker_id: Int64 | None = None

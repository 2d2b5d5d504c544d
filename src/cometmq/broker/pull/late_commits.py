"""Finds commits of an ordered group that come from a member which has lost the queue since.

A member that consumes in order commits while it has the queue's lock.  A network may bring the
commit much later, when another member has got the lock and has gone further: the group would go
back, and the next owner would handle again what was handled.  RocketMQ takes such a commit.

A commit of a member that got the lock before somebody else is not taken

- while the present owner of the lock is online, since its own commits say where the group is;
- else when it is lower than the group's offset.

Members that never ask for locks are not concerned, nor are tools, which belong to no group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.model import MessageQueue

if TYPE_CHECKING:
    from cometmq.broker.base.state import BrokerState
    from cometmq.core.group.filter_shares import SharePart
    from cometmq.model.offsets import ConsumerOffset
    from cometmq.net.server import ServerConnection

__all__ = ["is_late"]


def is_late(
    state: BrokerState,
    part: SharePart | None,
    group: str,
    topic: str,
    queue_id: int,
    consumer_offset: ConsumerOffset,
    connection: ServerConnection,
    now_ms: int,
) -> bool:
    """Return whether the commit comes from a member that has lost the queue to another one.

    Args:
        part: what the member reads, if its group does not read as one.
    """
    locks, reader = state.queue_locks, group if part is None else part.reader
    if not locks.has_been_used(reader):
        return False
    online = state.consumers.get(group)
    member = None if online is None else online.members.get(connection)
    if online is None or member is None:
        return False
    queue = MessageQueue(topic, state.config.broker_name, queue_id)
    last_owner = locks.last_owner(reader, queue)
    if last_owner is None or last_owner == member.client_id:
        return False
    if locks.owner(reader, queue, now_ms) and online.find_client(last_owner) is not None:
        return True
    committed = state.shares.offset_of(part, group, topic, queue_id)
    return committed is not None and consumer_offset < committed

"""Deletes log files of a broker that every watched group has consumed.

An operator does this to free space.  Files with messages that wait for their time or for the end of
a transaction may be deleted too: the broker appends those messages again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cometmq.model.names import PARK_PREFIX, RETRY_PREFIX
from cometmq.testing.simulate.broker_part import CheckFailed

if TYPE_CHECKING:
    from cometmq.broker.base.state import BrokerState
    from cometmq.testing.simulate.broker_part import BrokerPart

__all__ = ["drop_consumed_files"]


async def drop_consumed_files(
    part: BrokerPart, seconds: float, *, spared: int = 0, is_calm: bool = False
) -> int:
    """Delete the files that no group needs; return how many were deleted within `seconds`.

    Args:
        spared: how many of them are to stay all the same, the newest ones.
        is_calm: whether no message is pending and nothing fails, so that all these files must go.

    Raises:
        NodeGone: the broker crashed meanwhile.
        CheckFailed: a file too many went; in the calm, also a file too few.
    """
    broker = part.broker
    if broker is None or not part.node.is_alive:
        return 0
    store = broker.state.store
    needed = min(_needed(part, broker.state), default=store.max_physical_offset)
    before = {mapped.start for mapped in store._log.files}
    retention = store._retention

    begin = store._log.min_offset

    async def drop() -> None:
        nonlocal begin
        # Units are synced once a minute, longer than most simulations have faults.
        store._writer.sync_round()
        await asyncio.sleep(seconds / 2)
        # Another call may have deleted some of them meanwhile.
        files = store._log.files[:-1]
        may_go = max(0, retention.synced_count(sum(m.end <= needed for m in files)) - spared)
        begin = files[may_go].start if may_go < len(files) else store._log.files[-1].start
        # The broker may still work for an earlier call.
        part.log_may_begin = max(part.log_may_begin, begin)
        retention.drop_files(may_go)
        await asyncio.sleep(seconds / 2)

    if len(store._log.files) < 2:
        return 0
    await part.node.run(drop)
    if store._log.min_offset > part.log_may_begin:
        raise CheckFailed(
            f"{part.name}: the log begins at {store._log.min_offset}, and files were to go only "
            f"up to {part.log_may_begin}"
        )
    if is_calm and store._log.min_offset < begin:
        raise CheckFailed(
            f"{part.name}: the log begins at {store._log.min_offset} without any fault, "
            f"{seconds} s after the files before {begin} were to go"
        )
    return len(before - {mapped.start for mapped in store._log.files})


def _needed(part: BrokerPart, state: BrokerState) -> Iterator[int]:
    """Yield the physical offset of the next message of each group and queue."""
    for group in part.groups:
        own = set(_own_topics(group.name))
        begun = set(state.offsets.topics_of(group.name))
        if begun <= own:
            # The group has offsets only in its own topics, so what it will read is unknown.
            yield 0
        for topic in begun | own & part.topics.keys():
            for queue_id in state.store.queues(topic):
                first = state.offsets.query(group.name, topic, queue_id) or 0
                for unit in state.store.units(topic, queue_id, first, 1):
                    yield unit.physical_offset


def _own_topics(group: str) -> tuple[str, str]:
    return RETRY_PREFIX + group, PARK_PREFIX + group

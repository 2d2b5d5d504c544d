"""Files of a broker's log that may go: every group has had what they hold.

Job: where the first message lies that some watched group has still to consume, and deleting the
files before it, as an operator does who is short of space.  Must not: spare what only waits for its
time, or for the end of a transaction: the broker appends that again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cometmq.model.names import PARK_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from cometmq.testing.simulate.broker_part import BrokerPart

__all__ = ["drop_consumed_files"]


async def drop_consumed_files(part: BrokerPart, seconds: float) -> int:
    """Have the files go that nobody reads any more; how many went in this time.

    Raises:
        NodeGone: the broker ended meanwhile.
    """
    broker = part.broker
    if broker is None or not part.node.is_alive:
        return 0
    store = broker.state.store
    needed = min(_needed(part), default=store.max_physical_offset)
    before = {mapped.start for mapped in store._log.files}
    retention = store._retention

    async def drop() -> None:
        # Units are synced once a minute, longer than most simulations have faults.
        store._writer.sync_round()
        await asyncio.sleep(seconds / 2)
        retention.drop_files(retention.synced_count(sum(m.end <= needed for m in files)))
        await asyncio.sleep(seconds / 2)

    files = store._log.files[:-1]
    await part.node.run(drop)
    return len(before - {mapped.start for mapped in store._log.files})


def _needed(part: BrokerPart) -> Iterator[int]:
    """Physical offsets of the first messages that each group has still to consume."""
    assert part.broker is not None
    state = part.broker.state
    for group in part.groups:
        own = set(_of_group(group.name))
        begun = set(state.offsets.topics_of(group.name))
        if begun <= own:
            # It has begun nowhere but in its own topics, and nobody knows what it will read.
            yield 0
        for topic in begun | own & part.topics.keys():
            for queue_id in state.store.queues(topic):
                first = state.offsets.query(group.name, topic, queue_id) or 0
                for unit in state.store.units(topic, queue_id, first, 1):
                    yield unit.physical_offset


def _of_group(group: str) -> tuple[str, str]:
    return RETRY_PREFIX + group, PARK_PREFIX + group

"""Compares the files of a broker's tables with the tables in its memory.

A mistake in what the broker writes is also in what it would write again.  So the tables are read
here from the broker's memory and from the JSON, and none of the broker's own encoders or decoders
is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from cometmq.broker.services import Services
    from cometmq.store.base.disk import Disk

__all__ = ["TABLE_FILES", "TIMERS", "differences"]

_Flat = Mapping[str, object]

TABLE_FILES: Final = (
    "consumerOffset.json",
    "delayOffset.json",
    "topics.json",
    "subscriptionGroup.json",
    "cometmqQueueLocks.json",
)
"""The files that are compared while the broker serves, in its folder ``config``."""
TIMERS: Final = "timercheck"
"""Compared after a stop: a broker that serves writes it once a second."""


def differences(
    disk: Disk, folder: str, services: Services, names: tuple[str, ...]
) -> Iterator[str]:
    """Yield a text for each of these files that is not what its table says."""
    for name in names:
        path = f"{folder}/{name}"
        raw = disk.read_bytes(path) if disk.exists(path) else b""
        if name == TIMERS:
            wanted, actual = _timers_in_memory(services), _timers_in_file(raw)
        else:
            wanted = _in_memory(name, services)
            actual = _in_file(name, msgspec.json.decode(raw or b"{}", type=dict[str, Any]))
        for key in sorted(wanted.keys() | actual.keys()):
            if wanted.get(key) != actual.get(key):
                yield f"{name} has {actual.get(key)!r} for {key}, the table has {wanted.get(key)!r}"
                break


def _in_memory(name: str, services: Services) -> _Flat:
    state = services.state
    match name:
        case "consumerOffset.json":
            return _by_queue(state.offsets.all())
        case "delayOffset.json":
            # Not `offsets`, which would ask what has become durable since the file was written.
            levels = services.schedule._levels.items()
            return {str(level): one.safe_offset for level, one in levels if one.safe_offset}
        case "topics.json":
            return {
                name: (config.read_queue_count, config.write_queue_count, config.perm)
                for name, config in state.topics.all().items()
            }
        case "subscriptionGroup.json":
            return {
                name: (config.retry_max_times, config.consume_enable)
                for name, config in state.groups.all().items()
            }
    return {
        f"{group} {queue.topic} {queue.broker_name} {queue.queue_id}": lock.client_id
        for group, locks in state.queue_locks._groups.items()
        for queue, lock in locks.items()
    }


def _in_file(name: str, content: Mapping[str, Any]) -> _Flat:
    match name:
        case "consumerOffset.json":
            return _by_queue(content.get("offsetTable", {}))
        case "delayOffset.json":
            offsets: dict[str, int] = content.get("offsetTable", {})
            return offsets
        case "topics.json":
            return {
                name: (entry["readQueueNums"], entry["writeQueueNums"], entry["perm"])
                for name, entry in content.get("topicConfigTable", {}).items()
            }
        case "subscriptionGroup.json":
            return {
                name: (entry["retryMaxTimes"], entry["consumeEnable"])
                for name, entry in content.get("subscriptionGroupTable", {}).items()
            }
    return {
        f"{group} {owner['topic']} {owner['brokerName']} {owner['queueId']}": owner["clientId"]
        for group, owners in content.get("locks", {}).items()
        for owner in owners
    }


def _timers_in_memory(services: Services) -> _Flat:
    timers = services.timers
    return {} if timers is None else {"messages placed in slots": timers.intake.next_offset}


def _timers_in_file(raw: bytes) -> _Flat:
    """Read the queue offset, the third of the file's 8-byte numbers."""
    return {"messages placed in slots": int.from_bytes(raw[16:24], "big")}


def _by_queue(table: Mapping[str, Mapping[Any, int]]) -> dict[str, int]:
    return {
        f"{key} {queue_id}": consumer_offset
        for key, queues in table.items()
        for queue_id, consumer_offset in queues.items()
    }

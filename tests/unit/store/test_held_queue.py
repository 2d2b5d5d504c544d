"""A queue whose visible end is held back: puts go on, readers and watchers wait."""

from __future__ import annotations

import pytest
from tests.unit.store.stores import HOST, START_MS, HeldWorkers, Rig

from cometmq.store.base.results import BatchItem, GetStatus, PutItem
from cometmq.store.queue.consume_queue import ConsumeQueue, hold, release


def test_readers_see_no_further_until_the_queue_is_released() -> None:
    """Every way to put, with asynchronous flush; then all of it at once."""
    rig = Rig()
    arrived: list[tuple[str, int, int, int]] = []
    rig.store.arrival_listener = lambda *event: arrived.append(event)
    rig.put(body=b"before")
    rig.store.watch("T", 0)
    assert rig.store.hold_queue("T", 0) == 1
    rig.put(body=b"one")
    rig.store.put_batch("T", 0, [BatchItem(0, b"two", b"", 0, None)], born_host=HOST)
    item = PutItem("T", 0, b"three", b"", 0, 0, 0, 0, (None, None, None))
    assert len(rig.store.append([item], born_host=HOST, store_ms=START_MS)) == 1
    assert rig.bodies() == [b"before"]
    assert rig.store.max_queue_offset("T", 0) == 1
    assert rig.store.end_of_queue("T", 0) == 4
    assert rig.get("T", 0, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert rig.store.units("T", 0, 1, 10) == []
    assert arrived == []
    rig.store.release_queue("T", 0)
    assert rig.bodies() == [b"before", b"one", b"two", b"three"]
    rig.put(body=b"four")
    assert [event[2] for event in arrived] == [5]


def test_what_was_put_before_becomes_visible_with_its_flush() -> None:
    """With SYNC_FLUSH messages below the limit wait for their flush only, those above for both."""
    workers = HeldWorkers()
    rig = Rig(workers=workers, is_sync_flush=True)
    arrived: list[tuple[str, int, int, int]] = []
    rig.store.arrival_listener = lambda *event: arrived.append(event)
    rig.store.watch("T", 0)
    rig.put(body=b"before")
    assert rig.store.hold_queue("T", 0) == 1
    rig.put(body=b"behind")
    assert rig.store.max_queue_offset("T", 0) == 0
    for _ in range(3):
        rig.tick(5)
        workers.run()
    assert rig.store.max_queue_offset("T", 0) == 1
    assert [event[2] for event in arrived] == [1]
    rig.store.release_queue("T", 0)
    assert rig.store.max_queue_offset("T", 0) == 2


def test_a_limit_below_the_end_hides_what_is_there() -> None:
    """After a crash a queue has more than readers may see."""
    rig = Rig()
    for number in range(5):
        rig.put(body=b"%d" % number)
    assert rig.store.hold_queue("T", 0, 2) == 2
    assert rig.bodies() == [b"0", b"1"]
    rig.store.release_queue("T", 0)
    assert len(rig.bodies()) == 5


def test_a_queue_may_be_held_before_its_first_message() -> None:
    """And a release of a queue that is not there is no fault."""
    rig = Rig()
    assert rig.store.hold_queue("New", 3) == 0
    rig.put("New", 3, body=b"x")
    assert rig.store.max_queue_offset("New", 3) == 0
    rig.store.release_queue("New", 3)
    rig.store.release_queue("New", 4)
    assert rig.store.max_queue_offset("New", 3) == 1


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_released_queue_is_an_ordinary_one(is_watched: bool) -> None:
    """Nothing stays behind, also when it is held twice."""
    queue = ConsumeQueue("T", 0, "/T/0")
    queue.is_watched = is_watched
    hold(queue, 3)
    hold(queue, 1)
    queue.visible = 2
    assert (queue.visible, queue.is_watched) == (1, False)
    queue.is_watched = not is_watched
    queue.visible = 1
    assert queue.is_watched is not is_watched
    release(queue)
    release(queue)
    assert type(queue) is ConsumeQueue
    assert (queue.visible, queue.is_watched) == (1, not is_watched)

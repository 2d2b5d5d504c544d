"""The parts behind the timer: flusher, queue writer, windows, reservation."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.unit.store.stores import HeldWorkers, Rig

from cometmq.store.base.checkpoint import SideState, load_side_file
from cometmq.store.log.flush import Flusher
from cometmq.testing.disk import SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable


def test_derived_position_is_a_promise_kept() -> None:
    """It moves only when the units below it are in their files."""
    workers = HeldWorkers()
    rig = Rig(workers=workers)
    writer = rig.store._writer
    first = rig.put("A")
    rig.put("B")
    assert writer.derived_position == first.physical_offset
    rig.tick(1_000)
    second = rig.put("A")
    workers.run()
    assert writer.derived_position == second.physical_offset
    rig.tick(1_000)
    while workers.run():
        pass
    assert writer.derived_position == rig.store.max_physical_offset
    assert rig.disk.open_random("/store/consumequeue/A/0/" + "0" * 20, 0, create=False).read(
        20, 8
    ) == second.physical_offset.to_bytes(8, "big")


def test_failed_batch_is_taken_back() -> None:
    """Units that could not be written are still waiting, and nothing was promised."""
    rig = Rig()
    writer = rig.store._writer
    first = rig.put("A")
    rig.put("B")
    rig.disk.at(
        "write", path_contains="consumequeue", action=rig.disk.fail_with(OSError(5, "bad sector"))
    )
    rig.tick(1_000)
    assert writer.derived_position == first.physical_offset
    state = load_side_file(rig.disk, "/store/cometmq.checkpoint")
    assert isinstance(state, SideState)
    assert state.progress.derived <= first.physical_offset
    rig.tick(1_000)
    rig.tick(1_000)
    assert writer.derived_position == rig.store.max_physical_offset
    assert rig.bodies("A") == rig.bodies("B") == [b"body"]


def test_very_many_queues_take_turns() -> None:
    """No batch holds more than a thousand queues, and all are written in the end."""
    workers = HeldWorkers()
    rig = Rig(workers=workers, commit_log_file_bytes=4 << 20, unit_journal_queues_min=10_000)
    for queue_id in range(3_000):
        rig.put("Many", queue_id)
    made = 0
    for _ in range(40):
        rig.tick(500)
        workers.run()
        now = rig.disk.counts["create"]
        assert now - made <= 1_100
        made = now
    assert rig.store._writer.derived_position == rig.store.max_physical_offset
    assert len(rig.disk.listdir("/store/consumequeue/Many")) == 3_000


def test_windows_follow_the_writer() -> None:
    """Only a few windows stay mapped, and a held view keeps only its own."""
    rig = Rig(commit_log_file_bytes=1 << 20, window_bytes=8_192, windows_kept=2)
    rig.put(body=b"first")
    held = rig.get("T", 0, 0)
    for _ in range(300):
        rig.put(body=bytes(500))
    log = rig.store._log
    assert len(log._windows) <= 2
    rig.tick(100)
    assert len(log._retired) <= 30
    assert bytes(held.chunks[0])[88:93] == b"first"
    assert len(rig.bodies()) == 301


def test_next_file_is_reserved_before_it_is_needed() -> None:
    """Rolling renames a file whose blocks exist; only the very first one is made on the spot."""
    rig = Rig(window_bytes=8_192)
    for _ in range(500):
        rig.put(body=bytes(500))
    files = len(rig.disk.listdir("/store/commitlog"))
    assert files >= 4
    assert rig.disk.counts["rename"] == files - 1
    assert rig.disk.exists("/store/cometmq.next")
    rig.store.close()
    assert not rig.disk.exists("/store/cometmq.next")


def test_slow_reservation_does_not_hold_up_writing() -> None:
    """When the worker is late the loop makes the file itself."""
    workers = HeldWorkers()
    rig = Rig(workers=workers, window_bytes=8_192)
    for _ in range(300):
        rig.put(body=bytes(500))
    files = len(rig.disk.listdir("/store/commitlog"))
    assert files >= 3
    assert rig.disk.counts["rename"] == 0
    workers.run()
    assert len(rig.bodies()) == 300


def flusher_rig() -> tuple[Rig, HeldWorkers, list[tuple[float, Callable[[], None]]]]:
    workers = HeldWorkers()
    rig = Rig(workers=workers, is_sync_flush=True)
    return rig, workers, rig.timers


def test_group_waits_a_moment_for_its_senders() -> None:
    """After a slow flush that answered many, one that came back first does not go alone."""
    rig, workers, _ = flusher_rig()
    flusher: Flusher = rig.store._flusher
    done: list[int] = []

    def send(number: int) -> None:
        rig.store.when_durable(rig.put().end_offset, lambda _ok: done.append(number))

    def turn(later_than: float = 0.0) -> None:
        due = [timer for timer in rig.timers if timer[0] <= later_than]
        rig.timers[:] = [timer for timer in rig.timers if timer[0] > later_than]
        for _, callback in due:
            callback()

    for number in range(100):
        send(number)
    turn()
    rig.now_ms += 40
    workers.run()
    assert len(done) == 100
    flushes = flusher.flush_count
    send(100)
    turn()
    # It waits: most of the hundred are expected back within a part of a flush's time.
    assert not workers.jobs
    for number in range(101, 200):
        send(number)
    turn()
    workers.run()
    assert len(done) == 200
    assert flusher.flush_count == flushes + 1


def test_lone_sender_is_not_kept_waiting() -> None:
    """One in flight: its flush begins at the end of the turn."""
    rig, workers, _ = flusher_rig()
    for number in range(3):
        done: list[bool] = []
        rig.store.when_durable(rig.put().end_offset, done.append)
        for delay, callback in [timer for timer in rig.timers if timer[0] == 0.0]:
            rig.timers.remove((delay, callback))
            callback()
        rig.now_ms += 40
        assert workers.run() >= 1, number
        assert done == [True]


def test_java_checkpoint_never_runs_ahead() -> None:
    """physicMsgTimestamp is the time of a flushed message, logicsMsgTimestamp of synced units."""
    rig = Rig(consume_queue_flush_interval_ms=5_000)
    for _ in range(100):
        rig.put(body=bytes(500))
        rig.tick(200)
        value = rig.store._java.value
        assert value.physic_timestamp_ms <= rig.now_ms
        assert value.logics_timestamp_ms <= max(value.physic_timestamp_ms, 0)
    rig.store.close()
    value = rig.store._java.value
    assert value.physic_timestamp_ms == value.logics_timestamp_ms == rig.now_ms - 200


def test_simulated_disk_counts_what_idle_costs() -> None:
    """An idle store writes nothing."""
    rig = Rig(SimDisk(random.Random(0), lambda: 0))
    rig.put()
    for _ in range(20):
        rig.tick(1_000)
    before = dict(rig.disk.counts)
    for _ in range(20):
        rig.tick(1_000)
    changed = {
        name: count - before.get(name, 0)
        for name, count in rig.disk.counts.items()
        if count != before.get(name, 0)
    }
    assert not set(changed) & {"write", "create", "sync", "write_atomic", "allocate"}, changed

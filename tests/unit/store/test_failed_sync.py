"""A sync that failed: nothing is confirmed by a later one, and a restart makes good what it can.

The simulated disk does as Linux does: it reports the failure once and takes the pages for clean.
"""

import contextlib
import logging

import pytest
from tests.unit.store.stores import HeldWorkers, Rig

from cometmq.errors import StoreClosed, StoreFailed
from cometmq.store.base.results import BatchItem, RecoveryReport
from cometmq.store.log.unsynced import UNSYNCED_FILE_NAME
from cometmq.store.message_store import MessageStore

MARK = f"/store/{UNSYNCED_FILE_NAME}"


def test_who_waits_is_told_and_nothing_is_confirmed_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Writes are refused with cause and remedy, reads go on."""
    workers = HeldWorkers()
    rig = Rig(is_sync_flush=True, workers=workers)
    answers: list[tuple[str, bool]] = []

    def settle() -> None:
        for _ in range(5):
            rig.tick()
            workers.run()

    first = rig.put(body=b"first")
    rig.store.when_durable(first.end_offset, lambda fine: answers.append(("first", fine)))
    settle()
    assert answers == [("first", True)]
    rig.disk.fail_sync(path_contains="commitlog")
    lost = rig.put(body=b"lost")
    rig.store.when_durable(lost.end_offset, lambda fine: answers.append(("lost", fine)))
    settle()
    assert answers[1:] == [("lost", False)]
    with pytest.raises(StoreFailed, match=r"commitlog.*Input/output error.*restart") as caught:
        rig.put(body=b"refused")
    # The broker answers it as it answers a store that is closed: 14, go to another broker.
    assert isinstance(caught.value, StoreClosed)
    with pytest.raises(StoreFailed):
        rig.store.put_batch("T", 0, [BatchItem(0, b"refused", b"", 0, None)], store_ms=rig.now_ms)
    rig.tick(60_000)
    settle()
    assert rig.store.confirmed_offset == first.end_offset
    rig.store.when_durable(lost.end_offset, lambda fine: answers.append(("asked again", fine)))
    assert answers[2:] == [("asked again", False)]
    assert rig.store.max_queue_offset("T", 0) == 1
    assert rig.bodies() == [b"first"]
    assert "Input/output error" in caplog.text
    caplog.clear()


@pytest.mark.parametrize("is_sync", [True, False])
def test_a_restart_writes_again_what_the_cache_still_has(is_sync: bool) -> None:
    """Otherwise its first sync would confirm pages that never reach the disk."""
    rig = Rig(is_sync_flush=is_sync)
    rig.put(body=b"first")
    rig.tick(20_000)
    rig.disk.fail_sync(path_contains="commitlog")
    for number in range(20):
        try:
            rig.put(body=b"%d" % number + bytes(1_000))
        except StoreFailed:
            break
    rig.tick(20_000)
    with pytest.raises(StoreFailed):
        rig.put(body=b"refused")
    with pytest.raises(StoreFailed):
        rig.store.close()
    assert rig.disk.exists(MARK)
    rig.kill()
    bodies = rig.bodies()
    assert len(bodies) >= 2
    assert not rig.disk.exists(MARK)
    assert any("written again" in damage for damage in rig.report.damages)
    # Had the bytes not been written again, this would take them.
    rig.disk.power_cut()
    rig.open()
    assert rig.bodies() == bodies


@pytest.mark.parametrize("path", ["commitlog", "consumequeue", "/index/"])
def test_a_kill_before_the_mark_is_written_loses_nothing(path: str) -> None:
    """The next life cannot know of the failure, and its syncs succeed without the lost pages."""
    rig = Rig(is_sync_flush=True, consume_queue_flush_interval_ms=1_000, index_entry_count=100)
    keyed(rig, 80, 0)
    rig.tick(2_000)
    rig.disk.fail_sync(path_contains=path)
    with contextlib.suppress(StoreFailed):
        keyed(rig, 200, 80, bytes(3_000))
    rig.tick(2_000)
    assert rig.disk.exists(MARK)
    rig.disk.remove(MARK)
    rig.kill()
    count = rig.store.max_queue_offset("T", 0)
    assert count > 80
    keyed(rig, 20, count)
    for _ in range(5):
        rig.tick(20_000)
    rig.disk.power_cut()
    rig.open()
    assert len(rig.bodies()) == count + 20
    assert missing(rig, count + 20) == []


def test_a_disk_that_still_fails_is_named_at_the_start() -> None:
    """The store does not open on a disk that does not take the log's end."""
    rig = Rig(is_sync_flush=True)
    rig.disk.fail_sync(path_contains="commitlog")
    rig.put(body=b"lost")
    rig.tick()
    rig.disk.kill()
    rig.disk.fail_sync(path_contains="commitlog")
    with pytest.raises(StoreFailed, match=r"writing the end of .* again failed"):
        rig.open()
    assert rig.disk.exists(MARK)


def test_queues_that_could_not_be_synced_are_made_again(caplog: pytest.LogCaptureFixture) -> None:
    """Their position of what is safe never moves past the failure, also after a clean stop."""
    rig = Rig(consume_queue_flush_interval_ms=1_000)
    rig.disk.fail_sync(path_contains="consumequeue")
    for number in range(10):
        rig.put(body=b"%d" % number)
        rig.tick(2_000)
    assert "syncing consume queues failed" in caplog.text
    assert rig.disk.exists(MARK)
    caplog.clear()
    rig.store.close()
    rig.open()
    assert rig.report.units_built == 10
    assert not rig.disk.exists(MARK)
    rig.reopen()
    rig.disk.power_cut()
    rig.open()
    assert rig.bodies() == [b"%d" % number for number in range(10)]


def test_the_default_of_logging_shows_it(caplog: pytest.LogCaptureFixture) -> None:
    """Critical: somebody has to look at the disk."""
    rig = Rig(is_sync_flush=True)
    rig.disk.fail_sync(path_contains="commitlog")
    rig.put()
    rig.tick()
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]
    caplog.clear()


def keyed(rig: Rig, count: int, first: int, filler: bytes = b"") -> None:
    """Put messages with keys, in small steps of time."""
    for number in range(first, first + count):
        rig.put(
            body=b"%d" % number + filler,
            properties=b"UNIQ_KEY\x01U%d\x02KEYS\x01k%d\x02" % (number, number % 5),
            index_keys=(f"U{number}", f"k{number % 5}", None),
        )
        if number % 10 == 0:
            rig.tick(100)


def missing(rig: Rig, count: int) -> list[int]:
    """Numbers whose message is not found by its key."""
    found = [
        len(rig.store.prepare_query_index("T", f"U{n}", 9)().physical_offsets) for n in range(count)
    ]
    return [number for number, matches in enumerate(found) if matches == 0]


@pytest.mark.parametrize("hit", [1, 2, 3, 5])
@pytest.mark.parametrize("is_clean", [False, True])
def test_the_index_does_not_believe_a_second_sync(hit: int, is_clean: bool) -> None:
    """What the failed sync lost is indexed again from the log, whatever later syncs said."""
    rig = Rig(consume_queue_flush_interval_ms=1_000, index_entry_count=100)
    keyed(rig, 40, 0)
    rig.tick(1_000)
    rig.disk.fail_sync(path_contains="/index/", hit=hit)
    syncs = rig.disk.counts["sync"]
    keyed(rig, 80, 40)
    for _ in range(5):
        rig.tick(1_000)
    keyed(rig, 20, 120)
    for _ in range(20):
        rig.tick(1_000)
    assert rig.disk.exists(MARK), "the fault was not reached"
    assert rig.disk.counts["sync"] > syncs
    assert missing(rig, 140) == []
    if is_clean:
        rig.store.close()
    rig.disk.power_cut()
    rig.open()
    assert missing(rig, 140) == []
    assert not rig.disk.exists(MARK)
    # The next life syncs again, and a power cut takes nothing of what it synced.
    keyed(rig, 10, 140)
    rig.store.close()
    rig.disk.power_cut()
    rig.open()
    assert missing(rig, 150) == []


def test_a_start_that_is_killed_after_a_power_cut_hides_no_loss() -> None:
    """Whoever has to know of the loss is told before a file says that there was a start."""
    rig = Rig()
    keyed(rig, 40, 0)
    rig.disk.power_cut()
    reports: list[bool] = []

    def note(report: RecoveryReport) -> None:
        reports.append(report.is_whole)
        if len(reports) == 1:
            raise KeyboardInterrupt

    for _ in range(3):
        store = MessageStore(rig.config, rig.disk, rig.workers, lambda: rig.now_ms)
        with contextlib.suppress(KeyboardInterrupt):
            store.load(recovered=note)
        rig.disk.kill()
    assert reports == [False, False, True]

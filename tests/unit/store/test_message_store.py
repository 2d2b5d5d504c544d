"""put, put_batch, get: what is stored, what is answered, what is refused."""

from __future__ import annotations

import pytest
from tests.unit.store.stores import HOST, START_MS, HeldWorkers, Rig

from cometmq import native
from cometmq.codec.crc import is_record_crc_right
from cometmq.codec.stored_message import MAGIC_V2, decode_message, decode_messages
from cometmq.errors import DiskFull, MessageIllegal, StoreClosed, StoreCorrupt, StoreLocked
from cometmq.store.base.results import BatchItem, ColdRead, GetResult, GetStatus, TimeBoundary


def test_put_stores_every_field() -> None:
    """The record says what was put, where it stands and when."""
    rig = Rig()
    result = rig.store.put(
        "Topic",
        3,
        b"body",
        b"TAGS\x01TagA\x02",
        flag=7,
        sys_flag=0x8,
        born_ms=123,
        born_host=HOST,
        reconsume_times=2,
        prepared_offset=99,
        tags_code=5,
        store_ms=START_MS,
    )
    assert (result.physical_offset, result.queue_offset) == (0, 0)
    assert result.end_offset == rig.store.max_physical_offset
    [message] = rig.read("Topic", 3)
    assert (message.topic, message.queue_id, message.body) == ("Topic", 3, b"body")
    assert (message.flag, message.sys_flag, message.reconsume_times) == (7, 0x8, 2)
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (123, START_MS)
    assert (message.born_host, message.store_host) == (HOST, rig.config.store_host)
    assert message.prepared_transaction_offset == 99
    assert message.properties == {"TAGS": "TagA"}
    assert message.is_body_crc_right


def test_long_topic_is_a_v2_record() -> None:
    """More than 127 bytes of topic need the wide length field."""
    rig = Rig()
    topic = "%RETRY%" + "x" * 140
    rig.put(topic, 0, b"a")
    rig.store.put_batch(topic, 0, [BatchItem(0, b"b", b"", 0, None)], born_host=HOST, store_ms=1)
    assert [m.magic for m in rig.read(topic)] == [MAGIC_V2, MAGIC_V2]
    assert rig.bodies(topic) == [b"a", b"b"]


@pytest.mark.parametrize("store_host", [HOST, bytes(16) + b"\0\0*\x9f"])
@pytest.mark.parametrize("born_host", [HOST, bytes(15) + b"\1\0\0*\x9f"])
@pytest.mark.parametrize("is_crc_appended", [False, True])
def test_hosts_and_crc_tails(store_host: bytes, born_host: bytes, is_crc_appended: bool) -> None:
    """IPv6 hosts set their flags; a CRC tail covers the whole record; both survive a kill."""
    rig = Rig(store_host=store_host, is_crc_appended=is_crc_appended)
    rig.put(body=b"one", born_host=born_host, properties=b"A\x01b\x02")
    rig.store.put_batch(
        "T",
        0,
        [BatchItem(0, b"two", b"", 0, None), BatchItem(1, b"", b"C\x01d", 0, None)],
        born_host=born_host,
    )
    for _ in range(2):
        messages = rig.read()
        assert [m.body for m in messages] == [b"one", b"two", b""]
        assert {m.born_host for m in messages} == {born_host}
        assert {m.store_host for m in messages} == {store_host}
        assert messages[2].flag == 1
        for message in messages:
            raw = rig.store.message_at(message.physical_offset)
            assert raw is not None
            assert is_record_crc_right(raw) is (True if is_crc_appended else None)
        rig.kill()


def test_prepared_and_rolled_back_have_no_place_in_the_queue() -> None:
    """They are in the log with queue offset 0 and move no number."""
    rig = Rig()
    for sys_flag in (0x4, 0xC):
        result = rig.put(sys_flag=sys_flag)
        assert result.queue_offset == 0
    assert rig.store.max_queue_offset("T", 0) == 0
    rig.put(body=b"first")
    assert rig.bodies() == [b"first"]
    rig.kill()
    assert rig.bodies() == [b"first"]


def test_batch_is_consecutive_and_in_one_file() -> None:
    """A batch that does not fit the file's rest moves to the next one as a whole."""
    rig = Rig()
    while rig.store.max_physical_offset < 65_536 - 800:
        rig.put(body=bytes(500))
    before = rig.store.max_queue_offset("T", 0)
    result = rig.store.put_batch(
        "T", 0, [BatchItem(0, bytes([n]) * 300, b"", 0, None) for n in range(3)], born_host=HOST
    )
    assert result.physical_offset == 65_536
    assert result.queue_offset == before
    assert len(result.physical_offsets) == 3
    assert [rig.store.message_at(o) is not None for o in result.physical_offsets] == [True] * 3
    assert rig.bodies()[-3:] == [bytes([n]) * 300 for n in range(3)]


@pytest.mark.parametrize("spare", [0, 1, 7, 8])
def test_file_ends_with_room_for_its_blank(spare: int) -> None:
    """A record is appended only if 8 bytes stay behind it
    (docs/internals/store.md#end-of-a-log-file)."""
    rig = Rig(commit_log_file_bytes=4_096)
    overhead = 91 + 1
    rig.put(body=bytes(4_096 - overhead - spare - overhead - 10))
    result = rig.put(body=bytes(10))
    assert result.physical_offset == (4_096 - overhead - 10 - spare if spare == 8 else 4_096)
    assert len(rig.bodies()) == 2
    rig.kill()
    assert len(rig.bodies()) == 2
    assert rig.report.damages == []


def test_record_larger_than_a_file_is_refused() -> None:
    """Java answers SEND_OK and loses it; ours says so and nothing changes."""
    rig = Rig(commit_log_file_bytes=4_096)
    rig.put(body=b"before")
    with pytest.raises(MessageIllegal, match="does not fit a commit-log file of 4096"):
        rig.put(body=bytes(5_000))
    rig.put(body=b"after")
    assert rig.bodies() == [b"before", b"after"]


def test_limits_name_value_and_limit() -> None:
    """Body, properties, topic, queue id."""
    rig = Rig(message_bytes_max=1_000)
    with pytest.raises(MessageIllegal, match="1001 bytes is over maxMessageSize 1000"):
        rig.put(body=bytes(1_001))
    with pytest.raises(MessageIllegal, match="properties of 32768 bytes"):
        rig.put(properties=bytes(32_768))
    with pytest.raises(MessageIllegal, match="properties of 40000"):
        rig.store.put_batch("T", 0, [BatchItem(0, b"", bytes(40_000), 0, None)], born_host=HOST)
    for topic in ("", "a/b", "..", "x" * 256):
        with pytest.raises(MessageIllegal, match="topic"):
            rig.put(topic)
    with pytest.raises(MessageIllegal, match="queue id -1"):
        rig.put("T", -1)
    assert rig.store.max_physical_offset == 0


def test_get_answers_every_status() -> None:
    """The table of docs/internals/store.md#reading-a-queue."""
    rig = Rig()
    for n in range(5):
        rig.put(body=b"%d" % n, tags_code=n)
    cases = {
        ("Unknown", 0): (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0),
        ("T", 0): (GetStatus.FOUND, 5, 0, 5),
        ("T", 5): (GetStatus.OFFSET_OVERFLOW_ONE, 5, 0, 5),
        ("T", 9): (GetStatus.OFFSET_OVERFLOW_BADLY, 5, 0, 5),
        ("T", -1): (GetStatus.OFFSET_TOO_SMALL, 0, 0, 5),
    }
    for (topic, offset), expected in cases.items():
        found = rig.get(topic, 0, offset)
        actual = (
            found.status,
            found.next_queue_offset,
            found.min_queue_offset,
            found.max_queue_offset,
        )
        assert actual == expected, (topic, offset)
    none = rig.store.get("T", 0, 0, 32, codes=frozenset({77}))
    assert isinstance(none, GetResult)
    assert (none.status, none.next_queue_offset) == (GetStatus.NO_MATCHED_MESSAGE, 5)
    with pytest.raises(StoreClosed):
        rig.store.close()
        rig.store.get("T", 0, 0, 1)


def test_get_limits_count_and_bytes() -> None:
    """32 messages, 256 KiB, or less if asked; the first one always."""
    rig = Rig(commit_log_file_bytes=1 << 20)
    for _ in range(40):
        rig.put(body=bytes(10_000))
    assert rig.get("T", 0, 0, 100).count == 25
    assert rig.get("T", 0, 0, 3).count == 3
    tiny = rig.store.get("T", 0, 0, 32, 5)
    assert isinstance(tiny, GetResult)
    assert (tiny.count, tiny.next_queue_offset) == (1, 1)
    small = Rig(transfer_count_max=1000)
    for _ in range(100):
        small.put(body=b"")
    assert small.get("T", 0, 0, 1000).count == 100


@pytest.mark.parametrize("is_written", [False, True])
def test_filter_by_tags_code(is_written: bool) -> None:
    """Codes select; what was looked at is passed over; limits count what was selected."""
    rig = Rig(commit_log_file_bytes=1 << 20)
    for n in range(1000):
        rig.put(body=b"%d" % n, tags_code=n % 50)
    if is_written:
        rig.tick(2_000)
    found = rig.store.get("T", 0, 0, 10, codes=frozenset({7, 9}))
    assert isinstance(found, GetResult)
    assert found.count == 10
    assert found.next_queue_offset == 207 + 2 or found.next_queue_offset == 207 + 0 + 50
    bodies = [message.body for message in decode_messages(b"".join(found.chunks))]
    assert bodies[:3] == [b"7", b"9", b"57"]
    # 800 units are looked at in one read, however few match.
    rare = rig.store.get("T", 0, 100, 10, codes=frozenset({1 << 40}))
    assert isinstance(rare, GetResult)
    assert (rare.status, rare.next_queue_offset) == (GetStatus.NO_MATCHED_MESSAGE, 900)


def test_match_looks_at_the_record() -> None:
    """A filter on the record itself, as SQL92 needs."""
    rig = Rig()
    for n in range(20):
        rig.put(body=b"%02d" % n)
    found = rig.store.get(
        "T", 0, 0, 32, match=lambda chunk: decode_message(chunk).body.endswith(b"3")
    )
    assert isinstance(found, GetResult)
    assert [decode_message(chunk).body for chunk in found.chunks] == [b"03", b"13"]
    assert found.next_queue_offset == 20


def test_adjacent_records_are_one_chunk() -> None:
    """Records that lie in a row are handed out in one piece."""
    rig = Rig()
    for _ in range(4):
        rig.put("A")
    rig.put("B")
    rig.put("A")
    found = rig.get("A", 0, 0)
    assert found.count == 5
    assert len(found.chunks) == (2 if native.gather_records is None else 1)
    assert found.byte_count == sum(map(len, found.chunks))


def test_visible_only_when_flushed() -> None:
    """With SYNC_FLUSH neither a read nor a listener passes the flushed position."""
    workers = HeldWorkers()
    rig = Rig(workers=workers, is_sync_flush=True)
    arrived: list[tuple[str, int, int, int]] = []
    rig.store.arrival_listener = lambda *event: arrived.append(event)
    rig.store.watch("T", 0)
    answers: list[bool] = []
    result = rig.put(tags_code=5)
    rig.store.when_durable(result.end_offset, answers.append)
    assert rig.store.max_queue_offset("T", 0) == 0
    assert rig.get("T", 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert rig.store.message_at(result.physical_offset) is None
    rig.tick(1)
    assert (answers, arrived) == ([], [])
    workers.run()
    assert answers == [True]
    assert arrived == [("T", 0, 1, 5)]
    assert rig.bodies() == [b"body"]
    assert rig.store.confirmed_offset == rig.store.flushed_offset == result.end_offset


def test_group_commit_shares_flushes() -> None:
    """All that waits when a flush begins is answered by it; what comes later by the next."""
    workers = HeldWorkers()
    rig = Rig(workers=workers, is_sync_flush=True)
    answers: list[int] = []
    for n in range(100):
        end = rig.put().end_offset
        rig.store.when_durable(end, lambda ok, n=n: answers.append(n if ok else -1))  # type: ignore[misc]
    rig.tick(1)
    late = rig.put().end_offset
    rig.store.when_durable(late, lambda ok: answers.append(100 if ok else -1))
    syncs = rig.disk.counts["sync"]
    workers.run()
    assert answers == list(range(100))
    assert rig.disk.counts["sync"] == syncs + 1
    for _ in range(4):
        rig.tick(5)
        workers.run()
    assert answers == list(range(101))


def test_flush_that_takes_too_long_answers_false() -> None:
    """The message is in the log; only its durability is not known in time."""
    workers = HeldWorkers()
    rig = Rig(workers=workers, is_sync_flush=True, sync_flush_timeout_ms=5_000)
    answers: list[bool] = []
    rig.store.when_durable(rig.put().end_offset, answers.append)
    rig.tick(4_000)
    assert answers == []
    rig.tick(1_500)
    assert answers == [False]
    workers.run()
    assert answers == [False]
    assert rig.bodies() == [b"body"]


def test_asynchronous_flush_waits_for_pages_or_time() -> None:
    """4 pages after 500 ms, everything after 10 s."""
    rig = Rig()
    rig.put(body=bytes(1_000))
    rig.tick(600)
    assert rig.store.flushed_offset == 0
    rig.tick(10_000)
    assert rig.store.flushed_offset == rig.store.max_physical_offset
    for _ in range(20):
        rig.put(body=bytes(1_000))
    rig.tick(100)
    flushed = rig.store.flushed_offset
    rig.tick(500)
    assert rig.store.flushed_offset > flushed


@pytest.mark.parametrize("is_sync_flush", [False, True])
def test_listener_hears_watched_queues_only(is_sync_flush: bool) -> None:
    """`watch` switches it on, `unwatch` off; a batch tells each of its codes."""
    rig = Rig(is_sync_flush=is_sync_flush)
    arrived: list[tuple[str, int, int, int]] = []
    rig.store.arrival_listener = lambda *event: arrived.append(event)
    rig.put("A", 1)
    rig.tick()
    rig.store.watch("A", 1)
    rig.put("A", 1, tags_code=4)
    rig.put("A", 2)
    rig.store.put_batch(
        "A", 1, [BatchItem(0, b"", b"", 4, None), BatchItem(0, b"", b"", 9, None)], born_host=HOST
    )
    rig.tick()
    rig.store.unwatch("A", 1)
    rig.put("A", 1)
    rig.tick()
    assert arrived[0] == ("A", 1, 2, 4)
    assert sorted(arrived[1:]) == [("A", 1, 4, 4), ("A", 1, 4, 9)]


def test_cold_read_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are not in memory are announced; after `warm` they are read."""
    rig = Rig(windows_kept=0)
    for n in range(200):
        rig.put(body=b"%03d" % n + bytes(300))
    rig.tick(2_000)
    for name in ("SimRandomFile", "SimLogFile"):
        monkeypatch.setattr(f"cometmq.testing.disk.{name}.read_resident", lambda *_: None)
    cold = rig.store.get("T", 0, 0, 32)
    assert isinstance(cold, ColdRead)
    reads = rig.disk.counts["read"]
    cold.warm()
    assert rig.disk.counts["read"] > reads
    found = rig.store.get("T", 0, 0, 32, allow_cold=True)
    assert isinstance(found, GetResult)
    assert found.count == 32
    # What was written last is still in the mapped window, its units in the tail.
    rig.put(body=b"hot")
    hot = rig.store.get("T", 0, 200, 1)
    assert isinstance(hot, GetResult)
    assert decode_message(hot.chunks[0]).body == b"hot"


def test_offsets_by_time() -> None:
    """Both boundaries, before, at, between and after."""
    rig = Rig()
    for time_ms in (100, 200, 200, 200, 300):
        rig.put(store_ms=time_ms)
    lower = [rig.store.queue_offset_by_time("T", 0, t) for t in (0, 100, 150, 200, 300, 999)]
    assert lower == [0, 0, 1, 1, 4, 5]
    upper = [
        rig.store.queue_offset_by_time("T", 0, t, TimeBoundary.UPPER)
        for t in (0, 100, 150, 200, 300, 999)
    ]
    assert upper == [0, 0, 0, 3, 4, 4]
    assert rig.store.queue_offset_by_time("No", 0, 5) == 0
    assert rig.store.earliest_store_time("T", 0) == 100
    assert [rig.store.store_time_at("T", 0, n) for n in (-1, 0, 4, 5)] == [-1, 100, 300, -1]
    assert rig.store.earliest_store_time("No", 0) == -1


def test_message_at_says_where_it_is_wrong() -> None:
    """An offset inside a record is no message: the error names file and position."""
    rig = Rig()
    first = rig.put(body=b"x" * 50)
    assert rig.store.message_at(first.end_offset) is None
    with pytest.raises(StoreCorrupt, match=r"commitlog/0{20}, position 7: no record begins here"):
        rig.store.message_at(7)


def test_delete_topic_stays_deleted() -> None:
    """Its queues begin at 0 again, and no recovery brings old messages back."""
    rig = Rig()
    for n in range(30):
        rig.put("Gone", n % 3)
        rig.put("Stays")
    rig.tick(2_000)
    rig.store.delete_topic("Gone")
    assert rig.store.queues("Gone") == []
    assert not rig.disk.exists("/store/consumequeue/Gone")
    rig.put("Gone", 1, b"new")
    assert rig.bodies("Gone", 1) == [b"new"]
    for again in (rig.kill, rig.reopen, rig.kill):
        again()
        assert rig.store.queues("Gone") == [1]
        assert rig.bodies("Gone", 1) == [b"new"]
        assert len(rig.bodies("Stays")) == 30
    assert rig.store.topics() == ["Gone", "Stays"]


def test_full_disk_refuses_writes_keeps_reads_and_recovers() -> None:
    """No block for the next file: puts are refused until there is one again."""
    rig = Rig(disk_warning_percent=1000, disk_clean_forcibly_percent=1000)
    rig.put(body=b"first")
    rig.disk.capacity_bytes = sum(rig.disk.tree().values()) // 4
    with pytest.raises(DiskFull, match="no space"):
        for _ in range(1000):
            rig.put(body=bytes(1_000))
    count = rig.store.max_queue_offset("T", 0)
    with pytest.raises(DiskFull):
        rig.put(body=bytes(1_000))
    assert rig.bodies()[0] == b"first"
    for _ in range(10):
        rig.tick(500)
    assert len(rig.bodies()) == count
    rig.disk.capacity_bytes = 1 << 40
    for _ in range(10):
        rig.tick(500)
    rig.put(body=b"again")
    rig.tick(2_000)
    assert rig.bodies()[-1] == b"again"
    rig.kill()
    assert len(rig.bodies()) == count + 1


def test_watermark_refuses_until_below_the_lower_mark() -> None:
    """Above 90 % writes are refused; between 85 and 90 the refusal stays."""
    rig = Rig(is_clean_forced=False)
    rig.put()
    used = rig.disk.usage("/")[1]
    steps = []
    for percent in (80, 92, 88, 84):
        rig.disk.capacity_bytes = used * 100 // percent + 1
        for _ in range(3):
            rig.tick(11_000)
        try:
            rig.put()
            steps.append("")
        except DiskFull as error:
            steps.append(str(error))
        used = rig.disk.usage("/")[1]
    assert [bool(step) for step in steps] == [False, True, True, False]
    assert "used to 93 %, above 90 %" in steps[1] or "used to 92 %, above 90 %" in steps[1]


def test_second_start_is_refused() -> None:
    """One store, one process."""
    rig = Rig()
    from cometmq.store.message_store import MessageStore

    second = MessageStore(rig.config, rig.disk, rig.workers, lambda: 0)
    with pytest.raises(StoreLocked):
        second.load()
    rig.put()
    rig.store.close()
    second.load()
    second.close()


def test_before_load_and_after_close() -> None:
    """A store that is not open says so."""
    from cometmq.store.message_store import MessageStore

    rig = Rig()
    closed = MessageStore(rig.config, rig.disk, rig.workers, lambda: 0)
    with pytest.raises(StoreClosed, match="not loaded"):
        closed.put("T", 0, b"", b"")
    rig.store.close()
    rig.store.close()
    with pytest.raises(StoreClosed, match="closed"):
        rig.put()
    with pytest.raises(StoreClosed):
        rig.store.put_batch("New", 0, [BatchItem(0, b"", b"", 0, None)])
    answers: list[bool] = []
    rig.store.when_durable(1 << 40, answers.append)
    assert answers == [False]


def test_idle_queues_cost_little() -> None:
    """Written queues keep no tail and no descriptor of their own."""
    rig = Rig()
    for queue_id in range(300):
        rig.put("Many", queue_id)
    rig.tick(1_100)
    rig.tick(1_100)
    queues = list(rig.store._queues)
    assert sum(len(queue.tail) for queue in queues) == 0
    for queue_id in range(300):
        assert len(rig.bodies("Many", queue_id)) == 1
    assert len(rig.store._queues._files) <= 128


def test_the_timer_does_not_stop_the_flushes_of_senders() -> None:
    """A flush that the timer began just before the senders' own: theirs follows, and all later."""
    workers = HeldWorkers()
    rig = Rig(workers=workers, is_sync_flush=True)
    answers: list[int] = []

    def put(number: int) -> None:
        end = rig.put().end_offset
        rig.store.when_durable(end, lambda fine: answers.append(number if fine else -1))

    def turn() -> None:
        """One turn of the loop: what was to happen at once, and no timer."""
        for timer in [timer for timer in rig.timers if timer[0] == 0]:
            rig.timers.remove(timer)
            timer[1]()

    put(0)
    timers = [timer for timer in rig.timers if timer[0] > 0]
    for timer in timers:
        rig.timers.remove(timer)
        timer[1]()
    assert len(workers.jobs) > 0
    turn()
    workers.run()
    assert answers == [0]
    for number in range(1, 4):
        put(number)
        for _ in range(3):
            turn()
            workers.run()
        assert answers[-1] == number
    # Also what nobody waits for becomes visible without the timer.
    put(4)
    turn()
    rig.put()
    for _ in range(3):
        workers.run()
        turn()
    workers.run()
    assert rig.store.confirmed_offset == rig.store.max_physical_offset

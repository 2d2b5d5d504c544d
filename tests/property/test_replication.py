"""Replication without sockets: any log, cut into any pieces, over any number of connections."""

from __future__ import annotations

import itertools
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.wire.captures import load_transfers
from tests.unit.store.stores import START_MS, Rig

from cometmq import native
from cometmq.broker.replication.frames import REPORT, TRANSFER_HEAD
from cometmq.broker.replication.links import MasterLink, SlaveLink
from cometmq.errors import RemoteProtocolError, StoreCorrupt
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.store.base.results import GetResult
from cometmq.store.message_store import MessageStore

FILE_BYTES: Final = 65_536
NO_TIME: Final = 0


def filled(sizes: list[int]) -> Rig:
    """A store with messages of these body sizes in two queues, keys on every third."""
    rig = Rig()
    for number, size in enumerate(sizes):
        keys = (None, f"k{number}", None) if number % 3 == 0 else None
        sys_flag = 4 if number % 7 == 6 else 0
        rig.store.put(
            "t",
            number % 2,
            bytes([number % 251]) * size,
            f"KEYS\x01k{number}\x02".encode() if keys else b"",
            sys_flag=sys_flag,
            store_ms=rig.now_ms + number,
            index_keys=keys,
        )
    return rig


def whole_log(store: MessageStore) -> bytes:
    """The bytes of a store's log."""
    parts, at = [], store.min_physical_offset
    while at < store.max_physical_offset:
        part = store.log_bytes(at, store.max_physical_offset - at)
        assert part
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def record_at(store: MessageStore, queue_id: int, queue_offset: int) -> bytes:
    """The record to which a unit of topic t leads."""
    result = store.get("t", queue_id, queue_offset, 1, allow_cold=True)
    assert isinstance(result, GetResult)
    return b"".join(result.chunks)


def transfers(store: MessageStore, link: MasterLink) -> bytes:
    """Everything that a link sends of a log."""
    stream = bytearray()
    while True:
        offset, size = link.next_span(store.max_physical_offset)
        if not size:
            return bytes(stream)
        data = store.log_bytes(offset, size)
        for buffer in link.encode(memoryview(data), NO_TIME):
            stream += buffer


SIZES: Final = st.lists(st.integers(0, 30_000), min_size=1, max_size=12)


@given(SIZES, st.integers(1, 40_000), st.lists(st.integers(1, 50_000), max_size=40))
def test_slave_has_the_log_byte_for_byte_over_any_cuts_and_connections(
    sizes: list[int], batch: int, cuts: list[int]
) -> None:
    """Each cut ends a connection: the next one goes on behind the last whole record."""
    master, slave = filled(sizes).store, Rig().store
    stops = iter(cuts)
    while slave.max_physical_offset < master.max_physical_offset:
        start = slave.max_physical_offset
        expected = start or 1
        sender = MasterLink(FILE_BYTES, batch, NO_TIME)
        sender.receive(REPORT.pack(expected), master.max_physical_offset, NO_TIME)
        receiver = SlaveLink(expected, NO_TIME)
        stream = transfers(master, sender)[: next(stops, None)]
        is_first = not start
        step = next(stops, 50_000)
        for at in range(0, len(stream), step):
            for body in receiver.receive(stream[at : at + step], NO_TIME):
                slave.replica.receive(b"\0" + body if is_first else body)
                is_first = False
        slave.replica.forget_partial()
    assert whole_log(slave) == whole_log(master)
    for queue_id in (0, 1):
        end = master.max_queue_offset("t", queue_id)
        assert slave.max_queue_offset("t", queue_id) == end
        for queue_offset in range(end):
            assert record_at(slave, queue_id, queue_offset) == (
                record_at(master, queue_id, queue_offset)
            )
    for number in range(len(sizes)):
        find = [store.prepare_query_index("t", f"k{number}", 9) for store in (slave, master)]
        assert find[0]().physical_offsets == find[1]().physical_offsets


@given(SIZES, st.data())
def test_restarted_slave_recovers_what_it_had(sizes: list[int], data: st.DataObject) -> None:
    """A copy is a store as any other: recovery finds the same end, and following goes on there."""
    master, rig = filled(sizes).store, Rig()
    whole = whole_log(master)
    cut = data.draw(st.integers(0, len(whole)))
    rig.store.replica.receive(whole[:cut])
    end = rig.store.max_physical_offset
    rig.store.close()
    store = rig.open()
    # Its BLANK is there once its first bytes are.
    assert store.max_physical_offset in (end, end - end % FILE_BYTES + FILE_BYTES)
    store.replica.receive(whole[store.max_physical_offset :])
    assert whole_log(store)[: len(whole)] == whole


@given(SIZES, st.integers(0), st.integers(1, 255))
def test_flipped_byte_is_never_acknowledged(sizes: list[int], where: int, flip: int) -> None:
    """A record that is not sound is not appended, and neither is anything behind it."""
    master, slave = filled(sizes).store, Rig().store
    whole = bytearray(whole_log(master))
    at = where % len(whole)
    whole[at] ^= flip
    try:
        slave.replica.receive(bytes(whole))
    except StoreCorrupt:
        assert slave.max_physical_offset <= at
    copied = whole_log(slave)
    # Header fields without a checksum pass, as they do in RocketMQ.
    assert copied == bytes(whole[: len(copied)])


RECORDS: Final = st.lists(
    st.sampled_from(["plain", "plain", "plain", "tagged", "odd tag", "delayed", "half", "keyless"]),
    min_size=1,
    max_size=60,
)


def mixed(kinds: list[str]) -> Rig:
    """A store with records of every kind that the native core takes or leaves."""
    rig = Rig()
    for number, kind in enumerate(kinds):
        tag = {"tagged": f"tag{number % 3}", "odd tag": "\u00e9"}.get(kind)
        properties = "" if kind == "keyless" else f"UNIQ_KEY\x01{number:032d}\x02"
        properties += f"TAGS\x01{tag}\x02" if tag else ""
        properties += "DELAY\x013\x02" if kind == "delayed" else ""
        topic = SCHEDULE_TOPIC if kind == "delayed" else "t"
        rig.store.put(
            topic,
            2 if kind == "delayed" else number % 3,
            b"%d" % number + bytes(100 * (number % 12)),
            properties.encode(),
            sys_flag=4 if kind == "half" else 0,
            store_ms=rig.now_ms + number,
            index_keys=None if kind == "keyless" else (f"{number:032d}", None, tag),
        )
    return rig


def received(whole: bytes, pieces: list[int], *, is_native: bool, **settings: Any) -> Any:
    """What a slave's store has after these bytes came in pieces, and what it announced."""
    rig = Rig(**settings)
    store = rig.store
    arrivals: list[tuple[str, int, int, int]] = []
    store.arrival_listener = lambda *arrival: arrivals.append(arrival)
    for queue_id in range(3):
        store.watch("t", queue_id)
    with pytest.MonkeyPatch.context() as patch:
        if not is_native:
            patch.setattr(native, "scan_records", None)
        replica = store.replica
    sizes, at = itertools.cycle(pieces), 0
    while at < len(whole):
        size = next(sizes)
        replica.receive(whole[at : at + size])
        at += size
        rig.tick()
    store.close()
    store = rig.open()
    units = {
        (topic, queue_id): store.units(topic, queue_id, 0, 100)
        for topic in store.topics()
        for queue_id in range(3)
    }
    keys = [
        store.prepare_query_index("t", f"{number:032d}", 9)().physical_offsets
        for number in range(60)
    ]
    # As with a batch, one announcement for each tag stands for all messages of a stretch.
    announced = {(queue_id, code) for _, queue_id, _, code in arrivals}
    return whole_log(store), units, keys, announced


@pytest.mark.skipif(native.scan_records is None, reason=f"nothing to compare: {native.describe()}")
@given(RECORDS, st.lists(st.integers(700, 20_000), min_size=1, max_size=9), st.booleans())
def test_native_core_derives_what_python_derives(
    kinds: list[str], pieces: list[int], is_sync: bool
) -> None:
    """Log, units, index keys and announcements are the same, whoever reads the records."""
    whole = whole_log(mixed(kinds).store)
    settings: dict[str, Any] = {"is_sync_flush": is_sync}
    with_core = received(whole, pieces, is_native=True, **settings)
    assert with_core == received(whole, pieces, is_native=False, **settings)
    assert with_core[0] == whole


@pytest.mark.skipif(native.scan_records is None, reason=f"nothing to compare: {native.describe()}")
def test_native_core_reads_nearly_all_records_of_a_usual_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python reads the first record of each queue, and the last of each piece."""
    counts = []
    scan = native.scan_records
    assert scan is not None

    def counted(*arguments: Any) -> Any:
        run = scan(*arguments)
        counts.append(0 if run is None else run[1])
        return run

    monkeypatch.setattr(native, "scan_records", counted)
    whole = whole_log(mixed(["plain"] * 1000).store)
    replica = Rig().store.replica
    for at in range(0, len(whole), 60_000):
        replica.receive(whole[at : at + 60_000])
    # Three records begin queues, eight more come before the core is asked again; one or two are at
    # each end of a piece or of a file.
    assert sum(counts) > 850


@pytest.mark.parametrize("is_native", [True, False])
def test_queue_that_begins_again_is_read_on_in_stretches(
    is_native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master's topic was deleted and made again, which a log does not say: its queue offsets
    begin at 0 again.  After that the native core reads on."""
    if is_native and native.scan_records is None:
        pytest.skip(f"there is nothing to read it: {native.describe()}")
    master = Rig()
    counts, again_at = [0], 0
    for life in range(2):
        for number in range(400):
            topic = "t" if number % 2 else "other"
            master.store.put(topic, 0, b"%d-%d" % (life, number), b"", store_ms=START_MS)
        if life == 0:
            master.store.delete_topic("t")
            master.tick()
            again_at = master.store.max_physical_offset
    whole = whole_log(master.store)
    scan = native.scan_records

    def counted(*arguments: Any) -> Any:
        run = scan(*arguments) if scan is not None else None
        counts.append(0 if run is None else run[1])
        return run

    monkeypatch.setattr(native, "scan_records", counted if is_native else None)
    slave = Rig()
    # A piece begins with the first record of the second life, as the core's stretch does then.
    cuts = [*range(0, again_at, 5_000), *range(again_at, len(whole), 5_000), len(whole)]
    for at, end in itertools.pairwise(cuts):
        slave.store.replica.receive(whole[at:end])
    for topic in ("t", "other"):
        assert slave.store.units(topic, 0, 0, 1000) == master.store.units(topic, 0, 0, 1000)
    assert (sum(counts) > 600) is is_native


def test_slave_of_ours_reads_what_a_java_master_sent() -> None:
    """The captured transfers of RocketMQ 5.4.0 fill a store; ours sends the same bytes again."""
    sent = b"".join(
        transfer.data
        for transfer in load_transfers()
        if transfer.is_from_master and "/ha-stream" in transfer.where
    )
    store, receiver = Rig().store, SlaveLink(0, NO_TIME)
    for at in range(0, len(sent), 100):
        for body in receiver.receive(sent[at : at + 100], NO_TIME):
            store.replica.receive(body)
    assert store.max_physical_offset == receiver.expected == 5720
    assert store.topics() == ["HA_HA"]
    sender = MasterLink(FILE_BYTES, 2860, NO_TIME)
    sender.receive(REPORT.pack(0), store.max_physical_offset, NO_TIME)
    assert transfers(store, sender)[:2872] == sent[:2872]


def test_link_counts_no_report_of_bytes_that_were_not_sent() -> None:
    """A number beyond what was sent would acknowledge messages that nobody has."""
    link = MasterLink(FILE_BYTES, 100, NO_TIME)
    link.receive(REPORT.pack(50), 80, NO_TIME)
    assert link.next_span(80) == (50, 30)
    with pytest.raises(RemoteProtocolError, match="only 50 bytes"):
        link.receive(REPORT.pack(51), 80, NO_TIME)
    assert link.acknowledged == 50


def test_slave_refuses_transfers_that_do_not_follow() -> None:
    """A gap, an overlap or a length of nonsense ends the connection."""
    for head in (
        TRANSFER_HEAD.pack(8, 0),
        TRANSFER_HEAD.pack(0, -1),
        TRANSFER_HEAD.pack(0, 1 << 30),
    ):
        with pytest.raises(RemoteProtocolError):
            SlaveLink(0, NO_TIME).receive(head, NO_TIME)

"""The native core and the Python text verify and recover any store alike, also a damaged one."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.golden.store.java_stores import unpack
from tests.unit.store.stores import Rig

from cometmq import native
from cometmq.errors import StoreError
from cometmq.store.base.checkpoint import SIDE_FILE_NAME
from cometmq.store.base.disk import RealDisk
from cometmq.store.base.dispatch import index_keys_of, queue_tags_code
from cometmq.store.offline.verify import verify_store
from cometmq.store.recovery import queue_rebuild

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cometmq.store.base.disk import Disk
    from cometmq.store.base.results import RecoveryReport

pytestmark = pytest.mark.skipif(
    native.scan_records is None, reason=f"there is nothing to compare: {native.describe()}"
)

TOPICS = st.sampled_from(["T", "T", "T", "Ü", "long" * 40, "SCHEDULE_TOPIC_XXXX"])
PROPERTIES = st.sampled_from(
    [
        b"KEYS\x01a b  c\x02UNIQ_KEY\x01id\x02WAIT\x01true\x02TAGS\x01blue\x02",
        b"UNIQ_KEY\x01id\x02TAGS\x01red\x02",
        b"UNIQ_KEY\x01id\x02DELAY\x013\x02",
        b"",
        b"TAGS\x01",
        b"TAGS\x01one\x02TAGS\x01\x02TAGS\x01two",
        b"XKEYS\x01no\x02KEYS\x01yes",
        b"KEYS\x01  \x02",
        "TAGS\x01grün\x02".encode(),
        b"KEYS\x01\xff\x02TAGS\x01x\x02",
        b"KEYS\x01" + b"k " * 31,
    ]
)
SYS_FLAGS = st.sampled_from([0, 0, 0, 0, 1, 0x4, 0x8, 0xC, 0x10])
PUT = st.tuples(
    st.just("put"), TOPICS, st.integers(0, 2), PROPERTIES, SYS_FLAGS, st.integers(0, 300),
    st.integers(1, 20),
)  # fmt: skip
USUAL = [
    ("put", "T", queue_id, b"UNIQ_KEY\x01id\x02TAGS\x01red\x02", 0, 200, 60)
    for queue_id in range(3)
]
DAMAGE = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 99), st.integers(0, 20_000), st.integers(0, 7)),
    st.tuples(st.just("remove"), st.integers(0, 99)),
    st.tuples(st.just("cut"), st.integers(0, 99), st.integers(0, 2_000)),
)


@contextlib.contextmanager
def core(calls: Counter[bool] | None) -> Iterator[None]:
    """Let the native core read, and count whether it did; or the Python text, for None."""
    with pytest.MonkeyPatch.context() as patch:
        # A flipped bit shall not give hundreds of thousands of units that are checked four times.
        patch.setattr(queue_rebuild, "_GAP_MAX", 200)
        for name in ("scan_records", "check_entries"):
            function = getattr(native, name)

            def counted(*how: Any, function: Any = function) -> Any:
                assert calls is not None
                result = function(*how)
                calls[bool(result)] += 1
                return result

            patch.setattr(native, name, counted if calls is not None else None)
        yield


def put(
    rig: Rig, topic: str, queue_id: int, properties: bytes, sys_flag: int, size: int, count: int
) -> None:
    """Put messages with the tags code and the keys that a broker gives them."""
    for number in range(count):
        rig.put(
            topic, queue_id, bytes([number]) * (size if number % 7 else 0),
            properties=properties,
            sys_flag=sys_flag, born_host=bytes(20 if sys_flag & 0x10 else 8),
            tags_code=queue_tags_code(topic.encode(), properties, rig.now_ms, rig.config.delays_ms),
            index_keys=index_keys_of(properties),
        )  # fmt: skip


def damage(rig: Rig, kind: str, number: int, *how: int) -> None:
    """Damage one file of the log, the queues or the index."""
    paths = [
        path
        for path in sorted(rig.disk.tree())
        if any(f"/store/{room}/" in f"/{path}" for room in ("commitlog", "consumequeue", "index"))
    ]
    path = paths[number % len(paths)]
    if kind == "flip" and rig.disk.size(path):
        rig.disk.flip_bit(path, how[0] % rig.disk.size(path), how[1])
    elif kind == "cut" and "commitlog" not in path:
        rig.disk.cut(path, max(0, rig.disk.size(path) - how[0]))
    elif kind == "remove" and "commitlog" not in path:
        rig.disk.remove(path)


def verify_both_ways(disk: Disk, root: str, calls: Counter[bool]) -> None:
    """What the check finds does not depend on who reads."""
    with core(None):
        pure = verify_store(disk, root)
    with core(calls):
        assert verify_store(disk, root) == pure


def recover(rig: Rig) -> RecoveryReport | str:
    """Open and close the store; return what recovery did, or why it did not."""
    try:
        rig.open()
    except StoreError as error:
        return str(error)
    rig.store.close()
    return rig.report


def content(rig: Rig) -> dict[str, bytes]:
    """Every file of the store."""
    return {path: rig.disk.read_bytes(path) for path in sorted(rig.disk.tree())}


def test_same_findings_and_same_recovery() -> None:
    """Odd messages, damaged and missing files, a clean stop or a crash."""
    calls: Counter[bool] = Counter()

    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(
        st.lists(PUT, min_size=1, max_size=6),
        st.lists(DAMAGE, max_size=3),
        st.sampled_from(["stop", "kill", "crash"]),
        st.sets(st.sampled_from(["consumequeue", "index", SIDE_FILE_NAME])),
    )
    @example(USUAL, [], "crash", set())
    @example([*USUAL, ("put", "T", 0, "TAGS\x01grün\x02".encode(), 0, 9, 5)], [], "stop", set())
    def run(
        puts: list[tuple[Any, ...]], damages: list[tuple[Any, ...]], end: str, lost: set[str]
    ) -> None:
        rigs = Rig(), Rig()
        outcomes: list[RecoveryReport | str] = []
        for rig, mode in zip(rigs, (calls, None), strict=True):
            for _, *message in puts:
                put(rig, *message)
                rig.tick(1_000)
            if end != "kill":
                rig.store.close()
            else:
                rig.disk.kill()
            for name in lost:
                rig.disk.remove_tree(f"/store/{name}")
                rig.disk.remove(f"/store/{name}")
            if end == "crash":
                rig.disk.write_atomic("/store/abort", b"1")
            for how in damages:
                damage(rig, *how)
            verify_both_ways(rig.disk, "/store", calls)
            with core(mode):
                outcomes.append(recover(rig))
            verify_both_ways(rig.disk, "/store", calls)
        assert outcomes[0] == outcomes[1]
        assert content(rigs[0]) == content(rigs[1])

    run()
    assert calls[True] > 30, "the core read hardly anything: nothing was compared"
    assert calls[False] > 3, "the core never stopped"


@pytest.mark.parametrize(
    "name", ["clean", "killed", "expired", "crc", "ext", "torn", "torn-body", "rotten"]
)
def test_same_findings_in_javas_stores(name: str, tmp_path: Path) -> None:
    """Stores that Java's broker wrote, sound and damaged ones."""
    calls: Counter[bool] = Counter()
    root = unpack(name, tmp_path)
    verify_both_ways(RealDisk(), str(root), calls)
    assert calls[True] > 0


def test_core_reads_what_is_usual() -> None:
    """Of usual messages the core reads all but the last one of each stretch."""
    rig = Rig()
    for queue_id in range(3):
        put(rig, "T", queue_id, b"KEYS\x01k\x02UNIQ_KEY\x01id\x02TAGS\x01a\x02", 0, 100, 100)
    rig.store.close()
    rig.disk.remove_tree("/store/consumequeue")
    rig.disk.remove_tree("/store/index")
    read: list[int] = []

    with pytest.MonkeyPatch.context() as patch:
        scan = native.scan_records
        assert scan is not None

        def counting(*how: Any) -> Any:
            run = scan(*how)
            if run is not None:
                read.append(run[1])
            return run

        patch.setattr(native, "scan_records", counting)
        rig.open()
        assert (rig.report.records_scanned, rig.report.units_built) == (300, 300)
        assert sum(read) > 290
        read.clear()
        assert verify_store(rig.disk, "/store").is_sound
        assert sum(read) > 290

"""The native core and the Python text read the same from a queue, also from a damaged one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.store.stores import Rig

from cometmq import native
from cometmq.codec.stored_message import decode_messages
from cometmq.errors import StoreCorrupt
from cometmq.store.base.results import ColdRead, GetResult, GetStatus
from cometmq.wire.command.command import BINARY, JSON
from cometmq.wire.frame.framing import decode_frame
from cometmq.wire.header.fast_encode import encode_pull_response, pull_parts

pytestmark = pytest.mark.skipif(
    native.gather_records is None, reason=f"there is nothing to compare: {native.describe()}"
)

#: Hashes of tags, and the addresses of extension units, which hold the hash elsewhere.
CODES = st.sampled_from([0, 1, 2, 2, 2, -7, 2**31 - 1, -(2**31), -(2**31) - 1, -(2**63)])
QUEUES = st.sampled_from([0, 0, 0, 1, 2])
PUT = st.tuples(
    st.just("put"),
    st.sampled_from([(0,), (0, 1), (0, 1, 2), (0, 0, 1)]),  # queues that are written in turn
    st.lists(CODES, min_size=1, max_size=5),  # and again from the first one
    st.integers(0, 400),
    st.integers(20, 100),
)
GET = st.tuples(
    st.just("get"),
    QUEUES,
    st.integers(0, 20) | st.integers(-1, 130),
    st.sampled_from([-1, 0, 1, 2, 32, 32, 32, 1000]),
    st.sampled_from([-5, 0, 1, 300, 1000, 5000, 1 << 27]),
    st.none() | st.frozensets(CODES, min_size=1, max_size=3) | st.just(frozenset(range(-20, 20))),
)
FLIP = st.tuples(
    st.just("flip"), QUEUES, st.integers(0, 130), st.integers(0, 19), st.integers(0, 7)
)
STEPS = st.one_of(
    PUT, GET, GET, GET, GET, GET, st.tuples(st.sampled_from(["tick", "reopen", "expire"])), FLIP
)


class Side:
    """One of two stores that are given the same."""

    def __init__(self, *, is_native: bool) -> None:
        self.is_native = is_native
        self.native_reads: Counter[bool] = Counter()
        self.native_answers: Counter[bool] = Counter()
        self.rig = Rig(transfer_count_max=200)
        self.choose()

    def choose(self) -> None:
        """Let this side's code read the store that was opened last."""
        gather = native.gather_records if self.is_native else None
        assert self.is_native == (gather is not None)

        def counted(*how: Any) -> Any:
            assert gather is not None
            gathered = gather(*how)
            self.native_reads[gathered is not None] += 1
            return gathered

        self.rig.store._reader._gather_natively = counted if gather else None
        if not self.is_native:
            self.rig.store._reader._answer_natively = None

    def put(self, queues: tuple[int, ...], codes: list[int], size: int, count: int) -> None:
        for number in range(count):
            queue, code = queues[number % len(queues)], codes[number % len(codes)]
            self.rig.put("T", queue, bytes(size), tags_code=code)

    def tick(self) -> None:
        self.rig.tick(2_000)

    def reopen(self) -> None:
        self.rig.reopen()
        self.choose()

    def expire(self) -> None:
        if len(self.rig.store._log.files) > 1:
            self.rig.store._retention.drop_files(1)

    def flip(self, queue: int, unit: int, byte: int, bit: int) -> None:
        """Damage one bit of a queue file."""
        queues = f"{self.rig.config.root}/consumequeue"
        folder = f"{queues}/T/{queue}"
        for name in self.rig.disk.listdir(folder)[:1]:
            self.rig.disk.flip_bit(f"{folder}/{name}", unit % 100 * 20 + byte, bit)
        self.rig.store._queues.forget_files(queues)

    def compare_answers(
        self, queue: int, offset: int, max_count: int, max_bytes: int, codes: frozenset[int] | None
    ) -> None:
        """The frame that the core writes is the one of Python, whatever the header's encoding."""
        store = self.rig.store
        native_reads = Counter(self.native_reads)
        for serialize_type in (JSON, BINARY):
            answered = store.answer(
                "T", queue, offset, max_count, max_bytes, codes,
                pull_parts(serialize_type, 3, -1), 7 - offset,
            )  # fmt: skip
            self.native_answers[isinstance(answered, tuple)] += 1
            if answered is None:
                continue
            result = store.get("T", queue, offset, max_count, max_bytes, codes)
            assert isinstance(result, GetResult)
            if isinstance(answered, GetStatus):
                assert answered is result.status
                continue
            frame, following, number, byte_count = answered
            expected = encode_pull_response(
                7 - offset, serialize_type, 0, result.status.name, result.next_queue_offset,
                result.min_queue_offset, result.max_queue_offset, result.chunks, result.byte_count,
                topic_sys_flag=3, group_sys_flag=-1,
            )  # fmt: skip
            assert frame == b"".join(expected)
            assert len(decode_frame(frame).body) == byte_count == result.byte_count
            assert (following, number) == (result.next_queue_offset, result.count)
        self.native_reads = native_reads

    def get(self, queue: int, *how: Any) -> Any:
        store = self.rig.store
        offset, max_count, max_bytes, codes = how
        if self.is_native:
            self.compare_answers(queue, offset, max_count, max_bytes, codes)
        try:
            result = store.get("T", queue, offset, max_count, max_bytes, codes)
            if isinstance(result, ColdRead):
                result.warm()
                result = store.get("T", queue, offset, max_count, max_bytes, codes, allow_cold=True)
        except StoreCorrupt as error:
            return str(error)
        assert isinstance(result, GetResult)
        body = b"".join(result.chunks)
        assert len(body) == result.byte_count
        return (
            result.status, result.next_queue_offset, result.min_queue_offset,
            result.max_queue_offset, result.count, body,
        )  # fmt: skip


def test_same_answers_whatever_is_read() -> None:
    """Any offset, limit and tags, from memory and from files, with damaged units."""
    reads: Counter[bool] = Counter()
    answers: Counter[bool] = Counter()

    @settings(
        max_examples=300,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(PUT, st.lists(STEPS, min_size=10, max_size=30))
    def run(first: tuple[Any, ...], steps: list[tuple[Any, ...]]) -> None:
        fast, pure = Side(is_native=True), Side(is_native=False)
        for name, *arguments in [first, *steps]:
            fast_result, pure_result = (getattr(side, name)(*arguments) for side in (fast, pure))
            assert fast_result == pure_result
        reads.update(fast.native_reads)
        answers.update(fast.native_answers)

    run()
    assert reads[True] > 200, "the core read hardly anything: nothing was compared"
    assert reads[False] > 20, "the core never stopped"
    assert answers[True] > 200, "the core answered hardly anything"
    assert answers[False] > 200, "the core always answered"


def test_core_reads_what_is_usual() -> None:
    """Queues written in turn, one queue alone, wanted tags, a small limit: all of it natively."""
    side = Side(is_native=True)
    side.put((0, 1), [0, 0, 1, 1], 100, 100)
    side.put((2,), [1], 100, 100)
    for is_written in (False, True):
        if is_written:
            side.tick()
            side.reopen()
        side.native_reads.clear()
        for queue, codes, count, following in [
            (0, None, 32, 32), (1, frozenset({1}), 25, 50), (2, None, 32, 32),
            (2, frozenset({1, 3}), 32, 32), (2, frozenset({4}), 0, 100),
        ]:  # fmt: skip
            status, next_offset, _, _, found, body = side.get(queue, 0, 32, 1 << 20, codes)
            assert status is (GetStatus.FOUND if count else GetStatus.NO_MATCHED_MESSAGE)
            assert (next_offset, found, len(decode_messages(body))) == (following, count, count)
        _, next_offset, _, _, found, body = side.get(0, 7, 32, 1000, None)
        assert 1 < found < 10
        assert next_offset == 7 + found == 7 + len(decode_messages(body))
        assert side.native_reads == {True: 6}


@pytest.mark.parametrize("byte", [0, 3, 4, 7, 28, 35], ids=str)
def test_core_stops_at_a_record_that_is_not_the_units(byte: int) -> None:
    """Size, magic and physical offset of every record are compared, not of the first and last."""
    side = Side(is_native=True)
    side.put((0, 1), [0], 100, 80)
    (unit,) = side.rig.store.units("T", 0, 7, 1)
    side.rig.disk.flip_bit(f"/store/commitlog/{0:020d}", unit.physical_offset + byte, 1)
    side.get(0, 0, 32, 1 << 20, None)
    assert side.native_reads[True] == side.native_answers[True] == 0
    side.get(0, 8, 32, 1 << 20, None)
    assert (side.native_reads[True], side.native_answers[True]) == (1, 2)

"""What a start makes of half, op and committed messages, ours and those of a Java broker."""

from __future__ import annotations

from tests.unit.store.stores import Rig

from cometmq.broker.transaction.load import TRANSACTION_GROUP, load_transactions
from cometmq.codec.properties import encode_properties
from cometmq.core.group.consumer_offsets import ConsumerOffsetTable
from cometmq.core.transaction.open_transactions import (
    CheckRules,
    decode_op_body,
    encode_op_body,
    half_of,
)
from cometmq.model.flags import TRANSACTION_COMMIT
from cometmq.model.names import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.model.offsets import ConsumerOffset


def half(rig: Rig, uniq_key: str, **more: str) -> int:
    """A half message; its physical offset."""
    properties = {"UNIQ_KEY": uniq_key, "PGROUP": "g", **more}
    return rig.store.put(HALF_TOPIC, 0, b"x", encode_properties(properties)).physical_offset


def op(rig: Rig, body: bytes) -> None:
    """An op message."""
    rig.store.put(OP_HALF_TOPIC, 0, body, b"TAGS\x01d\x02")


def reached(half_offset: int, op_offset: int) -> ConsumerOffsetTable:
    """Where the transaction group stands."""
    table = {
        f"{HALF_TOPIC}@{TRANSACTION_GROUP}": {0: ConsumerOffset(half_offset)},
        f"{OP_HALF_TOPIC}@{TRANSACTION_GROUP}": {0: ConsumerOffset(op_offset)},
    }
    return ConsumerOffsetTable(table)


def test_op_messages_of_both_forms() -> None:
    """From the group's offsets on; nonsense in a body names nothing."""
    rig = Rig()
    loaded = load_transactions(rig.store, ConsumerOffsetTable())
    assert (len(loaded.halves), loaded.half_next, loaded.op_next) == (0, 0, 0)
    places = [half(rig, f"U{number}") for number in range(8)]
    for body in (b"0,1,", b"4", b"x,,5,99,"):
        op(rig, body)
    loaded = load_transactions(rig.store, ConsumerOffsetTable())
    assert loaded.halves.offsets() == [2, 3, 6, 7]
    assert list(loaded.ops) == [(0, 1), (1, 4), (2, 99)]
    first = loaded.halves.first()
    assert first is not None
    assert first.physical_offset == places[2]
    assert load_transactions(rig.store, reached(3, 1)).halves.offsets() == [3, 6, 7]
    assert load_transactions(rig.store, reached(8, 3)).halves.offsets() == []
    beyond = load_transactions(rig.store, reached(80, 30))
    assert (beyond.half_next, beyond.op_next, len(beyond.halves)) == (8, 3, 0)


def test_what_was_put_back_is_one_transaction() -> None:
    """Ours says where it was first; Java's has the same id and more checks."""
    rig = Rig()
    half(rig, "ours")
    half(rig, "java")
    half(rig, "twice")
    half(rig, "twice")  # a second try of its producer: nothing says that it is the same
    half(rig, "ours", TRAN_PREPARED_QUEUE_OFFSET="0", TRANSACTION_CHECK_TIMES="1")
    half(rig, "java", TRANSACTION_CHECK_TIMES="1")
    half(rig, "ours", TRAN_PREPARED_QUEUE_OFFSET="0", TRANSACTION_CHECK_TIMES="2")
    loaded = load_transactions(rig.store, ConsumerOffsetTable())
    assert loaded.halves.offsets() == [2, 3, 5, 6]
    for earlier, newest in ((0, 6), (4, 6), (1, 5)):
        found = loaded.halves.find(earlier)
        assert found is not None
        assert found.queue_offset == newest
    assert sorted(loaded.unnamed_ended) == [0, 1, 4]
    op(rig, b"6,")
    loaded = load_transactions(rig.store, ConsumerOffsetTable())
    assert loaded.halves.offsets() == [2, 3, 5], "ended at its newest place is ended"


def test_committed_and_given_up_messages_say_it_themselves() -> None:
    """No op message came to be written; what only mentions an offset settles nothing."""
    rig = Rig()
    places = [half(rig, f"U{number}") for number in range(4)]
    assert places[0] == 0
    rig.store.put("T", 0, b"plain", b"")
    rig.store.put("T", 0, b"x", b"", sys_flag=TRANSACTION_COMMIT, prepared_offset=places[1])
    rig.store.put(TRANS_CHECK_MAX_TIME_TOPIC, 0, b"x", b"", prepared_offset=places[2])
    rig.store.put("T", 0, b"x", b"", prepared_offset=places[3])
    loaded = load_transactions(rig.store, ConsumerOffsetTable())
    assert loaded.halves.offsets() == [0, 3]
    assert sorted(loaded.unnamed_ended) == [1, 2]
    rig.store.put("T", 0, b"x", b"", sys_flag=TRANSACTION_COMMIT, prepared_offset=0)
    assert load_transactions(rig.store, ConsumerOffsetTable()).halves.offsets() == [3]


def test_bodies_of_op_messages() -> None:
    """What is written is read; a body that names nothing is ignored by Java too."""
    assert encode_op_body([10, 11]) == b"10,11,"
    assert decode_op_body(b"10,11,") == [10, 11]
    assert decode_op_body(b"7") == [7]
    assert decode_op_body(encode_op_body([])) == []


def test_who_is_due() -> None:
    """The timeout, an immunity time, a producer whose clock is ahead, the last check, old age."""
    rules = CheckRules(6_000, 15, 3_600_000)

    def is_due(age_ms: int, **properties: str) -> bool:
        one = half_of(0, 0, 1_000_000, encode_properties(properties))
        return rules.is_due(one, 1_000_000 + age_ms)

    assert [is_due(age) for age in (-1, 0, 6_000, 6_001)] == [True, False, False, True]
    immune = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}
    assert [is_due(age, **immune) for age in (-1, 6_001, 60_001)] == [False, False, True]
    garbled = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}
    assert [is_due(age, **garbled) for age in (5_000, 6_001)] == [False, True]
    assert is_due(0, TRANSACTION_CHECK_TIMES="15")
    assert is_due(3_600_001, CHECK_IMMUNITY_TIME_IN_SECONDS="999999")

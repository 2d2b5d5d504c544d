"""The ledger of staged batches: what its records and its file say together."""

import pytest

from cometmq.broker.extensions.staging.ledger import (
    NO_BATCH,
    Decision,
    Done,
    Forgotten,
    Ledger,
    LedgerFile,
    Record,
    Slice,
    decode_record,
    encode_record,
)
from cometmq.errors import CodecError
from cometmq.wire.extensions.staging import SinkEntry, TokenClaim


def decision(sink: str, batch_id: int) -> Decision:
    """A decision about one token."""
    claim = TokenClaim(f"{sink}/{batch_id}", 10, 7)
    return Decision(sink, batch_id, 10, 99, "a", {"a": [claim]}, [claim], {"T": {"0": 5}})


def numbered(*records: Record) -> list[tuple[int, int, int, Record]]:
    """With queue offsets from 0 on and physical offsets of 100 bytes each."""
    return [(n, n * 100, n * 100 + 100, record) for n, record in enumerate(records)]


SLICE = Slice(0, 0, 4, "T", 0, 5)


@pytest.mark.parametrize("record", [decision("s", 1), SLICE, Done("s", 1), Forgotten("s")])
def test_records_come_back_as_they_were(record: Record) -> None:
    """Through their JSON."""
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"kind":"new"}', b'{"kind":"done","sink":1}'])
def test_what_is_no_record_is_said(raw: bytes) -> None:
    """With the cause."""
    with pytest.raises(CodecError, match="not a record of a staged batch"):
        decode_record(raw)


def test_the_last_decision_may_be_unfinished() -> None:
    """Its last slice tells where to go on; a finished one leaves nothing."""
    ledger = Ledger(LedgerFile())
    records = numbered(decision("s", 1), SLICE, Done("s", 1), decision("s", 2), SLICE, SLICE)
    unfinished = ledger.replay(records)
    assert unfinished is not None
    assert unfinished.decision.batch_id == 2
    assert (unfinished.queue_offset, unfinished.physical_offset) == (3, 300)
    assert (unfinished.last, unfinished.last_end) == (SLICE, 600)
    assert ledger.last_batch("s") == 2
    assert not ledger.sinks["s"].is_complete
    assert Ledger(LedgerFile()).replay(records[:3]) is None


def test_a_forgotten_sink_begins_anew() -> None:
    """With any batch."""
    ledger = Ledger(LedgerFile({"s": SinkEntry(9, 1, 1)}))
    assert ledger.replay(numbered(Forgotten("s"), decision("s", 0), Done("s", 0))) is None
    assert ledger.last_batch("s") == 0
    assert ledger.last_batch("other") == NO_BATCH < -1


def test_an_older_log_takes_nothing_back() -> None:
    """A file that is ahead of the decisions read again keeps its line."""
    ledger = Ledger(LedgerFile({"s": SinkEntry(9, 1, 1)}))
    assert ledger.replay(numbered(decision("s", 3), SLICE)) is None
    assert ledger.last_batch("s") == 9


def test_only_what_is_settled_reaches_the_file() -> None:
    """A decision holds at once, and is written when it is on stable storage."""
    ledger = Ledger(LedgerFile())
    entry = ledger.complete(decision("s", 1))
    assert ledger.durable == {}
    revision = ledger.revision
    ledger.settle("s", entry, 3)
    assert (ledger.durable, ledger.decision_next) == ({"s": entry}, 3)
    assert ledger.revision > revision
    ledger.settle("s", None, 4)
    assert ledger.durable == {}


def test_the_file_says_when_it_is_none() -> None:
    """Instead of being taken for an empty ledger."""
    assert LedgerFile.decode(b"{}") == LedgerFile()
    with pytest.raises(CodecError, match="not a ledger of staged batches"):
        LedgerFile.decode(b'{"sinks": 3}')

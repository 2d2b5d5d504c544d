"""A store read in parts gives the rows of the whole, however it is cut."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.arrow.made_stores import MadeStore

from cometmq.arrow import ScanReport, scan
from cometmq.arrow.options import ScanOptions, parse_options
from cometmq.arrow.store_spans import plan_spans, read_spans

COLUMNS = ["topic", "queueId", "queueOffset", "physicalOffset", "body", "_corrupt_record"]


def store(root: Path, records: int = 150) -> MadeStore:
    """Three queues of T in turn and a topic beside it, over many small log files."""
    made = MadeStore(root)
    for number in range(records):
        made.put(b"%04d" % number + b"x" * (number % 90), queue_id=number % 3)
        if number % 10 == 0:
            made.put(b"other", topic="Other")
    made.write()
    return made


def options(topic: str | None, **more: Any) -> ScanOptions:
    """A scan's options."""
    return parse_options(
        **{
            "topic": topic,
            "broker": None,
            "queues": None,
            "starting_offsets": "earliest",
            "ending_offsets": "latest",
            "starting_timestamp": None,
            "ending_timestamp": None,
            "tags": None,
            "columns": COLUMNS,
            "include_properties": False,
            "mode": "PERMISSIVE",
            "batch_rows": 7,
            "check_crc": False,
            **more,
        }
    )


def rows(batches: Any) -> list[dict[str, Any]]:
    """Plain rows, in one order for all ways to read."""
    found = [row for batch in batches for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row["physicalOffset"])


@pytest.mark.parametrize("topic", ["T", None])
@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
@pytest.mark.parametrize(("parts", "part_bytes_max"), [(1, 1 << 30), (2, 1 << 30), (5, 700)])
def test_parts_are_the_whole(
    topic: str | None, parts: int, part_bytes_max: int, batch_rows: int, tmp_path: Path
) -> None:
    """Each row in exactly one part; by queues and by the log, cut coarsely and finely."""
    store(tmp_path)
    chosen = options(topic, batch_rows=batch_rows)
    plan = plan_spans(tmp_path, chosen, parts=parts, part_bytes_max=part_bytes_max)
    assert len(plan) >= parts
    found = [batch for spans in plan for batch in read_spans(tmp_path, spans, chosen, ScanReport())]
    whole = scan(tmp_path, topic=topic, columns=COLUMNS)
    assert rows(found) == rows(whole)


def test_damage_is_told_once(tmp_path: Path) -> None:
    """A spoilt record belongs to one part, also where parts of the log meet."""
    made = store(tmp_path)
    for place in (40, 41, 90):
        made.spoil(made.records[place][0] + 4)
    whole = rows(scan(tmp_path, columns=COLUMNS))
    assert sum(row["_corrupt_record"] is not None for row in whole) >= 2
    for parts in (1, 2, 3, 7, 20, 50):
        chosen = options(None)
        plan = plan_spans(tmp_path, chosen, parts=parts, part_bytes_max=1 << 30)
        found = [
            batch for spans in plan for batch in read_spans(tmp_path, spans, chosen, ScanReport())
        ]
        assert rows(found) == whole, parts


def test_each_part_has_its_own_part_of_the_log(tmp_path: Path) -> None:
    """Of queues written side by side; a queue's records stay in their order over the parts."""
    store(tmp_path)
    chosen = options("T")
    plan = plan_spans(tmp_path, chosen, parts=4, part_bytes_max=1 << 30)
    found = [
        [
            row
            for batch in read_spans(tmp_path, spans, chosen, ScanReport())
            for row in batch.to_pylist()
        ]
        for spans in plan
    ]
    assert [len(part) for part in found] == [36, 39, 36, 39]
    for part, following in pairwise(found):
        assert {row["queueId"] for row in part} == {0, 1, 2}
        last = max(row["physicalOffset"] for row in part)
        assert last < min(row["physicalOffset"] for row in following)
    in_turn = [row["queueOffset"] for part in found for row in part if row["queueId"] == 1]
    assert in_turn == list(range(50))


def test_a_short_queue_beside_long_ones_is_cut_into_what_it_has(tmp_path: Path) -> None:
    """No part reads nothing, and no record is lost."""
    made = MadeStore(tmp_path)
    made.put(b"x", queue_id=9)
    for number in range(200):
        made.put(b"%d" % number, queue_id=number % 2)
    made.write()
    chosen = options("T")
    plan = plan_spans(tmp_path, chosen, parts=3, part_bytes_max=1 << 30)
    assert [len(spans) for spans in plan].count(2) == 2
    found = [batch for spans in plan for batch in read_spans(tmp_path, spans, chosen, ScanReport())]
    assert rows(found) == rows(scan(tmp_path, topic="T", columns=COLUMNS))


def test_small_queues_share_a_part(tmp_path: Path) -> None:
    """A task for each of many small queues would cost more than it reads."""
    made = MadeStore(tmp_path)
    for queue_id in range(40):
        made.put(b"x", queue_id=queue_id)
    made.write()
    plan = plan_spans(tmp_path, options("T"), parts=2, part_bytes_max=1 << 30)
    assert len(plan) <= 3
    assert sum(len(spans) for spans in plan) == 40


def test_empty_store_has_no_parts(tmp_path: Path) -> None:
    """Nothing to read is nothing to plan."""
    made = MadeStore(tmp_path)
    made.write()
    assert plan_spans(tmp_path, options(None), parts=2, part_bytes_max=100) == []
    assert pa.Table.from_batches([], schema=pa.schema([])).num_rows == 0

"""How far a run is in its inputs: by rows, by positions, and in words."""

from __future__ import annotations

from cometmq.spark.base.progress import RunProgress
from cometmq.spark.base.reach import Reach

RANGES = {"Orders a:0": (100, 300), "Orders a:1": (0, 200), "Bills a:0": (5, 5)}


def test_rows_are_offsets_until_all_is_read() -> None:
    """A row is an offset; expired and corrupt ones have no row, so the end is told, not counted."""
    rows = [0]
    reach = Reach({"Orders a:0": (100, 300)}, lambda: rows[0])
    assert reach.text() == "offsets 0 of 200 in 1 queue of Orders"
    rows[0] = 150
    assert reach.text() == "offsets 150 of 200 in 1 queue of Orders"
    assert reach.by_topic() == ["Orders: 150 of 200 in 1 queue"]
    reach.finish()
    assert reach.by_topic() == ["Orders: 200 of 200 in 1 queue"]
    rows[0] = 900
    assert reach.passed == 200


def test_several_topics_are_told_one_by_one_where_that_is_known() -> None:
    """Rows alone do not say of which topic they are; positions and the end do."""
    reach = Reach(RANGES, lambda: 50)
    assert reach.text() == "offsets 50 of 400 in 3 queues of 2 topics"
    assert reach.by_topic() == ["50 of 400 in 3 queues of 2 topics"]
    reach.finish()
    whole = ["Bills: 0 of 0 in 1 queue", "Orders: 400 of 400 in 2 queues"]
    assert reach.by_topic() == whole
    moved = Reach(RANGES, None)
    moved.move({"Orders a:0": 180, "Orders a:1": 7, "Bills a:0": 5})
    assert moved.by_topic() == ["Bills: 0 of 0 in 1 queue", "Orders: 87 of 400 in 2 queues"]


def test_positions_outside_a_range_count_as_its_edges() -> None:
    """A ledger's beginning is 0, whatever the first offset of a slice; ends may be passed."""
    reach = Reach({"T a:0": (100, 200), "T a:1": (0, 10)}, None)
    reach.move({"T a:0": 0, "T a:1": 70, "T a:9": 4})
    assert (reach.passed, reach.total) == (10, 110)
    assert reach.text() == "offsets 10 of 110 in 2 queues of T"


def test_queues_grow_and_a_run_begins_where_the_last_ended() -> None:
    """What a checkpoint has behind it is no part of this run; a new queue begins at 0."""
    reach = Reach({"T a:0": (0, 100)}, None)
    reach.begin({"T a:0": 60, "T a:1": 5})
    assert reach.total == 40
    reach.extend({"T a:0": 120, "T a:1": 15, "T b:0": 7})
    reach.move({"T a:0": 70, "T a:1": 5})
    assert (reach.passed, reach.total) == (10, 60 + 10 + 7)
    reach.extend({"T a:0": 110})
    assert reach.total == 77
    reach.include("T a:0", 50, 70)
    assert reach.total == 87


def test_without_queues_nothing_is_said() -> None:
    """Parquet, JSON and databases have no offsets."""
    reach = Reach({}, lambda: 3)
    assert (reach.text(), reach.by_topic()) == ("", [])


def test_of_many_topics_a_few_are_told() -> None:
    """A pattern may match a thousand."""
    reach = Reach({f"T{number:03} a:0": (0, 1) for number in range(25)}, None)
    told = reach.by_topic()
    assert (told[0], told[-1], len(told)) == ("T000: 0 of 1 in 1 queue", "and 5 more topics", 21)


def test_the_line_has_offsets_and_tasks() -> None:
    """Both inputs of a comparison, what runs now behind them, and the same in the summary."""
    progress = RunProgress("reconcile", total=500, quiet=True)
    progress.reaches = [Reach({"A a:0": (0, 300)}, lambda: 20), Reach({"B a:0": (0, 200)}, None)]
    progress.update(20, text="1 of 3 tasks")
    assert progress.line().endswith(
        "offsets 20 of 300 in 1 queue of A, offsets 0 of 200 in 1 queue of B, 1 of 3 tasks"
    )
    progress.finish()
    assert progress.reach_facts() == {
        "offsets": ["A: 300 of 300 in 1 queue", "B: 200 of 200 in 1 queue"]
    }
    assert RunProgress("cdc", quiet=True).reach_facts() == {}

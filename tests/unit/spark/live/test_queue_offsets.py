"""Offsets as Spark keeps them: one way to write them, fair limits, splits that lose nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.arrow.live import QueueId
from cometmq.errors import ConfigError
from cometmq.spark.live.queue_offsets import from_json, limited, offsets_option, split, to_json

QUEUES = st.builds(
    QueueId,
    st.sampled_from(["A", "B", "Orders"]),
    st.sampled_from(["broker-a", "broker-b", "b:1"]),
    st.integers(0, 20),
)
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 2**62), max_size=12)


@given(OFFSETS, st.randoms(use_true_random=False))
def test_offsets_have_one_spelling(offsets: dict[QueueId, int], chance: Any) -> None:
    """Whatever order they come in: Spark compares text."""
    items = list(offsets.items())
    chance.shuffle(items)
    assert json.dumps(to_json(dict(items))) == json.dumps(to_json(offsets))
    assert from_json(to_json(offsets)) == {tuple(queue): at for queue, at in offsets.items()}


@given(
    st.dictionaries(QUEUES, st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=9),
    st.integers(1, 10**6),
)
def test_limit_holds_and_no_queue_starves(
    spans: dict[QueueId, tuple[int, int]], rows_max: int
) -> None:
    """At most a row per queue above the limit, never beyond an end, every waiting queue moves."""
    start = {queue: low for queue, (low, _) in spans.items()}
    end = {queue: low + rows for queue, (low, rows) in spans.items()}
    taken = limited(start, end, rows_max)
    assert sum(taken[queue] - start[queue] for queue in start) <= rows_max + len(spans)
    for queue in spans:
        assert start[queue] <= taken[queue] <= end[queue]
        assert (taken[queue] > start[queue]) == (end[queue] > start[queue])


@given(
    st.lists(st.tuples(QUEUES, st.integers(0, 1000), st.integers(0, 1000)), max_size=6),
    st.none() | st.integers(1, 30),
)
def test_split_loses_nothing(spans: list[tuple[QueueId, int, int]], parts_min: int | None) -> None:
    """Pieces in order and side by side, at least as many as asked where there are rows enough."""
    ranges = [(queue, low, low + rows) for queue, low, rows in spans]
    pieces = split(ranges, parts_min)
    assert all(first < last for _, first, last in pieces)
    rows = sum(rows for _, _, rows in spans)
    assert sum(last - first for _, first, last in pieces) == rows
    assert len(pieces) >= min(parts_min or 1, rows)
    joined: list[tuple[QueueId, int, int]] = []
    for queue, first, last in pieces:
        if joined and joined[-1][0] == queue and joined[-1][2] == first:
            joined[-1] = (queue, joined[-1][1], last)
        else:
            joined.append((queue, first, last))
    wanted = [item for item in ranges if item[1] < item[2]]
    assert sum(last - first for _, first, last in joined) == sum(b - a for _, a, b in wanted)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("erliest", "did you mean 'earliest'?"),
        ("{", "is no JSON"),
        ('{"T": 5}', "has no offsets by queue"),
        ('{"T": {"0": 5}}', "expected BROKER:ID"),
        ('{"T": {"a:0": -7}}', "holds no offset"),
        ('{"T": {"a:0": true}}', "holds no offset"),
    ],
)
def test_wrong_offsets_are_explained(value: str, what: str) -> None:
    """With what was expected."""
    with pytest.raises(ConfigError) as raised:
        offsets_option("startingOffsets", value, ("earliest", "latest"))
    assert what in str(raised.value)

"""Batches: runs by size, and the message group of all."""

import pytest

from cometmq.core.produce.batching import common_group, split_by_size
from cometmq.model import Message


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ([], []),
        ([10], [(0, 1)]),
        ([4, 4, 4], [(0, 2), (2, 3)]),
        ([20, 4, 4], [(0, 1), (1, 3)]),
        ([4, 20, 4], [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_runs_by_size(sizes: list[int], runs: list[tuple[int, int]]) -> None:
    """A run has at most 10 bytes; an item that alone has more gets a run of its own."""
    assert list(split_by_size(sizes, 10)) == runs


def test_common_group() -> None:
    """Only a group that all messages have."""
    one, other, none = (
        Message("t", b"", message_group="a"),
        Message("t", b"", message_group="b"),
        Message("t", b""),
    )
    assert common_group([one, one]) == "a"
    assert common_group([one, other]) is None
    assert common_group([none, none]) is None

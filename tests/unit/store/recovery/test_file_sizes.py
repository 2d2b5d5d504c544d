"""A store opened with other file sizes than it was made with: refused, with nothing changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.store.stores import Rig

from cometmq.errors import StoreCorrupt
from cometmq.testing.disk import SimDisk


def filled() -> Rig:
    """Two queues of two files each, one index file."""
    rig = Rig(index_slot_count=50, index_entry_count=1_000)
    for n in range(300):
        rig.put("T", n % 2, index_keys=(None, f"k{n}", None))
    rig.tick(2_000)
    rig.store.close()
    return rig


def content(disk: SimDisk, path: str = "/store") -> dict[str, bytes]:
    """All files below a path."""
    found: dict[str, bytes] = {}
    for name in disk.listdir(path):
        below = f"{path}/{name}"
        if disk.is_dir(below):
            found |= content(disk, below)
        else:
            found[below] = disk.read_bytes(below)
    return found


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"consume_queue_file_bytes": 4_000}, "are 2000 bytes long, mappedFileSizeConsumeQueue"),
        ({"consume_queue_file_bytes": 1_000}, "says 1000; set it to the size the store was made"),
        ({"index_slot_count": 60}, "made with maxHashSlotNum=50 and maxIndexNum=1000, the"),
        ({"index_entry_count": 900}, "says 50 and 900; set them to what the store was made with"),
        ({"commit_log_file_bytes": 32_768}, "mappedFileSizeCommitLog says 32768"),
    ],
)
def test_other_sizes_are_refused(changes: dict[str, Any], text: str) -> None:
    """Each of the sizes; with the right ones the store opens as if nothing had been."""
    rig = filled()
    before = content(rig.disk)
    right = rig.config
    rig.config = replace(right, **changes)
    with pytest.raises(StoreCorrupt, match=text):
        rig.open()
    after = content(rig.disk)
    assert {path: after[path] for path in before if path != "/store/lock"} == {
        path: raw for path, raw in before.items() if path != "/store/lock"
    }
    rig.config = right
    rig.open()
    assert len(rig.bodies("T", 0)) == 150
    assert rig.store.query_index("T", "k7", 5).physical_offsets != []


def test_one_cut_queue_file_is_mended_as_before() -> None:
    """A single short file among others, or alone, was cut and is no other size."""
    rig = filled()
    path = "/store/consumequeue/T/0/00000000000000002000"
    rig.disk.open_random(path, 2_000, create=False).resize(900)
    rig.open()
    assert len(rig.bodies("T", 0)) == 150
    alone = Rig()
    alone.put("T")
    alone.tick(2_000)
    alone.store.close()
    alone.disk.open_random(path.replace("2000", "0000"), 2_000, create=False).resize(60)
    alone.open()
    assert len(alone.bodies("T", 0)) == 1

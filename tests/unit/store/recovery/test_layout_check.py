"""Stores of brokers with other queues or another log: refused in words, untouched."""

from __future__ import annotations

import random

import pytest
from tests.unit.store.stores import Rig

from cometmq.errors import StoreError
from cometmq.testing.disk import SimDisk


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("batchconsumequeue/Metrics/0/00000000000000000000", "of topics Metrics, which CometMQ"),
        ("consumequeue/CURRENT", "in a RocksDB database"),
        ("config/topics/CURRENT", r"groups and offsets in a RocksDB database \(below config/"),
        ("dledger-n0/data/00000000000000000000", r"a DLedger commit log \(dledger-n0/\)"),
    ],
)
def test_what_cannot_be_served_is_refused(path: str, text: str) -> None:
    """Nothing but the lock is made."""
    disk = SimDisk(random.Random(1), lambda: 0)
    disk.makedirs(f"/store/{path}".rpartition("/")[0])
    disk.write_atomic(f"/store/{path}", b"x")
    with pytest.raises(StoreError, match=text):
        Rig(disk)
    assert {*disk.listdir("/store")} <= {path.split("/", maxsplit=1)[0], "commitlog", "lock"}
    assert disk.listdir("/store/commitlog") == []


def test_an_empty_folder_of_that_name_is_no_hindrance() -> None:
    """Java makes it with the first such topic only, but one may have been deleted."""
    disk = SimDisk(random.Random(1), lambda: 0)
    disk.makedirs("/store/batchconsumequeue")
    rig = Rig(disk)
    rig.put("T")
    assert len(rig.bodies("T", 0)) == 1

"""Our broker counts and keeps the parts of a Java 5.4.0 store that it does not serve."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.golden.store.java_stores import expectation, unpack

from cometmq.broker import Broker, load_config
from cometmq.core.filter.consumer_filter import decode_filter_file
from cometmq.model.names import HALF_TOPIC, TIMER_TOPIC
from cometmq.net.env import system_environment
from cometmq.store.base.disk import RealDisk

if TYPE_CHECKING:
    from pathlib import Path

# Ours: message stores' own files, and the configuration files we serve.
OURS = ("commitlog/", "consumequeue/", "index/", "checkpoint", "cometmq.", "lock")
FILTER_FILE = "config/consumerFilter.json"
SERVED = (
    *("topics", "subscriptionGroup", "consumerOffset", "delayOffset", "consumerFilter"),
    *("transactionMetrics", "cometmqLoss"),
)


def foreign_files(root: Path) -> dict[str, str]:
    """Return the digests of all files that our broker does not write."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        is_ours = name == "abort" or name.startswith(OURS)
        if path.is_file() and not is_ours and path.name.split(".")[0] not in SERVED:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def broker_on(name: str, root: Path, **settings: Any) -> Broker:
    """Start our broker with the file sizes of the store."""
    conf = expectation(name)["brokerConf"]
    sizes = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum")
    overrides = {
        "timerWheelEnable": False,
        "storePathRootDir": str(root),
        "listenPort": 0,
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "brokerName": conf["brokerName"],
        "fileReservedTime": 1_000_000,
        **{key: conf[key] for key in (*sizes, "maxIndexNum") if key in conf},
        **settings,
    }
    config = load_config(overrides=overrides, environment={}).config
    return Broker(config, system_environment(), RealDisk())


def metric(root: Path, name: str, table: str) -> int:
    """Return the sum over all topics of what the Java broker counted."""
    data = json.loads((root / "config" / name).read_bytes())
    return sum(int(one["count"]) for one in data[table].values())


@pytest.mark.parametrize("name", ["clean", "killed", "expired", "ext", "crc"])
def test_what_waits_is_counted_and_left_alone(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names Java's counts in one line, and a start and a stop change no foreign file."""
    root = unpack(name, tmp_path, with_timer=True)
    timers = metric(root, "timermetrics", "timingCount")
    half_messages = metric(root, "transactionMetrics", "transactionCount")
    if name == "killed":
        half_messages = 4  # that file is written every ten seconds: it missed the last four ends
    filters = decode_filter_file((root / FILTER_FILE).read_bytes())
    before = foreign_files(root)
    assert len(before) > 5

    async def life() -> None:
        broker = broker_on(name, root)
        await broker.start()
        try:
            goods = broker.carried
            assert goods is not None
            halves = broker.transactions.halves
            counts = goods.timers.count, len(halves), broker.filters.count
            assert counts == (timers, half_messages, len(filters))
            first = halves.first()
            places = {
                TIMER_TOPIC: goods.timers.oldest,
                HALF_TOPIC: None if first is None else first.physical_offset,
            }
            for topic, oldest in places.items():
                if oldest is not None:
                    record = broker.state.store.message_at(oldest)
                    assert record is not None
                    assert topic.encode() in bytes(record)
        finally:
            await broker.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(life())
    assert foreign_files(root) == before
    kept = decode_filter_file((root / FILTER_FILE).read_bytes())
    assert [one.text for one in kept] == [one.text for one in filters]
    if name != "killed":
        assert [one.born_ms for one in kept] == [one.born_ms for one in filters]
    said = [record.getMessage() for record in caplog.records if "carrying" in record.getMessage()]
    assert len(said) == (1 if timers else 0)


def test_log_files_under_what_waits_are_kept(tmp_path: Path) -> None:
    """Retention keeps every expired file from the oldest waiting record on."""
    root = unpack("clean", tmp_path, with_timer=True)

    async def life() -> None:
        broker = broker_on("clean", root, fileReservedTime=1)
        await broker.start()
        try:
            goods = broker.carried
            assert goods is not None
            first = broker.transactions.halves.first()
            assert first is not None
            oldest = min(goods.timers.oldest or 0, first.physical_offset)
            assert oldest > 0
            store = broker.state.store
            store._retention.drop_files(100)
            assert store.min_physical_offset <= oldest
            assert store.min_physical_offset + store.config.commit_log_file_bytes > oldest
        finally:
            await broker.stop()

    asyncio.run(life())

"""config/transactionMetrics: open half messages by topic, as RocketMQ's broker keeps them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import Client, running
from tests.unit.broker.transacting import ROLLBACK, end, half

from cometmq.broker import Broker
from cometmq.broker.base.topic_counts import decode_counts
from cometmq.broker.transaction.counts import TRANSACTION_COUNT, TransactionCounts
from cometmq.core.transaction.open_transactions import OpenHalves, half_of
from cometmq.errors import CodecError

Story = Callable[[Broker, Client], Awaitable[None]]
JAVA = (
    b'{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1690000000000},'
    b'"transactionCount":{"T":{"count":2,"timeStamp":1690000000001}}}'
)


def life(path: Path, story: Story) -> dict[str, Any]:
    """What the file says after a broker's life; {} when there is none."""

    async def main() -> None:
        async with running(path) as broker:
            client = await Client(broker.env, broker.address).open()
            try:
                await story(broker, client)
            finally:
                await client.close()

    asyncio.run(main())
    found = list(path.rglob("config/transactionMetrics"))
    return json.loads(found[0].read_bytes()) if found else {}


def test_the_file_holds_what_is_open(tmp_path: Path) -> None:
    """Counts go up and down, survive a restart, and are right whatever the file said."""

    async def nothing(broker: Broker, client: Client) -> None:
        await client.send(b"plain")

    async def three(broker: Broker, client: Client) -> None:
        sent = [await half(client) for _ in range(3)]
        assert (await end(client, sent[0])).code == 0
        assert (await end(client, sent[1], ROLLBACK)).code == 0

    async def one_more(broker: Broker, client: Client) -> None:
        assert broker.transactions.halves.counts == {"t": 1}
        await half(client)

    assert life(tmp_path, nothing) == {}
    said = life(tmp_path, three)
    assert list(said) == ["dataVersion", "transactionCount"]
    assert said["transactionCount"]["t"]["count"] == 1
    assert said["dataVersion"]["counter"] >= 5
    again = life(tmp_path, nothing)
    assert again == said
    more = life(tmp_path, one_more)
    assert more["transactionCount"]["t"]["count"] == 2
    assert more["dataVersion"]["counter"] > said["dataVersion"]["counter"]
    (path,) = tmp_path.rglob("config/transactionMetrics")
    assert json.loads((path.parent / "transactionMetrics.bak").read_bytes()) == said
    path.write_bytes(b'{"transactionCount":{"t":{"count":70,"timeStamp":1},"x":{"count":1}')
    path.with_suffix(".bak").write_bytes(b"{}")
    mended = life(tmp_path, nothing)
    assert mended["transactionCount"] == {
        "t": {"count": 2, "timeStamp": mended["transactionCount"]["t"]["timeStamp"]}
    }


def test_java_s_file_is_read_and_written_alike() -> None:
    """What has not changed keeps its time; what was never open is not named."""
    halves = OpenHalves()
    for place in range(2):
        halves.add(half_of(place, place, 1, b"REAL_TOPIC\x01T\x02PGROUP\x01g\x02"))
    counts = TransactionCounts(
        halves, decode_counts(JAVA, TRANSACTION_COUNT), lambda: 5, lambda topic: True
    )
    assert counts.revision == 0
    assert json.loads(counts.snapshot()())["transactionCount"] == {
        "T": {"count": 2, "timeStamp": 1690000000001}
    }
    first = halves.first()
    assert first is not None
    halves.remove(first)
    assert counts.revision == 1
    raw = counts.snapshot()()
    assert raw == (
        b'{"dataVersion":{"counter":4,"stateVersion":0,"timestamp":5},'
        b'"transactionCount":{"T":{"count":1,"timeStamp":5}}}'
    )


def test_a_deleted_topic_leaves_with_its_last_half_message() -> None:
    """Until then it is counted."""
    halves = OpenHalves()
    counts = TransactionCounts(
        halves, decode_counts(JAVA, TRANSACTION_COUNT), lambda: 5, lambda topic: False
    )
    assert counts.revision == 1, "the file is wrong"
    assert json.loads(counts.snapshot()())["transactionCount"] == {}


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"transactionCount":{"t":{"count":"x"}}}'])
def test_what_is_no_file_is_refused(raw: bytes) -> None:
    """With its name."""
    with pytest.raises(CodecError, match="transactionCount"):
        decode_counts(raw, TRANSACTION_COUNT)

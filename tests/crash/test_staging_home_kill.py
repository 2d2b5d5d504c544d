"""A sink's first batch on two brokers, one of which ends itself by SIGKILL at a named step.

What must hold: whatever is killed, and whether or not the sink's home and its entry at the name
server ever come back, no message is published twice; and when both are back, each is there once.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.stepping import Life, read_queue
from tests.raw_client import RawClient

import cometmq.sync
from cometmq.client.extensions.staging.sync import PublishState, StagedPart, Staging
from cometmq.errors import CometError, ConnectFailed
from cometmq.testing import threaded_cluster
from cometmq.testing.cluster import EmbeddedCluster

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

TOPIC = "T"
QUEUE_COUNT = 2
ROWS = 40
WAIT_S = 60
#: Of an empty batch: it has no slices.
TOLD_STEPS = [
    "before decision",
    "after decision",
    "before done",
    "after done",
    "before ledger file",
    "before answer",
]
HOME_STEPS = [*TOLD_STEPS, "slice announced", "slice appended"]


class Pair:
    """A broker that stays, with the name server, and one that is killed and may come back."""

    def __init__(self, stays: EmbeddedCluster, store: Path, name: str) -> None:
        self.stays = stays
        self.name = name
        self._store = store
        self.life = self._start()

    def _start(self) -> Life:
        settings: dict[str, object] = {
            "brokerName": self.name,
            "namesrvAddr": self.stays.name_server_address,
            "flushDiskType": "SYNC_FLUSH",
        }
        return Life(self._store, "staging.publisher", settings)

    def restart(self) -> None:
        """The killed broker comes back with its store."""
        self.life.close()
        self.life = self._start()
        self.wait_for(2)

    def wait_for(self, count: int) -> None:
        """Until the name server knows so many brokers."""
        deadline_s = time.monotonic() + WAIT_S
        with cometmq.sync.Admin(name_server=self.stays.name_server_address) as admin:
            while len(admin.cluster_info().brokers) != count:
                assert time.monotonic() < deadline_s, f"the name server never knew {count} brokers"
                time.sleep(0.05)

    def staging(self) -> Staging:
        """The sink, as a producer that has just started sees it."""
        return cometmq.sync.Staging(self.stays.name_server_address, "sink", block_bytes=500)

    def seen(self) -> Counter[bytes]:
        """Bodies that readers see on the brokers that are there."""
        addresses = [self.stays.broker_address]
        if not self.life.is_over:
            addresses.append(self.life.address)
        found: Counter[bytes] = Counter()
        for address in addresses:
            with RawClient(address, timeout_s=WAIT_S) as client:
                for queue_id in range(QUEUE_COUNT):
                    found.update(bytes(one.body) for one in read_queue(client, TOPIC, queue_id))
        return found


@contextlib.contextmanager
def two_brokers(path: Path, stays: str, killed: str) -> Iterator[Pair]:
    """Both with two queues of the topic."""
    settings = {"brokerName": stays, "flushDiskType": "SYNC_FLUSH"}
    with threaded_cluster(settings) as running:
        pair = Pair(running, path / killed, killed)
        try:
            pair.wait_for(2)
            with cometmq.sync.Admin(name_server=running.name_server_address) as admin:
                admin.create_topic(TOPIC, queue_count=QUEUE_COUNT)
            yield pair
        finally:
            pair.life.close()


def stage(staging: Staging) -> StagedPart:
    """Batch 0, on both brokers where both are there."""
    part = staging.part(0, "0")
    for row in range(ROWS):
        part.add(TOPIC, b"row %d" % row)
    return part.finish()


def kill_over_first_batch(pair: Pair, step: str) -> None:
    """Publish batch 0 on both brokers; one of them ends at a step of it."""
    with pair.staging() as staging:
        part = stage(staging)
        assert part.tokens.keys() == {"broker-a", "broker-b"}
        pair.life.arm(step, 1)
        with pytest.raises(CometError):
            staging.publish(0, [part])
    pair.life.check_killed()


WHOLE = Counter(b"row %d" % row for row in range(ROWS))


@pytest.mark.parametrize("step", TOLD_STEPS)
def test_a_broker_killed_while_it_is_told_of_home(tmp_path: Path, step: str) -> None:
    """Nothing was decided: the same publish again is the whole batch, once."""
    with two_brokers(tmp_path, "broker-a", "broker-b") as pair:
        kill_over_first_batch(pair, step)
        assert pair.stays.standalone.broker.staging.ledger.sinks == {}
        assert not pair.seen()
        pair.restart()
        with pair.staging() as staging:
            assert staging.last_published() is None
            result = staging.publish(0, [stage(staging)])
        assert result == cometmq.PublishResult(PublishState.PUBLISHED, ROWS)
        assert pair.seen() == WHOLE


@pytest.mark.parametrize("step", HOME_STEPS)
def test_a_home_killed_over_the_first_batch_is_waited_for(tmp_path: Path, step: str) -> None:
    """The name server has forgotten it too: the other broker shows nothing until it is back."""
    with two_brokers(tmp_path, "broker-b", "broker-a") as pair:
        kill_over_first_batch(pair, step)
        pair.wait_for(1)
        with pair.staging() as staging:
            with pytest.raises(ConnectFailed, match="broker-a decides about the batches"):
                staging.publish(0, [stage(staging)])
            assert staging.last_published() is None
        assert not pair.seen()
        pair.restart()
        with pair.staging() as staging:
            result = staging.publish(0, [stage(staging)])
            expected = PublishState.PUBLISHED if step == "before decision" else PublishState.ALREADY
            assert result == cometmq.PublishResult(expected, ROWS)
            assert staging.last_published() == 0
        assert pair.seen() == WHOLE

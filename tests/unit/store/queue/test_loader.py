"""What a power cut leaves behind the end of a queue is cleared."""

import random

from cometmq.codec.consume_queue import CQ_UNIT, CQ_UNIT_BYTES
from cometmq.store.base.config import StoreConfig
from cometmq.store.queue.consume_queue import ConsumeQueues
from cometmq.store.queue.loader import QueueLoader
from cometmq.testing.disk import SimDisk

FOLDER = "/store/consumequeue/t/0"
FILE_BYTES = 20 * CQ_UNIT_BYTES


def test_units_behind_an_empty_one_are_cleared() -> None:
    """A power cut may take the first unit behind the end and leave later ones."""
    disk = SimDisk(random.Random(1), lambda: 0)
    disk.makedirs(FOLDER)
    file = disk.open_random(f"{FOLDER}/{0:020d}", FILE_BYTES, create=True)
    for number in (0, 1, 3, 4):
        file.write(number * CQ_UNIT_BYTES, CQ_UNIT.pack(number * 100 + 1, 100, 0))
    config = StoreConfig(root="/store", consume_queue_file_bytes=FILE_BYTES)
    queues = ConsumeQueues(config, disk)
    loader = QueueLoader(disk, queues, [])
    queue = queues.add("t", 0)
    loader.load_known(queue, 2)
    assert (queue.max, queue.last_physical_end) == (2, 201)
    loader.zero_behind(queue)
    kept = file.read(0, FILE_BYTES)
    assert kept[: 2 * CQ_UNIT_BYTES].count(0) < 2 * CQ_UNIT_BYTES
    assert kept[2 * CQ_UNIT_BYTES :] == bytes(FILE_BYTES - 2 * CQ_UNIT_BYTES)

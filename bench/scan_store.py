"""Measures rows a second of `cometmq.arrow.scan` on one core, over a store that it makes.

    nice .venv/bin/python -m bench.scan_store [--records 1000000] [--rounds 5] [--store DIR]
                                              [--only "topic, 5 columns"]

Records have bodies of 100-200 bytes and four properties and lie in four queues in turn; the targets
are set for such a store.  Prints each round and the median, by the wall clock and by
CPU time, as other programs may share the machine.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from cometmq import native
from cometmq.arrow import ALL_COLUMNS, ScanReport, scan
from cometmq.arrow.columns import slices, timestamps
from cometmq.arrow.decode import _HEAD
from cometmq.arrow.options import parse_options
from cometmq.arrow.store_spans import plan_spans, read_spans
from cometmq.codec.consume_queue import CQ_UNIT
from cometmq.codec.java_hash import tags_code
from cometmq.codec.properties import encode_properties
from cometmq.codec.stored_message import encode_message

QUEUES = 4
FIVE = ["topic", "queueId", "queueOffset", "body", "storeTimestamp"]
HOST = bytes([10, 0, 0, 7, 0, 0, 0x2A, 0x9F])
BATCH_ROWS = 16_384
START_MS = 1_700_000_000_000


def make_store(root: Path, records: int, queues: int = QUEUES) -> None:
    """One log file (at most 2 GiB) and the queues of topic Bench, written in turn."""
    chance = random.Random(5)
    (root / "commitlog").mkdir(parents=True)
    units: list[bytearray] = [bytearray() for _ in range(queues)]
    position = 0
    with (root / "commitlog" / f"{0:020d}").open("wb") as log:
        for number in range(records):
            queue_id = number % queues
            tag = "ABCDE"[number % 5]
            properties = {
                "UNIQ_KEY": f"7F000001006930946E0969A1{number:08X}",
                "KEYS": f"order-{number}",
                "TAGS": tag,
                "CLUSTER": "DefaultCluster",
            }
            record = encode_message(
                "Bench",
                chance.randbytes(chance.randint(100, 200)),
                encode_properties(properties),
                queue_id=queue_id,
                flag=0,
                queue_offset=number // queues,
                physical_offset=position,
                sys_flag=0,
                born_timestamp_ms=START_MS + number,
                born_host=struct.pack(">4BI", 10, 0, 0, number % 8, 50_000),
                store_timestamp_ms=START_MS + number,
                store_host=HOST,
                reconsume_times=0,
                prepared_transaction_offset=0,
            )
            units[queue_id] += CQ_UNIT.pack(position, len(record), tags_code(tag))
            log.write(record)
            position += len(record)
        log.write(bytes(4096))
    for queue_id, raw in enumerate(units):
        folder = root / "consumequeue" / "Bench" / str(queue_id)
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(raw + bytes(-len(raw) % 6_000_000))
    print(f"store of {records:,} records, {position / 1e6:,.0f} MB of log")


def bare(root: Path) -> int:
    """Read four columns of each queue without any check; return the number of rows.

    This is the cost of memory and of the two libraries; the scan's target was derived from it.
    """
    count, made = 0, None
    file = next((root / "commitlog").iterdir())
    with file.open("rb") as log, mmap.mmap(log.fileno(), 0, prot=mmap.PROT_READ) as data:
        buffer = pa.py_buffer(data)
        heads = np.ndarray(
            (len(data) - _HEAD.itemsize,), f"V{_HEAD.itemsize}", buffer, strides=(1,)
        )
        for queue in sorted((root / "consumequeue" / "Bench").iterdir()):
            units = np.fromfile(
                next(queue.iterdir()), [("at", ">i8"), ("size", ">i4"), ("", ">i8")]
            )
            starts = units["at"][units["size"] > 0].astype(np.int64)
            for first in range(0, len(starts), BATCH_ROWS):
                start = starts[first : first + BATCH_ROWS]
                head = heads[start].view(_HEAD)
                body = start + _HEAD.itemsize
                made = slices(buffer, body, body + head["body_bytes"].astype(np.int64), pa.binary())
                pa.array(head["queue_offset"].astype(np.int64))
                timestamps(head["store_ms"].astype(np.int64))
                count += len(made)
        del buffer, heads, made
    return count


def in_parts(root: Path, columns: Sequence[str], *, has_properties: bool = False) -> int:
    """Read like the tasks of Spark's source, which map the log each; return the number of rows."""
    options = parse_options(topic="Bench", columns=columns, include_properties=has_properties)
    return sum(
        batch.num_rows
        for spans in plan_spans(root, options, parts=2, part_bytes_max=128 << 20)
        for batch in read_spans(root, spans, options, ScanReport())
    )


def measure(
    name: str,
    root: Path,
    rounds: int,
    read: Callable[[Path], int] | None = None,
    **options: object,
) -> None:
    """Scan the store several times and drop each batch, or call ``read`` instead."""
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        if read is not None:
            rows = read(root)
        else:
            rows = sum(batch.num_rows for batch in scan(root, **options))  # type: ignore[arg-type]
        walls.append(rows / (time.perf_counter() - wall) / 1e6)
        cpus.append(rows / (time.process_time() - cpu) / 1e6)
    text = " ".join(f"{rate:.2f}" for rate in walls)
    print(
        f"{name:34} median {median(walls):5.2f} M rows/s, best {max(walls):5.2f},"
        f" of its CPU time {median(cpus):5.2f}   rounds: {text}",
        flush=True,
    )


def main() -> None:
    """Make or open a store, then print the rows of the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", type=Path, help="a folder to keep the store in")
    parser.add_argument("--only", help="the name of one row")
    arguments = parser.parse_args()
    # One core: Arrow must not use other threads.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    print(
        f"pyarrow {pa.__version__}, {native.describe()}, load {os.getloadavg()[0]:.1f}"
        f" on {os.cpu_count()} cores"
    )
    with tempfile.TemporaryDirectory() as folder:
        root = arguments.store or Path(folder) / "store"
        if not root.exists():
            make_store(root, arguments.records)
        rounds = arguments.rounds
        rows: dict[str, Callable[[str], None]] = {
            "bare decoder, nothing checked": lambda name: measure(name, root, rounds, bare),
            "topic, 5 columns": lambda name: measure(
                name, root, rounds, topic="Bench", columns=FIVE
            ),
            "topic, 5 columns, in parts": lambda name: measure(
                name, root, rounds, lambda store: in_parts(store, FIVE)
            ),
            "topic, all with properties, in parts": lambda name: measure(
                name, root, rounds, lambda store: in_parts(store, ALL_COLUMNS, has_properties=True)
            ),
            "topic, 1 column": lambda name: measure(
                name, root, rounds, topic="Bench", columns=["queueOffset"]
            ),
            "topic, all without properties": lambda name: measure(
                name, root, rounds, topic="Bench"
            ),
            "topic, all with properties": lambda name: measure(
                name, root, rounds, topic="Bench", columns=ALL_COLUMNS, include_properties=True
            ),
            "topic, 5 columns, CRC checked": lambda name: measure(
                name, root, 1, topic="Bench", columns=FIVE, check_crc=True
            ),
            "log, 5 columns": lambda name: measure(name, root, rounds, columns=FIVE),
            "log, all with properties": lambda name: measure(
                name, root, rounds, include_properties=True
            ),
        }
        for name, run in rows.items():
            if arguments.only is None or name == arguments.only:
                run(name)


if __name__ == "__main__":
    main()

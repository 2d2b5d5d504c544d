"""Measures rows a second of `cometmq.arrow.scan` over a broker, and CPU time of both sides.

    .venv/bin/python -m bench.scan_live [--records 1000000] [--queues 4] [--rounds 3]

The store of bench.scan_store, served by `cometmq up` in a process of its own.  One reader takes
queue after queue.  Before anything is measured, the rows are compared with a scan of the store:
their count and a checksum over every queue offset and body.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import zlib
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from bench.base.processes import start_broker
from bench.bulk_pull import cpu_s
from bench.scan_store import FIVE, make_store
from cometmq.arrow import ALL_COLUMNS, scan

TOPIC = "Bench"


def checksum(reader: Any) -> tuple[int, int, int]:
    """The number of rows, and CRCs of all offsets and of all bodies, independent of batches."""
    rows = offsets_crc = crc = 0
    for batch in reader:
        rows += batch.num_rows
        offsets_crc = zlib.crc32(batch["queueOffset"].to_numpy().tobytes(), offsets_crc)
        body = batch["body"]
        start, end = body.offset, body.offset + len(body)
        places = memoryview(body.buffers()[1]).cast("i")
        crc = zlib.crc32(memoryview(body.buffers()[2])[places[start] : places[end]], crc)
    return rows, offsets_crc, crc


def main() -> None:
    """Measure and print a line for each set of columns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    million = arguments.records / 1e6
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        make_store(root, arguments.records, arguments.queues)
        columns = ["queueOffset", "body"]
        expected = checksum(scan(root, topic=TOPIC, columns=columns))
        with start_broker(root) as server:
            source: dict[str, Any] = {"name_server": server.name_server, "topic": TOPIC}
            assert checksum(scan(**source, columns=columns)) == expected
            print(f"{expected[0]:,} rows, CRC of bodies {expected[2]:08x}: equal to the store's")
            for name, options in (
                ("5 columns", {"columns": FIVE}),
                ("all with properties", {"columns": ALL_COLUMNS, "include_properties": True}),
            ):
                walls, broker, reader = [], [], []
                for _ in range(arguments.rounds):
                    before, own = cpu_s(server.pid), time.process_time()
                    wall = time.perf_counter()
                    rows = sum(batch.num_rows for batch in scan(**source, **options))
                    walls.append(time.perf_counter() - wall)
                    assert rows == arguments.records
                    broker.append(cpu_s(server.pid) - before)
                    reader.append(time.process_time() - own)
                print(
                    f"{name:20} median {million / median(walls):5.2f} M rows/s; seconds of"
                    f" processor a million: broker {median(broker) / million:.2f}, reader"
                    f" {median(reader) / million:.2f}",
                    flush=True,
                )
            load = os.getloadavg()[0]
            print(f"{arguments.queues} queues, load {load:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()

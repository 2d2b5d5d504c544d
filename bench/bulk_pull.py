"""Measures bulk pulls of one reader: records a second, processor time of broker and reader.

    .venv/bin/python -m bench.bulk_pull [--records 1000000] [--queues 4] [--rounds 5] [--mib 4]

The script makes a store of records with bodies of 100-200 bytes and four properties, in queues that
were written in turn.  It serves the store by `cometmq up` in another process and reads every queue
to its end by bulk pulls, one request ahead.  The reader only receives.  One round that is not
measured compares the received records with the store, by count and CRC.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import zlib
from pathlib import Path
from statistics import median

from bench.base.processes import start_broker
from bench.scan_store import make_store
from cometmq.arrow.live import LiveCluster, QueueId
from cometmq.codec.consume_queue import CQ_UNIT
from cometmq.model.flags import PULL_SUBSCRIPTION
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.bulk_pull import BulkPullCode, BulkPullHeader, BulkPullResponseHeader

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TOPIC = "Bench"


def cpu_s(pid: int) -> float:
    """User and system time of a process, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def read_queue(
    live: LiveCluster, queue: QueueId, end: int, max_bytes: int, crc: int | None
) -> tuple[int, int, int | None]:
    """The number of a queue's records, their bytes and, if ``crc`` is not None, their CRC."""
    channel = live.take_channel(live.address(queue))
    here = count = byte_count = 0

    def ask() -> int:
        header = BulkPullHeader(
            live.group, TOPIC, queue.queue_id, here, 1 << 20, PULL_SUBSCRIPTION, 0, 0, "*", 0,
            "TAG", max_bytes, with_sizes=True,
        )  # fmt: skip
        command = RemotingCommand.request(BulkPullCode.BULK_PULL, header.to_ext())
        (opaque,) = channel.post([command], live.timeout_ms)
        return opaque

    opaque = ask()
    while here < end:
        answer, body = channel.take(opaque, live.timeout_ms)
        assert answer.code == 0, answer.remark
        header = BulkPullResponseHeader.from_command(answer)
        here = header.next_begin_offset
        if here < end:
            opaque = ask()
        skip = header.sizes_bytes or 0
        count += header.msg_count if header.msg_count is not None else 0
        byte_count += len(body) - skip
        if crc is not None:
            crc = zlib.crc32(body[skip:], crc)
    live.give_channel(channel)
    return count, byte_count, crc


def checksum(root: Path, queue_id: int) -> int:
    """The CRC of a queue's records in the store's files."""
    log = (root / "commitlog" / f"{0:020d}").read_bytes()
    raw = (root / "consumequeue" / TOPIC / str(queue_id) / f"{0:020d}").read_bytes()
    crc = 0
    for position, size, _ in CQ_UNIT.iter_unpack(raw):
        if not size:
            break
        crc = zlib.crc32(log[position : position + size], crc)
    return crc


def main() -> None:
    """Print a line for each round, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=float, default=4.0, help="bytes of an answer, in MiB")
    arguments = parser.parse_args()
    max_bytes = int(arguments.mib * (1 << 20))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        make_store(root, arguments.records, arguments.queues)
        checksums = [checksum(root, queue_id) for queue_id in range(arguments.queues)]
        with start_broker(root) as server, LiveCluster(server.name_server) as live:
            bounds = live.bounds(live.queues(TOPIC)[: arguments.queues])
            assert sum(end for _, end in bounds.values()) == arguments.records
            for queue, (_, end) in bounds.items():
                _, _, crc = read_queue(live, queue, end, max_bytes, 0)
                assert crc == checksums[queue.queue_id], f"{queue} came differently"
            print("every byte compared with the store: equal")
            rates, broker_s, reader_s = [], [], []
            for _ in range(arguments.rounds):
                before, own, wall = cpu_s(server.pid), time.process_time(), time.perf_counter()
                parts = [
                    read_queue(live, q, end, max_bytes, None) for q, (_, end) in bounds.items()
                ]
                wall = time.perf_counter() - wall
                rates.append(arguments.records / wall / 1e6)
                broker_s.append((cpu_s(server.pid) - before) / arguments.records * 1e6)
                reader_s.append((time.process_time() - own) / arguments.records * 1e6)
                byte_count = sum(part[1] for part in parts)
                print(
                    f"{rates[-1]:5.2f} M records/s, {byte_count / wall / 1e6:6.0f} MB/s; seconds of"
                    f" processor a million: broker {broker_s[-1]:.2f}, reader {reader_s[-1]:.2f}",
                    flush=True,
                )
            print(
                f"median {median(rates):.2f} M records/s, broker {median(broker_s):.2f} s, reader"
                f" {median(reader_s):.2f} s; {arguments.queues} queues, answers of"
                f" {arguments.mib:g} MiB, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
            )


if __name__ == "__main__":
    main()

"""Measures how fast batches are staged and published, and the delay of sends to the same queues.

    .venv/bin/python -m bench.staging [--rows 200000] [--flush SYNC_FLUSH] [--rounds 3]

There are one broker process, one staging client in this process, and one thread that sends messages
one after the other to the same topic during the whole run. Bodies have 120 bytes, with one tag and
one key. Processor times are those of the broker; the load of the machine stands beside them.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import cometmq.sync

TOPIC = "StagingBench"
BODY = bytes(120)


class Broker:
    """A process of `cometmq up` on a folder."""

    def __init__(self, folder: Path, flush: str) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "cometmq", "-q", "up", "--store", str(folder)),
                *("--name-server-port", "0", "--broker-port", "0"),
                *("--set", f"flushDiskType={flush}"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        ready = re.search(r"name server (\S+),", self.process.stdout.readline())
        assert ready is not None, "the broker did not start"
        self.name_server = ready[1]

    def cpu_s(self) -> float:
        """The process's CPU seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(timeout=30)


class Sender(threading.Thread):
    """Sends messages one after the other and notes the time of each in ms, by phase."""

    def __init__(self, name_server: str) -> None:
        super().__init__(daemon=True)
        self.phase = "idle"
        self.took_ms: dict[str, list[float]] = {"idle": [], "staging": [], "publishing": []}
        self._name_server = name_server
        self._is_over = threading.Event()

    def run(self) -> None:
        """Send until `stop`."""
        with cometmq.sync.Producer("bench", name_server=self._name_server) as producer:
            while not self._is_over.is_set():
                phase, begun = self.phase, time.perf_counter()
                producer.send(cometmq.Message(TOPIC, BODY))
                self.took_ms[phase].append((time.perf_counter() - begun) * 1000)

    def stop(self) -> None:
        """Tell the thread to end."""
        self._is_over.set()
        self.join()


def one_round(broker: Broker, sender: Sender, batch_id: int, rows: int) -> None:
    """Stage a batch, publish it, print the time of both."""
    with cometmq.sync.Staging(broker.name_server, "bench") as staging:
        sender.phase = "staging"
        cpu_s, begun = broker.cpu_s(), time.perf_counter()
        part = staging.part(batch_id, "0")
        for row in range(rows):
            part.add(TOPIC, BODY, tags="tag", keys=str(row))
        staged = part.finish()
        staged_s, staged_cpu_s = time.perf_counter() - begun, broker.cpu_s() - cpu_s
        sender.phase = "publishing"
        cpu_s, begun = broker.cpu_s(), time.perf_counter()
        staging.publish(batch_id, [staged])
        published_s, published_cpu_s = time.perf_counter() - begun, broker.cpu_s() - cpu_s
        sender.phase = "idle"
    print(
        f"  staged {rows / staged_s:>9,.0f} rows/s"
        f" (broker: {staged_cpu_s * 1e6 / rows:.2f} us of processor time per row),"
        f" published {rows / published_s:>9,.0f} rows/s ({published_cpu_s * 1e6 / rows:.2f} us)",
        flush=True,
    )


def run(flush: str, rows: int, rounds: int) -> None:
    """Run all rounds with one flush mode."""
    with tempfile.TemporaryDirectory(prefix="cometmq-staging-") as folder:
        broker = Broker(Path(folder), flush)
        try:
            with cometmq.sync.Admin(name_server=broker.name_server) as admin:
                admin.create_topic(TOPIC, queue_count=8)
            sender = Sender(broker.name_server)
            sender.start()
            time.sleep(2)
            load = os.getloadavg()[0]
            print(f"{flush}, {rows:,} rows a batch, load {load:.1f} on {os.cpu_count()} cores")
            for batch_id in range(rounds):
                one_round(broker, sender, batch_id, rows)
                time.sleep(0.5)
            sender.stop()
            for phase, took_ms in sender.took_ms.items():
                if len(took_ms) < 2:
                    continue
                cuts = statistics.quantiles(took_ms, n=100)
                print(
                    f"  a send while {phase:10}: median {cuts[49]:6.2f} ms, p99 {cuts[98]:6.2f} ms,"
                    f" longest {max(took_ms):6.1f} ms, {len(took_ms)} sends"
                )
        finally:
            broker.stop()


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flush", choices=["SYNC_FLUSH", "ASYNC_FLUSH"])
    given = parser.parse_args()
    for flush in [given.flush] if given.flush else ["ASYNC_FLUSH", "SYNC_FLUSH"]:
        run(flush, given.rows, given.rounds)


if __name__ == "__main__":
    main()

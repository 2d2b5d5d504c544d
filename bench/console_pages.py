"""How long the console's pages take with 1,000 topics and 2,500 groups.

    python -m bench.console_pages

Name server, broker and console run in this process, so that the times include what each of them
does for a page.  A page is asked for seven times over a kept connection.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from typing import Final

import httpx

import cometmq.sync
from cometmq.console.server import ConsoleServer
from cometmq.console.settings import ConsoleSettings
from cometmq.model import MessageQueue, SubscriptionGroupConfig
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

TOPICS: Final = 1_000
GROUPS: Final = 2_500
REPEATS: Final = 7
PATHS: Final = (
    "/",
    "/topics",
    "/topics?page=20",
    "/groups",
    "/groups?page=50",
    "/groups?q=group02",
    "/clients",
    "/topics/Topic00007",
    "/groups/group00007",
)


def fill(cluster: EmbeddedCluster) -> None:
    """Make topics, groups, and offsets in two queues for each group."""
    with cometmq.sync.Admin(name_server=cluster.name_server_address) as admin:
        for number in range(TOPICS):
            admin.create_topic(f"Topic{number:05}", queue_count=4)
        for number in range(GROUPS):
            group = f"group{number:05}"
            topic = f"Topic{number % TOPICS:05}"
            admin.create_group(SubscriptionGroupConfig(group))
            admin.commit_offsets(
                group, {MessageQueue(topic, "broker-a", queue_id): 0 for queue_id in range(2)}
            )


def measure(address: str) -> None:
    """Print the times of each page."""
    with httpx.Client(base_url=address, timeout=60) as client:
        for path in PATHS:
            times_ms: list[float] = []
            size = 0
            for _ in range(REPEATS):
                begun = time.perf_counter()
                size = len(client.get(path).raise_for_status().content)
                times_ms.append((time.perf_counter() - begun) * 1000)
            print(
                f"{path:20} median {statistics.median(times_ms):6.1f} ms,"
                f" slowest {max(times_ms):6.1f} ms, {size:,} bytes"
            )


def main() -> None:
    """Fill a cluster, and ask its console for pages."""
    with threaded_cluster({}) as cluster:
        fill(cluster)

        async def serve() -> None:
            server = ConsoleServer(ConsoleSettings(cluster.name_server_address), "127.0.0.1", 0)
            await server.start()
            addresses.append(server.address)
            started.set()
            await asyncio.to_thread(done.wait)
            await server.stop()

        addresses: list[str] = []
        started, done = threading.Event(), threading.Event()
        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        started.wait()
        try:
            measure(addresses[0])
        finally:
            done.set()
            thread.join()


if __name__ == "__main__":
    main()

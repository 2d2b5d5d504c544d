"""What the Spark tests share: a cluster to read from and write to, and where messages come from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import StreamingQueryException

from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.sync import Admin, Producer

_NUMBERS = itertools.count()
QUERY_S = 200
STARTS_MAX = 4


def run_query(start: Callable[[], Any]) -> None:
    """Start a query and wait for its end.

    Spark gives the process of a streaming source 10 s to connect, and no setting changes that.  On
    a busy machine a query may end for this reason before it has read anything: it starts again
    from its checkpoint, as `cometmq.spark.pipelines.base.following` starts one again.
    """
    for number in range(1, STARTS_MAX + 1):
        query = start()
        try:
            assert query.awaitTermination(QUERY_S)
            return
        except StreamingQueryException as error:
            is_slow_start = "Python worker failed to connect back" in str(error)
            if number == STARTS_MAX or not is_slow_start:
                raise


def new_topic(prefix: str = "Topic") -> str:
    """A name no other test has; names with one prefix sort as they were made."""
    return f"{prefix}{next(_NUMBERS):05}"


@dataclass
class Cluster:
    """A running name server and broker: `name_server`, the store's root, and how to fill topics."""

    name_server: str
    store_path: str
    broker_address: str
    broker_name: str = "broker-a"
    _producer: list[Producer] = field(default_factory=list)

    def create(self, queues: int = 4, prefix: str = "Topic") -> str:
        """A new topic with this many queues."""
        topic = new_topic(prefix)
        with Admin(name_server=self.name_server) as admin:
            admin.create_topic(topic, queue_count=queues)
        return topic

    def send(
        self,
        topic: str,
        bodies: Iterable[bytes | str],
        *,
        queues: int = 4,
        tags: str | None = None,
        keys: str | None = None,
        properties: dict[str, str] | None = None,
    ) -> int:
        """Send bodies to the queues in turn, a batch per queue; how many went out."""
        by_queue: dict[int, list[Message]] = {}
        count = 0
        for number, body in enumerate(bodies):
            data = body.encode() if isinstance(body, str) else body
            message = Message(
                topic, data, tags=tags, keys=keys or "", properties=dict(properties or {})
            )
            by_queue.setdefault(number % queues, []).append(message)
            count += 1
        for queue_id, messages in by_queue.items():
            for first in range(0, len(messages), 1000):
                self.producer.send_batch(
                    messages[first : first + 1000],
                    queue=MessageQueue(topic, self.broker_name, queue_id),
                )
        return count

    def send_json(self, topic: str, rows: Iterable[object], *, queues: int = 4) -> int:
        """The same with rows written as JSON."""
        return self.send(topic, (json.dumps(row) for row in rows), queues=queues)

    @property
    def producer(self) -> Producer:
        """One producer for all tests."""
        if not self._producer:
            producer = Producer("spark-tests", name_server=self.name_server)
            producer.start()
            self._producer.append(producer)
        return self._producer[0]

    def close(self) -> None:
        """End the producer."""
        for producer in self._producer:
            producer.shutdown()
        self._producer.clear()

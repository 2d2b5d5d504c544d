"""The live source with points at which a process is killed, for the kill tests; workers import it.

A fault is a file in the folder that COMETMQ_FAULTS names: its name is the place, its content JSON
with the batch, what dies, and the process ids that die.  It is renamed before it strikes, so it
strikes once, and the test sees that it did.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from cometmq.client.extensions.staging import calls as staging_calls
from cometmq.spark.live.sink import StreamSink, stream_writer
from cometmq.spark.live.source import LiveSource

PLACES = ("before-staging", "after-staging", "before-publish", "inside-publish", "after-publish")


def arm(folder: Path, place: str, batch_id: int, what: str, pid: int | None = None) -> Path:
    """Prepare a fault; the file that will say it struck."""
    fault = folder / place
    fault.write_text(json.dumps({"batch": batch_id, "what": what, "pid": pid}), encoding="utf-8")
    return folder / f"{place}.hit"


def reach(place: str, batch_id: int) -> None:
    """Die here, or let somebody else, if a fault says so."""
    fault = Path(os.environ["COMETMQ_FAULTS"]) / place
    try:
        plan = json.loads(fault.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    if plan["batch"] != batch_id:
        return
    try:
        fault.rename(fault.with_name(f"{place}.hit"))
    except FileNotFoundError:
        # Another task was first.
        return
    if plan["what"] == "broker":
        psutil.Process(plan["pid"]).kill()
        return
    if plan["what"] != "worker":
        # The JVM above this worker: the driver's, or an executor's.
        for parent in psutil.Process().parents():
            if "java" in parent.name():
                parent.kill()
                break
    os.kill(os.getpid(), signal.SIGKILL)


class FaultySink(StreamSink):
    """The sink, with its places."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage one task's rows."""
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        batch_id = int(task.getLocalProperty("streaming.sql.batchId") or -1)
        reach("before-staging", batch_id)
        message = super().write(iterator)
        reach("after-staging", batch_id)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish."""
        reach("before-publish", batchId)
        publish_at = staging_calls.StagingCalls._publish_at

        async def publish_and_reach(
            calls: Any, address: str, batch_id: int, body: Any, prepare: bool = False
        ) -> str:
            status = await publish_at(calls, address, batch_id, body, prepare)
            if not prepare:
                reach("inside-publish", batch_id)
            return status

        staging_calls.StagingCalls._publish_at = publish_and_reach  # type: ignore[method-assign,assignment]
        try:
            super().commit(messages, batchId)
        finally:
            staging_calls.StagingCalls._publish_at = publish_at  # type: ignore[method-assign,assignment]
        reach("after-publish", batchId)


class FaultySource(LiveSource):
    """`format("cometmq-faulty")`."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "cometmq-faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """The sink, with its places."""
        made = stream_writer(self.options, schema, overwrite=overwrite)
        made.__class__ = FaultySink
        return made

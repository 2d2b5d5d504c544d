"""`df.write.format("cometmq")` and `df.writeStream.format("cometmq")`.

Tasks stage their rows where no consumer sees them; the driver publishes a batch by sink and batch
id.

Streams are exactly once: the brokers' ledgers hold the last published batch of a sink, so a batch
that Spark repeats after a crash is not published again.  A publish is atomic on each broker; on
several brokers it is complete after the replay, not at one instant.  To brokers that cannot stage
(RocketMQ's own) tasks send rows as they read them: at least once, with a warning in the log.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from cometmq.client.extensions.staging.sync import PublishResult, PublishState, StagedPart, Staging
from cometmq.errors import (
    BrokerBusy,
    CometError,
    ConfigError,
    ConnectFailed,
    RequestTimeout,
    ServiceNotAvailable,
)
from cometmq.spark.live.sink_options import SinkOptions
from cometmq.spark.live.sink_rows import rows_of, send_plainly, stage_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from cometmq.spark.live.options import ConnectionOptions

__all__ = ["BatchSink", "SentTask", "StagedTask", "StreamSink", "batch_writer", "stream_writer"]

_LOGGER: Final = logging.getLogger(__name__)
_PAUSE_S: Final = 0.5
#: The batch id of a named batch write in the ledgers.  Before the first decision about a batch
#: above 0, every broker learns which broker decides.
_JOB_BATCH: Final = 1
_PASSING: Final = (ConnectFailed, RequestTimeout, BrokerBusy, ServiceNotAvailable)
_STAGING_CLUSTERS: Final[set[ConnectionOptions]] = set()
_AT_LEAST_ONCE: Final = (
    "the brokers of %s cannot stage batches: rows are sent as tasks read them, at least once;"
    " a task or batch that runs again sends its rows again"
)


@dataclass(frozen=True)
class StagedTask(WriterCommitMessage):
    """The rows that a task has staged, and its query (empty for a batch write)."""

    part: StagedPart
    owner: str = ""


@dataclass(frozen=True)
class SentTask(WriterCommitMessage):
    """The number of rows that a task has sent; consumers see them already."""

    rows: int


def batch_writer(
    named_options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> BatchSink:
    """The writer of one `save()`, created on the driver's host before any row is read.

    Raises:
        ConfigError: an option or a column is wrong.
        ClientError: the name server or a broker does not answer.
    """
    options = SinkOptions.parse(named_options, schema, is_stream=False, overwrite=overwrite)
    if options.sink is None:
        options = replace(options, sink=f"save-{uuid.uuid4().hex}")
    return BatchSink(options, can_stage=_can_stage(options.connection))


def stream_writer(
    named_options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> StreamSink:
    """A query's writer; Spark creates one for the tasks and one for each commit.

    Raises:
        ConfigError: an option or a column is wrong.
    """
    options = SinkOptions.parse(named_options, schema, is_stream=True, overwrite=overwrite)
    try:
        can_stage = _can_stage(options.connection)
    except _PASSING:
        # A broker that is down between two micro-batches must not end the query here: tasks and
        # the publish report what they meet, and the publish waits for the broker.
        can_stage = True
    return StreamSink(options, can_stage=can_stage)


class BatchSink(DataSourceArrowWriter):
    """The writer of one batch write: the only batch of its sink or of the user's job."""

    def __init__(self, options: SinkOptions, *, can_stage: bool) -> None:
        self._options = options
        self._can_stage = can_stage
        self._batch_id = _JOB_BATCH if options.is_named else 0

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage one task's rows."""
        sink = self._options.sink or ""
        return _write(iterator, self._options, sink, self._batch_id, self._can_stage)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows of all tasks.

        Raises:
            ClientError, RemoteError: a broker does not answer in time or refuses.
        """
        parts = _parts(messages)
        if not parts:
            return
        result = _publish(self._options, self._options.sink or "", self._batch_id, parts)
        if result.status is PublishState.ALREADY:
            _LOGGER.warning("job %s was published before: nothing was written", self._options.sink)
        if not self._options.is_named:
            # No later write uses this name.
            _quietly("forget", lambda staging: staging.forget(), self._options, parts[0].sink)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the staged rows."""
        _drop(self._options, _parts(messages))


class StreamSink(DataSourceStreamArrowWriter):
    """The writer of a streaming query."""

    def __init__(self, options: SinkOptions, *, can_stage: bool) -> None:
        self._options = options
        self._can_stage = can_stage

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage one task's rows of one micro-batch.

        Raises:
            ConfigError: a row has no body or topic, or PySpark is too old.
            ClientError, RemoteError: a broker does not answer in time or refuses.
        """
        task = TaskContext.get()
        assert task is not None
        batch_id = task.getLocalProperty("streaming.sql.batchId")
        query_id = task.getLocalProperty("sql.streaming.queryId")
        if batch_id is None or query_id is None:
            raise ConfigError(
                "tasks of this Spark do not know their micro-batch: use PySpark 4.2 or later"
            )
        sink, owner = self._options.sink or query_id, f"query {query_id}"
        return _write(iterator, self._options, sink, int(batch_id), self._can_stage, owner)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the micro-batch, unless it was published before a crash.

        Raises:
            ConfigError: the ledger has a later batch, so the checkpoint is an old copy.
            ClientError, RemoteError: a broker does not answer in time or refuses.
        """
        parts = _parts(messages)
        if not any(part.rows for part in parts):
            # An empty batch leaves no trace; its repetition is empty too.
            return
        sink = parts[0].sink
        owner = next(message.owner for message in messages if isinstance(message, StagedTask))
        result = _publish(self._options, sink, batchId, parts, owner)
        if result.status is PublishState.ALREADY:
            _check_ledger(self._options, sink, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Drop the staged rows."""
        _drop(self._options, _parts(messages))


def _can_stage(connection: ConnectionOptions) -> bool:
    """Whether every broker can stage; asked once per process."""
    if connection in _STAGING_CLUSTERS:
        return True
    with _staging(connection, "cometmq-probe") as staging:
        if staging.is_supported():
            _STAGING_CLUSTERS.add(connection)
            return True
    _LOGGER.warning(_AT_LEAST_ONCE, connection.name_server)
    return False


def _staging(connection: ConnectionOptions, sink: str, owner: str = "") -> Staging:
    return Staging(
        connection.name_server,
        sink,
        owner=owner,
        timeout_ms=connection.timeout_ms,
        **connection.security.arguments(),
    )


def _write(
    iterator: Iterator[Any],
    options: SinkOptions,
    sink: str,
    batch_id: int,
    can_stage: bool,
    owner: str = "",
) -> WriterCommitMessage:
    if not can_stage:
        from cometmq.sync import Producer

        connection = options.connection
        with Producer(
            "cometmq-spark-sink",
            name_server=connection.name_server,
            **connection.security.arguments(),
        ) as producer:
            return SentTask(send_plainly(producer, rows_of(iterator, options)))
    task = TaskContext.get()
    number = task.partitionId() if task is not None else 0
    with _staging(options.connection, sink, owner) as staging:
        part = staging.part(batch_id, str(number))
        try:
            stage_rows(part, iterator, options)
            return StagedTask(part.finish(), owner)
        except Exception:
            _drop(options, [part.staged()])
            raise


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    """The staged parts; a failed task has no message, and a task that sent its rows has no part."""
    return [message.part for message in messages if isinstance(message, StagedTask)]


def _publish(
    options: SinkOptions, sink: str, batch_id: int, parts: Sequence[StagedPart], owner: str = ""
) -> PublishResult:
    """Publish, and repeat while a broker does not answer; the ledger makes that harmless."""
    deadline_s = time.monotonic() + options.connection.retry_ms / 1000
    while True:
        try:
            with _staging(options.connection, sink, owner) as staging:
                return staging.publish(batch_id, parts)
        except _PASSING:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(_PAUSE_S)


def _check_ledger(options: SinkOptions, sink: str, batch_id: int) -> None:
    """Check that an already published batch is the last one; a later one is another stream's."""
    with _staging(options.connection, sink) as staging:
        last = staging.last_published()
    if last is not None and last > batch_id:
        raise ConfigError(
            f"sink {sink!r} has published batch {last} already, and this query is at batch"
            f" {batch_id}: its checkpoint is an old copy. Nothing was written; choose another"
            f" sinkId, or start over with: cometmq staged forget {sink}"
        )


def _drop(options: SinkOptions, parts: Sequence[StagedPart]) -> None:
    if parts:
        _quietly("drop", lambda staging: staging.drop(parts), options, parts[0].sink)


def _quietly(step: str, call: Any, options: SinkOptions, sink: str) -> None:
    """Clean up; if it fails, the brokers collect the rows after a time."""
    try:
        with _staging(options.connection, sink) as staging:
            call(staging)
    except CometError as error:
        _LOGGER.info("%s of sink %s did not succeed: %s", step, sink, error)

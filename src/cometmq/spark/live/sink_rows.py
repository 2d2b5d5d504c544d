"""Record batches as messages: staged, or sent to brokers that cannot stage.

Bodies, tags and keys for one topic are encoded column by column, in blocks that go to the topic's
queues in turn.  Columns that need a decision per row (topic, group, queue, properties) are
processed row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.base.transport import run_inline
from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cometmq.client.extensions.staging.sync import BlockingPartWriter
    from cometmq.model import MessageQueue
    from cometmq.model.message import Message
    from cometmq.spark.live.sink_options import SinkOptions
    from cometmq.sync import Producer

__all__ = ["SinkRow", "rows_of", "send_plainly", "stage_rows"]

_BATCH_MESSAGES: Final = 1000
#: Fewer rows go to the queues one by one: they make too few blocks for an even spread.
_BLOCK_ROWS_MIN: Final = 2000
_BY_COLUMN: Final = frozenset({"body", "tags", "keys"})


@dataclass(slots=True)
class SinkRow:
    """The columns of one message."""

    topic: str
    body: bytes
    tags: str | None
    keys: tuple[str, ...] | str | None
    properties: Mapping[str, str] | None
    message_group: str | None
    queue_id: int | None
    deliver_time_ms: int | None


def stage_rows(part: BlockingPartWriter, batches: Iterator[Any], options: SinkOptions) -> None:
    """Stage the rows of a task.

    Raises:
        ConfigError: a row has no body or no topic; the text names it.
        CometError: see `BlockingPartWriter.add`.
    """
    done = 0
    for batch in batches:
        if not _stage_columns(part, batch, options):
            for row in rows_of(iter((batch,)), options, done):
                part.add(
                    row.topic,
                    row.body,
                    tags=row.tags,
                    keys=row.keys,
                    properties=row.properties,
                    message_group=row.message_group,
                    queue_id=row.queue_id,
                    deliver_time_ms=row.deliver_time_ms,
                )
        done += batch.num_rows


def _stage_columns(part: BlockingPartWriter, batch: Any, options: SinkOptions) -> bool:
    """Stage a batch by columns; False, with nothing staged, if rows need decisions."""
    if (
        options.topic is None
        or batch.num_rows < _BLOCK_ROWS_MIN
        or not _BY_COLUMN.issuperset(set(options.columns) - {"topic"})
    ):
        return False
    import pyarrow as pa

    from cometmq.arrow.encode import encode_rows

    texts = {
        name: batch.column(name).cast(pa.string())
        for name in ("tags", "keys")
        if name in options.columns and pa.types.is_string(batch.column(name).type)
    }
    if len(texts) < len(_BY_COLUMN.intersection(options.columns)) - 1:
        # Lists of keys are joined row by row.
        return False
    core = part.core
    blocks = encode_rows(
        batch.column("body").cast(pa.binary()),
        core.new_ids(batch.num_rows),
        message_bytes_max=core.message_bytes_max,
        block_bytes=core.block_bytes,
        **texts,
    )
    if blocks is None:
        return False
    for data, rows in blocks:
        run_inline(core.add_block(options.topic, data, rows))
    return True


def rows_of(batches: Iterator[Any], options: SinkOptions, done: int = 0) -> Iterator[SinkRow]:
    """The rows of a task after the first `done` rows.

    Raises:
        ConfigError: a row has no body or no topic; the text names it.
    """
    for batch in batches:
        count = batch.num_rows
        columns = {name: _values(batch.column(name), name) for name in options.columns}
        nulls = [None] * count
        topics = [options.topic] * count if options.topic is not None else columns["topic"]
        lists = (
            topics,
            columns["body"],
            *(
                columns.get(name, nulls)
                for name in (
                    "tags",
                    "keys",
                    "properties",
                    "messageGroup",
                    "queueId",
                    "deliverTime",
                )
            ),
        )
        for number, values in enumerate(zip(*lists, strict=True)):
            if values[0] is None or values[1] is None:
                missing = "topic" if values[0] is None else "body"
                raise ConfigError(
                    f"row {done + number} of this partition has no {missing}: filter such rows out"
                )
            yield SinkRow(*values)
        done += count


def _values(column: Any, name: str) -> list[Any]:
    """One column as Python values."""
    import pyarrow as pa

    if name == "deliverTime" and pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
    if name == "body" and not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    values: list[Any] = column.to_pylist()
    if name == "properties":
        return [None if value is None else dict(value) for value in values]
    if name == "keys" and pa.types.is_list(column.type):
        return [None if value is None else tuple(value) for value in values]
    if name == "keys":
        return [None if value is None else tuple(value.split()) for value in values]
    return values


def send_plainly(producer: Producer, rows: Iterator[SinkRow]) -> int:
    """Send rows in batches and return their number; consumers see each row at once.

    The rows that a failed task has sent stay, and its next try sends them again.

    Raises:
        ConfigError: a topic has no such queue.
        CometError: a send failed.
    """
    waiting: dict[tuple[str, str | None, int | None], list[Message]] = {}
    count = 0
    for row in rows:
        key = (row.topic, row.message_group, row.queue_id)
        count += 1
        if row.deliver_time_ms is not None:
            # A batch message cannot be delayed.
            producer.send(_message(row), queue=_queue(producer, row.topic, row.queue_id))
            continue
        messages = waiting.setdefault(key, [])
        messages.append(_message(row))
        if len(messages) >= _BATCH_MESSAGES:
            _send(producer, key, waiting.pop(key))
    for key, messages in waiting.items():
        _send(producer, key, messages)
    return count


def _message(row: SinkRow) -> Message:
    from cometmq.model.message import Message

    return Message(
        row.topic,
        row.body,
        tags=row.tags,
        keys=row.keys or (),
        properties=row.properties or {},
        message_group=row.message_group,
        deliver_time_ms=row.deliver_time_ms,
    )


def _send(
    producer: Producer, key: tuple[str, str | None, int | None], messages: list[Message]
) -> None:
    topic, _, queue_id = key
    producer.send_batch(messages, queue=_queue(producer, topic, queue_id))


def _queue(producer: Producer, topic: str, queue_id: int | None) -> MessageQueue | None:
    if queue_id is None:
        return None
    queues = producer.fetch_publish_queues(topic)
    queue = next((item for item in queues if item.queue_id == queue_id), None)
    if queue is None:
        raise ConfigError(f"topic {topic!r} has no queue {queue_id} to write to")
    return queue

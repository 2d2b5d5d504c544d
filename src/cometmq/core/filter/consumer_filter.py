"""A consumer group's filter of one topic, and the format of the file with all filters of a broker.

The module encodes ``config/consumerFilter.json`` byte for byte as fastjson does, and decodes it.
It touches no files; `filter_table` decides which filters are registered.

::

    {
    <tab>"filterDataByTopic":{
    ... "TopicA":{ "groupFilterData":{ "GroupA":{...} }, "topic":"TopicA" }

The keys of a filter are in alphabetical order.  ``dead`` follows from the other fields and is
written for Java's reader only.  Topics and groups keep the order of the file.  Source:
ConsumerFilterManager and ConsumerFilterData of RocketMQ 5.4, and a file that its broker wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from cometmq.core.filter.bloom_filter import BloomKey
from cometmq.core.filter.sql92.expression import Expression, compile_expression
from cometmq.errors import CodecError, ExpressionIllegal
from cometmq.wire.body.fields import (
    int_field,
    list_field,
    object_field,
    optional_str_field,
    str_field,
)
from cometmq.wire.command.command import encode_json_text
from cometmq.wire.command.fastjson import loads_object

__all__ = ["ConsumerFilter", "decode_filter_file", "encode_filter", "encode_filter_file"]

_FILE: Final = "consumerFilter.json"


@dataclass(slots=True)
class ConsumerFilter:
    """The filter of one group for one topic; times are epoch milliseconds by the broker's clock."""

    topic: str
    group: str
    text: str
    expression_type: str
    client_version: int
    """The subscription's version: the newer one counts."""
    born_ms: int
    """Bitmaps of messages stored at this time or before say nothing about this filter."""
    dead_ms: int = 0
    """When the last consumer went; 0 while there is one."""
    key: BloomKey | None = None
    expression: Expression | None = field(default=None, compare=False)
    """None where a file's filter is not one here: Java's broker takes text behind the end."""

    @property
    def is_dead(self) -> bool:
        """Whether the group has no consumer with this filter any more."""
        return self.dead_ms >= self.born_ms

    def was_live_at(self, store_time_ms: int) -> bool:
        """Whether the bitmap of a message stored then was made with this filter."""
        return store_time_ms > self.born_ms


def encode_filter_file(filters: Iterable[ConsumerFilter]) -> bytes:
    """The file's text."""
    topics: dict[str, dict[str, Any]] = {}
    for one in filters:
        entry = topics.setdefault(one.topic, {"groupFilterData": {}, "topic": one.topic})
        entry["groupFilterData"][one.group] = _filter_to_json(one)
    return _pretty({"filterDataByTopic": topics}, 0).encode()


def encode_filter(entry: ConsumerFilter) -> str:
    """One filter's text, as in the file."""
    return _pretty(_filter_to_json(entry), 0)


def _filter_to_json(entry: ConsumerFilter) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if entry.key is not None:
        positions = list(entry.key.positions)
        data["bloomFilterData"] = {"bitNum": entry.key.bit_count, "bitPos": positions}
    return data | {
        "bornTime": entry.born_ms,
        "clientVersion": entry.client_version,
        "consumerGroup": entry.group,
        "dead": entry.is_dead,
        "deadTime": entry.dead_ms,
        "expression": entry.text,
        "expressionType": entry.expression_type,
        "topic": entry.topic,
    }


def _pretty(value: Any, depth: int) -> str:
    match value:
        case dict() if value:
            inner = "\t" * (depth + 1)
            fields = [
                f"\n{inner}{_pretty(key, 0)}:{_pretty(item, depth + 1)}"
                for key, item in value.items()
            ]
            return "{" + ",".join(fields) + "\n" + "\t" * depth + "}"
        case dict():
            return "{}"
        case list():
            return "[" + ",".join(map(str, value)) + "]"
        case bool():
            return "true" if value else "false"
        case str():
            return encode_json_text(value).decode()
    return str(value)


def decode_filter_file(raw: bytes) -> list[ConsumerFilter]:
    """The filters of a file, in its order.

    Raises:
        CodecError: the text is not that of such a file.
    """
    filters: list[ConsumerFilter] = []
    topics = object_field(loads_object(raw, _FILE), _FILE, "filterDataByTopic")
    for topic in topics:
        groups = object_field(object_field(topics, _FILE, topic), _FILE, "groupFilterData")
        filters += [
            _filter_from_json(topic, group, object_field(groups, _FILE, group))
            for group in groups
            if groups[group] is not None
        ]
    return filters


def _filter_from_json(topic: str, group: str, data: dict[Any, Any]) -> ConsumerFilter:
    text = str_field(data, _FILE, "expression", "")
    return ConsumerFilter(
        str_field(data, _FILE, "topic", topic),
        str_field(data, _FILE, "consumerGroup", group),
        text,
        str_field(data, _FILE, "expressionType", "SQL92"),
        int_field(data, _FILE, "clientVersion", 0),
        int_field(data, _FILE, "bornTime", 0),
        int_field(data, _FILE, "deadTime", 0),
        _key_from_json(data),
        _compiled(text, optional_str_field(data, _FILE, "expressionType")),
    )


def _key_from_json(data: dict[Any, Any]) -> BloomKey | None:
    bloom = object_field(data, _FILE, "bloomFilterData")
    if not bloom:
        return None
    positions = list_field(bloom, _FILE, "bitPos")
    if not all(type(position) is int for position in positions):
        raise CodecError(f"{_FILE}: bitPos is {positions!r:.80}, not a list of numbers")
    return BloomKey(int_field(bloom, _FILE, "bitNum", 0), tuple(positions))


def _compiled(text: str, expression_type: str | None) -> Expression | None:
    if expression_type not in (None, "SQL92"):
        return None
    try:
        return compile_expression(text)
    except ExpressionIllegal:
        return None

"""The JSON of the files that hold a number per topic.

They are ``config/transactionMetrics`` and ``config/timermetrics``, which differ in one key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cometmq.errors import CodecError
from cometmq.model.topic import DataVersion
from cometmq.wire.body.route import data_version_from_json, data_version_to_json

__all__ = ["CountsFile", "decode_counts", "encode_counts"]


class _Metric(msgspec.Struct, frozen=True, rename="camel"):
    count: int
    time_stamp: int


class CountsFile(msgspec.Struct, frozen=True):
    """The content of such a file."""

    counts: dict[str, tuple[int, int]]
    """Topic to count and the time of its last change, in ms."""
    version: DataVersion


def decode_counts(raw: bytes, key: str) -> CountsFile:
    """Read a file whose counts stand at `key`.

    Raises:
        CodecError: the bytes are no such file.
    """
    try:
        data = msgspec.json.decode(raw, type=dict[str, Any])
        metrics = msgspec.convert(data.get(key, {}), dict[str, _Metric])
        version = msgspec.convert(data.get("dataVersion", {}), dict[str, Any])
    except msgspec.MsgspecError as error:
        raise CodecError(f"a file of {key} does not decode: {error}") from None
    counts = {topic: (metric.count, metric.time_stamp) for topic, metric in metrics.items()}
    return CountsFile(counts, data_version_from_json(version))


def encode_counts(key: str, counts: Mapping[str, tuple[int, int]], version: DataVersion) -> bytes:
    """Write a file whose counts stand at `key`."""
    return msgspec.json.encode(
        {
            "dataVersion": data_version_to_json(version),
            key: {topic: _Metric(count, time_ms) for topic, (count, time_ms) in counts.items()},
        }
    )

"""JSON bodies as columns, by Arrow's JSON reader.

A body that does not match the schema becomes nulls and is counted.  Bisection locates such bodies,
so one bad body among many costs little.
"""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
from pyarrow import json as arrow_json

from cometmq.errors import ConfigError

__all__ = ["parse_bodies", "prefixed"]


def prefixed(schema: Any, prefix: str, reserved: tuple[str, ...]) -> Any:
    """The schema with the prefix before each name.

    Raises:
        ConfigError: a name is reserved for a column of the message.
    """
    fields = [pa.field(prefix + field.name, field.type) for field in schema]
    for field in fields:
        if field.name in reserved:
            raise ConfigError(
                f"JSON column {field.name!r} is also a column of the message; give a prefix,"
                " --json-prefix body_"
            )
    return pa.schema(fields)


def parse_bodies(bodies: Any, schema: Any) -> tuple[list[Any], int]:
    """(one array per field of ``schema``, number of bodies that failed)."""
    lines = []
    failed = 0
    for body in bodies.to_pylist():
        if not body or body.isspace():
            failed += 1
            lines.append(b"{}")
        else:
            lines.append(body.replace(b"\n", b" "))  # in JSON it can only be white space
    tables: list[Any] = []
    failed += _parse(lines, schema, tables)
    table = pa.concat_tables(tables) if tables else schema.empty_table()
    return [table.column(field.name).combine_chunks() for field in schema], failed


def _parse(lines: list[bytes], schema: Any, tables: list[Any]) -> int:
    """Append the lines' rows to ``tables``; returns how many failed."""
    if not lines:
        return 0
    try:
        text = b"\n".join(lines)
        table = arrow_json.read_json(
            io.BytesIO(text),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 2),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        table = None
    if table is not None and table.num_rows == len(lines):
        tables.append(table.select(schema.names).cast(schema))
        return 0
    if len(lines) == 1:
        empty = [pa.nulls(1, field.type) for field in schema]
        tables.append(pa.Table.from_arrays(empty, schema=schema))
        return 1
    middle = len(lines) // 2
    return _parse(lines[:middle], schema, tables) + _parse(lines[middle:], schema, tables)

"""Change events of Canal and Debezium, parsed into one `Change` per changed row; without Spark.

The members of the JSON object distinguish the two kinds.  Canal ("flat message"):

    {"type": "UPDATE", "database": "shop", "table": "orders", "pkNames": ["id"], "isDdl": false,
     "es": 1700000000000, "ts": 1700000000120, "id": 7, "mysqlType": {"id": "bigint"},
     "data": [{"id": "1", "amount": "10"}], "old": [{"amount": "9"}]}

Debezium, with or without its ``schema`` / ``payload`` envelope:

    {"op": "u", "before": {...}, "after": {"id": 1, "amount": 10}, "ts_ms": 1700000000120,
     "source": {"connector": "mysql", "db": "shop", "table": "orders", "ts_ms": ...,
                "file": "binlog.000003", "pos": 484, "row": 0}}

A version is text whose order is that of the events.  MySQL through Debezium: number of the binlog
file, position, row; Postgres: log sequence number; other connectors: time in the source.  Canal:
time of execution, Canal's batch id, row.  Versions of two sources are not comparable.  A snapshot
(``op`` r) is older than every change after its position in the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

__all__ = ["BAD", "COLUMN_TYPES", "DDL", "DELETE", "UPSERT", "Change", "parse_change"]

UPSERT: Final = "UPSERT"
DELETE: Final = "DELETE"
DDL: Final = "DDL"
BAD: Final = "BAD"
#: The types of a column, narrow to wide.
COLUMN_TYPES: Final = ("boolean", "bigint", "double", "string")

_CANAL_ROWS: Final = {"INSERT": UPSERT, "UPDATE": UPSERT, "DELETE": DELETE}
_DEBEZIUM_ROWS: Final = {"c": UPSERT, "u": UPSERT, "r": UPSERT, "d": DELETE}
_INTEGERS: Final = ("tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year")
_CONNECT_TYPES: Final = {
    "int8": "bigint",
    "int16": "bigint",
    "int32": "bigint",
    "int64": "bigint",
    "float": "double",
    "float32": "double",
    "float64": "double",
    "double": "double",
    "boolean": "boolean",
}
_TEXT_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class Change:
    """One changed row, one change of the table (DDL), or one unreadable event (BAD).

    ``row`` holds values as text, null for NULL; ``types`` a type of `COLUMN_TYPES` by column.
    ``key`` is the JSON list of the key's values, in the order of the key's columns.
    """

    op: str
    database: str = ""
    table: str = ""
    key: str | None = None
    version: str = ""
    time_ms: int | None = None
    row: dict[str, str | None] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    text: str = ""
    """The statement of a DDL change, the reason of a bad one."""


def _bad(reason: str, body: bytes) -> list[Change]:
    return [Change(BAD, text=f"{reason}: {body[:_TEXT_MAX].decode('utf-8', 'replace')}")]


def parse_change(body: bytes | None, key_columns: tuple[str, ...] = ()) -> list[Change]:
    """The changes of one body; an unreadable body is one change of kind BAD.

    Args:
        body: JSON; an empty one (Debezium's tombstone after a delete) has no change.
        key_columns: the table's key; default Canal's ``pkNames``, which Debezium lacks.
    """
    if not body:
        return []
    try:
        event = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _bad("not JSON", body)
    if not isinstance(event, dict):
        return _bad("not a JSON object", body)
    try:
        if "isDdl" in event or "mysqlType" in event or "pkNames" in event:
            return _canal(event, key_columns, body)
        payload = event.get("payload", event)
        if isinstance(payload, dict) and isinstance(payload.get("source"), dict):
            return _debezium(payload, event.get("schema"), key_columns, body)
        if "payload" in event and payload is None:
            return []
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return _bad(f"a change event with an unexpected member ({error})", body)
    return _bad("neither a Canal nor a Debezium change event", body)


# -- Canal ----------------------------------------------------------------------------------


def _canal(event: dict[str, Any], key_columns: tuple[str, ...], body: bytes) -> list[Change]:
    kind = str(event.get("type", ""))
    database, table = str(event.get("database") or ""), str(event.get("table") or "")
    time_ms = int(event.get("es") or event["ts"])
    first = f"{time_ms:016d}.{int(event.get('id') or 0):016d}"
    if event.get("isDdl") or kind not in _CANAL_ROWS:
        version = f"{first}.{0:06d}"
        text = str(event.get("sql") or kind)
        return [Change(DDL, database, table, version=version, time_ms=time_ms, text=text)]
    names = key_columns or tuple(event.get("pkNames") or ())
    if not names:
        return _bad("no primary key in pkNames, and none was given", body)
    types = {name: _mysql_type(str(kind)) for name, kind in (event.get("mysqlType") or {}).items()}
    changes = []
    olds = event.get("old") or []
    for number, raw in enumerate(event["data"]):
        row = {name: _text(value) for name, value in raw.items()}
        key = _key(row, names)
        if key is None:
            return _bad(f"a row without its key {', '.join(names)}", body)
        old = olds[number] if number < len(olds) else None
        before = {**row, **{name: _text(value) for name, value in (old or {}).items()}}
        old_key = _key(before, names)
        version = f"{first}.{number:06d}"
        if old_key is not None and old_key != key:
            # The key itself changed, so the row with the old key is deleted.
            changes.append(
                Change(DELETE, database, table, old_key, version, time_ms, before, types)
            )
        op = _CANAL_ROWS[kind]
        changes.append(Change(op, database, table, key, version, time_ms, row, types))
    return changes


def _mysql_type(kind: str) -> str:
    word = kind.lower().split("(")[0].split(" ")[0]
    if word in _INTEGERS and not (word == "bigint" and "unsigned" in kind.lower()):
        return "bigint"
    return "double" if word in ("float", "double", "real") else "string"


# -- Debezium -------------------------------------------------------------------------------


def _debezium(
    payload: dict[str, Any], schema: Any, key_columns: tuple[str, ...], body: bytes
) -> list[Change]:
    source = payload["source"]
    database, table = str(source.get("db") or ""), str(source.get("table") or "")
    time_ms = int(source.get("ts_ms") or payload.get("ts_ms") or 0)
    version = _debezium_version(source, time_ms)
    if "ddl" in payload or payload.get("op") == "t":
        text = str(payload.get("ddl") or "TRUNCATE")
        return [Change(DDL, database, table, version=version, time_ms=time_ms, text=text)]
    op = _DEBEZIUM_ROWS.get(str(payload.get("op")))
    if op is None:
        return _bad(f"op {payload.get('op')!r} is none of c, u, r, d, t", body)
    if not key_columns:
        return _bad("Debezium's body does not name the key: say which columns it has", body)
    raw = payload["before"] if op == DELETE else payload["after"]
    row = {name: _text(value) for name, value in raw.items()}
    types = {name: _json_type(value) for name, value in raw.items() if value is not None}
    types.update(_declared(schema, "before" if op == DELETE else "after"))
    key = _key(row, key_columns)
    if key is None:
        return _bad(f"a row without its key {', '.join(key_columns)}", body)
    return [Change(op, database, table, key, version, time_ms, row, types)]


def _debezium_version(source: dict[str, Any], time_ms: int) -> str:
    if source.get("file") and source.get("pos") is not None:
        number = int(str(source["file"]).rpartition(".")[2])
        # Rows of a snapshot carry its position and come before the changes at that position.
        row = -1 if _is_snapshot(source) else int(source.get("row") or 0)
        return f"{number:012d}.{int(source['pos']):020d}.{row + 1:06d}"
    if source.get("lsn") is not None:
        return f"{int(source['lsn']):020d}.{0 if _is_snapshot(source) else 1}"
    return f"{time_ms:016d}"


def _is_snapshot(source: dict[str, Any]) -> bool:
    return str(source.get("snapshot", "false")).lower() not in ("false", "none", "")


def _declared(schema: Any, member: str) -> dict[str, str]:
    """Column types from the envelope's schema, if it has one."""
    if not isinstance(schema, dict):
        return {}
    for part in schema.get("fields") or ():
        if part.get("field") == member:
            return {
                column["field"]: _CONNECT_TYPES.get(str(column.get("type")), "string")
                for column in part.get("fields") or ()
            }
    return {}


# -- values ---------------------------------------------------------------------------------


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -(2**63) <= value < 2**63 else "string"
    return "double" if isinstance(value, float) else "string"


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return repr(value) if isinstance(value, float) else msgspec.json.encode(value).decode()


def _key(row: dict[str, str | None], names: tuple[str, ...]) -> str | None:
    """The key's values as a JSON list; None if one is missing."""
    values = [row.get(name) for name in names]
    if any(value is None for value in values):
        return None
    return msgspec.json.encode(values).decode()

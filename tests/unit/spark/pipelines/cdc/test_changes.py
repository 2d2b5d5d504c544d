"""Change events of Canal and Debezium, and that their versions order them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.spark.generated_events import canal_binlog, debezium_binlog

from cometmq.spark.pipelines.cdc.events import BAD, DDL, DELETE, UPSERT, Change, parse_change
from cometmq.spark.pipelines.cdc.state import schema_changes, wider

SOURCE = {"connector": "mysql", "db": "shop", "table": "orders", "ts_ms": 5}


def folded(bodies: list[bytes], keys: tuple[str, ...] = ()) -> dict[str, Change]:
    """What is left when every change is held against the newest of its key, by version alone."""
    newest: dict[str, Change] = {}
    for body in bodies:
        for change in parse_change(body, keys):
            assert change.key is not None, change
            old = newest.get(change.key)
            if old is None or (change.version, change.op) > (old.version, old.op):
                newest[change.key] = change
    return {key: change for key, change in newest.items() if change.op == UPSERT}


@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_a_canal_binlog_gives_its_table(seed: int) -> None:
    """Shuffled and repeated, keys that change and rows that come back included."""
    log = canal_binlog(seed, 300)
    state = folded(log.shaken(seed + 1, repeats=60))
    rows = {int(str(change.row["id"])): change.row for change in state.values()}
    assert rows.keys() == log.rows.keys()
    for key, row in rows.items():
        expected = log.rows[key]
        assert row["state"] == expected["state"]
        assert float(str(row["amount"])) == expected["amount"]


@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_a_debezium_binlog_gives_its_table(seed: int) -> None:
    """Also across the change of binlog files."""
    log = debezium_binlog(seed, 300)
    state = folded(log.shaken(seed + 1, repeats=60), ("id",))
    rows = {int(str(change.row["id"])): change.row for change in state.values()}
    assert rows.keys() == log.rows.keys()
    for key, row in rows.items():
        assert row["paid"] == str(log.rows[key]["paid"]).lower()


def debezium(**members: Any) -> bytes:
    """One event of Debezium."""
    source = {**SOURCE, **members.pop("source", {})}
    return json.dumps({"before": None, "after": None, "source": source, **members}).encode()


def test_envelope_with_schema_and_without_say_the_same() -> None:
    """The envelope's schema adds types; everything else is equal."""
    payload = json.loads(debezium(op="c", after={"id": 1, "price": 2.5, "note": None}))
    fields = [{"field": "id", "type": "int32"}, {"field": "note", "type": "string"}]
    schema = {"type": "struct", "fields": [{"field": "after", "fields": fields}]}
    wrapped = json.dumps({"schema": schema, "payload": payload}).encode()
    (bare,) = parse_change(json.dumps(payload).encode(), ("id",))
    (whole,) = parse_change(wrapped, ("id",))
    assert bare.types == {"id": "bigint", "price": "double"}
    assert whole.types == {"id": "bigint", "price": "double", "note": "string"}
    assert (bare.key, bare.row, bare.version) == (whole.key, whole.row, whole.version)
    assert bare.row == {"id": "1", "price": "2.5", "note": None}


def versions(*sources: dict[str, Any]) -> list[str]:
    """Versions of changes with these sources."""
    bodies = [debezium(op="u", after={"id": 1}, source=source) for source in sources]
    return [parse_change(body, ("id",))[0].version for body in bodies]


def test_versions_sort_as_the_binlog_runs() -> None:
    """By number of the file, not its text; then position; then row; a snapshot before them."""
    order = versions(
        {"file": "b.000009", "pos": 9, "snapshot": "true"},
        {"file": "b.000009", "pos": 9, "row": 0},
        {"file": "b.000009", "pos": 9, "row": 1},
        {"file": "b.000009", "pos": 10, "row": 0},
        {"file": "b.000010", "pos": 4, "row": 0},
        {"file": "b.1000000", "pos": 4, "row": 0},
    )
    assert order == sorted(order)
    assert len(set(order)) == len(order)
    postgres = versions({"lsn": 99}, {"lsn": 100}, {"lsn": 1000})
    assert postgres == sorted(postgres)


def test_several_rows_of_an_event_are_ordered() -> None:
    """The last of two changes of one row in one Canal event wins."""
    event = {
        "type": "UPDATE",
        "database": "d",
        "table": "t",
        "pkNames": ["id"],
        "isDdl": False,
        "es": 1,
        "id": 1,
        "data": [{"id": "1", "v": "a"}, {"id": "1", "v": "b"}],
        "old": [{"v": "x"}, {"v": "a"}],
    }
    first, second = parse_change(json.dumps(event).encode())
    assert first.version < second.version
    assert second.row["v"] == "b"


def test_a_changed_key_leaves_no_row_behind() -> None:
    """Canal tells it as one update: the row under the old key is deleted."""
    event = {
        "type": "UPDATE",
        "database": "d",
        "table": "t",
        "pkNames": ["id"],
        "isDdl": False,
        "es": 1,
        "id": 1,
        "data": [{"id": "2", "v": "a"}],
        "old": [{"id": "1"}],
    }
    gone, here = parse_change(json.dumps(event).encode())
    assert (gone.op, gone.key) == (DELETE, '["1"]')
    assert (here.op, here.key) == (UPSERT, '["2"]')


def test_statements_are_told_not_applied() -> None:
    """DDL of both, and a truncation, come as changes of the table's shape."""
    canal = {"isDdl": True, "type": "ALTER", "sql": "ALTER TABLE t ADD c INT", "es": 1, "id": 1}
    (one,) = parse_change(json.dumps(canal).encode())
    assert (one.op, one.text) == (DDL, "ALTER TABLE t ADD c INT")
    (other,) = parse_change(debezium(ddl="DROP TABLE t"))
    assert (other.op, other.text) == (DDL, "DROP TABLE t")
    (emptied,) = parse_change(debezium(op="t"))
    assert (emptied.op, emptied.text) == (DDL, "TRUNCATE")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"hello": 1}', "neither a Canal nor a Debezium"),
        (b"\xff\xff", "not JSON"),
        (debezium(op="x"), "op 'x' is none of"),
        (debezium(op="c", after={"a": 1}), "a row without its key id"),
        (debezium(op="c"), "a change event with an unexpected member"),
        (debezium(op="c", after=[1]), "a change event with an unexpected member"),
        (b'{"isDdl": false, "type": "INSERT", "es": 1, "data": [{"a": "1"}]}', "a row without"),
        (b'{"isDdl": false, "type": "INSERT", "es": "x", "data": []}', "a change event with"),
    ],
)
def test_what_cannot_be_read_has_a_reason(body: bytes, reason: str) -> None:
    """One bad change that says why and shows how the body begins; never an exception."""
    (change,) = parse_change(body, ("id",))
    assert change.op == BAD
    assert change.text.startswith(reason)


def test_debezium_without_a_key_says_what_is_missing() -> None:
    """Its body does not name the key."""
    (change,) = parse_change(debezium(op="c", after={"id": 1}))
    assert (change.op, change.text.split(":")[0]) == (
        BAD,
        "Debezium's body does not name the key",
    )


@pytest.mark.parametrize("body", [None, b"", b'{"schema": null, "payload": null}'])
def test_tombstones_hold_no_change(body: bytes | None) -> None:
    """Debezium sends one after each delete."""
    assert parse_change(body, ("id",)) == []


def test_wider_types() -> None:
    """Integers fit fractions; everything fits text."""
    assert wider(None, "bigint") == "bigint"
    assert wider("bigint", "double") == wider("double", "bigint") == "double"
    assert wider("bigint", "boolean") == wider("string", "double") == "string"


def test_schema_changes_are_sentences() -> None:
    """New columns, other types, statements; a first batch has nothing to compare with."""
    assert schema_changes(None, {"a": "bigint"}) == []
    assert schema_changes(
        {"a": "bigint"}, {"a": "double", "b": "string"}, ["ALTER  TABLE\n t"]
    ) == [
        "statement: ALTER TABLE t",
        "column b is new (string)",
        "column a was bigint and is double",
    ]

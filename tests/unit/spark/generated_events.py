"""Binlog and trace streams from a seed, and what must come out of them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

FIRST_MS = 1_700_000_000_000


@dataclass
class Binlog:
    """Change events of one table in the order they happened, and the table they lead to."""

    bodies: list[bytes] = field(default_factory=list)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)

    def shaken(self, seed: int, *, repeats: int = 0) -> list[bytes]:
        """The same events in another order, some of them twice."""
        chance = random.Random(seed)
        bodies = [*self.bodies, *(chance.choice(self.bodies) for _ in range(repeats))]
        chance.shuffle(bodies)
        return bodies


def canal_binlog(seed: int, events: int, *, keys: int = 20, table: str = "orders") -> Binlog:
    """What Canal would send: several rows an event, keys that change, rows that come back."""
    chance = random.Random(seed)
    log = Binlog()
    for number in range(events):
        # Several statements share a millisecond: only Canal's own number tells their order.
        time_ms = FIRST_MS + number // 3
        kind = chance.choice(("INSERT", "UPDATE", "UPDATE", "DELETE"))
        key = chance.randrange(keys)
        if kind == "UPDATE" and key not in log.rows:
            kind = "INSERT"
        if kind == "INSERT" and key in log.rows:
            kind = "UPDATE"
        if kind == "DELETE" and key not in log.rows:
            kind = "INSERT"
        data, old = [], []
        if kind == "DELETE":
            data.append(_canal_row(log.rows.pop(key)))
        else:
            before = log.rows.get(key)
            row: dict[str, Any] = {
                "id": key,
                "amount": chance.randrange(10_000) / 100,
                "state": chance.choice(("NEW", "PAID", "SENT", None)),
            }
            moved = keys + key
            if before is not None and chance.random() < 0.1 and moved not in log.rows:
                row["id"] = moved
                del log.rows[key]
            log.rows[row["id"]] = row
            data.append(_canal_row(row))
            if before is not None:
                old.append(
                    _canal_row({name: was for name, was in before.items() if row[name] != was})
                )
        event = {
            "data": data,
            "database": "shop",
            "es": time_ms,
            "id": number,
            "isDdl": False,
            "mysqlType": {"id": "bigint", "amount": "double", "state": "varchar(16)"},
            "old": old or None,
            "pkNames": ["id"],
            "sql": "",
            "table": table,
            "ts": time_ms + 5,
            "type": kind,
        }
        log.bodies.append(json.dumps(event).encode())
    return log


def _canal_row(row: dict[str, Any]) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in row.items()}


def debezium_binlog(seed: int, events: int, *, keys: int = 20) -> Binlog:
    """What Debezium's MySQL connector would send, without the schema envelope."""
    chance = random.Random(seed)
    log = Binlog()
    position = 4
    for number in range(events):
        position += chance.randrange(50, 500)
        key = chance.randrange(keys)
        before = log.rows.get(key)
        after: dict[str, Any] | None = {
            "id": key,
            "amount": chance.randrange(10_000) / 100,
            "paid": chance.random() < 0.5,
        }
        op = "u" if before is not None else "c"
        if before is not None and chance.random() < 0.25:
            op, after = "d", None
        if after is None:
            log.rows.pop(key)
        else:
            log.rows[key] = after
        event = {
            "before": before,
            "after": after,
            "source": {
                "connector": "mysql",
                "db": "shop",
                "table": "orders",
                "ts_ms": FIRST_MS,
                # Files change while the stream runs; the number behind the dot leads.
                "file": f"binlog.{9 + number * 4 // max(events, 1):06d}",
                "pos": position,
                "row": 0,
                "snapshot": "false",
            },
            "op": op,
            "ts_ms": FIRST_MS + number,
        }
        log.bodies.append(json.dumps(event).encode())
    return log


@dataclass
class Traced:
    """Bodies of the trace topic, and what they say."""

    bodies: list[bytes] = field(default_factory=list)
    messages: set[str] = field(default_factory=set)
    never_consumed: set[str] = field(default_factory=set)
    repeated: set[tuple[str, str]] = field(default_factory=set)
    failed: set[tuple[str, str]] = field(default_factory=set)
    bad: int = 0
    steps: int = 0


def _record(*fields: object) -> str:
    return "\x01".join(map(str, fields)) + "\x02"


def traced_messages(seed: int, count: int, groups: tuple[str, ...] = ("Billing", "Mail")) -> Traced:
    """Messages that are consumed, retried, lost, consumed twice; bodies of several records."""
    chance = random.Random(seed)
    traced = Traced()
    records = []
    for number in range(count):
        message_id = f"{number:032X}"
        traced.messages.add(message_id)
        at = FIRST_MS + number * 10
        pub = ("Pub", at, "DefaultRegion", "Shop", "Orders", message_id, "TagA", f"k{number}")
        where = ("10.0.0.2:10911", 120, chance.randrange(1, 30), 0, f"{number:040X}", "true")
        records.append(_record(*pub, *where))
        if chance.random() < 0.1:
            traced.never_consumed.add(message_id)
            continue
        for group in groups:
            deliveries = 1
            ends = chance.choice(("good", "good", "good", "retried", "repeated", "failed"))
            if ends in ("retried", "repeated"):
                deliveries = 2
            for delivery in range(deliveries):
                request = f"{chance.randrange(1 << 64):016X}"
                start = at + 20 + delivery * 1000
                is_good = ends in ("good", "repeated") or (ends == "retried" and delivery == 1)
                before = ("SubBefore", start, "DefaultRegion", group, request, message_id)
                records.append(_record(*before, delivery, f"k{number}"))
                after = ("SubAfter", request, message_id, 7, str(is_good).lower(), f"k{number}")
                records.append(_record(*after, 0 if is_good else 4, start + 7, group))
            if ends == "repeated":
                traced.repeated.add((message_id, group))
            if ends == "failed":
                traced.failed.add((message_id, group))
    traced.steps = len(records)
    chance.shuffle(records)
    while records:
        size = chance.randrange(1, 9)
        traced.bodies.append("".join(records[:size]).encode())
        del records[:size]
    for damaged in (b"\xff\xfe\x01", b"Pub\x01abc\x02", b"Sub\x01x\x02", b"\x02"):
        traced.bodies.append(damaged)
    traced.bad = 3
    return traced

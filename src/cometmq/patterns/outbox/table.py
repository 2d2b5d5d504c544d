"""The tables of an outbox, and the form of a message in them.

    cometmq_outbox         a row for each message that is not sent; *waiting*, *retrying* or *dead*;
                           *prepared*, *dropped* or *sent* by `cometmq.patterns.reliable`
    cometmq_outbox_shards  which relay serves a sixteenth of the rows, and until when
    cometmq_outbox_relays  when each relay was last seen

Rows of one order key are in one shard, so one relay at a time sends them, by their ids.
"""

import json
import uuid
import zlib
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql

from cometmq import Message
from cometmq.patterns.base.names import OUTBOX_ID
from cometmq.patterns.base.sql import key_type, short_key

__all__ = [
    "DEAD",
    "DROPPED",
    "OUTBOX",
    "PREPARED",
    "RELAYS",
    "RETRYING",
    "SENT",
    "SHARDS",
    "SHARD_COUNT",
    "WAITING",
    "OutboxRow",
    "outbox_tables",
    "values_of",
]

WAITING: Final = "waiting"
RETRYING: Final = "retrying"
"""A try has failed; ``due_ms`` is the next one's time.  Waiting rows of its key wait behind it."""
DEAD: Final = "dead"
PREPARED: Final = "prepared"
"""Stored before the program has decided; ``due_ms`` is when it is asked, ``tries`` how often."""
DROPPED: Final = "dropped"
"""The program has decided against it; ``due_ms`` is when the row goes, as of a sent one."""
SENT: Final = "sent"
SHARD_COUNT: Final = 16
_FIELDS: Final = (
    "tags",
    "keys",
    "flag",
    "delay_level",
    "message_group",
    "deliver_time_ms",
    "delay_ms",
)


def outbox_tables(metadata: MetaData) -> tuple[Table, Table, Table]:
    """The three tables, for the program's own migrations."""
    long_number = BigInteger().with_variant(Integer, "sqlite")
    body = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    outbox = Table(
        "cometmq_outbox",
        metadata,
        Column("id", long_number, primary_key=True, autoincrement=True),
        Column("uid", String(32), nullable=False),
        Column("shard", Integer, nullable=False),
        Column("order_key", key_type(), nullable=False),
        Column("topic", key_type(), nullable=False),
        Column("body", body, nullable=False),
        Column("fields", Text, nullable=False),
        Column("state", String(8), nullable=False),
        Column("tries", Integer, nullable=False),
        Column("due_ms", BigInteger, nullable=False),
        Column("created_ms", BigInteger, nullable=False),
        Column("error", Text, nullable=False),
        # The only index that a relay's queries can use, whatever statistics a database has.
        Index("cometmq_outbox_state", "state", "id"),
        Index("cometmq_outbox_order", "order_key", "id"),
    )
    shards = Table(
        "cometmq_outbox_shards",
        metadata,
        Column("shard", Integer, primary_key=True, autoincrement=False),
        Column("relay", String(64), nullable=False),
        Column("lease_ms", BigInteger, nullable=False),
    )
    relays = Table(
        "cometmq_outbox_relays",
        metadata,
        Column("relay", String(64), primary_key=True),
        Column("seen_ms", BigInteger, nullable=False),
    )
    return outbox, shards, relays


OUTBOX, SHARDS, RELAYS = outbox_tables(MetaData())


def values_of(message: Message, now_ms: int) -> dict[str, Any]:
    """The column values of a message that is added now."""
    fields = {name: getattr(message, name) for name in _FIELDS}
    fields["properties"] = dict(message.properties)
    uid = uuid.uuid4().hex
    order_key = short_key(message.message_group or "")
    return {
        "uid": uid,
        "shard": zlib.crc32((order_key or uid).encode()) % SHARD_COUNT,
        "order_key": order_key,
        "topic": message.topic,
        "body": bytes(message.body),
        "fields": json.dumps({name: value for name, value in fields.items() if value}),
        "state": WAITING,
        "tries": 0,
        "due_ms": now_ms,
        "created_ms": now_ms,
        "error": "",
    }


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message as the table has it."""

    id: int
    uid: str
    order_key: str
    topic: str
    body: bytes
    fields: str
    state: str
    tries: int
    created_ms: int
    error: str

    def message(self) -> Message:
        """The message to send, with the property `OUTBOX_ID`.

        Raises:
            LocalProtocolError: the row has a value that RocketMQ does not allow.
        """
        fields = json.loads(self.fields)
        properties = {**fields.pop("properties", {}), OUTBOX_ID: self.uid}
        if isinstance(fields.get("keys"), list):
            fields["keys"] = tuple(fields["keys"])
        return Message(self.topic, bytes(self.body), properties=properties, **fields)

"""Adds messages in Django's transactions.

    from cometmq.patterns.outbox.django import add

    with transaction.atomic():
        order.save()
        add(Message("Orders", body, message_group=str(order.id)))

`Outbox(engine).create()` or a migration of the program's own makes the tables.  A `Relay` in
another process, such as ``cometmq outbox relay``, sends the messages.
"""

from typing import Final

from cometmq import Message
from cometmq.patterns.base.clock import Clock, now_ms
from cometmq.patterns.outbox.outbox import CHANNEL
from cometmq.patterns.outbox.table import values_of

__all__ = ["add"]

_TABLE: Final = "cometmq_outbox"


def add(message: Message, *, using: str = "default", clock: Clock = now_ms) -> None:
    """Add a message to the current transaction of a Django database.

    Args:
        message: as for `Outbox.add`.
        using: the name of the database.
        clock: milliseconds since 1970.
    """
    from django.db import connections

    connection = connections[using]
    values = values_of(message, clock())
    names = ", ".join(values)
    marks = ", ".join(["%s"] * len(values))
    with connection.cursor() as cursor:
        statement = f"insert into {_TABLE} ({names}) values ({marks})"  # noqa: S608 - our own names
        cursor.execute(statement, list(values.values()))
        if connection.vendor == "postgresql":
            cursor.execute("select pg_notify(%s, '')", [CHANNEL])

"""Messages that a transaction decides on: stored with its rows, sent after its commit.

- `Outbox.add` stores a message in the program's own SQLAlchemy session.
- A `Relay` sends what is stored; several relays share one table.
- `cometmq.patterns.outbox.django` adds messages in Django's transactions.
"""

from cometmq.patterns.base.names import OUTBOX_ID
from cometmq.patterns.outbox.outbox import Outbox, OutboxStatus
from cometmq.patterns.outbox.relay import Relay, SendsMessages
from cometmq.patterns.outbox.table import OutboxRow, outbox_tables

__all__ = [
    "OUTBOX_ID",
    "Outbox",
    "OutboxRow",
    "OutboxStatus",
    "Relay",
    "SendsMessages",
    "outbox_tables",
]

"""The table of flows."""

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table, Text

from cometmq.patterns.base.sql import key_type

__all__ = ["SAGAS", "sagas_table"]


def sagas_table(metadata: MetaData) -> Table:
    """The table of flows, for the program's own migrations."""
    return Table(
        "cometmq_sagas",
        metadata,
        Column("saga_id", key_type(), primary_key=True),
        Column("name", key_type(), nullable=False),
        Column("state", String(16), nullable=False),
        Column("step", Integer, nullable=False),
        Column("data", Text, nullable=False),
        Column("results", Text, nullable=False),
        Column("tries", Integer, nullable=False),
        Column("error", Text, nullable=False),
        Column("due_ms", BigInteger, nullable=False),
        Column("deadline_ms", BigInteger, nullable=False),
        # The token of the runner that has the flow, and until when.
        Column("token", String(32), nullable=False),
        Column("lease_ms", BigInteger, nullable=False),
        Index("cometmq_sagas_due", "state", "due_ms"),
    )


SAGAS: Final = sagas_table(MetaData())

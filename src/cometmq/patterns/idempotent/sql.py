"""Claims in a SQL table; the insert is the claim."""

import json
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    MetaData,
    String,
    Table,
    Text,
    delete,
    select,
    update,
)

from cometmq.patterns.base.sql import AnyEngine, Database, insert_missing, key_type, short_key
from cometmq.patterns.idempotent.claims import Busy, Claim, Claimed, Handled

__all__ = ["DONE", "PROCESSING", "SqlClaims", "claims_table"]

PROCESSING: Final = "processing"
DONE: Final = "done"
CLEAN_COUNT: Final = 1_000


def claims_table(metadata: MetaData) -> Table:
    """The table of claims, for the program's own migrations."""
    return Table(
        "cometmq_claims",
        metadata,
        Column("group_name", key_type(), primary_key=True),
        Column("claim_key", key_type(), primary_key=True),
        Column("state", String(16), nullable=False),
        Column("token", String(32), nullable=False),
        Column("owner", String(255), nullable=False),
        # Milliseconds since 1970: the end of a claim, or until when a done key is remembered.
        Column("expires_ms", BigInteger, nullable=False, index=True),
        Column("steps", Text, nullable=False),
    )


CLAIMS: Final = claims_table(MetaData())


class SqlClaims:
    """A table ``cometmq_claims`` of SQLite, PostgreSQL, MySQL or MariaDB.

    Args:
        engine: SQLAlchemy's engine, plain or asyncio.

    Raises:
        ConfigTypeError: it is not an engine.
    """

    def __init__(self, engine: AnyEngine) -> None:
        self._database = Database(engine)
        self.is_async = self._database.is_async

    def create(self) -> Any:
        """Create the table where it is missing; a coroutine with an asyncio engine."""
        return self._database.run(partial(CLAIMS.create, checkfirst=True))

    def claim(
        self,
        group: str,
        keys: Sequence[str],
        token: str,
        owner: str,
        now_ms: int,
        expires_ms: int,
        alive: Collection[str] | None,
    ) -> Any:
        """See `ClaimStore`."""

        def work(connection: Connection) -> list[Claim]:
            return claim_keys(connection, group, keys, token, owner, now_ms, expires_ms, alive)

        return self._database.run(work)

    def finish(self, group: str, keys: Sequence[str], now_ms: int, keep_until_ms: int) -> Any:
        """See `ClaimStore`."""
        statement = (
            update(CLAIMS)
            .where(_are(group, keys))
            .values(state=DONE, expires_ms=keep_until_ms, steps="")
        )
        return self._database.run(lambda connection: _execute(connection, statement))

    def release(self, group: str, keys: Sequence[str], token: str) -> Any:
        """See `ClaimStore`.  A claim with steps stays, expired, so that they are not repeated."""
        mine = _are(group, keys) & (CLAIMS.c.token == token) & (CLAIMS.c.state == PROCESSING)
        without_steps = delete(CLAIMS).where(mine, CLAIMS.c.steps == "")
        expired = update(CLAIMS).where(mine).values(expires_ms=0)

        def work(connection: Connection) -> None:
            connection.execute(without_steps)
            connection.execute(expired)

        return self._database.run(work)

    def save_step(self, group: str, key: str, token: str, name: str, value: str) -> Any:
        """See `ClaimStore`."""
        row = _are(group, [key]) & (CLAIMS.c.token == token)

        def work(connection: Connection) -> None:
            text = connection.scalar(select(CLAIMS.c.steps).where(row).with_for_update())
            if text is not None:
                steps = {**_loads(text), name: json.loads(value)}
                connection.execute(update(CLAIMS).where(row).values(steps=json.dumps(steps)))

        return self._database.run(work)

    def clean(self, now_ms: int) -> Any:
        """See `ClaimStore`; at most 1,000 keys a call."""
        old = select(CLAIMS.c.group_name, CLAIMS.c.claim_key).where(
            CLAIMS.c.state == DONE, CLAIMS.c.expires_ms <= now_ms
        )

        def work(connection: Connection) -> int:
            by_group: dict[str, list[str]] = {}
            for group, key in connection.execute(old.limit(CLEAN_COUNT)):
                by_group.setdefault(group, []).append(key)
            for group, keys in by_group.items():
                connection.execute(delete(CLAIMS).where(_are(group, keys), CLAIMS.c.state == DONE))
            return sum(map(len, by_group.values()))

        return self._database.run(work)


def claim_keys(
    connection: Connection,
    group: str,
    keys: Sequence[str],
    token: str,
    owner: str,
    now_ms: int,
    expires_ms: int,
    alive: Collection[str] | None,
) -> list[Claim]:
    """Claim keys in the caller's transaction.

    Sorted, so that two transactions with the same keys wait for each other and never in a circle.
    """
    columns = [short_key(key) for key in keys]
    rows = [
        {
            "group_name": group,
            "claim_key": key,
            "state": PROCESSING,
            "token": token,
            "owner": owner,
            "expires_ms": expires_ms,
            "steps": "",
        }
        for key in sorted(columns)
    ]
    insert_missing(connection, CLAIMS, rows)
    query = select(
        CLAIMS.c.claim_key,
        CLAIMS.c.state,
        CLAIMS.c.token,
        CLAIMS.c.owner,
        CLAIMS.c.expires_ms,
        CLAIMS.c.steps,
    ).where(_are(group, keys))
    claims: dict[str, Claim] = {}
    for key, state, row_token, row_owner, row_expires_ms, steps in connection.execute(query):
        if row_token == token:
            claims[key] = Claimed(_loads(steps))
        elif state == DONE:
            claims[key] = Handled()
        elif row_expires_ms > now_ms and (alive is None or row_owner in alive):
            claims[key] = Busy(row_owner, row_expires_ms)
        else:
            expired = (CLAIMS.c.token == row_token) & (CLAIMS.c.state == PROCESSING)
            taken_over = (
                update(CLAIMS)
                .where(_are(group, [key]), expired)
                .values(token=token, owner=owner, expires_ms=expires_ms)
            )
            is_mine = connection.execute(taken_over).rowcount == 1
            claims[key] = Claimed(_loads(steps)) if is_mine else Busy(row_owner, expires_ms)
    # A row that was deleted between the insert and the query is free at the next try.
    return [claims.get(key, Busy("another call", now_ms)) for key in columns]


def _are(group: str, keys: Sequence[str]) -> Any:
    """The condition on the rows of these keys."""
    columns = [short_key(key) for key in keys]
    return (CLAIMS.c.group_name == group) & CLAIMS.c.claim_key.in_(columns)


def _execute(connection: Connection, statement: Any) -> None:
    connection.execute(statement)


def _loads(steps: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(steps) if steps else {}
    return values

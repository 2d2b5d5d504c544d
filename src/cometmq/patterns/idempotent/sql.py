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
    case,
    delete,
    func,
    select,
    update,
)

from cometmq.patterns.base.clock import Clock, now_ms
from cometmq.patterns.base.sql import (
    AnyEngine,
    Database,
    insert_keys,
    is_one_of,
    key_type,
    short_key,
)
from cometmq.patterns.idempotent.claims import Busy, Claim, Claimed, ClaimsStatus, Handled

__all__ = ["DONE", "PROCESSING", "SqlClaims", "claims_table"]

PROCESSING: Final = "processing"
DONE: Final = "done"
CLEAN_COUNT: Final = 1_000


def claims_table(metadata: MetaData) -> Table:
    """The table of claims, for the program's own migrations.

    Its key begins with the column that differs: with the group in front, PostgreSQL reads all rows
    of a group as long as it has no statistics of the table.
    """
    return Table(
        "cometmq_claims",
        metadata,
        Column("claim_key", key_type(), primary_key=True),
        Column("group_name", key_type(), primary_key=True),
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
        self._dialect = self._database.engine.dialect.name
        self.is_async = self._database.is_async

    def create(self) -> Any:
        """Create the table where it is missing; a coroutine with an asyncio engine."""
        return self._database.run(partial(CLAIMS.create, checkfirst=True))

    def status(self, group: str | None = None, *, clock: Clock = now_ms) -> Any:
        """The `ClaimsStatus` of a group, None: of all; a coroutine with an asyncio engine.

        It counts all rows.
        """
        now = clock()
        expired = case((CLAIMS.c.expires_ms <= now, 1), else_=0)
        query = select(
            CLAIMS.c.state, func.count(), func.sum(expired), func.min(CLAIMS.c.expires_ms)
        ).group_by(CLAIMS.c.state)
        if group is not None:
            query = query.where(CLAIMS.c.group_name == group)

        def work(connection: Connection) -> ClaimsStatus:
            rows = {row[0]: tuple(row) for row in connection.execute(query)}
            _, processing, late, oldest = rows.get(PROCESSING, ("", 0, 0, now))
            done = rows.get(DONE, ("", 0))[1]
            return ClaimsStatus(int(processing), int(late), int(done), max(0, now - int(oldest)))

        return self._database.run(work)

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
            .where(_are(group, keys, self._dialect))
            .values(state=DONE, expires_ms=keep_until_ms, steps="")
        )
        return self._database.run(lambda connection: _execute(connection, statement))

    def release(self, group: str, keys: Sequence[str], token: str) -> Any:
        """See `ClaimStore`.  A claim with steps stays, expired, so that they are not repeated."""
        mine = (
            _are(group, keys, self._dialect)
            & (CLAIMS.c.token == token)
            & (CLAIMS.c.state == PROCESSING)
        )
        without_steps = delete(CLAIMS).where(mine, CLAIMS.c.steps == "")
        expired = update(CLAIMS).where(mine).values(expires_ms=0)

        def work(connection: Connection) -> None:
            connection.execute(without_steps)
            connection.execute(expired)

        return self._database.run(work)

    def save_step(self, group: str, key: str, token: str, name: str, value: str) -> Any:
        """See `ClaimStore`."""
        row = _are(group, [key], self._dialect) & (CLAIMS.c.token == token)

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
                connection.execute(
                    delete(CLAIMS).where(_are(group, keys, self._dialect), CLAIMS.c.state == DONE)
                )
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
    values = {
        "group_name": group,
        "state": PROCESSING,
        "token": token,
        "owner": owner,
        "expires_ms": expires_ms,
        "steps": "",
    }
    inserted = insert_keys(connection, CLAIMS.c.claim_key, sorted(columns), values)
    if inserted is not None and len(inserted) == len(columns):
        return [Claimed() for _ in columns]
    dialect = connection.dialect.name
    others = columns if inserted is None else [key for key in columns if key not in inserted]
    query = select(
        CLAIMS.c.claim_key,
        CLAIMS.c.state,
        CLAIMS.c.token,
        CLAIMS.c.owner,
        CLAIMS.c.expires_ms,
        CLAIMS.c.steps,
    ).where(_are(group, others, dialect))
    claims: dict[str, Claim] = {key: Claimed() for key in inserted or ()}
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
                .where(_are(group, [key], dialect), expired)
                .values(token=token, owner=owner, expires_ms=expires_ms)
            )
            is_mine = connection.execute(taken_over).rowcount == 1
            claims[key] = Claimed(_loads(steps)) if is_mine else Busy(row_owner, expires_ms)
    # A row that was deleted between the insert and the query is free at the next try.
    return [claims.get(key, Busy("another call", now_ms)) for key in columns]


def _are(group: str, keys: Sequence[str], dialect: str) -> Any:
    """The condition on the rows of these keys."""
    columns = [short_key(key) for key in keys]
    return (CLAIMS.c.group_name == group) & is_one_of(CLAIMS.c.claim_key, columns, dialect)


def _execute(connection: Connection, statement: Any) -> None:
    connection.execute(statement)


def _loads(steps: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(steps) if steps else {}
    return values

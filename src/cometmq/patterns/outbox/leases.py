"""Which relay serves which shard: leases in a table, shared evenly by the relays that are alive."""

from math import ceil
from typing import Final

from sqlalchemy import Connection, delete, select, update

from cometmq.patterns.base.sql import insert_new
from cometmq.patterns.outbox.table import RELAYS, SHARD_COUNT, SHARDS

__all__ = ["lease_shards", "release_shards"]

FREE: Final = ""


def lease_shards(connection: Connection, relay: str, now_ms: int, lease_ms: int) -> list[int]:
    """Renew this relay's leases, give up what is above its share, and take what is free.

    A lease that has expired belongs to whoever takes it first; the update's condition decides.
    """
    end_ms = now_ms + lease_ms
    connection.execute(
        insert_new(RELAYS, connection.dialect.name), [{"relay": relay, "seen_ms": now_ms}]
    )
    connection.execute(update(RELAYS).where(RELAYS.c.relay == relay).values(seen_ms=now_ms))
    seen = connection.execute(select(RELAYS.c.relay, RELAYS.c.seen_ms)).all()
    silent = sorted(name for name, seen_ms in seen if seen_ms < now_ms - lease_ms)
    if silent:  # by their keys: a scan would lock the rows of the others in InnoDB
        connection.execute(delete(RELAYS).where(RELAYS.c.relay.in_(silent)))
    share = ceil(SHARD_COUNT / max(1, len(seen) - len(silent)))
    owners = connection.execute(
        select(SHARDS.c.shard, SHARDS.c.relay, SHARDS.c.lease_ms).order_by(SHARDS.c.shard)
    ).all()
    own = [shard for shard, owner, _ in owners if owner == relay]
    mine = [
        shard
        for shard in own[:share]
        if connection.execute(
            update(SHARDS)
            .where(SHARDS.c.shard == shard, SHARDS.c.relay == relay)
            .values(lease_ms=end_ms)
        ).rowcount
    ]
    if own[share:]:
        connection.execute(
            update(SHARDS)
            .where(SHARDS.c.shard.in_(own[share:]), SHARDS.c.relay == relay)
            .values(relay=FREE, lease_ms=0)
        )
    for shard, owner, until_ms in owners:
        if len(mine) >= share:
            break
        if owner != relay and until_ms <= now_ms:
            taking = (
                update(SHARDS)
                .where(SHARDS.c.shard == shard, SHARDS.c.lease_ms <= now_ms)
                .values(relay=relay, lease_ms=end_ms)
            )
            if connection.execute(taking).rowcount:
                mine.append(shard)
    return mine


def release_shards(connection: Connection, relay: str) -> None:
    """Give up all leases at once, at the end of a relay."""
    connection.execute(update(SHARDS).where(SHARDS.c.relay == relay).values(relay=FREE, lease_ms=0))
    connection.execute(delete(RELAYS).where(RELAYS.c.relay == relay))

"""The brokers of each name as replicas: where their logs end, and who follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cometmq.wire.body.ha import HaStatus

__all__ = ["Replica", "has_whole_log", "replicas_of"]


@dataclass(frozen=True, slots=True)
class Replica:
    """One broker of a name.

    `log_end` is a physical offset, and `behind_bytes` how much of the master's log is missing; both
    are None where a broker did not answer.  `state` is ``master``, ``following``, ``not following``
    or ``no answer: ...`` with the reason.
    """

    broker_name: str
    broker_id: int
    address: str
    state: str
    log_end: int | None
    behind_bytes: int | None


def replicas_of(
    broker_name: str, addresses: Mapping[int, str], answers: Mapping[int, HaStatus | Exception]
) -> list[Replica]:
    """Make the rows of one broker name from the answers of its members to 907, by id."""
    master = answers.get(0)
    end = master.max_offset if isinstance(master, HaStatus) else None
    hosts = (
        {_host(slave.address) for slave in master.connections}
        if isinstance(master, HaStatus)
        else set()
    )
    rows = []
    for broker_id, address in sorted(addresses.items()):
        status = answers[broker_id]
        if isinstance(status, Exception):
            state = f"no answer: {status}"
            rows.append(Replica(broker_name, broker_id, address, state, None, None))
            continue
        if status.is_master:
            state, own_end = "master", status.max_offset
        else:
            # RocketMQ's slave does not say whether it follows, but its master has its host.
            is_active = status.client.is_active
            follows = _host(address) in hosts if is_active is None else is_active
            state = "following" if follows else "not following"
            own_end = status.client.max_offset
        behind = None if end is None else max(0, end - own_end)
        rows.append(Replica(broker_name, broker_id, address, state, own_end, behind))
    return rows


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def has_whole_log(rows: Iterable[Replica], last_end: int | None) -> bool:
    """Whether the master's log still ends at `last_end`, and a slave that follows has all of it."""
    rows = list(rows)
    end = next((row.log_end for row in rows if row.state == "master"), None)
    return end == last_end is not None and any(
        row.state == "following" and row.log_end == end for row in rows
    )

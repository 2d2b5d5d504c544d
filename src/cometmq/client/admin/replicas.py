"""The brokers of each name as replicas: where their logs end, and who follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cometmq.wire.body.ha import HaStatus

__all__ = ["Replica", "replicas_of"]


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
    rows = []
    for broker_id, address in sorted(addresses.items()):
        status = answers[broker_id]
        if isinstance(status, Exception):
            state = f"no answer: {status}"
            rows.append(Replica(broker_name, broker_id, address, state, None, None))
            continue
        state = "master" if status.is_master else "not following"
        if status.client.is_active:
            state = "following"
        behind = None if end is None else max(0, end - status.max_offset)
        rows.append(Replica(broker_name, broker_id, address, state, status.max_offset, behind))
    return rows

"""Checks that two members of an ordered group never hold one queue at the same time.

It reads what the members act on, not what the brokers' lock tables say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.model import MessageQueue
from cometmq.testing.loop import Lifetime

if TYPE_CHECKING:
    from cometmq.testing.simulation import Node

__all__ = ["Holders"]


@dataclass(slots=True)
class Holders:
    """Members by consumer group; reports a queue that two members hold to `fail`."""

    fail: Callable[[str], None]
    _members: dict[str, list[tuple[PushConsumer, Lifetime]]] = field(default_factory=dict)

    def add(self, member: PushConsumer, node: Node) -> None:
        """Add a member that starts on a machine."""
        self._members.setdefault(member.group, []).append((member, node.lifetime))

    def check(self) -> None:
        """Compare the queues that the living members hold."""
        for group, members in self._members.items():
            members[:] = [member for member in members if member[1].alive]
            holder: dict[MessageQueue, str | None] = {}
            for member, _ in members:
                for queue in member._locks.owned if member._locks is not None else ():
                    if not member.may_consume(queue):
                        continue
                    if queue in holder:
                        self.fail(
                            f"{group}: both {holder[queue]} and {member.client_id} hold {queue}"
                        )
                    holder[queue] = member.client_id

"""Who may consume a queue in order: never two members at one time.

Job: the members of ordered groups, and whether two of them hold one queue's lock at once.
Must not: ask brokers; what counts is what a member acts on.
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
    """Members by consumer group; `fail` is told of a queue that two of them hold."""

    fail: Callable[[str], None]
    _members: dict[str, list[tuple[PushConsumer, Lifetime]]] = field(default_factory=dict)

    def add(self, member: PushConsumer, node: Node) -> None:
        """A member that begins its life on a machine."""
        self._members.setdefault(member.group, []).append((member, node.lifetime))

    def look(self) -> None:
        """Compare what the living members hold."""
        for group, members in self._members.items():
            members[:] = [one for one in members if one[1].alive]
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

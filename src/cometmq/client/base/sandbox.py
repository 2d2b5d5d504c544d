"""Sandboxes: test environments that share topics with the main environment of a cluster.

A producer in a sandbox marks its messages with a property.  A consumer in a sandbox belongs to the
group ``group%sandbox`` and takes its sandbox's messages only.  A consumer of the main environment
takes the messages without a mark, and those of a sandbox in which its group has no consumer.
Brokers know nothing of it, so it works with RocketMQ's.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from cometmq.client.base.arguments import checked_group, checked_text
from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.routes import RouteBook
from cometmq.client.message.message import SANDBOX_PROPERTY, ReceivedMessage
from cometmq.errors import CometError, ConfigError

__all__ = ["MAIN", "SandboxFilter", "check_sandbox", "group_in", "mark_of"]

log = logging.getLogger("cometmq.client")

MAIN: Final = "main"
"""The environment whose messages have no mark."""
LOOK_INTERVAL_MS: Final = 2_000
"""How often a consumer of the main environment asks which sandboxes have consumers."""


def check_sandbox(sandbox: str | None) -> str | None:
    """The name of a sandbox, which becomes a part of a group's name.

    Raises:
        ConfigError: it is not one.
    """
    if sandbox is None:
        return None
    if not checked_text("sandbox", sandbox) or "%" in sandbox:
        raise ConfigError(f"sandbox is {sandbox!r}; give letters, digits, '_' and '-'")
    return checked_group(sandbox)


def group_in(group: str, sandbox: str | None) -> str:
    """The name of a group in a sandbox.

    Raises:
        ConfigError: the two names together are too long.
    """
    return group if sandbox in (None, MAIN) else checked_group(f"{group}%{sandbox}")


def mark_of(sandbox: str | None) -> str:
    """The property text of a sandbox's messages; empty for the main environment."""
    return "" if sandbox in (None, MAIN) else f"{SANDBOX_PROPERTY}\x01{sandbox}\x02"


class SandboxFilter:
    """Which messages a consumer takes.

    ``group`` is the group's name in the main environment; ``spawn`` runs background work.
    """

    def __init__(
        self,
        sandbox: str,
        group: str,
        calls: BrokerCalls,
        routes: RouteBook,
        spawn: Callable[[Any, str], None],
    ) -> None:
        self._sandbox = sandbox
        self._group = group
        self._calls = calls
        self._routes = routes
        self._spawn = spawn
        self._has_consumer: dict[str, bool] = {}
        self._topics: dict[str, str] = {}
        """A topic in which each sandbox was seen."""
        self._asked_for: set[str] = set()

    def is_ready(self, topic: str, messages: Iterable[ReceivedMessage]) -> bool:
        """Whether it is known who takes these messages; if not, the brokers are being asked."""
        if self._sandbox != MAIN:
            return True
        new = {name for message in messages if (name := message.sandbox)} - set(self._has_consumer)
        for name in new - self._asked_for:
            self._asked_for.add(name)
            self._topics[name] = topic
            self._spawn(self._learn(name), f"sandbox-{name}")
        return not new

    def own_messages(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """The messages for this consumer."""
        if self._sandbox != MAIN:
            return [message for message in messages if message.sandbox == self._sandbox]
        return [
            message
            for message in messages
            if (name := message.sandbox) is None or not self._has_consumer[name]
        ]

    async def refresh(self) -> None:
        """Ask again which sandboxes have consumers."""
        for name in list(self._has_consumer):
            await self._learn(name)

    async def _learn(self, name: str) -> None:
        group = group_in(self._group, name)
        try:
            route = await self._routes.find(self._topics[name])
            has_consumer = False
            for broker in route.broker_datas:
                address = self._routes.any_address(broker.broker_name)
                if address is not None and await self._calls.consumer_ids(address, group):
                    has_consumer = True
                    break
        except CometError as error:
            self._routes.outages.failed(f"list of the members of {group}", error)
        else:
            self._routes.outages.ended(f"list of the members of {group}")
            if self._has_consumer.get(name) is not has_consumer:
                log.info(
                    "messages of the sandbox %s go to %s",
                    name,
                    group if has_consumer else self._group,
                )
            self._has_consumer[name] = has_consumer
        finally:
            self._asked_for.discard(name)

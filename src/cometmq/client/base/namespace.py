"""Namespaces: a client's own set of topics and groups on a cluster that others use too.

The program says ``Orders``; brokers and name servers see ``Space%Orders``, and ``%RETRY%Space%g``
for the retry topic of the group ``g``.  The names of RocketMQ's own topics and groups stay as they
are (``NamespaceUtil`` of RocketMQ 5.4.0).  A client translates where names enter and leave a
request, so that everything inside it has the program's names.
"""

from dataclasses import replace
from typing import Final

from cometmq.client.base.arguments import checked_text
from cometmq.errors import ConfigError
from cometmq.model import MessageQueue, SubscriptionData
from cometmq.model.names import (
    CLIENT_INNER_PRODUCER,
    DLQ_PREFIX,
    RETRY_PREFIX,
    check_topic,
    is_system_group,
    is_system_topic,
    reply_topic,
)
from cometmq.wire.command.command import RemotingCommand

__all__ = ["NO_NAMESPACE", "Namespace"]

_FIELDS: Final = ("topic", "originTopic", "consumerGroup", "producerGroup", "group")
_SHORT_FIELDS: Final = ("a", "b")
"""Producer group and topic in the short header of codes 310, 320 and 325."""
_SHORT_CODES: Final = (310, 320, 325)
_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX)
_REPLY_SUFFIX: Final = reply_topic("")


class Namespace:
    """The translation between the program's names and those on the wire; "" changes nothing.

    Raises:
        ConfigError: the name is not one for a namespace.
    """

    __slots__ = ("name",)

    def __init__(self, name: str | None) -> None:
        self.name = checked_text("namespace", name or "")
        if self.name and (check_topic(self.name) is not None or "%" in self.name):
            raise ConfigError(
                f"namespace is {name!r:.100}; give letters, digits, '_' and '-', at most 127"
            )

    def __bool__(self) -> bool:
        return bool(self.name)

    def wrap(self, name: str) -> str:
        """The name on the wire; one that has the namespace already stays."""
        if not self.name or not name or _is_reserved(name):
            return name
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
        rest = name[len(prefix) :]
        return name if rest.startswith(f"{self.name}%") else f"{prefix}{self.name}%{rest}"

    def unwrap(self, name: str) -> str:
        """The program's name; one of another namespace stays."""
        if not self.name:
            return name
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
        return prefix + name[len(prefix) :].removeprefix(f"{self.name}%")

    def has(self, name: str) -> bool:
        """Whether a name on the wire is one of this namespace; every name is, without one."""
        return not self.name or self.unwrap(name) != name

    def wrap_command(self, command: RemotingCommand) -> None:
        """Translate the header of a request that leaves."""
        fields = command.ext_fields
        for key in _SHORT_FIELDS if command.code in _SHORT_CODES else _FIELDS:
            if key in fields:
                fields[key] = self.wrap(fields[key])

    def unwrap_command(self, command: RemotingCommand) -> None:
        """Translate the header of a request that arrives."""
        fields = command.ext_fields
        for key in _FIELDS:
            if key in fields:
                fields[key] = self.unwrap(fields[key])

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """The queue under its topic's name on the wire."""
        return queue._replace(topic=self.wrap(queue.topic)) if self.name else queue

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """The queue under the program's name of its topic."""
        return queue._replace(topic=self.unwrap(queue.topic)) if self.name else queue

    def wrap_subscription(self, subscription: SubscriptionData) -> SubscriptionData:
        """The subscription under the topic's name on the wire."""
        return replace(subscription, topic=self.wrap(subscription.topic))


def _is_reserved(name: str) -> bool:
    return (
        is_system_topic(name)
        or is_system_group(name)
        or name == CLIENT_INNER_PRODUCER
        or name.endswith(_REPLY_SUFFIX)
    )


NO_NAMESPACE: Final = Namespace(None)

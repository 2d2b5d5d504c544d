"""The messages of the delay gateway: properties that name topic and time, and a plan for each.

The module does no I/O.

A producer sends an ordinary message to the gateway's topic (``DELAY_GATEWAY``).  Its tags, keys,
body and properties are those that its consumers get.  These user properties tell topic and time:

- ``GATEWAY_TOPIC``: the topic of the delivery;
- ``GATEWAY_TIME_MS``: the time of the delivery, in ms since 1970, or ``GATEWAY_DELAY_MS``: the
  delay after the message's creation, in ms.

The gateway delivers the message to that topic with its tags, keys, message group, body and user
properties, and adds

- ``GATEWAY_ID``: the unique id of the producer's message, the same in every repetition;
- ``GATEWAY_DUE_MS``: the time at which it was due.

A message that cannot be delivered goes to the dead-letter topic (``DELAY_GATEWAY_DEAD``) with
all its properties, ``GATEWAY_ID`` and the reason in ``GATEWAY_REASON``.
"""

from dataclasses import dataclass
from typing import Final

from cometmq.model import Message
from cometmq.model.names import SEND_FORBIDDEN_TOPICS, check_topic
from cometmq.model.properties import RESERVED_PROPERTIES

__all__ = [
    "DEAD_LETTER_TOPIC",
    "DUE_MS",
    "GATEWAY_TOPIC",
    "ID",
    "REASON",
    "Broken",
    "Incoming",
    "PlannedDelivery",
    "plan",
]

GATEWAY_TOPIC: Final = "DELAY_GATEWAY"
DEAD_LETTER_TOPIC: Final = "DELAY_GATEWAY_DEAD"
TOPIC: Final = "GATEWAY_TOPIC"
TIME_MS: Final = "GATEWAY_TIME_MS"
DELAY_MS: Final = "GATEWAY_DELAY_MS"
ID: Final = "GATEWAY_ID"
DUE_MS: Final = "GATEWAY_DUE_MS"
REASON: Final = "GATEWAY_REASON"
_OURS: Final = frozenset({TOPIC, TIME_MS, DELAY_MS, ID, DUE_MS, REASON})
REASON_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as it came from the gateway's topic."""

    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    message_group: str | None
    flag: int
    properties: dict[str, str]
    message_id: str
    born_ms: int

    @property
    def stable_id(self) -> str:
        """The id of the producer's message, the same in every repetition."""
        return self.properties.get(ID) or self.message_id

    def outgoing(self, topic: str, extra: dict[str, str]) -> Message:
        """Make the message for another topic, with its user properties and `extra`."""
        own = {k: v for k, v in self.properties.items() if k not in RESERVED_PROPERTIES}
        return Message(
            topic,
            self.body,
            tags=self.tags,
            keys=self.keys,
            properties=own | extra,
            flag=self.flag,
            message_group=self.message_group,
        )

    def dead(self, topic: str, reason: str) -> Message:
        """Make the message for the dead-letter topic."""
        return self.outgoing(topic, {ID: self.stable_id, REASON: reason[:REASON_CHARS_MAX]})


@dataclass(frozen=True, slots=True)
class PlannedDelivery:
    """The topic to which a message is delivered, and when."""

    topic: str
    due_ms: int

    def for_store(self, incoming: Incoming, store_topic: str, now_ms: int) -> Message:
        """Make the message for the gateway's own store, which delivers an overdue one at once."""
        extra = {TOPIC: self.topic, ID: incoming.stable_id, DUE_MS: str(self.due_ms)}
        message = incoming.outgoing(store_topic, extra)
        # A group would put all its messages into one queue of the store, behind a slow topic.
        message.properties = {**message.properties, **_group(incoming)}
        message.message_group = None
        message.deliver_time_ms = self.due_ms if self.due_ms > now_ms else None
        return message


GROUP: Final = "GATEWAY_GROUP"


def _group(incoming: Incoming) -> dict[str, str]:
    return {GROUP: incoming.message_group} if incoming.message_group else {}


def released(incoming: Incoming) -> Message:
    """Make the message for its real topic from the one in the gateway's own store."""
    properties = incoming.properties
    message = incoming.outgoing(properties[TOPIC], {})
    message.message_group = properties.get(GROUP)
    shown = {ID, DUE_MS}
    message.properties = {
        key: value
        for key, value in message.properties.items()
        if key in shown or (key not in _OURS and key != GROUP)
    }
    return message


@dataclass(frozen=True, slots=True)
class Broken:
    """A message that cannot be delivered, and why."""

    reason: str


def plan(incoming: Incoming, gateway_topics: frozenset[str]) -> PlannedDelivery | Broken:
    """Plan a message; ``gateway_topics`` are refused: from them the message would return."""
    properties = incoming.properties
    topic = properties.get(TOPIC)
    if not topic:
        return Broken(f"the property {TOPIC} is missing; it names the topic the message is for")
    fault = check_topic(topic)
    if fault is not None:
        return Broken(f"{TOPIC} is {topic!r:.100}: {fault}")
    if topic in gateway_topics or topic in SEND_FORBIDDEN_TOPICS:
        return Broken(f"{TOPIC} is {topic}, which is not a topic to send to from here")
    for name, start_ms in ((TIME_MS, 0), (DELAY_MS, incoming.born_ms)):
        text = properties.get(name)
        if text is None:
            continue
        if not (text.isascii() and text.isdigit()):
            return Broken(f"{name} is {text!r:.50}, expected a number of milliseconds")
        return PlannedDelivery(topic, start_ms + int(text))
    return Broken(
        f"both {TIME_MS} and {DELAY_MS} are missing; one of them says when the message is due"
    )

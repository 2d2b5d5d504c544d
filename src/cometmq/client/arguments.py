"""What programs pass where several names, queues or subscriptions are meant.

Job: take one where several are meant, and refuse what cannot be meant: a text is a sequence of
characters to Python, and a consumer that pauses the queues ``"o"``, ``"r"``, ``"d"`` does so in
silence, and so does one that pauses the three parts of a single queue, which is a named tuple.
Must not: know what the values are for.
"""

from collections.abc import Iterable, Mapping

from cometmq.errors import ConfigError
from cometmq.model import MessageQueue

__all__ = ["name_list", "queue_list", "subscription_map"]


def name_list(names: Iterable[str]) -> list[str]:
    """The names; a plain text is one name."""
    return [names] if isinstance(names, str) else list(names)


def queue_list(queues: Iterable[MessageQueue] | MessageQueue) -> list[MessageQueue]:
    """The queues; one alone is taken as such.

    Raises:
        ConfigError: something among them is no queue, such as the name of a topic.
    """
    if isinstance(queues, MessageQueue):
        return [queues]
    given = list(queues)
    if not all(isinstance(queue, MessageQueue) for queue in given):
        raise ConfigError(
            f"{queues!r} is no list of MessageQueue; `fetch_queues(topic)` gives those of a topic"
        )
    return given


def subscription_map(subscriptions: object) -> Mapping[str, str]:
    """Tag expressions by topic; None for none.

    Raises:
        ConfigError: it is no mapping.
    """
    if subscriptions is None:
        return {}
    if isinstance(subscriptions, Mapping):
        return subscriptions
    raise ConfigError(
        f"subscriptions is {subscriptions!r}; it must map topics to tag expressions, such as "
        "{'topic': '*'}"
    )

"""Whom dispatchers tell what became of messages: their consumer.

Job: the protocol.  Must not: do anything.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from cometmq.client.handling.handlers import Outcome
from cometmq.client.message.message import ReceivedMessage

__all__ = ["OnDone"]


class OnDone(Protocol):
    """What a dispatcher reports to; called on the loop."""

    def finished(self, assigned: Any, message: ReceivedMessage, outcome: Outcome) -> None:
        """One message was handled."""
        ...

    def finished_all(self, assigned: Any, messages: Sequence[ReceivedMessage]) -> None:
        """All of these messages were handled with success."""
        ...

    def skipped(self, assigned: Any, messages: Sequence[ReceivedMessage]) -> None:
        """These messages of a run will not be handled here."""
        ...

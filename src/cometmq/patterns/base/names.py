"""Names of message properties that patterns set and read."""

from typing import Final

__all__ = ["OUTBOX_ID"]

OUTBOX_ID: Final = "OUTBOX_ID"
"""The id of an outbox's row: equal in every send of it, so that consumers know a repetition."""

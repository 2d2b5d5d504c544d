"""The kinds of offset, kept apart by the type checker; all are integers at run time."""

from typing import NewType

__all__ = ["ConsumerOffset", "PhysicalOffset", "QueueOffset"]

PhysicalOffset = NewType("PhysicalOffset", int)
"""Position in the commit log, counted over all its files."""
QueueOffset = NewType("QueueOffset", int)
"""Number of a message in its queue."""
ConsumerOffset = NewType("ConsumerOffset", int)
"""The next queue offset that a group reads."""

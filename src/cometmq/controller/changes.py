"""A change of a broker set that waits for its turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cometmq.core.replication.replica_set import ReplicaSet, SetRefusal
from cometmq.errors import ControllerError

__all__ = ["SetChange", "SetDecision"]

SetDecision = ReplicaSet | SetRefusal | None
"""What is to be recorded, why not, or None: the set is to be forgotten, or there is none."""


@dataclass(frozen=True, slots=True)
class SetChange:
    """A change that waits for its turn."""

    broker_name: str
    decide: Callable[[ReplicaSet | None], SetDecision]
    done: Callable[[SetDecision], None]
    fail: Callable[[ControllerError], None]

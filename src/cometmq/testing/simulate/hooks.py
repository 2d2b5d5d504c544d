"""Named steps of the servers at which a simulated machine may end.

Job: count how often each step is reached, and end a node at the n-th time of an armed one.  Must
not: choose steps; faults do.

Names: ``disk.<operation>.<part of the store>`` for every disk operation of a broker, and
``<service>.<step>`` for the steps that services tell themselves (transactions, staged batches).
A step counts only in code of the node: what checkers read is the world's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cometmq.testing.loop import NodeCrashed, current_lifetime
from cometmq.testing.simulation import Node

__all__ = ["Hooks"]

_CRASHING: Final = frozenset(
    {"allocate", "create", "remove", "rename", "sync", "sync_dir", "write", "write_atomic"}
)
_PARTS: Final = frozenset(
    {"commitlog", "config", "consumequeue", "index", "staging", "timerlog", "unitjournal"}
)


@dataclass(slots=True)
class _Armed:
    node: Node
    name: str
    hits_left: int
    power_cut: bool
    told: Callable[[str], None]


class Hooks:
    """All named steps of one simulation."""

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()
        self.crashes: Counter[str] = Counter()
        """Nodes that ended at a step, by its name."""
        self.on_step: Callable[[Node], None] = lambda node: None
        """Called at steps between which readers may look: the broker's state is whole there."""
        self._armed: list[_Armed] = []

    def watch_disk(self, node: Node) -> None:
        """Take the operations of a node's disk for steps."""

        def on_operation(operation: str, path: str) -> None:
            if operation in _CRASHING:
                self.reach(node, f"disk.{operation}.{_part(path)}")

        node.disk.on_operation = on_operation

    def at(self, node: Node, service: str) -> Callable[[str], None]:
        """What a service of the node is to call at its steps."""
        return lambda step: self.reach(node, f"{service}.{step.replace(' ', '-')}")

    def reach(self, node: Node, name: str) -> None:
        """The node's code is at a step; it may go no further."""
        if current_lifetime() is not node.lifetime:
            return
        self.hits[name] += 1
        if not name.startswith("disk.") or name.startswith("disk.sync."):
            self.on_step(node)
        for armed in self._armed:
            if armed.node is node and armed.name == name:
                armed.hits_left -= 1
                if armed.hits_left <= 0:
                    self._armed.remove(armed)
                    self.crashes[name] += 1
                    armed.told(name)
                    node.crash(power_cut=armed.power_cut)
                    raise NodeCrashed

    def arm(
        self, node: Node, name: str, hits: int, *, power_cut: bool, told: Callable[[str], None]
    ) -> None:
        """End the node at the `hits`-th time from now that it reaches the step."""
        self._armed.append(_Armed(node, name, hits, power_cut, told))

    def disarm(self) -> None:
        """Nothing ends at a step any more."""
        self._armed.clear()


def _part(path: str) -> str:
    """The part of the store a path lies in."""
    for name in path.split("/"):
        if name in _PARTS:
            return name
    return "root"

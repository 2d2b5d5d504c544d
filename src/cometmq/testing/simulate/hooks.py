"""Named steps of the servers at which a fault may crash a simulated machine.

`Hooks` counts how often each step is reached and crashes a node at the n-th hit of an armed step.
Step names are ``disk.<operation>.<part of the store>`` for the disk operations of a broker, and
``<service>.<step>`` for the steps that services report (transactions, staged batches).  A step
counts only in code of the node, not in code of the checkers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cometmq.testing.loop import NodeCrashed, current_lifetime
from cometmq.testing.simulation import Node

__all__ = ["DISK_STEPS", "SERVICE_STEPS", "Hooks"]

SERVICE_STEPS: Final = frozenset(
    {
        *(f"retention.{step}" for step in ("appended", "dropped", "flushed", "found", "portion")),
        *(f"retention.{step}" for step in ("prepared", "put")),
        *(f"staging.{step}-decision" for step in ("after", "before")),
        *(f"staging.{step}-done" for step in ("after", "before")),
        *(f"staging.slice-{step}" for step in ("announced", "appended")),
        *(f"staging.before-{step}" for step in ("answer", "ledger-file")),
        "staging.staged",
        *(f"timer.{step}" for step in ("before_log", "before_put", "check_written", "put")),
        *(f"timer.{step}" for step in ("log_synced", "placed", "wheel_synced")),
        *(f"transaction.{step}" for step in ("check.pushed", "check.put_back", "discard.put")),
        *(f"transaction.{step}" for step in ("offset.half", "offset.op", "op.before", "op.put")),
        *(f"transaction.{step}" for step in ("commit.put", "half.put")),
        *(f"backlog.{step}" for step in ("copied", "skipped")),
        *(f"gateway.{step}" for step in ("brought", "due", "held", "taken")),
    }
)
"""Every step that services report; totals name those that no run reached."""
DISK_STEPS: Final = frozenset(
    {
        *(f"disk.{step}.commitlog" for step in ("allocate", "create", "remove", "write")),
        *(f"disk.{step}.consumequeue" for step in ("create", "remove", "write")),
        *(f"disk.{step}.{part}" for step in ("create", "write") for part in ("index", "timerlog")),
        *(f"disk.{step}.root" for step in ("create", "remove", "rename", "write")),
        *(
            f"disk.{step}.{part}"
            for step in ("sync", "sync_dir")
            for part in ("commitlog", "consumequeue", "index", "root", "timerlog")
        ),
        *(
            f"disk.write_atomic{step}.{part}"
            for step in ("", ".sync", ".rename", ".sync_dir")
            for part in ("config", "root")
        ),
    }
)
"""The steps of disks that a run must be able to reach; totals name those that none reached."""

_CRASHING: Final = frozenset(
    {
        "allocate",
        "create",
        "remove",
        "rename",
        "sync",
        "sync_dir",
        "write",
        "write_atomic",
        "write_atomic.rename",
        "write_atomic.sync",
        "write_atomic.sync_dir",
    }
)
_PARTS: Final = frozenset(
    {"commitlog", "config", "consumequeue", "index", "staging", "timerlog", "unitjournal"}
)


@dataclass(slots=True)
class _ArmedStep:
    node: Node
    name: str
    hits_left: int
    power_cut: bool
    on_crash: Callable[[str], None]


class Hooks:
    """All named steps of one simulation."""

    def __init__(self, on_step: Callable[[Node], None]) -> None:
        self.hits: Counter[str] = Counter()
        self.crashes: Counter[str] = Counter()
        """Crashes of nodes by the name of the step."""
        self.on_step: Final = on_step
        """Called at steps where the broker's state is consistent, so readers may observe it."""
        self._armed: list[_ArmedStep] = []

    def watch_disk(self, node: Node) -> None:
        """Count the operations of a node's disk as steps."""

        def on_operation(operation: str, path: str) -> None:
            if operation in _CRASHING:
                self.reach(node, f"disk.{operation}.{_part(path)}")

        node.disk.on_operation = on_operation

    def at(self, node: Node, service: str) -> Callable[[str], None]:
        """Return the callback with which a service of the node reports its steps."""
        return lambda step: self.reach(node, f"{service}.{step.replace(' ', '-')}")

    def reach(self, node: Node, name: str) -> None:
        """Count a step of the node's code; crash the node if the step is armed.

        Raises:
            NodeCrashed: the step was armed and its hits are used up.
        """
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
                    armed.on_crash(name)
                    node.crash(power_cut=armed.power_cut)
                    raise NodeCrashed

    def arm(
        self, node: Node, name: str, hits: int, *, power_cut: bool, on_crash: Callable[[str], None]
    ) -> None:
        """Crash the node the `hits`-th time from now that it reaches the step."""
        self._armed.append(_ArmedStep(node, name, hits, power_cut, on_crash))

    def disarm(self) -> None:
        """Forget every armed step."""
        self._armed.clear()


def _part(path: str) -> str:
    """Return the part of the store that a path belongs to."""
    for name in path.split("/"):
        if name in _PARTS:
            return name
    return "root"

"""The shipped test kit: in-process cluster, virtual clock, fault injection, simulator.

`embedded_cluster` and `threaded_cluster` run the real servers on free ports; `simulate` runs
whole clusters on virtual time from seeds, built on `simulation`, which also serves tests of one
scenario.  Names are imported on first use, so that the pytest plugin loads quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cometmq.extras import require

if TYPE_CHECKING:
    from cometmq.testing.clock import VirtualClock
    from cometmq.testing.cluster import (
        EmbeddedCluster,
        embedded_app,
        embedded_cluster,
        threaded_cluster,
    )
    from cometmq.testing.disk import SimDisk
    from cometmq.testing.loop import SimLoop
    from cometmq.testing.network import NetworkFaults, SimNetwork
    from cometmq.testing.simulation import Node, Outcome, World
    from cometmq.testing.workers import SimWorkers

__all__ = [
    "EmbeddedCluster",
    "NetworkFaults",
    "Node",
    "Outcome",
    "SimDisk",
    "SimLoop",
    "SimNetwork",
    "SimWorkers",
    "VirtualClock",
    "World",
    "embedded_app",
    "embedded_cluster",
    "threaded_cluster",
]

require("testing", "cometmq.testing")

_HOME = {
    "EmbeddedCluster": "cluster",
    "NetworkFaults": "network",
    "Node": "simulation",
    "Outcome": "simulation",
    "SimDisk": "disk",
    "SimLoop": "loop",
    "SimNetwork": "network",
    "SimWorkers": "workers",
    "VirtualClock": "clock",
    "World": "simulation",
    "embedded_app": "cluster",
    "embedded_cluster": "cluster",
    "threaded_cluster": "cluster",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"cometmq.testing.{home}"), name)

"""PySpark data sources, sinks and pipelines on top of `arrow`.

    from cometmq.spark import session

    spark = session("orders")
    spark.read.format("cometmq-store").option("topic", "Orders").load("/var/lib/cometmq/store")

Public names are imported on first use, so that a worker imports only what it reads.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cometmq.spark.runtime.spark_session import session

__all__ = ["session"]

_HOME = {"session": "runtime.spark_session"}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"cometmq.spark.{home}"), name)

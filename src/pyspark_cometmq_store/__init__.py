"""Spark finds packages called `pyspark_*` by itself: this one brings `format("cometmq-store")`."""

from cometmq.spark.store.source import StoreSource as DefaultSource

__all__ = ["DefaultSource"]

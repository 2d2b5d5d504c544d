"""Spark finds packages called `pyspark_*` by itself: this one brings `format("cometmq")`."""

from cometmq.spark.live.source import LiveSource as DefaultSource

__all__ = ["DefaultSource"]

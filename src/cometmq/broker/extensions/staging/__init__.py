"""Staged batches: messages that nobody sees until all of their batch are published.

The Spark sink and `cometmq.Staging` use them for exactly-once output.
"""

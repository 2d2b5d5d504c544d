"""Staged batches: a producer stages invisible messages, then publishes all of them at once.

The asyncio and synchronous clients share one set of calls.
"""

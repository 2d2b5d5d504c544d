"""Mapped files, commit log, consume queues, index, flush, recovery, retention, offline readers.

The store is given its disk, workers and clock; it knows neither the wire nor asyncio.
"""

"""The message store: commit log, consume queues, index, timers, recovery, retention, offline tools.

The caller passes disk, workers and clock; the store depends neither on the wire nor on asyncio.
"""

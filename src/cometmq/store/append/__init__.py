"""Appending messages: bytes into the log, units into queues, keys before the index.

One call appends many messages.
"""

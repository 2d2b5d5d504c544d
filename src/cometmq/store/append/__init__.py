"""Appending messages: records to the log, units to queues, keys to the index's list.

One call appends many messages.
"""

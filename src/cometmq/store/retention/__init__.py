"""Retention: deletes expired log files, and first appends again the messages that still wait there.

It also decides when the disk is too full to write.
"""

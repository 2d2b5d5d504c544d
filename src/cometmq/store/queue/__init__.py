"""Consume queues: the units that point into the commit log, their files, extensions and journal.

Units are written in batches by a worker.
"""

"""Consume queues: the units that point into the commit log, their files, extensions and journal.

A worker writes the units in batches.
"""

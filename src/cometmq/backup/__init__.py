"""Backups of a store: made while its broker runs, checked, and restored up to a point in time.

A backup needs no broker: it reads the files of a store, RocketMQ's or ours, and writes into a
folder or an object store (`repository`).  A backup consists of log files, the tables under
``config/`` and a manifest.  Queues, index and timer files follow from the log.
"""

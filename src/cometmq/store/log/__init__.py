"""The commit log: its files, and how they are written, read and flushed.

Every other file of the store can be derived from it.
"""

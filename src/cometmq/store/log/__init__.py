"""The commit log: its files, how they are opened, read and flushed.

Every other file of the store can be derived from it.
"""

"""The index: message key to physical offset.

Entries are built off the hot path and can be derived from the log again.
"""

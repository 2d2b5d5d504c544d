"""Byte layouts: stored message, batch body, queue unit, index entry, properties, ids, hash.

Nothing here does I/O or reads the clock.
"""

"""Idempotent consumption, outbox and saga on the client's public names only.

Empty in this release.
"""

"""Requests of our own, codes 31000 to 31099: bulk pulls and staged batches.

docs/reference/extensions.md lists all of it.
"""

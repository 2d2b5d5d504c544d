"""Staged batches as a producer sees them: stage messages nobody sees, then publish all of them
at once.

Asyncio and synchronous faces share one set of calls.
"""

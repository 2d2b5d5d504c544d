"""Administration of a cluster, with asyncio and without.

Also dead letters and open transactions.
"""

"""Decisions without I/O: routing, groups, rebalance, offsets, filters, retry, delay, order.

Time and chance are arguments; nothing here opens a file or a socket.
"""

"""Membership in a consumer group: subscriptions, rebalance, offsets, watchdog and calls by the
broker.

Push and pull consumers build on it.
"""

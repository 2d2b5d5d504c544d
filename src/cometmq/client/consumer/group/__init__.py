"""Membership in a consumer group: subscriptions, rebalance, offsets, watchdog and broker requests.

Push and pull consumers build on it.
"""

"""Decisions beyond RocketMQ: growing topics and parked message groups.

docs/reference/extensions.md lists all of it.
"""

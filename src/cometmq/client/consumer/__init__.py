"""Push and pull consumers, asyncio and synchronous.

The sub-folders hold one queue, a handler's runs and the group's membership.
"""

"""One queue in a consumer's hands: its pull loop, its offset, its lock.

Nothing here knows the group's other queues.
"""

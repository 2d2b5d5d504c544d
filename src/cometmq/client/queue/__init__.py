"""One queue of a consumer: its pull loop, its offsets and its lock.

Nothing here knows the group's other queues.
"""

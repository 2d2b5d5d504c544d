"""What the client does beyond RocketMQ: growing topics, parking and staged batches.

docs/reference/extensions.md lists all of it.
"""

"""What the broker does beyond RocketMQ: growing topics, bulk pulls and staged batches.

docs/reference/extensions.md lists all of it.
"""

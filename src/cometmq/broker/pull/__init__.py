"""Reading messages: pulls with long polling, filters, single messages by offset or key, and
offsets.

Nothing here changes a message.
"""

"""The way of a message into the store: SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and
replies.

Checks a send, appends it and answers it, alone or as part of a run that one socket read brought.
"""

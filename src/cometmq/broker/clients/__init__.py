"""The broker's view of its clients: heartbeats, group membership, queue locks and calls to
consumers.

It also takes back messages that a consumer could not handle.
"""

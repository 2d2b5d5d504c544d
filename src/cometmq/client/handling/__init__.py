"""Running a user's handler: on the loop, in threads, one message or a list of them at a time.

Each dispatcher reports what became of every message.
"""

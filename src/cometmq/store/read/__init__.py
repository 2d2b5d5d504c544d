"""Reading queues of a live store: by offset, by filter, and in long spans.

Reads never change a file.
"""

"""Reading the queues of an open store: by offset, by filter, and in long spans.

Reads never change a file.
"""

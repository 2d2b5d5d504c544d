"""Which log files expire, and what has to be appended again before they go.

Also the refusal of writes when the disk is too full.
"""

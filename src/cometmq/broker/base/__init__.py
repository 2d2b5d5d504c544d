"""What every part of the broker shares: its state, configuration, counters and the answers to
store failures.

Nothing here serves a request.
"""

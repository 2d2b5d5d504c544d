"""Store directories opened for reading only: inspect, verify, scans.

Nothing here changes a file or takes a lock, so a running broker is not disturbed.
"""

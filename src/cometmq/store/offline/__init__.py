"""A store directory opened for reading only: inspect, verify, scans.

No broker may be harmed by it, also while it runs.
"""

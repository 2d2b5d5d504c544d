"""The delay gateway.

Empty in this release.
"""

"""Backlog rescue: groups pass over old messages, which are dropped or come to them as copies.

`core.group.skipped_ranges` says what a skipped range is.
"""

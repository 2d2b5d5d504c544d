"""Addresses such as ``topic:Orders``: what they hold, and their records as a DataFrame.

The cheap checks (`extents`) run before Spark starts, which takes seconds.
"""

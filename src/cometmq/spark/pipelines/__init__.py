"""The jobs behind `cometmq pipeline NAME`, as functions from DataFrame to DataFrame.

The package imports none of its modules: each command imports its own.
"""

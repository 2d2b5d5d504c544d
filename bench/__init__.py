"""The load programs of `cometmq bench`, and single measurements as scripts.

They run from a clone: `cometmq bench` with an editable installation, `python -m bench` with any.
"""

"""Frames, the state of a connection, and signatures.

`framing` cuts a byte stream into commands, `connection` matches requests and responses.
"""

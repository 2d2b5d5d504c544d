"""Frames: cutting a byte stream into commands, signatures, and a connection's state."""

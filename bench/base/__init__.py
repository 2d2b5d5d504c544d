"""Shared parts of the rows: loads, frames, readings of the machine, server processes."""

"""Bringing log, queues and index of a store directory into agreement at load.

Each rule names the crash or the damage it answers.
"""

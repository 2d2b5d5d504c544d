"""Runs a program's handler: on the loop or in threads, one message or a list of them at a time.

Each dispatcher reports the outcome of every message.
"""

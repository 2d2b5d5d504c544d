"""A message as a program sends it and as a consumer receives it.

Holds the checks of a message's fields and the codec of sends.
"""

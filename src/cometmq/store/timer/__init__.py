"""The timer wheel and timer log of a store, in RocketMQ's format.

The wheel maps a second to the units of the log that are due in it.
"""

"""The timer wheel and the timer log of a store, in RocketMQ's format.

The wheel maps a slot of time to the units of the timer log that are due then.
"""

"""Exact timers: messages wait in the timer topic, found through RocketMQ's timer wheel and timer
log.

Reading happens in workers, delivery on the loop.
"""

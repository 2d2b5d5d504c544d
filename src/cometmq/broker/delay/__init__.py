"""Messages that are delivered later than they are sent.

`levels` serves RocketMQ's delay levels, `wheel` its exact timers; both share what stands here.
"""

"""Copies of a broker's log on other machines: RocketMQ's plain HA protocol, both ends.

`frames` and `links` are the protocol without I/O, `master` and `slave` its two ends on sockets,
`barrier` what a send waits for, and `tables` what a slave copies besides the log.
"""

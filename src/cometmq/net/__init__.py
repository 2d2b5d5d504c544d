"""Transports, TLS, timers and write flow control: the only room with sockets.

It moves bytes and commands; it knows no broker rule.
"""

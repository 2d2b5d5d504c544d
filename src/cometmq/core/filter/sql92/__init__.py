"""SQL92 filter expressions: text, tree, compiled function.

RocketMQ's filter module is the reference for every result.
"""

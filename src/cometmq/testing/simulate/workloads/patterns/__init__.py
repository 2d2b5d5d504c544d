"""The kinds of message around a broker: a shop with an outbox, and flows of several services.

`database` is their SQL database, which fails between a machine and its transactions.
"""

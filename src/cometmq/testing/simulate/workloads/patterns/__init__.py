"""The kinds of message around a broker: a shop with an outbox, a ledger, mails, flows of services.

Their database and their Redis are machines of their own: see `cometmq.testing.sim_service`.
"""

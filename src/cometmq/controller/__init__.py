"""The controller: which broker of a replica set is its master, and which replicas are in sync.

`core.replication` decides, `stores` record, and `server` speaks RocketMQ's controller protocol.
"""
